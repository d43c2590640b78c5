"""Acceptance and speed of a sweep that is still running, over the requests done so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import Sample, alpha, mean_accepted_length
from draftbench.acceptance.intervals import RESAMPLES, Estimate, estimate
from draftbench.drafts.laws import AnyReplay
from draftbench.records import Decode, Key, LookupReplay, Observation, Replay, Trajectory

# Over more requests than this fewer resamples do: the interval moves by less than is shown.
_MANY_REQUESTS, _FEW_RESAMPLES = 1000, 200


def usual_k(ks: Iterable[int]) -> int:
    """The k that is shown where there is room for one: the nearest to 4."""
    return min(ks, key=lambda k: (abs(k - 4), k))


class RunningFigures:
    """α, τ (at `k`) and tokens per second of each candidate, as `acceptance` computes them. A long
    sweep's tokens are not kept, only what each request adds to the sums. A request whose samples
    were added apart counts as two.
    """

    def __init__(self, ks: Sequence[int]) -> None:
        self.k = usual_k(ks)
        self.concurrency = 1  # of what was decoded last
        self._responses: dict[Key, Trajectory] = {}
        self._rates: dict[str, list[Sample]] = {}
        self._lengths: dict[str, list[Sample]] = {}
        # By candidate and concurrency: the last process, and tokens and seconds at each k.
        self._decoded: dict[tuple[str, int], tuple[str, dict[int, tuple[int, float]]]] = {}

    def add(self, records: Iterable[Observation]) -> None:
        """Take in observations; replays only after the responses that they read."""
        replayed: dict[str, list[tuple[Trajectory, AnyReplay]]] = {}
        for record in records:
            match record:
                case Trajectory():
                    bare = copy(record)  # without the numbers of each token
                    for name in ("margins", "argmax"):
                        msgspec.structs.force_setattr(bare, name, ())
                    self._responses[record.key] = bare
                case Replay() | LookupReplay():
                    response = self._responses.get(record.key)
                    if response is not None:
                        replayed.setdefault(str(record.candidate), []).append((response, record))
                case Decode(block=block, concurrency=concurrency, process=process, k=k):
                    # Of concurrent requests only what its last process decoded is comparable.
                    key, self.concurrency = (block, concurrency), concurrency
                    last, sums = self._decoded.get(key, (process, {}))
                    if concurrency > 1 and last != process:
                        sums = {}
                    tokens, seconds = sums.get(k, (0, 0.0))
                    tokens += record.output_tokens - 1
                    sums[k] = tokens, seconds + record.decode_seconds
                    self._decoded[key] = process, sums
        for name, pairs in replayed.items():
            along = CandidateRounds.of(pairs)
            length = mean_accepted_length(along.trajectories, along.at(self.k))
            self._lengths.setdefault(name, []).append(length)
            rate = alpha(pairs)
            if rate is not None:
                self._rates.setdefault(name, []).append(rate)

    def alpha(self, candidate: str) -> Estimate | None:
        """None for drafts without a replay by position, and over fewer than five requests."""
        return _pooled(self._rates.get(candidate))

    def mean_accepted_length(self, candidate: str) -> Estimate | None:
        """τ at `k`; None over fewer than five requests."""
        return _pooled(self._lengths.get(candidate))

    def tokens_per_second(self, candidate: str) -> dict[int, float]:
        """By k, 0 without a draft: of one request, at the concurrency that was decoded last."""
        _, sums = self._decoded.get((candidate, self.concurrency), ("", {}))
        return {k: tokens / seconds for k, (tokens, seconds) in sorted(sums.items()) if seconds > 0}


def _pooled(samples: Sequence[Sample] | None) -> Estimate | None:
    """One figure over the requests of several samples."""
    if not samples:
        return None
    together = replace(
        samples[0],
        requests=tuple(request for sample in samples for request in sample.requests),
        weights=np.concatenate([sample.weights for sample in samples]),
        addends=np.concatenate([sample.addends for sample in samples]),
    )
    few = len(together.requests) <= _MANY_REQUESTS
    return estimate(together, resamples=RESAMPLES if few else _FEW_RESAMPLES)
