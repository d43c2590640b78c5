"""A run → measured speed-ups, and the log slowdown of every timed cell: how much longer it took
than its timed passes predict.

A measured speed-up compares a candidate's runs at one k with the baseline runs of the same block
and concurrency on the same requests, those of the same process if it has any: tokens per second
over tokens per second, since outputs may differ in length. The first token comes from the prefill
and is not counted. When requests run concurrently, only the steady rounds count, those with every
row active: the last responses run alone and would be compared with an emptier machine. A round's
seconds are those of all its rows together. Intervals cover the sampling of requests within the
processes that ran; concurrent requests share rounds, so for them intervals are approximate.

A *cell* holds the timings of one candidate at one k and concurrency in one process, or after one
start of an engine's server; k = 0 is decoding without a draft. Requests are drawn by the Bayesian
bootstrap (Rubin 1981), once for everything, so that what requests have in common does not blur
comparisons. Every array is [1 + draws, …]: row 0 is the estimate.

A serving engine shows no passes: there each round counts as 1, and a cell's figure is the seconds
of a step or a round. `predicted_by="tokens"`, where neither passes nor rounds are known: only a
measured speed; it predicts no other configuration.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import compress, count
from statistics import fmean, median
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import ResponseRounds, candidate_rounds, counted_in
from draftbench.acceptance.definitions import Figure, Sample, equal_requests, pooled, quotient
from draftbench.acceptance.intervals import RESAMPLES, generator_of
from draftbench.acceptance.rounds import Floats, Ints, counted_rounds
from draftbench.planner.caveat_kinds import FEW_DECODED
from draftbench.planner.passes import PASS_DRAWS, UNTIMED, Block, Spent, between
from draftbench.planner.recommendation import Configuration
from draftbench.records import Candidate, Decode, DraftLength, Key, Trajectory
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# What a cell's seconds are compared with: those of its passes, its rounds, or its tokens alone.
Predictor = Literal["passes", "rounds", "tokens"]
ROUND = Block(UNTIMED)
SPEEDUP = Figure(
    name="speed-up", symbol="S", formula="tokens per second with speculation / without"
)


def steady(row: Decode) -> Decode | None:
    """The run reduced to its steady rounds, as if its response were shorter; None if it has none.
    At concurrency 1 all rounds are steady.
    """
    if row.concurrency == 1:
        return row
    steady_ones = [active == row.concurrency for active in row.active]
    if not any(steady_ones):
        return None
    # A round emits the accepted tokens and one of the target, which the last round lacks if the
    # response ended inside its proposal.
    emitted = [accepted + 1 for accepted in row.accepted]
    emitted[-1] = row.output_tokens - 1 - sum(emitted[:-1])
    counts, times = ("drafted", "proposed", "accepted", "cut"), ("draft_seconds", "verify_seconds")
    parts = {
        name: tuple(compress(getattr(row, name), steady_ones))
        for name in (*counts, *times, "active")
    }
    return msgspec.structs.replace(
        row,
        **parts,
        decode_seconds=sum(parts["draft_seconds"]) + sum(parts["verify_seconds"]),
        output_tokens=1 + sum(compress(emitted, steady_ones)),
    )


class TimedRun(NamedTuple):
    """A decoding run and its response, whole and reduced to its `steady` rounds."""

    response: Trajectory
    row: Decode
    steady: Decode

    @property
    def steady_share(self) -> float:
        """The share of the response that steady rounds wrote; that share of a prefill counts."""
        return (self.steady.output_tokens - 1) / max(self.row.output_tokens - 1, 1)


@remembered
def timed_runs(run: Run) -> list[TimedRun]:
    """The decoding runs that have steady rounds."""
    return [
        TimedRun(run.responses[row.key], row, part)
        for row in run.decodes
        if (part := steady(row)) is not None
    ]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One candidate decoded at one k on the responses `keys`: its `runs`, and the `baseline`'s."""

    speedup: Sample
    runs: tuple[TimedRun, ...]
    keys: frozenset[Key]
    end_to_end: Sample | None = None
    baseline: tuple[TimedRun, ...] = ()

    @cached_property
    def counted(self) -> ResponseRounds:
        """The responses of the runs, and the rounds counted while decoding them."""
        return counted_in([(each.response, each.row) for each in self.runs])


def measurements(run: Run, concurrency: int = 1) -> dict[Configuration, Measurement]:
    """Every configuration decoded at one concurrency, on requests that also have a baseline."""
    groups: dict[tuple[str, DraftLength], dict[Key, list[TimedRun]]] = {}
    for each in timed_runs(run):
        if each.row.concurrency == concurrency:
            of_group = groups.setdefault((each.row.block, each.row.length), {})
            of_group.setdefault(each.row.key, []).append(each)
    measured = {}
    for (block, (k, stop)), by_key in groups.items():
        baseline = groups.get((block, DraftLength(0)), {})
        both = [key for key in by_key if key in baseline]
        candidate = next(iter(by_key.values()))[0].row.candidate
        if k == 0 or candidate is None or not both:
            continue
        # On an engine whose servers took no turns, no baseline shares a process with the draft.
        beside = {key: _of_same_process(baseline[key], by_key[key]) for key in both}
        sums = []  # means over the steady parts of one response's runs
        for runs in (by_key[key] if side else beside[key] for key in both for side in (1, 0)):
            sums.append(
                (
                    fmean(each.steady.output_tokens - 1 for each in runs),
                    fmean(each.steady.decode_seconds for each in runs),
                    fmean(each.row.prefills * each.steady_share for each in runs),
                )
            )
        # [responses, with and without, tokens and seconds of decoding and of prefills]
        table = np.array(sums).reshape(len(both), 2, 3)
        with_prefills = np.stack([table[..., 0], table[..., 1] + table[..., 2]], axis=-1)
        responses = [run.responses[key] for key in both]
        speedup, end_to_end = (
            pooled(SPEEDUP, responses, rates.reshape(len(both), 4), ratio_of_rates)
            for rates in (table[..., :2], with_prefills)
        )
        speculative, plain = (
            tuple(each for key in both for each in runs[key]) for runs in (by_key, beside)
        )
        configuration = Configuration.of(candidate, k, concurrency, stop)
        measured[configuration] = Measurement(
            speedup, speculative, frozenset(both), end_to_end, plain
        )
    return measured


def _of_same_process(plain: list[TimedRun], drafted: Sequence[TimedRun]) -> list[TimedRun]:
    processes = {each.row.process for each in drafted}
    return [each for each in plain if each.row.process in processes] or plain


def ratio_of_rates(sums: Floats) -> Floats:
    """The speed-up from sums [..., 4] of tokens, seconds, baseline tokens, baseline seconds."""
    rates = quotient(sums[..., :2]), quotient(sums[..., 2:])
    return quotient(np.stack(rates, axis=-1))


class Drift(NamedTuple):
    """How the baseline's seconds per token differ between the two halves of a run.

    `change` is relative (0.1: 10% slower in the second half), `doubt` half of its 95% interval,
    from the scatter of runs within a half; a smaller change means nothing.
    """

    change: float
    doubt: float


def baseline_drift(decodes: Sequence[Decode], *, by_start: bool = False) -> Drift | None:
    """The change of plain decoding: the median difference between a request's baseline runs in the
    second half and those in the first (Hodges and Lehmann 1963), in log seconds per token; halves
    of the runs, or with `by_start` of the servers' starts. None if no request has runs in both.

    Every candidate has baseline runs of the same requests, minutes apart, so only the machine
    differs. Ratios within a candidate's block cancel most of a change; costs and comparisons across
    blocks do not.
    """
    # Observations are appended, after a resume too, so they are in order of time. Pauses do not
    # count.
    runs: defaultdict[tuple[Key, int], list[tuple[int, float]]] = defaultdict(list)
    starts, order = dict[str, int](), count()
    for row in decodes:
        part = steady(row) if row.k == 0 else None
        if part and part.output_tokens > 1 and part.decode_seconds > 0:
            start, place = starts.setdefault(row.process, len(starts)), next(order)
            pace = math.log(part.decode_seconds / (part.output_tokens - 1))
            runs[row.key, row.concurrency].append((start if by_start else place, pace))
    middle = max((at for points in runs.values() for at, _ in points), default=0) / 2
    halves = [
        ([pace for at, pace in points if at < middle], [pace for at, pace in points if at > middle])
        for points in runs.values()
    ]
    halves = [(early, late) for early, late in halves if early and late]
    if not halves:
        return None
    change = median(y - x for early, late in halves for x in early for y in late)
    residuals, squares = list[float](), 0.0
    for early, late in halves:
        offsets = [*early, *(pace - change for pace in late)]
        center = fmean(offsets)
        residuals += [abs(offset - center) for offset in offsets]
        squares += len(early) * len(late) / len(offsets)
    # The standard error of a least-squares step with an offset for each request. The deviation is
    # taken from the median of the residuals (1.4826: for a normal law), widened for the offsets.
    widening = len(residuals) / (len(residuals) - len(halves))
    error = 1.4826 * median(residuals) * math.sqrt(widening / squares)
    return Drift(math.expm1(change), math.expm1(2 * error))


class DrawnRequests:
    """The requests of some responses, which are drawn once."""

    def __init__(self, names: Iterable[str]) -> None:
        # Sorted, so that no draw depends on the order of the traffic.
        self.names = sorted(set(names))
        self._row = {name: at for at, name in enumerate(self.names)}

    @cached_property
    def weights(self) -> Floats:
        """How often each request is drawn [draws, requests]."""
        return _weights(len(self.names))

    def rows(self, requests: Iterable[str]) -> Ints:
        """The rows of these requests."""
        return np.array([self._row[name] for name in requests], np.int64)

    def column(self, rows: Ints, values: Floats) -> Floats:
        """The sums of values by request [requests]."""
        return np.bincount(rows, values, len(self.names)).astype(np.float64)


@lru_cache(maxsize=1)
def _weights(requests: int) -> Floats:
    return generator_of("requests").standard_exponential((RESAMPLES, requests))


class Columns:
    """Figures by request, each in a numbered column, so that all are summed over drawn requests at
    once.
    """

    def __init__(self, drawn: DrawnRequests) -> None:
        self._drawn, self.values, self._factors = drawn, list[Floats](), list[Floats]()

    def add(self, values: Floats, factor: Floats | None = None) -> int:
        """Add a column [requests] and return its number; drawn passes change its sum by `factor` [1
        + draws].
        """
        self.values.append(values)
        self._factors.append(np.ones(PASS_DRAWS + 1) if factor is None else factor)
        return len(self.values) - 1

    def sums(self) -> Floats:
        """The sums over all requests, then over drawn ones [1 + draws, columns]."""
        table, times = np.stack(self.values, axis=1), np.stack(self._factors, axis=1)
        drawn = (self._drawn.weights @ table).reshape(-1, *times[1:].shape) * times[1:]
        whole = table.sum(axis=0) * times[:1]
        found: Floats = np.concatenate([whole, drawn.reshape(RESAMPLES, -1)])
        return found


def seconds_and_factor(spent: Spent, weights: Floats) -> tuple[Floats, Floats]:
    """The seconds of every response [responses], and the factor by which drawn passes change their
    sum [1 + draws].
    """
    drawn = spent.drawn(weights)
    return spent.seconds, drawn / (drawn[0] or 1.0)


class Cell(NamedTuple):
    """A timed cell.

    `configuration` has k = 0 for decoding without a draft next to its candidate. Cells of one
    `process` were timed in turn. `place` is its place among all, in order of time.
    `step_per_round` is a target step over the passes of one of its rounds, and `step_seconds` what
    it takes, where passes were timed. `effective_requests` is
    as how many equally long requests its own count (Kish 1965). `log_slowdown` is log(actual /
    predicted seconds) [1 + draws]. `drafted` are the tokens that the draft itself drafts in a
    round, on average.
    """

    configuration: Configuration
    process: str
    place: int
    predicted_by: Predictor
    step_per_round: float
    effective_requests: float
    log_slowdown: Floats = np.zeros(0)
    drafted: float = 0.0
    step_seconds: float | None = None


def cells_of(
    run: Run,
    candidates: Sequence[Candidate],
    blocks: Mapping[Candidate, Mapping[int, Block]],
    drawn: DrawnRequests,
) -> list[Cell]:
    """Every cell with at least `FEW_DECODED` requests, next to as many without a draft. Processes
    that timed fewer requests of a configuration count as one.
    """
    of_engine = run.manifest.question.engine is not None
    running = {facts.process for facts in run.engines if not facts.started}
    in_turn = not of_engine or run.manifest.question.in_turn
    in_order = dict.fromkeys(row.process for row in (run.served if of_engine else run.decodes))
    places = {name: at for at, name in enumerate(in_order)}
    groups: dict[tuple[str, int], dict[tuple[DraftLength, str], list[TimedRun]]]
    groups = defaultdict(lambda: defaultdict(list))
    for each in timed_runs(run):
        if (row := each.row).output_tokens < 2:
            continue
        # All visits to a server that was already running belong to one start. Servers that took
        # turns share a process, as decoding with and without a draft does here; otherwise each
        # repeat is a start.
        name = row.process if in_turn else f"{row.process} {row.repeat}"
        name = "running" if row.process in running else name
        groups[row.block, row.concurrency][row.length, name].append(each)
    columns, plain_known = Columns(drawn), set[tuple[int, str]]()
    found = list[tuple[Cell, int, int]]()  # with the columns of its seconds: spent, and predicted
    for candidate in candidates:
        of_draft = candidate_rounds(run, candidate)
        for (block_name, concurrency), by_cell in sorted(groups.items()):
            if block_name != str(candidate):
                continue
            block = between(blocks.get(candidate, {}), concurrency)
            by: Predictor = "passes" if block else "tokens"
            drafted = [each for (length, _), runs in by_cell.items() if length.k for each in runs]
            if of_engine and all(each.steady.verify_seconds for each in drafted):
                block, by = ROUND, "rounds"
            joined = _joined(by_cell, in_turn=in_turn)
            for ((k, stop), name), runs in sorted(joined.items(), key=_in_order):
                if k == 0 and not in_turn:
                    # All candidates share one baseline, which is copied into every block.
                    if (concurrency, name) in plain_known:
                        continue
                    plain_known.add((concurrency, name))
                parts = [each.steady for each in runs]
                weights = np.array([each.response.weight for each in runs])
                spent = weights * [part.decode_seconds for part in parts]
                predicted = weights * [part.output_tokens - 1.0 for part in parts]
                factor, step, drafts, alone = np.ones(PASS_DRAWS + 1), 1.0, 0.0, None
                if block is not None:
                    contexts = np.array([each.response.context for each in runs])
                    steps = np.array([float(len(part.verify_seconds)) for part in parts])
                    passes = plain = block.steps(steps, contexts)
                    alone = float(plain.seconds.sum() / (steps.sum() or 1.0))
                    if k:
                        rounds = counted_rounds(parts)
                        known = of_draft.knows(k, stop)
                        if known and (expected := of_draft.at(k, stop)).reads is not None:
                            # What the draft itself drafts and reads, as replay expects.
                            rows = [of_draft.row_of[each.row.key] for each in runs]
                            often = (rounds.target_passes / expected.target_passes[rows])[:, None]
                            by_draft = cast(Floats, expected.by_draft)[rows] * often
                            reads = expected.reads[rows] * often
                            rounds = replace(rounds, by_draft=by_draft, reads=reads)
                        drafts = rounds.drafted_per_round
                        passes = block.rounds(rounds, contexts, concurrency, np.ones(len(parts)))
                    predicted, factor = seconds_and_factor(passes, weights)
                    step = float(plain.seconds.sum() / (predicted.sum() or 1.0))
                    predicted = weights * predicted
                if not (spent.sum() > 0 and predicted.sum() > 0):
                    continue
                at = drawn.rows(each.row.request for each in runs)
                by_request = drawn.column(at, spent)
                cell = Cell(
                    Configuration.of(candidate, k, concurrency, stop),
                    name,
                    round(fmean(places[each.row.process] for each in runs)),
                    by,
                    step,
                    equal_requests(by_request),
                    drafted=drafts,
                    step_seconds=alone,
                )
                predicted_column = columns.add(drawn.column(at, predicted), factor)
                found.append((cell, columns.add(by_request), predicted_column))
    if not found:
        return []
    logs, values = np.log(columns.sums()), columns.values
    cells = []
    for cell, spent_at, predicted_at in found:
        own, missing = cell.configuration, 0.0
        if of_engine and own.k:
            # A draft that left slow requests unanswered must not look faster for it: how much
            # longer than predicted decoding without a draft took on all requests than on those.
            plain_at = [
                (spent, steps)
                for each, spent, steps in found
                if each.configuration.k == 0 and each.configuration.concurrency == own.concurrency
            ]
            every = np.zeros((2, len(drawn.names)))
            for sides in plain_at:
                every += [values[side] for side in sides]
            spent, steps = every[:, values[spent_at] > 0].sum(axis=1)
            if spent and steps:
                missing = math.log(every[0].sum() / every[1].sum() * steps / spent)
        cells.append(
            cell._replace(log_slowdown=logs[:, spent_at] - logs[:, predicted_at] + missing)
        )
    return cells


def _in_order(cell: tuple[tuple[DraftLength, str], object]) -> tuple[int, str, str]:
    ((k, stop), name), _ = cell
    return k, str(stop or ""), name


def _joined(
    by_cell: Mapping[tuple[DraftLength, str], list[TimedRun]], *, in_turn: bool
) -> dict[tuple[DraftLength, str], list[TimedRun]]:
    """The cells with enough requests. Where those with and without a draft were timed in turn,
    processes with fewer count as one, next to their own baseline.
    """

    def enough(runs: Sequence[TimedRun]) -> bool:
        return len({each.row.request for each in runs}) >= FEW_DECODED

    whole = {at: runs for at, runs in by_cell.items() if enough(runs)}
    if not in_turn:
        return whole
    few = {name for (_, name), runs in by_cell.items() if not enough(runs)}
    joined: dict[tuple[DraftLength, str], list[TimedRun]] = defaultdict(list)
    for (length, name), runs in by_cell.items():
        joined[length, "few" if name in few else name] += runs
    found = {at: runs for at, runs in joined.items() if enough(runs)}
    plain = {name for (length, name) in found if length.k == 0}
    return {at: runs for at, runs in found.items() if at[1] in plain}


def ks_of(run: Run) -> tuple[int, ...]:
    """The draft lengths of the run's question, ascending."""
    return tuple(sorted(set(run.manifest.question.ks)))
