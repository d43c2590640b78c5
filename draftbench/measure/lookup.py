"""Replays prompt lookup: what it would propose wherever a round may start in a response.

The built-in decoder and each serving engine have their own rule. No model runs.
"""

from __future__ import annotations

from itertools import takewhile

from draftbench.decoder.drafters import LookupIndex, LookupRule
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, LookupReplay

# By engine. The built-in decoder, and any engine that is not named, continues the last occurrence
# of the longest n-gram. vLLM 0.32 does so too (v1/worker/gpu/spec_decode/ngram), but always
# proposes k tokens; its older runner, the one on a CPU, takes the first occurrence
# (v1/spec_decode/ngram_proposer.py). llama.cpp looks for one length of n-gram, in the text before
# the newest token, and proposes nothing shorter than that (common/ngram-map.cpp).
VLLM, VLLM_CPU = "vllm", "vllm on a CPU"
LOOKUP_RULES = {VLLM: LookupRule(fills=True), VLLM_CPU: LookupRule(first=True)}


def lookup_index(engine: str | None, longest: int, shortest: int) -> LookupIndex:
    """An empty index that finds what the engine finds; None is the built-in decoder."""
    if engine == "llama.cpp":
        rule = LookupRule(unseen=1, begin=1, least=shortest)
        return LookupIndex(shortest, shortest, rule)
    return LookupIndex(longest, shortest, LOOKUP_RULES.get(engine or "", LookupRule()))


def replay_lookup(
    response: ScoredResponse,
    candidate: Candidate,
    index: LookupIndex,
    window: int,
) -> LookupReplay:
    """What prompt lookup proposes at every start of a round.

    Args:
        index: still empty.
        window: the largest k of the grid.
    """
    index.extend(list(response.prompt.tokens))
    proposed, matched = [], []
    tokens = response.tokens
    for start in range(1, len(tokens)):
        index.extend([tokens[start - 1]])
        proposal = index.lookup(window)
        pairs = zip(proposal, tokens[start:], strict=False)
        proposed.append(len(proposal))
        matched.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return LookupReplay(
        request=response.trajectory.request,
        sample=response.trajectory.sample,
        candidate=candidate,
        window=window,
        proposed=tuple(proposed),
        matched=tuple(matched),
    )
