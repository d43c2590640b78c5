"""Measures how often the intervals and decisions of `recommend` are right, on simulated runs whose
true speed-ups are known.

    python scripts/check_intervals.py --out coverage.jsonl  # 400 trials of every cell
    python scripts/check_intervals.py --out coverage.jsonl --cell noise-4  # one cell; resumes
    python scripts/check_intervals.py --cell few-decoded --trials 50  # nothing is kept

A trial draws requests from a population, makes the records that a sweep would have kept, and hands
them to `recommend`. What is true is computed from the whole population:

- **Requests.** The population has 4,000: each has a length, and for each draft the probability that
  a token is accepted. Expected rounds are linear in every a_j, so those of the population follow
  from the probabilities. A replay is one 0 or 1 per position.
- **Costs.** A target pass takes max(1, tokens / knee); a draft step takes as much as gives the
  draft's best k the speed-up that the cell names. In the decoder all rounds of a draft take longer
  or shorter by a factor (`in_decoder` is its sd), and `constant` target steps more, which no timed
  pass shows. Both are true.
- **Noise**, which is not true. `visits` is the sd that all samples of one visit to a draft's passes
  share. `noise` is the sd of a speed-up, shared by all requests that one process decodes at one k:
  a factor on its rounds, and another on the baseline of the block.
- **Timing.** If it `stops` by itself, there are as many visits as in a sweep, and c is judged.
- **Engines.** Servers are started in turns as in a sweep, the one without a draft first and after
  each turn, each k chosen by the answers so far. `start` is the sd between starts, `request` that
  between requests at every k with a draft, `drift` how much slower each start is than the one
  before. The line of rounds over k bends where their tokens reach the knee. The figures shown for
  k's that were not started are judged too ("line").
- **Assumptions** that are broken on purpose: `by_k` is what rounds at a k gain or lose with every
  draft, `stalls` the share of decoded runs in which one round stalls, `alike` how many requests in
  a row are of one kind, as from one user, although requests count as independent.
- **Objectives.** By latency both prefills are part of the truth; by throughput the load is chosen
  too, and the figure that decides it is judged as "asked".
- **Until settled.** The answer is that of the first wave of requests that settles it, and is judged
  as any other; how often it is that of all requests is said too.
- **Gate.** Half of the processes decode before a change that makes rounds slower by `drop`, half
  after it; the limit is `speedup:5%`.

An interval covers if the true speed-up of its configuration lies in it; a cell holds if the 95%
interval of the share (Wilson 1927) reaches the aim. *Speculate* is wrong if the true speed-up of
the choice is under 1, which may happen in 3% of all trials; *missed* is a refusal of what would
have paid. Regret is how much slower the leader is than the best configuration. The choice is right
if it is within timing noise of the best; the stated probability of that may be .1 too high.
Probabilities and losses (as a share of the best) are those of the first load, stated → true.

A trial depends only on the name of its cell and its number. Trials that are in the file are not
computed again, so every version of the program needs a new file.
"""

from __future__ import annotations

import argparse
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import msgspec
import numpy as np
from simulated_engines import EngineWorld, Starts
from simulated_runs import SPREADS, Scenario, World

from draftbench.acceptance.intervals import Estimate
from draftbench.gate.judge import judge
from draftbench.gate.make_baseline import make_baseline
from draftbench.gate.metrics import parse_limit
from draftbench.planner.decide import TIMING_NOISE
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import SETTLES, Evaluation, Objective, Recommendation
from draftbench.planner.what_to_measure import settled_after
from draftbench.records import SAMPLES_PER_VISIT
from draftbench.run_folder.run import Run, part_of

TRIALS = 400
MOST_WRONG, SETTLED, MOST_OVERSTATED = 0.03, 0.85, 0.1
# How often intervals of k's that were not started should cover.
LINE_AIM = 0.88
# Most requests that are drawn for a run of the advised size.
MOST_REQUESTS = 1500


@dataclass(frozen=True)
class Cell(Scenario):
    """A scenario and what is judged of it."""

    aim: float | None = 0.90  # how often intervals should cover
    loads: tuple[int, ...] = (1,)  # that are decided for
    figures: bool = False  # whether α, τ and the prediction are judged instead of a decision
    advised: bool = False  # whether an open decision is followed by a run of the advised size
    gated: bool = False  # whether the gate judges the later half of the processes by the earlier
    drop: float = 0.0  # how much slower the later half is
    until_settled: bool = False  # whether the sweep ends with the wave that settles the answer
    objective: Objective = "speedup"

    @property
    def crosses(self) -> bool:
        """Whether it is asked up to how many rows speculation pays."""
        return len(self.concurrency) > 1 and not isinstance(self, Starts)


@dataclass(frozen=True)
class EngineCell(Starts, Cell):
    """A cell of a sweep on an engine; the figures of k's that were not started are judged too."""


_FIGURES = Cell(decoded=(0,), in_decoder=0, visits=0, ks=(4,), figures=True)
_NOTHING_DECODED = Cell(decoded=(0,), in_decoder=0)
_STOPS = replace(_NOTHING_DECODED, speedup=1.15, stops=True)
_GATE = Cell(decoded=(24,), in_decoder=0, ks=(4,), processes=6, gated=True)
_ADVISED = Cell(24, (24,), shape="mild", in_decoder=0, visits=0, ks=(4,), advised=True)
_THREE = Cell(48, (24, 24, 24), noise=0.023, promise=(1.0, 0.97, 0.94))
_SETTLED = Cell(4096, (24,), noise=0.023, speedup=1.0, until_settled=True)
_ENGINE = EngineCell(24, (24,))
CELLS = {
    **{
        f"figures-{requests}-{shape}": replace(_FIGURES, requests=requests, shape=shape)
        for requests in (5, 12, 24, 48, 96)
        for shape in SPREADS
    },
    "noise-0": Cell(),
    "noise-2.3": Cell(noise=0.023),
    "noise-2.3-few-requests": Cell(12, (12, 12), noise=0.023),
    "unequal-requests": Cell(12, (12, 12), shape="heavy", noise=0.023),
    "noise-4": Cell(noise=0.04),
    "noise-4-many-requests": Cell(96, noise=0.04),
    "noise-4-three-processes": Cell(noise=0.04, processes=3),
    "noise-7": Cell(noise=0.07, aim=0.85),
    "no-gain": Cell(noise=0.023, speedup=1.0),
    "no-gain-noise-4": Cell(noise=0.04, speedup=1.0),
    "parted": Cell(decoded=(16, 16), noise=0.023, parted=True),
    "constant": Cell(noise=0.016, in_decoder=0.02, constant=0.1, ks=(1, 2, 4, 8)),
    "six-drafts": Cell(
        48, (24,) * 6, noise=0.04, speedup=0.985, promise=(1.0,) * 6, ks=(4,), in_decoder=0
    ),
    "interpolated": Cell(
        24,
        (24,),
        speedup=1.6,
        ks=(1, 2, 4),
        concurrency=(1, 4, 16),
        knees=(12.0, 36.0),
        loads=(4, 8, 12, 16),
        aim=0.88,
    ),
    "nothing-decoded": replace(_NOTHING_DECODED, in_decoder=0.06),
    "nothing-decoded-noisy": replace(_NOTHING_DECODED, speedup=0.99, visits=0.2),
    "nothing-decoded-wild": replace(_NOTHING_DECODED, speedup=0.99, visits=0.4),
    "leader-not-decoded": Cell(decoded=(24, 0), promise=(1.0, 1.1)),
    "few-decoded": Cell(13, (13, 2), speedup=1.0, promise=(1.0, 1.05)),
    "timing-stops-2": replace(_STOPS, visits=0.02),
    "timing-stops-10": replace(_STOPS, visits=0.10),
    "timing-stops-30": replace(_STOPS, visits=0.30),
    "timing-stops-few": replace(_STOPS, requests=12, visits=0.10),
    "timing-stops-capped": replace(_STOPS, requests=12, visits=0.30, cells=1),
    "gate-1.6": replace(_GATE, noise=0.016),
    "gate-3": replace(_GATE, noise=0.03),
    "gate-5": replace(_GATE, noise=0.05),
    "gate-3-one-process": replace(_GATE, noise=0.03, processes=2),
    "gate-1.6-drop-15": replace(_GATE, noise=0.016, drop=0.15),
    "advised-1.06": replace(_ADVISED, speedup=1.06),
    "advised-1.10": replace(_ADVISED, speedup=1.10),
    "advised-any": replace(_ADVISED, speedup=1.08, spread=0.2),
    "engine-0": _ENGINE,
    "engine-2": replace(_ENGINE, start=0.02),
    "engine-4": replace(_ENGINE, start=0.04, aim=0.85),
    "engine-4-few-requests": replace(_ENGINE, requests=12, decoded=(12,), start=0.04, aim=0.85),
    "engine-4-two-drafts": replace(_ENGINE, requests=48, decoded=(48, 48), start=0.04, aim=0.85),
    "engine-4-no-gain": replace(_ENGINE, start=0.04, speedup=0.99, aim=0.85),
    "engine-10": replace(_ENGINE, start=0.10, aim=0.85),
    "engine-10-no-gain": replace(_ENGINE, start=0.10, speedup=0.99, aim=0.85),
    "engine-4-two-starts": replace(_ENGINE, start=0.04, restarts=2, aim=0.85),
    "engine-2-three-starts": replace(_ENGINE, start=0.02, restarts=3),
    "engine-4-three-starts": replace(_ENGINE, start=0.04, restarts=3),
    "engine-10-three-starts": replace(_ENGINE, start=0.10, restarts=3),
    "engine-10-three-starts-no-gain": replace(_ENGINE, start=0.10, restarts=3, speedup=0.99),
    "engine-10-six-drafts-no-gain": replace(
        _ENGINE,
        requests=48,
        decoded=(24,) * 6,
        promise=(1.0,) * 6,
        start=0.10,
        speedup=0.985,
        aim=0.85,
    ),
    "engine-2-requests-differ": replace(_ENGINE, start=0.02, request=0.2),
    "engine-4-latency": replace(_ENGINE, start=0.04, prefills=True, objective="latency", aim=0.85),
    "engine-4-loads": replace(_ENGINE, start=0.04, concurrency=(1, 8), loads=(1, 8), aim=0.85),
    "engine-drift": replace(_ENGINE, start=0.02, drift=0.02),
    "engine-drift-three-starts": replace(_ENGINE, start=0.02, drift=0.01, restarts=3),
    "throughput": Cell(
        24,
        (24, 24),
        noise=0.023,
        speedup=1.6,
        ks=(1, 2, 4),
        concurrency=(1, 4, 16),
        knees=(12.0, 36.0),
        loads=(1, 4, 16),
        objective="throughput",
    ),
    "latency": Cell(noise=0.023, prefills=True, objective="latency"),
    "three-drafts": _THREE,
    "k-alike": replace(_THREE, by_k=0.04),
    "stalls": Cell(noise=0.016, stalls=0.05),
    "alike": Cell(noise=0.016, alike=6),
    "settled-no-gain": _SETTLED,
    "settled-no-gain-quiet": replace(_SETTLED, noise=0.0, in_decoder=0.005),
    "settled-near": replace(_SETTLED, speedup=1.06, spread=0.05),
    "settled-clear": replace(_SETTLED, speedup=1.3),
    "settled-heavy": replace(_SETTLED, shape="heavy", decoded=(24, 24), promise=(1.0, 0.97)),
    "settled-six-drafts": replace(
        _SETTLED,
        decoded=(24,) * 6,
        noise=0.04,
        speedup=0.985,
        promise=(1.0,) * 6,
        ks=(4,),
        in_decoder=0,
    ),
    "advised-six-cells": replace(_ADVISED, decoded=(24, 24), ks=(2, 4, 6), speedup=1.10),
}


class Covered(msgspec.Struct, frozen=True):
    """A figure, its interval (None: there is none) and the truth."""

    of: str
    value: float | None
    interval: tuple[float, float] | None
    true: float


class Decided(msgspec.Struct, frozen=True):
    """A decision with the true speed-ups of the leader and of the best configuration."""

    of: str
    decision: str
    leader: float
    best: float


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one trial showed: a line of the file.

    `expected` are the expected speed-ups of all configurations and of the leader. `probability` and
    `loss` are stated and true, so is the `crossover` in rows. `advice` is how many requests and
    processes to try next, how often that should settle it, and whether it did; `visits` how many
    timing took, `verdict` the gate's, `rate` the tokens a second of the answer and of the best, and
    `settled` after how many requests it ended and whether all of them decide the same.
    """

    cell: str
    number: int
    intervals: tuple[Covered, ...]
    expected: tuple[Covered, ...] = ()
    decisions: tuple[Decided, ...] = ()
    probability: tuple[float, float] | None = None
    loss: tuple[float, float] | None = None
    crossover: tuple[int, int] | None = None
    advice: tuple[int, int, float, bool] | None = None
    visits: int | None = None
    verdict: str | None = None
    rate: tuple[float, float] | None = None
    settled: tuple[int, bool] | None = None


def simulate(name: str, number: int) -> Trial:
    """One trial of a cell."""
    cell = CELLS[name]
    kind = EngineWorld if isinstance(cell, EngineCell) else World
    world = kind(cell, np.random.default_rng([zlib.crc32(name.encode()), number]))
    run = world.run(cell.requests, cell.decoded)
    if cell.gated:
        return Trial(cell=name, number=number, intervals=(), verdict=verdict(run, cell.drop))
    asked = DecisionOptions(concurrency=cell.loads, objective=cell.objective)
    whole, after = run, settled_after(run) if cell.until_settled else None
    if after is not None:
        run = part_of(run, set(sorted(t.request for t in run.trajectories)[:after]))
    found = recommend(run, asked)
    if cell.figures:
        return Trial(cell=name, number=number, intervals=tuple(figures(world, found)))
    intervals, decisions = [], []
    for level in found.by_concurrency:
        if level.leader is not None and level.decision is not None:
            of = f"S at {level.concurrency}"
            true, best = world.speedup_of(level.leader), world.best(level.concurrency)
            intervals.append(covered(of, level.speedup_deciding, true))
            decisions.append(Decided(of, level.decision, true, best))
    if cell.objective != "speedup" and found.leader is not None:
        true = world.speedup_of(found.leader)
        intervals.append(covered("asked", found.speedup_deciding, true))
    if cell.stops:
        own = found.evaluations[0]
        intervals.append(covered("c", own.draft_cost_ratio, world.steps[0] / world.target(1)))
    if isinstance(cell, EngineCell):
        for each in found.evaluations:
            if not each.requests_measured:
                shown = speed_of(each, found) or each.speedup_predicted
                intervals.append(covered("line", shown, world.speedup_of(each)))
    probability, loss = stated(world, found)
    return Trial(
        cell=name,
        number=number,
        intervals=tuple(intervals),
        expected=tuple(expected(world, found)),
        decisions=tuple(decisions),
        probability=probability,
        loss=loss,
        crossover=crossover(world, found) if cell.crosses else None,
        rate=rate(world, found) if cell.objective == "throughput" else None,
        advice=advice(world, found) if cell.advised else None,
        visits=len(run.costs[0].seconds) // SAMPLES_PER_VISIT if cell.stops else None,
        settled=ended(found, recommend(whole, asked)) if cell.until_settled else None,
    )


def ended(found: Recommendation, of_all: Recommendation) -> tuple[int, bool]:
    """After how many requests the sweep ended, and whether all of them decide the same."""
    return found.requests, found.decision == of_all.decision


def verdict(run: Run, drop: float) -> str:
    """What the gate says of the speed-up of the later processes against the earlier ones."""
    names = sorted({row.process for row in run.decodes})
    sides = []
    for chosen, slower in ((names[: len(names) // 2], 0.0), (names[len(names) // 2 :], drop)):
        rows = [row for row in run.decodes if row.process in chosen]
        late = [
            msgspec.structs.replace(
                row, decode_seconds=row.decode_seconds * (1 + slower * (row.k > 0))
            )
            for row in rows
        ]
        manifest = msgspec.structs.replace(run.manifest, run=chosen[0])
        side = replace(run, manifest=manifest, decodes=tuple(late))
        sides.append(make_baseline(side, run.candidates[0], 4))
    old, new = sides
    return judge(old, new, [parse_limit("speedup:5%")]).verdict.value


def figures(world: World, found: Recommendation) -> Iterator[Covered]:
    """α, τ and the predicted speed-up of the first draft at the only k."""
    (own,), (k,) = found.evaluations, world.scenario.ks
    people = world.population
    rounds, accepted = people.rounds(0, k)
    positions = people.lengths - 1
    yield covered("α", own.alpha, float(people.rates[0] @ positions / positions.sum()))
    yield covered("τ", own.mean_accepted_length, 1 + accepted / rounds)
    yield covered("S", own.speedup_predicted, world.speedup(0, k, 1))


def expected(world: World, found: Recommendation) -> Iterator[Covered]:
    """What is expected at the first load; the best of many is flattered by chance."""
    for each in found.evaluations:
        if speed := speed_of(each, found):
            true = world.speedup_of(each)
            yield covered("any", speed, true)
            if found.leader == each.configuration:
                yield covered("leader", speed, true)


def speed_of(each: Evaluation, found: Recommendation) -> Estimate | None:
    """What is expected of a configuration by the objective."""
    if found.objective == "latency":
        return each.speedup_end_to_end_expected
    return each.speedup_expected


def covered(of: str, estimate: Estimate | None, true: float) -> Covered:
    """An estimate beside the truth."""
    if estimate is None:
        return Covered(of, None, None, true)
    return Covered(of, estimate.value, (estimate.low, estimate.high), true)


def stated(
    world: World, found: Recommendation
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """The probability that the choice is the best, plain decoding being one, and its loss."""
    if found.probability_best is None or found.expected_regret is None or found.leader is None:
        return None, None
    refused = found.decision == "do_not_speculate"
    own = 1.0 if refused else world.speedup_of(found.leader)
    best = max(1.0, world.best(found.concurrency))
    right = float(own >= (1 - TIMING_NOISE) * best)
    return (found.probability_best, right), (found.expected_regret, 1 - own / best)


def crossover(world: World, found: Recommendation) -> tuple[int, int]:
    """The largest number of rows at which speculation pays, of those that were timed."""
    most = max(world.scenario.concurrency)
    paying = [rows for rows in range(1, most + 1) if world.best(rows) > 1]
    return most if found.crossover is None else found.crossover, max(paying, default=0)


def rate(world: World, found: Recommendation) -> tuple[float, float]:
    """Tokens per second of the whole machine by the answer, and by the best load and k."""

    def plain(rows: int) -> float:
        return rows / world.target(rows)

    worth = world.speedup_of(found.choice) if found.choice else 1.0
    best = max(plain(rows) * max(1.0, world.best(rows)) for rows in world.scenario.concurrency)
    return plain(found.concurrency) * worth, best


def advice(world: World, found: Recommendation) -> tuple[int, int, float, bool] | None:
    """The sweep that is advised, or the next worth trying, how often it should settle the decision,
    and whether a fresh run of that size, as many decoded as now, is decided.
    """
    larger = found.larger_sweep
    if larger is None:
        return None
    drawn = min(larger.requests, MOST_REQUESTS)
    again = recommend(world.run(drawn, world.scenario.decoded, larger.processes))
    settled = again.decision != "inconclusive"
    return larger.requests, larger.processes, larger.chance, settled


def simulated(name: str, count: int, out: Path | None, known: Sequence[Trial]) -> list[Trial]:
    """The first `count` trials of a cell; those that are not `known` are appended to `out`."""
    found = {each.number: each for each in known if each.cell == name and each.number < count}
    for number in sorted(set(range(count)) - set(found)):
        found[number] = simulate(name, number)
        if out is not None:
            with out.open("ab") as file:
                file.write(msgspec.json.encode(found[number]) + b"\n")
    return [found[number] for number in sorted(found)]


def read(path: Path) -> list[Trial]:
    """The trials of a file; what a killed process left of a last line is cut off."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole != raw:
        path.write_bytes(whole)
    return msgspec.json.Decoder(Trial).decode_lines(whole)


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95% interval of a share."""
    share, square = hits / trials, 1.96**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials**2)
    half = (square * spread) ** 0.5 / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def share_of(hits: int, trials: int) -> str:
    """A share with its interval."""
    low, high = wilson(hits, trials)
    return f"{hits / trials:6.1%} {f'({low:.1%}-{high:.1%})':14}"


def held(holds: bool) -> str:
    return "yes" if holds else "NO"


def interval_lines(name: str, found: Iterable[Covered], aim: float | None) -> Iterator[str]:
    """How often the intervals of a cell cover; what follows is in percent of the truth: the
    figure's bias and sd, and half the width of the interval in the middle of all trials.
    """
    for of, rows in grouped(found).items():
        known = [(each.value, *each.interval, each.true) for each in rows if each.interval]
        line = f"{name:24} {of:8} {len(rows):6} {len(rows) - len(known):5}"
        if known:
            hits = sum(low <= true <= high for _, low, high, true in known)
            holds = aim is None or wilson(hits, len(known))[1] >= aim
            off = [value / true - 1 for value, _, _, true in known]
            half = median((high - low) / 2 / true for _, low, high, true in known)
            verdict = "" if aim is None else f"{aim:5.0%} {held(holds):>5}"
            line += f" {share_of(hits, len(known))} {verdict:11}"
            line += f" {fmean(off):+7.1%} {pstdev(off):6.1%} {half:6.1%}"
        yield line


def decision_lines(name: str, trials: Sequence[Trial]) -> Iterator[str]:
    """How often a cell decides how, and how often wrongly."""
    ends = [stated_and_true(trials)]
    for of, rows in grouped(each for trial in trials for each in trial.decisions).items():
        wrong = sum(each.decision == "speculate" and each.leader < 1 for each in rows)
        holds = wilson(wrong, len(rows))[0] <= MOST_WRONG
        missed = sum(each.decision == "do_not_speculate" and each.best > 1 for each in rows)
        line = f"{name:24} {of:8} {len(rows):6} {share_of(wrong, len(rows))} {held(holds):>5}"
        line += f" {missed / len(rows):7.1%}"
        for decision in ("speculate", "inconclusive", "do_not_speculate"):
            line += f" {sum(each.decision == decision for each in rows) / len(rows):7.1%}"
        regret = fmean(1 - each.leader / each.best for each in rows)
        yield f"{line} {regret:7.2%} {ends.pop() if ends else ''}".rstrip()


def stated_and_true(trials: Sequence[Trial]) -> str:
    """What was stated of the choice: its probability, whether it is too high, and its loss."""
    probabilities = [trial.probability for trial in trials if trial.probability is not None]
    losses = [trial.loss for trial in trials if trial.loss is not None]
    if not probabilities:
        return ""
    said, true = (fmean(side) for side in zip(*probabilities, strict=True))
    lost_said, lost = (fmean(side) for side in zip(*losses, strict=True))
    most = wilson(round(true * len(probabilities)), len(probabilities))[1] + MOST_OVERSTATED
    return f"{said:11.2f} → {true:.2f} {held(said <= most):>5} {lost_said:8.4f} → {lost:.4f}"


def other_lines(name: str, trials: Sequence[Trial]) -> Iterator[str]:
    """What was advised, and up to which load it pays, where that was asked."""
    tried = [trial.advice for trial in trials if trial.advice is not None]
    advised = [each for each in tried if each[2] >= SETTLES]
    if advised:
        settled = sum(each[-1] for each in advised)
        holds = wilson(settled, len(advised))[1] >= SETTLED
        requests, processes = (median(each[at] for each in advised) for at in (0, 1))
        yield (
            f"{name}: {len(advised)} of {len(tried)} open ones get advice, in the middle "
            f"{requests:g} requests in {processes:g} processes; so many settle it in "
            f"{share_of(settled, len(advised)).strip()}, aim {SETTLED:.0%}: {held(holds)}"
        )
    if tried:
        said, true = fmean(each[2] for each in tried), fmean(each[-1] for each in tried)
        yield f"{name}: the next sweep is said to settle it in {said:.0%}, and does in {true:.0%}"
    verdicts = Counter(trial.verdict for trial in trials if trial.verdict is not None)
    if verdicts:
        shares = ", ".join(f"{count / len(trials):.1%} {each}" for each, count in verdicts.items())
        line, failed = f"{name}: {shares}", verdicts["fail"]
        if CELLS[name].drop == 0:
            holds = wilson(failed, len(trials))[0] <= MOST_WRONG
            line += (
                f"; fails without a change {share_of(failed, len(trials)).strip()}: {held(holds)}"
            )
        yield line
    visits = [trial.visits for trial in trials if trial.visits is not None]
    if visits:
        yield f"{name}: {fmean(visits):.1f} visits on average, from {min(visits)} to {max(visits)}"
    rates = [trial.rate for trial in trials if trial.rate is not None]
    if rates:
        lost = [1 - answered / best for answered, best in rates]
        yield (
            f"{name}: tokens a second {fmean(lost):.1%} below the best on average, at most "
            f"{max(lost):.0%}"
        )
    ends = [trial.settled for trial in trials if trial.settled is not None]
    if ends:
        after, same = fmean(each[0] for each in ends), sum(each[1] for each in ends)
        yield (
            f"{name}: ends after {after:.0f} of {CELLS[name].requests} requests on average; all of "
            f"them decide the same in {share_of(same, len(ends)).strip()}"
        )
    limits = [trial.crossover for trial in trials if trial.crossover is not None]
    if limits:
        said, true = (fmean(side) for side in zip(*limits, strict=True))
        yield f"{name}: on average said to pay up to {said:.1f} rows, does up to {true:.1f}"


def grouped(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Rows by what they are of."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.of, []).append(row)
    return found


def table(cells: dict[str, list[Trial]]) -> Iterator[str]:
    """All that the trials show, by cell."""
    columns = f"{'of':8} {'trials':>6} {'none':>5} {'covers':>6} {'':14} {'aim':>5} holds"
    columns += f" {'bias':>7} {'sd':>6} {'half':>6}"
    yield f"{'interval':24} {columns}"
    for name, trials in cells.items():
        rows = [each for trial in trials for each in trial.intervals]
        for of, own in grouped(rows).items():
            aim = LINE_AIM if of == "line" else CELLS[name].aim
            yield from interval_lines(name, own, aim)
    yield f"\n{'expected at one load':24} {columns}"
    for name, trials in cells.items():
        yield from interval_lines(name, [e for trial in trials for e in trial.expected], None)
    yield (
        f"\n{'decision':24} {'of':8} {'trials':>6} {'wrong':>6} {'':14} holds {'missed':>7} "
        f"{'specul.':>7} {'open':>7} {'do not':>7} {'regret':>7} {'probability':>18} holds "
        f"{'loss':>17}"
    )
    for name, trials in cells.items():
        yield from decision_lines(name, trials)
    yield ""
    for name, trials in cells.items():
        yield from other_lines(name, trials)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cell", action="append", choices=CELLS, help="default: all")
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each cell")
    parser.add_argument("--out", type=Path, help="JSON lines: resumed from, and appended to")
    options = parser.parse_args(arguments)
    known = read(options.out) if options.out else []
    names = options.cell or CELLS
    cells = {name: simulated(name, options.trials, options.out, known) for name in names}
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
