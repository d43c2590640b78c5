"""Observations as a sweep keeps them → what is known of its candidates so far, in one line.

The figures are those of `acceptance` on the requests done by now, their intervals narrow as the
sweep goes on. Draws nothing and asks for nothing: it is told what was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftbench.acceptance.definitions import Sample, alpha, mean_accepted_length
from draftbench.acceptance.intervals import estimate
from draftbench.acceptance.laws import AnyReplay, law_of
from draftbench.acceptance.rounds import expected_rounds
from draftbench.records import Candidate, Decode, LookupReplay, Observation, Replay, Trajectory
from draftbench.report.text import figure

USUAL_K = 4
_RESAMPLES = 200


class Running:
    """What was observed so far. `k` is the draft length that the running τ is of: the asked one
    nearest to 4.
    """

    def __init__(self, ks: Sequence[int]) -> None:
        self.k = min(ks, key=lambda k: (abs(k - USUAL_K), k))
        self._written: dict[tuple[str, int], Trajectory] = {}
        self._replays: dict[str, dict[tuple[str, int], AnyReplay]] = {}
        self._decodes: dict[tuple[str, int], dict[int, list[float]]] = {}
        self._rows = 1

    def add(self, records: Iterable[Observation]) -> None:
        """Take note of what was kept."""
        for record in records:
            match record:
                case Trajectory():
                    self._written[record.request, record.sample] = record
                case Replay() | LookupReplay():
                    name = str(Candidate(draft=record.draft, quant=record.quant))
                    self._replays.setdefault(name, {})[record.request, record.sample] = record
                case Decode():
                    rows = self._decodes.setdefault((record.block, record.batch), {})
                    sums = rows.setdefault(record.k, [0, 0])
                    sums[0] += record.output_tokens - 1
                    sums[1] += record.decode_seconds
                    self._rows = record.batch

    @property
    def tokens(self) -> int:
        """Output tokens that the target has written."""
        return sum(trajectory.output_tokens for trajectory in self._written.values())

    def words(self, candidate: str) -> list[str]:
        """α and τ at one k, and tokens per second of a candidate, as far as they are known."""
        acceptance = "   ".join(self._acceptance(candidate))
        return [line for line in (acceptance, self._speed(candidate)) if line]

    def _acceptance(self, candidate: str) -> list[str]:
        replays = self._replays.get(candidate, {})
        pairs = [(self._written[key], r) for key, r in replays.items() if key in self._written]
        if len(pairs) < 2:
            return []
        rate = alpha(pairs)
        laws = [law_of(trajectory, replay) for trajectory, replay in pairs]
        length = mean_accepted_length([t for t, _ in pairs], expected_rounds(laws, self.k))
        words = [f"τ {_now(length)} at k = {self.k}"]
        return words if rate is None else [f"α {_now(rate)}", *words]

    def _speed(self, candidate: str) -> str:
        """At the batch size that is being decoded; a row's share where there are several."""
        rates = [
            (f"{tokens / seconds:.3g} at k = {k}" if k else f"{tokens / seconds:.3g} plain")
            for k, (tokens, seconds) in sorted(
                self._decodes.get((candidate, self._rows), {}).items()
            )
            if seconds > 0
        ]
        rows = "" if self._rows == 1 else f", each of {self._rows} rows"
        return f"tokens/s{rows}: {', '.join(rates)}" if rates else ""


def _now(sample: Sample) -> str:
    return figure(estimate(sample, resamples=_RESAMPLES))
