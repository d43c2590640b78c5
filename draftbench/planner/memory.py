"""Sizes of two models and a device → what fits, and what the draft takes from the target's cache.

Counts weights, both caches, and the one activation that sizes alone tell: the target's logits of a
verification pass, in 32 bits, as engines keep them for sampling. All other activations and what an
engine and its allocator need besides are not known here; the caller leaves room for them.

A draft whose context is shorter than the target's is counted with a cache as long as the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.run_folder.observed import Observed

_LOGIT_BYTES = 4


@dataclass(frozen=True)
class Footprint:
    """One model: bytes of its weights, and of its cache per token."""

    weight_bytes: float
    cache_bytes_per_token: float


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A target with and without its draft on a device of `device_bytes`.

    `sequences` of `context` tokens each fit together with the draft, `sequences_alone` without it;
    `max_model_len` is the longest context that `concurrency` sequences may have. 0: does not fit,
    None: memory sets no limit (nothing is kept per token). `logits_bytes` are those of one
    sequence's verification pass.
    """

    device_bytes: float
    concurrency: int
    context: int
    target_weight_bytes: float
    draft_weight_bytes: float
    target_cache_bytes_per_token: float
    draft_cache_bytes_per_token: float
    logits_bytes: float
    sequences_alone: int | None
    sequences: int | None
    max_model_len_alone: int | None
    max_model_len: int | None

    @property
    def target_fits(self) -> bool:
        """Whether the target alone serves the asked load."""
        return self.sequences_alone is None or self.sequences_alone >= self.concurrency

    @property
    def fits(self) -> bool:
        """Whether both serve it."""
        return self.sequences is None or self.sequences >= self.concurrency

    @property
    def bytes_needed(self) -> float:
        """Of both, at the asked load."""
        cache = self.target_cache_bytes_per_token + self.draft_cache_bytes_per_token
        per_sequence = self.context * cache + self.logits_bytes
        weights = self.target_weight_bytes + self.draft_weight_bytes
        return weights + self.concurrency * per_sequence


@dataclass(frozen=True)
class Serving:
    """What a device of `device_bytes` is to serve: sequences decoded together, tokens of each, the
    draft length, and the entries of the target's vocabulary.
    """

    device_bytes: float
    concurrency: int
    context: int
    k: int
    vocabulary: int


def plan(target: Footprint, draft: Footprint, serving: Serving, most: int | None) -> MemoryPlan:
    """Divide what the weights leave among the sequences.

    Args:
        most: the target's own context length, which no `max_model_len` exceeds; None where unknown.
    """
    one_token = _LOGIT_BYTES * serving.vocabulary
    alone = _Room(
        serving.device_bytes - target.weight_bytes, target.cache_bytes_per_token, one_token
    )
    both = _Room(
        alone.free - draft.weight_bytes,
        target.cache_bytes_per_token + draft.cache_bytes_per_token,
        (serving.k + 1) * one_token,
    )
    return MemoryPlan(
        device_bytes=serving.device_bytes,
        concurrency=serving.concurrency,
        context=serving.context,
        target_weight_bytes=target.weight_bytes,
        draft_weight_bytes=draft.weight_bytes,
        target_cache_bytes_per_token=target.cache_bytes_per_token,
        draft_cache_bytes_per_token=draft.cache_bytes_per_token,
        logits_bytes=both.logits,
        sequences_alone=alone.sequences(serving.context),
        sequences=both.sequences(serving.context),
        max_model_len_alone=alone.longest(serving.concurrency, most),
        max_model_len=both.longest(serving.concurrency, most),
    )


def memory_plan(observed: Observed, candidate: Candidate, device_bytes: float) -> MemoryPlan | None:
    """What a run's candidate takes beside its target at the largest batch and the longest context
    that the run measured; None without the facts of both.

    The target as its own draft adds a second cache and no weights, prompt lookup adds nothing.
    """
    facts, own = observed.facts_of(None), _footprint(observed, candidate)
    if facts is None or own is None:
        return None
    question = observed.manifest.question
    serving = Serving(
        device_bytes=device_bytes,
        concurrency=max(question.batches),
        context=_longest(observed),
        k=max(question.ks, default=0),
        vocabulary=facts.vocab_size,
    )
    target = Footprint(facts.weight_bytes, facts.kv_bytes_per_token)
    return plan(target, own, serving, facts.context_length)


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
    cache = min(_longest(observed), facts.context_length) * facts.kv_bytes_per_token
    return cache if own else facts.weight_bytes + cache


def _longest(observed: Observed) -> int:
    return max((t.prompt_tokens + t.output_tokens for t in observed.trajectories), default=0)


def _footprint(observed: Observed, candidate: Candidate) -> Footprint | None:
    if candidate.draft == LOOKUP:
        return Footprint(0, 0)
    own = candidate.draft == SELF
    facts = observed.facts_of(None if own else candidate)
    if facts is None:
        return None
    return Footprint(0 if own else facts.weight_bytes, facts.kv_bytes_per_token)


@dataclass(frozen=True)
class _Room:
    """Bytes beside the weights, and what a sequence takes of them: per token, and for logits."""

    free: float
    per_token: float
    logits: float

    def sequences(self, context: int) -> int | None:
        if not self.per_token and self.free >= 0:
            return None
        each = context * self.per_token + self.logits
        return max(0, int(self.free // each))

    def longest(self, concurrency: int, most: int | None) -> int | None:
        if not self.per_token:
            return most if self.free >= concurrency * self.logits else 0
        tokens = max(0, int((self.free / concurrency - self.logits) // self.per_token))
        return tokens if most is None else min(tokens, most)
