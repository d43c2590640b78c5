"""What a serving engine was started with → seconds of a round at every k, and how sure they are.

An engine does not say what of a round is drafting and what verifying: c, v and o stay unknown. It
gives the seconds of whole rounds at the k's that it was started with, and those of a target step,
which is a round at k = 0. From there the first drafted token costs more than each further one (the
draft's own overhead), so the straight line through two started k's is taken, below and beyond them
too. A round takes no less than one with a smaller k and no more than one with a larger: a quarter
of what is left to the nearer of these is the standard deviation of a bend, half of it outside the
started k's. (Three drafts on llama.cpp, every pair of eight started k's: 294 rounds between the two
were off by 3.7 % root mean square where this says 4.6 %, 180 below them by 11 % where it says 16 %;
the smallest and the largest together by 3.0 %, half of all by less than 1.3 %.)

One start differs from the next (memory, threads, what else runs): every start has a factor of its
own, by the scatter between starts of one kind, `START_DOUBT` counted in (Student's t). So do
requests: what a round takes is known as well as those that were answered tell.

The machine changes meanwhile. Where drafts were started several times, in turns between starts of
the plain server, what all kinds of servers gain or lose alike from one start to the next is taken
out (one slope for a draft's k's and the plain server, least squares). A straight line is enough:
simulated starts that drift, or wander at random, or meet one jump, leave a bias under .2 %, and
intervals cover 92 to 99 %, where the plain rate between neighbours in time is noisier and a mean
over all starts doubts too much. Of the slope as much is left in as chance makes of none (James &
Stein 1961): where a k's starts come long before or after the plain ones, as in runs of earlier
versions, one odd start would move the speed-up by several percent.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.intervals import RESAMPLES, student_quantile
from draftbench.acceptance.rounds import Floats, Rounds
from draftbench.planner.recommendation import FEW_DECODED
from draftbench.records import Candidate, Decode
from draftbench.run_folder.run import Run

# Standard deviation of a start's speed where each was started once. Starts of one server scattered
# by 2.1 to 2.5 % (25 kinds of llama-server, two starts each), by 3.1 % (a larger model, two starts)
# and, of vLLM on a busy machine, by 6.5 to 8.7 %.
START_DOUBT = 0.03
# As much is taken to be known of other machines as so many degrees of freedom tell.
USUAL_FREEDOM = 4


@dataclass(frozen=True, eq=False)
class RoundCosts:
    """Seconds of a round by the k's of one candidate that were started at one concurrency, those of
    a target step at 0; `doubts` are relative standard deviations. Seconds are numbers, or draws
    [draws] of them.
    """

    seconds: Mapping[int, float | Floats]
    doubts: Mapping[int, float]
    name: str = ""
    # How often each was started, and degrees of freedom of what starts scatter by.
    starts: Mapping[int, int] = field(default_factory=dict)
    freedom: int = USUAL_FREEDOM
    # Servers that were running, which a sweep does not start again.
    given: bool = False
    # What was taken out of each, since its starts met a slower machine than the plain ones (log).
    slowed: Mapping[int, float] = field(default_factory=dict)

    @property
    def started(self) -> tuple[int, ...]:
        """The k's that were started, ascending, without the baseline."""
        return tuple(sorted(k for k in self.seconds if k))

    @property
    def turns(self) -> int:
        """How often a sweep came round to its servers: some k's join in a later turn."""
        return max((count for k, count in self.starts.items() if k), default=1)

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
        room = np.minimum(value - low, high - value)
        return value, room / (4 if k > self.started[0] else 2)

    @cached_property
    def redrawn(self) -> RoundCosts:
        """Every start, and every bend between two, drawn anew [draws]."""
        generator = np.random.Generator(np.random.Philox(key=zlib.crc32(self.name.encode())))
        wide = np.sqrt(self.freedom / generator.chisquare(self.freedom, RESAMPLES))
        seconds: dict[int, float | Floats] = {
            k: value
            * np.exp(self.doubts.get(k, START_DOUBT) * wide * generator.standard_normal(RESAMPLES))
            for k, value in sorted(self.seconds.items())
        }
        bends = generator.standard_normal(RESAMPLES)
        return _Redrawn(seconds, self.doubts, freedom=self.freedom, bends=bends)


@dataclass(frozen=True, eq=False)
class _Redrawn(RoundCosts):
    """Draws of seconds [draws]; `bends` [draws] are standard normal."""

    bends: Floats = field(default_factory=lambda: np.zeros(RESAMPLES))

    def at(self, k: int) -> float | Floats | None:
        if k in self.seconds:
            return self.seconds[k]
        if not self.started:
            return None
        value, bend = self._between(k)
        least = self.seconds[max(each for each in self.seconds if each < k)]
        drawn: Floats = np.maximum(value + bend * self.bends, least)
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
    places = {name: at for at, name in enumerate(dict.fromkeys(row.process for row in run.served))}
    running = frozenset(facts.process for facts in run.engines if not facts.started)
    found = {}
    for concurrency, rows in sorted(by_load.items()):
        starts = {k: found_at for k, each in rows.items() if (found_at := _starts(each, running))}
        if 0 not in starts or len(starts) < 2:
            continue
        speeds = {
            k: [_Start(places[start[0].process], _log_seconds(start)) for start in each]
            for k, each in starts.items()
        }
        slope, slope_error = _trend(speeds)
        scatter, freedom = _scatter(
            ([start.log - slope * start.place for start in each] for each in speeds.values()),
            fitted=slope_error > 0,
        )
        error = scatter * slope_error
        slope *= max(0.0, 1 - (error / slope) ** 2) if slope else 0.0
        middles = {k: fmean(start.place for start in each) for k, each in speeds.items()}
        slowed = {k: slope * (place - middles[0]) for k, place in middles.items()}
        found[concurrency] = RoundCosts(
            {
                k: math.exp(fmean(start.log for start in each) - slowed[k])
                for k, each in speeds.items()
            },
            {
                k: math.hypot(
                    scatter / math.sqrt(len(each)),
                    error * (middles[k] - middles[0]),
                    _error(list(chain(*each))),
                )
                for k, each in starts.items()
            },
            f"{candidate} {concurrency}",
            {k: len(each) for k, each in starts.items()},
            freedom,
            given=bool(running),
            slowed=slowed,
        )
    return found


class _Start(NamedTuple):
    """Which of the run's starts it was, and the logarithm of the seconds of its rounds."""

    place: int
    log: float


def _requests(rows: list[Decode]) -> dict[str, Floats]:
    """Seconds and rounds of each request."""
    sums: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(2))
    for row in rows:
        sums[row.request] += (row.decode_seconds, len(row.proposed))
    return sums


def _error(rows: list[Decode]) -> float:
    """Relative standard error of the seconds of a round, over requests: the longer their contexts,
    the longer their rounds take. Widened as Student's t is for few of them.
    """
    sums = np.array(list(_requests(rows).values()))
    shares = sums / sums.sum(axis=0)
    influence = shares[:, 0] - shares[:, 1]
    error = math.sqrt(len(sums) / (len(sums) - 1) * float(influence @ influence))
    return error * student_quantile(0.975, len(sums) - 1) / 1.96


def _starts(rows: list[Decode], running: Set[str]) -> list[list[Decode]]:
    """Every start that answered enough requests; each repeat of an arm is one, and so is each
    process that measured it. All visits to a server that was `running` are of one start.
    """
    by_start: defaultdict[tuple[str, int] | None, list[Decode]] = defaultdict(list)
    for row in rows:
        by_start[None if row.process in running else (row.process, row.repeat)].append(row)
    return [
        own
        for own in by_start.values()
        if len(_requests(own)) >= FEW_DECODED
        and np.sum(list(_requests(own).values()), axis=0).all()
    ]


def _log_seconds(rows: list[Decode]) -> float:
    """Logarithm of the seconds of a round in one start."""
    spent, rounds = np.sum(list(_requests(rows).values()), axis=0).tolist()
    return math.log(spent / rounds)


def _trend(starts: Mapping[int, Sequence[_Start]]) -> tuple[float, float]:
    """What a start takes more than the one before it, whichever kind it is of, and the standard
    error of that in standard deviations of a start; zeros where no k was started twice.
    """
    if max(len(each) for k, each in starts.items() if k) < 2:
        return 0.0, 0.0
    along = together = 0.0
    for each in starts.values():
        place, log = fmean(start.place for start in each), fmean(start.log for start in each)
        along += sum((start.place - place) ** 2 for start in each)
        together += sum((start.place - place) * (start.log - log) for start in each)
    return (together / along, along**-0.5) if along else (0.0, 0.0)


def _scatter(starts: Iterable[Sequence[float]], *, fitted: bool) -> tuple[float, int]:
    """Standard deviation of a start's speed with its degrees of freedom, of which a trend that was
    `fitted` took one: that of the starts of one kind, and what is usual.
    """
    squares, freedom = USUAL_FREEDOM * START_DOUBT**2, USUAL_FREEDOM - fitted
    for logs in starts:
        squares += sum((each - fmean(logs)) ** 2 for each in logs)
        freedom += len(logs) - 1
    return math.sqrt(squares / freedom), freedom
