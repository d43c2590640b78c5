"""What a serving engine was started with → seconds of a round at every k, and how sure they are.

An engine does not say what of a round is drafting and what verifying: c, v and o stay unknown. It
gives the seconds of whole rounds at the k's that it was started with, and those of a target step,
which is a round at k = 0. From there the first drafted token costs more than each further one (the
draft's own overhead), so the straight line through two started k's is taken, below and beyond them
too. A round takes no less than one with a smaller k and no more than one with a larger: half of
what is left between these is the standard deviation of a bend.

One start differs from the next (memory, threads, what else runs): every start has a factor of its
own, by the scatter between starts of one kind where there are several, else by `START_DOUBT`. So do
requests: what a round takes is known as well as those that were answered tell.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from draftbench.acceptance.rounds import Floats, Rounds
from draftbench.planner.recommendation import FEW_DECODED
from draftbench.records import Candidate, Decode
from draftbench.run_folder.run import Run

# Standard deviation of a start's speed where each was started once. Two starts of one server on a
# quiet machine differed by 1 to 3 %.
START_DOUBT = 0.02
_DRAWS = 400


@dataclass(frozen=True, eq=False)
class RoundCosts:
    """Seconds of a round by the k's of one candidate that were started at one concurrency, those of
    a target step at 0; `doubts` are relative standard deviations. Seconds are numbers, or draws
    [draws] of them.
    """

    seconds: Mapping[int, float | Floats]
    doubts: Mapping[int, float]
    name: str = ""
    # How often each was started, at the least.
    starts: int = 1

    @property
    def started(self) -> tuple[int, ...]:
        """The k's that were started, ascending, without the baseline."""
        return tuple(sorted(k for k in self.seconds if k))

    def without(self, k: int) -> RoundCosts:
        """As if k had not been started; the baseline stays."""
        kept = {each: value for each, value in self.seconds.items() if each != k or k == 0}
        return replace(self, seconds=kept)

    def at(self, k: int) -> float | Floats | None:
        """Seconds of a round at k; None where nothing with a draft was started."""
        if k in self.seconds:
            return self.seconds[k]
        return self._between(k)[0] if self.started else None

    def decoding(self, rounds: Rounds) -> Floats | None:
        """Seconds of decoding [..., responses, 2], without and with speculation."""
        each = self.at(rounds.k)
        if each is None:
            return None
        plain, each = np.asarray(self.seconds[0]), np.asarray(each)
        return np.stack(
            [
                plain[..., None] * rounds.tokens,
                each[..., None] * (rounds.rounds + rounds.plain),
            ],
            axis=-1,
        )

    def _between(self, k: int) -> tuple[Floats, Floats]:
        """Seconds at a k that was not started, and the standard deviation of the bend there."""
        known = sorted(self.seconds)
        below = max(each for each in known if each < k)
        above = min((each for each in known if each > k), default=None)
        low = np.asarray(self.seconds[below])
        # With a single start the line begins at the target step.
        lined = self.started if len(self.started) > 1 else (0, *self.started)
        first = max((each for each in lined[:-1] if each < k), default=lined[0])
        second = lined[lined.index(first) + 1]
        start, end = np.asarray(self.seconds[first]), np.asarray(self.seconds[second])
        slope = np.maximum(end - start, 0.0) / (second - first)
        if above is None:
            further = slope * (k - below)
            return low + further, further / 2
        high = np.maximum(low, np.asarray(self.seconds[above]))
        value = np.clip(start + slope * (k - first), low, high)
        return value, np.minimum(value - low, high - value) / 2

    @cached_property
    def redrawn(self) -> RoundCosts:
        """Every start, and every bend between two, drawn anew [draws]."""
        generator = np.random.Generator(np.random.Philox(key=zlib.crc32(self.name.encode())))
        seconds: dict[int, float | Floats] = {
            k: value * np.exp(self.doubts.get(k, START_DOUBT) * generator.standard_normal(_DRAWS))
            for k, value in sorted(self.seconds.items())
        }
        return _Redrawn(
            seconds, self.doubts, self.name, self.starts, generator.standard_normal(_DRAWS)
        )


@dataclass(frozen=True, eq=False)
class _Redrawn(RoundCosts):
    """Draws of seconds [draws]; `bends` [draws] are standard normal."""

    bends: Floats = field(default_factory=lambda: np.zeros(_DRAWS))

    def at(self, k: int) -> float | Floats | None:
        if k in self.seconds:
            return self.seconds[k]
        if not self.started:
            return None
        value, bend = self._between(k)
        drawn: Floats = np.asarray(value + bend * self.bends)
        return drawn


def round_costs(run: Run, candidate: Candidate) -> dict[int, RoundCosts]:
    """The costs of a candidate by the concurrencies at which it was served, ascending: of every k
    that answered enough requests, where the baseline did too.
    """
    own = [row for row in run.decodes if row.block == str(candidate) and row.output_tokens > 1]
    by_load: defaultdict[int, defaultdict[int, list[Decode]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in own:
        by_load[row.batch][row.k].append(row)
    found = {}
    for concurrency, rows in sorted(by_load.items()):
        enough = {k: each for k, each in rows.items() if len(_requests(each)) >= FEW_DECODED}
        if 0 not in enough or len(enough) < 2:
            continue
        starts = {k: _by_start(each) for k, each in enough.items()}
        found[concurrency] = RoundCosts(
            {k: math.exp(np.mean([math.log(s) for s in each])) for k, each in starts.items()},
            {k: math.hypot(_doubt(starts[k]), _error(rows)) for k, rows in enough.items()},
            f"{candidate} {concurrency}",
            min(len(each) for k, each in starts.items() if k),
        )
    return found


def _requests(rows: list[Decode]) -> dict[str, Floats]:
    """Seconds and rounds of each request."""
    sums: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(2))
    for row in rows:
        sums[row.request] += (row.decode_seconds, len(row.proposed))
    return sums


def _error(rows: list[Decode]) -> float:
    """Relative standard error of the seconds of a round, over requests: the longer their contexts,
    the longer their rounds take.
    """
    sums = np.array(list(_requests(rows).values()))
    shares = sums / sums.sum(axis=0)
    influence = shares[:, 0] - shares[:, 1]
    return math.sqrt(len(sums) / (len(sums) - 1) * float(influence @ influence))


def _by_start(rows: list[Decode]) -> list[float]:
    """Seconds of a round, by the repeats of one arm; each repeat is a start."""
    seconds: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        total = seconds[row.process, row.repeat]
        total[0] += row.decode_seconds
        total[1] += len(row.proposed)
    return [spent / rounds for spent, rounds in seconds.values() if spent > 0 and rounds]


def _doubt(starts: list[float]) -> float:
    """Relative standard deviation of the mean over starts: the default one, or what they scatter by
    where that is more, or where there are enough of them to tell.
    """
    logs = np.log(starts)
    scatter = float(logs.std(ddof=1)) if len(starts) > 1 else 0.0
    each = scatter if len(starts) >= 3 else max(scatter, START_DOUBT)
    return each / math.sqrt(len(starts))
