"""Facts of the loaded models → what a draft takes from the device beside its target.

Counts weights and KV cache. Activations and the allocator's own needs are not known here.
"""

from __future__ import annotations

from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.store.observed import Observed


def draft_memory(observed: Observed, candidate: Candidate) -> int | None:
    """Bytes of a draft's weights and its KV cache at the traffic's longest context.

    The target as its own draft adds a second cache, prompt lookup nothing. None without facts.
    """
    if candidate.draft == LOOKUP:
        return 0
    own = candidate.draft == SELF
    facts = observed.facts_of(None if own else candidate)
    if facts is None:
        return None
    longest = max((t.prompt_tokens + t.output_tokens for t in observed.trajectories), default=0)
    cache = min(longest, facts.context_length) * facts.kv_bytes_per_token
    return cache if own else facts.weight_bytes + cache
