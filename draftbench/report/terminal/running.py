"""Observations as a sweep keeps them → what is known of its candidates so far, in one line.

The figures are those of `acceptance` on the requests done by now, their intervals narrow as the
sweep goes on. Draws nothing and asks for nothing: it is told what was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from draftbench.acceptance.definitions import Sample, alpha, mean_accepted_length
from draftbench.acceptance.intervals import RESAMPLES, estimate
from draftbench.acceptance.laws import AnyReplay, law_of
from draftbench.acceptance.rounds import expected_rounds
from draftbench.records import Decode, LookupReplay, Observation, Replay, Trajectory
from draftbench.report.terminal.text import figure

USUAL_K = 4
# Up to so many requests are drawn as often as by `acceptance`, so that one figure has one interval.
# Of more requests fewer do: an interval moves by less than is shown, and the sweep waits less.
_MANY, _FEW_RESAMPLES = 1000, 200


@dataclass
class _Pace:
    """Tokens and seconds by k of one candidate at one batch size; k = 0 is plain decoding."""

    process: str
    sums: dict[int, tuple[int, float]] = field(default_factory=dict)

    def add(self, row: Decode) -> None:
        tokens, seconds = self.sums.get(row.k, (0, 0.0))
        self.sums[row.k] = tokens + row.output_tokens - 1, seconds + row.decode_seconds


class Running:
    """What was observed so far. `k` is the draft length that the running τ is of: the asked one
    nearest to 4.

    Only what the figures need of each response is kept, so that a long sweep's memory and its
    drawing do not grow with the tokens. A request whose samples were kept apart counts as two.
    """

    def __init__(self, ks: Sequence[int]) -> None:
        self.k = min(ks, key=lambda k: (abs(k - USUAL_K), k))
        self._written: dict[tuple[str, int], Trajectory] = {}
        self._rates: dict[str, list[Sample]] = {}
        self._lengths: dict[str, list[Sample]] = {}
        self._decodes: dict[tuple[str, int], _Pace] = {}
        self._rows = 1

    def add(self, records: Iterable[Observation]) -> None:
        """Take note of what was kept."""
        replayed: dict[str, list[tuple[Trajectory, AnyReplay]]] = {}
        for record in records:
            match record:
                case Trajectory():
                    bare = msgspec.structs.replace(record, margins=(), argmax=())
                    self._written[record.request, record.sample] = bare
                case Replay() | LookupReplay():
                    name = str(record.candidate)
                    response = self._written.get((record.request, record.sample))
                    if response is not None:
                        replayed.setdefault(name, []).append((response, record))
                case Decode(stop_below=None):
                    self._decoded(record)
        for name, pairs in replayed.items():
            self._replayed(name, pairs)

    def _decoded(self, row: Decode) -> None:
        """Of a batch only what its last process decoded can be compared: `store.observed`."""
        pace = self._decodes.get((row.block, row.batch))
        if pace is None or (row.batch > 1 and row.process != pace.process):
            pace = self._decodes[row.block, row.batch] = _Pace(row.process)
        pace.add(row)
        self._rows = row.batch

    def _replayed(self, name: str, pairs: Sequence[tuple[Trajectory, AnyReplay]]) -> None:
        rounds = expected_rounds([law_of(*pair) for pair in pairs], self.k)
        length = mean_accepted_length([trajectory for trajectory, _ in pairs], rounds)
        self._lengths.setdefault(name, []).append(length)
        rate = alpha(pairs)
        if rate is not None:
            self._rates.setdefault(name, []).append(rate)

    @property
    def tokens(self) -> int:
        """Output tokens that the target has written."""
        return sum(trajectory.output_tokens for trajectory in self._written.values())

    def words(self, candidate: str) -> list[str]:
        """α and τ at one k, and tokens per second of a candidate, as far as they are known."""
        acceptance = "   ".join(self._acceptance(candidate))
        return [line for line in (acceptance, self._speed(candidate)) if line]

    def _acceptance(self, candidate: str) -> list[str]:
        words = []
        for symbol, known, at in (
            ("α", self._rates, ""),
            ("τ", self._lengths, f" at k = {self.k}"),
        ):
            samples = known.get(candidate, [])
            if sum(len(sample.requests) for sample in samples) > 1:
                words.append(f"{symbol} {_now(samples)}{at}")
        return words

    def _speed(self, candidate: str) -> str:
        """At the batch size that is being decoded; a row's share where there are several."""
        pace = self._decodes.get((candidate, self._rows), _Pace(""))
        rates = [
            (f"{tokens / seconds:.3g} at k = {k}" if k else f"{tokens / seconds:.3g} plain")
            for k, (tokens, seconds) in sorted(pace.sums.items())
            if seconds > 0
        ]
        rows = "" if self._rows == 1 else f", each of {self._rows} rows"
        return f"tokens/s{rows}: {', '.join(rates)}" if rates else ""


def _now(samples: Sequence[Sample]) -> str:
    """One figure of requests that were kept in several parts."""
    whole = replace(
        samples[0],
        requests=tuple(request for sample in samples for request in sample.requests),
        weights=np.concatenate([sample.weights for sample in samples]),
        addends=np.concatenate([sample.addends for sample in samples]),
    )
    draws = RESAMPLES if len(whole.requests) <= _MANY else _FEW_RESAMPLES
    return figure(estimate(whole, resamples=draws))
