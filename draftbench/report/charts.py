"""A run and its answer → the charts of a report, each with its caption and the table of what it
draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftbench.acceptance.breakdown import parting
from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate
from draftbench.acceptance.summary import groups_at
from draftbench.errors import UsageError
from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.records import SELF
from draftbench.report.answer import WAITS, candidates, latency, loads
from draftbench.report.plot import (
    SERIES,
    Plot,
    counts_axis,
    doublings_axis,
    rows_axis,
    short,
    values_axis,
)
from draftbench.report.text import Cell, Section, counted
from draftbench.run_folder.run import Run

_SPEED_UP = "decode speed-up (×)"
_GREY = 5  # the series that is drawn in grey


@dataclass(frozen=True)
class Chart:
    """A drawing with its title, its caption and its table; `name` is that of its file."""

    name: str
    title: str
    caption: str
    plot: Plot
    table: Section
    finding: str = ""  # a sentence on what it shows

    def save(self, folder: Path) -> None:
        """Write `NAME.svg` and `NAME.png`.

        Raises:
            UsageError: the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.plot.save(folder / self.name, self.title)
        except OSError as error:
            raise UsageError(
                f"cannot write charts to `{folder}`: {error.strerror}",
                hint="take another folder for --plots",
            ) from error


def charts_of(run: Run, answer: Recommendation) -> dict[str, Chart]:
    """The charts by name, in the order of the page, without those of what was not measured.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    charts = (
        _by_candidate(answer),
        *_by_k(answer),
        _by_concurrency(run, answer),
        _waits(answer),
        _by_group(run, answer),
        _prediction_errors(answer),
    )
    return {chart.name: chart for chart in charts if chart is not None}


@dataclass(frozen=True)
class Bar:
    """A row of `bars`: a name with its figure, None if it is unknown; hollow if only predicted."""

    name: str
    figure: Estimate | None
    colour: int = 0
    hollow: bool = False


def _height(rows: Sequence[object]) -> float:
    """The height of a drawing of these rows and an axis, in units of `Plot`."""
    return 44.0 + 34.0 * len(rows)


def bars(label: str, rows: Sequence[Bar], asked: float | None = None) -> Plot:
    """A drawing with a figure a row. `asked` is the speed-up asked for: it is marked then, and all
    that is slower than decoding without speculation is shaded.
    """
    figures = [row.figure for row in rows if row.figure]
    ends = [end for figure in figures for end in (figure.low, figure.high)]
    axis = values_axis(label, [1.0, asked or 1.0, *ends])
    names = rows_axis([row.name for row in rows])
    plot = Plot(axis, names, height=_height(rows), upright=True)
    if asked is not None:
        plot.slower(asked)
    for at, row in enumerate(rows):
        if row.figure:
            plot.bar(row.figure, -at, row.colour, hollow=row.hollow)
    return plot


def _by_candidate(answer: Recommendation) -> Chart | None:
    """Each candidate at its best k as a row."""
    rows = []
    for at, each in enumerate(answer.by_candidate):
        speed = each.speedup_expected or each.speedup_predicted
        if speed is not None:
            name = f"{short(str(each.candidate))}, k = {each.k}"
            rows.append(Bar(name, speed, at % SERIES, each.speedup_measured is None))
    if not rows:
        return None
    decoded = sum(not row.hollow for row in rows)
    kinds = (
        f"Filled points ({decoded} of {len(rows)}): decoded on some of the requests. Hollow "
        "points: not decoded, predicted from the others."
    )
    if decoded in (0, len(rows)):
        how = "of a draft that was decoded" if decoded else "predicted only"
        kinds = f"Every point is {how}."
    return Chart(
        "speedup-by-candidate",
        "Each candidate at its best k",
        f"Left of 1× speculation is slower than decoding without it. Lines: 95% intervals over "
        f"{counted(answer.requests, 'request')}. {kinds}",
        bars(_SPEED_UP, rows, answer.min_speedup),
        candidates(answer),
    )


def _by_k(answer: Recommendation) -> list[Chart]:
    """Tokens per round, and the speed-up as predicted and as measured."""
    evaluations = answer.evaluations
    tokens = [(e, e.tokens_per_round) for e in evaluations if e.tokens_per_round]
    predicted = [(e, e.speedup_predicted) for e in evaluations if e.speedup_predicted]
    measured = [(e, e.speedup_measured) for e in evaluations if e.speedup_measured]
    best = [(e, e.speedup_expected) for e in answer.by_candidate if e.speedup_expected]
    points = f"the {counted(len(measured), 'configuration')} that were decoded"
    over = f"over {counted(answer.requests, 'request')}"
    head = ("candidate", "k", "tokens per round", "predicted ×", "measured ×", "error on decoded")
    rows: list[list[Cell]] = []
    for e in evaluations:
        error = None if e.prediction_error is None else f"{e.prediction_error:+.1%}"
        figures = (e.tokens_per_round, e.speedup_predicted, e.speedup_measured, error)
        rows.append([str(e.candidate), str(e.k), *figures, e.speedup_expected])
    table = Section("", (*head, "expected ×"), rows)
    count = sum(each.draft != SELF for each in answer.by_candidate)
    more = f" Drawn are the first {SERIES} of {count} candidates." if count > SERIES else ""
    if count < len(answer.by_candidate):
        more += " The target as its own draft (self) is in the numbers alone."
    charts = []
    for name, title, label, lines, dots, circles, caption in (
        (
            "tokens-per-round-by-k",
            "Tokens per round by k",
            "tokens per round",
            tokens,
            [],
            [],
            f"1: no drafted token is accepted; k + 1: all are. Bands: 95% intervals {over}.",
        ),
        (
            "speedup-by-k",
            "Speed-up by k",
            _SPEED_UP,
            predicted,
            measured,
            best,
            f"Lines and bands: predicted, with 95% intervals {over}."
            + (f" Filled points: measured, {points}." if measured else " Nothing was decoded.")
            + (" Hollow points: expected, each candidate's best as in the table." if best else ""),
        ),
    ):
        if lines:
            plot = _curves(answer, label, lines, dots, circles)
            charts.append(Chart(name, title, f"{caption}{more}", plot, table))
    return charts


def _curves(
    answer: Recommendation,
    label: str,
    lines: Sequence[tuple[Evaluation, Estimate]],
    points: Sequence[tuple[Evaluation, Estimate]],
    circles: Sequence[tuple[Evaluation, Estimate]],
) -> Plot:
    """A line for each candidate over k, filled points, and hollow ones with the choice marked;
    without the control, and without the candidates for which there is no colour.
    """
    colours = {e.candidate: at % SERIES for at, e in enumerate(answer.by_candidate)}
    drawn = [candidate for candidate in colours if candidate.draft != SELF][:SERIES]
    lines, points, circles = (
        [pair for pair in pairs if pair[0].candidate in drawn] for pairs in (lines, points, circles)
    )
    every = [*lines, *points, *circles]
    ks = counts_axis("draft length k (tokens)", [each.k for each, _ in every])
    ends = [end for _, figure in every for end in (figure.low, figure.high)]
    plot = Plot(ks, values_axis(label, [1.0, *ends]), names=list(map(str, drawn)))
    plot.threshold(1.0)
    names = []
    for candidate in drawn:
        curve = [(float(e.k), figure) for e, figure in lines if e.candidate == candidate]
        if curve:
            plot.line(curve, colours[candidate])
            names.append((curve[-1][1].value, str(candidate), colours[candidate]))
    for hollow, figures in enumerate((points, circles)):
        for each, figure in figures:
            aside = 0.08 * (drawn.index(each.candidate) - (len(drawn) - 1) / 2)
            place = each.k + aside + 0.2 * hollow
            plot.point(place, figure, colours[each.candidate], hollow=bool(hollow))
            if hollow and each.configuration == answer.choice:
                plot.ring(place, figure, "choice")
    plot.names(names)
    return plot


def _by_concurrency(run: Run, answer: Recommendation) -> Chart | None:
    """The speed-up of each concurrency's leader, where more than one is known."""
    every = sorted(answer.by_concurrency, key=lambda at: at.concurrency)
    known = [(at, at.speedup_deciding or at.speedup_expected) for at in every]
    speeds = [(at, speed) for at, speed in known if speed is not None]
    if len(speeds) < 2:
        return None
    ends = [1.0, *(end for _, speed in speeds for end in (speed.low, speed.high))]
    # Room for the label above the highest point.
    ends.append(max(ends) + 0.08 * (max(ends) - min(ends)))
    load = "requests in flight" if run.manifest.question.engine else "active decoding rows"
    label = f"concurrency ({load})"
    rows = doublings_axis(label, [at.concurrency for at, _ in speeds])
    prefills = answer.objective == "latency"
    plot = Plot(rows, values_axis("end-to-end speed-up (×)" if prefills else _SPEED_UP, ends))
    plot.threshold(1.0)
    predicted = any(at.speedup_measured is None for at, _ in speeds)
    plot.line([(at.concurrency, speed) for at, speed in speeds], 0)
    for at, speed in speeds:
        plot.point(at.concurrency, speed, 0, hollow=at.speedup_measured is None)
        if at.leader is not None:
            plot.words((at.concurrency, speed.high), f"k = {at.leader.k}", above=9)
    return Chart(
        "speedup-by-concurrency",
        "Speed-up by concurrency",
        "The best candidate and k at each concurrency. Upright lines: 95% intervals over "
        f"{counted(answer.requests, 'request')}."
        f"{' Hollow points: not decoded.' if predicted else ''}",
        plot,
        loads(answer),
    )


def _waits(answer: Recommendation) -> Chart | None:
    """The median and the longest wait of each kind, without speculation and with it."""
    waits = answer.latency
    if waits is None:
        return None
    rows = [
        Bar(label, Estimate(1e3 * middle, 1e3 * middle, 1e3 * side.largest), colour)
        for name, words in WAITS.items()
        if (before := getattr(waits.plain, name)) and (after := getattr(waits.speculative, name))
        for label, side, colour in ((words, before, _GREY), ("with speculation", after, 0))
        if (middle := side.p50 or side.largest)
    ]
    return Chart(
        "latency",
        "What a request waits for",
        "Point: the median. Line: up to the longest wait. Grey: without speculation.",
        bars("milliseconds", rows),
        latency(waits, answer.engine, answer.arrivals),
    )


def _prediction_errors(answer: Recommendation) -> Chart | None:
    """How far the prediction was off for each configuration that was decoded."""
    checked = answer.prediction_error.by_configuration if answer.prediction_error else ()
    names = list(dict.fromkeys(str(each.candidate) for each in checked))
    if not names:
        return None
    errors = [100 * each.error for each in checked]
    label = "prediction error (%)"
    plot = Plot(
        values_axis(label, [0.0, *errors]), rows_axis(names), height=_height(names), upright=True
    )
    plot.threshold(0.0)
    for each, error in zip(checked, errors, strict=True):
        plot.bar(Estimate(error, error, error), -names.index(str(each.candidate)), 0)
    rows = [
        [str(each.candidate), str(each.k), str(each.concurrency), f"{each.error:+.1%}"]
        for each in checked
    ]
    return Chart(
        "prediction-errors",
        "Predictions against what was measured",
        "A point for each configuration that was decoded, at every k and concurrency. Right of 0 "
        "the prediction was too high.",
        plot,
        Section("", ("candidate", "k", "concurrency", "off by"), rows),
    )


def _by_group(run: Run, answer: Recommendation) -> Chart | None:
    """Tokens per round at the leader's k, in each segment and at each temperature; None if the
    traffic has one of each, or too few requests of each for an interval.
    """
    k = answer.leader.k if answer.leader else max(run.manifest.question.ks)
    drafts = [each.candidate for each in answer.by_candidate if each.draft != SELF]
    by_candidate = groups_at(run, drafts, k)
    groups = next(iter(by_candidate.values()), ())
    if not any(group.tokens_per_round for group in groups):
        return None
    label = f"tokens per round at k = {k}"
    parted = "; ".join(
        f"from {fewest.value:.2f} ({worst.name}) to {most.value:.2f} ({best.name})"
        for worst, best in parting(groups)
        if (fewest := worst.tokens_per_round) and (most := best.tokens_per_round)
    )
    drawn = [
        Bar(
            f"{short(g.name if g.by == 'segment' else f'{g.by} {g.name}')} ({g.requests})",
            g.tokens_per_round,
        )
        for g in groups
    ]
    return Chart(
        "tokens-per-round-by-group",
        f"Tokens per round by group: {next(iter(by_candidate))}",
        "In parentheses: how many requests. Lines: 95% intervals over the requests of a group; "
        f"fewer than {MIN_REQUESTS} have none."
        + (" “The numbers” has the other candidates too." if len(by_candidate) > 1 else ""),
        bars(label, drawn),
        Section(
            "",
            ("by", "group", "requests", "candidate", label),
            [
                [g.by, g.name, str(g.requests), str(candidate), g.tokens_per_round]
                for candidate, groups in by_candidate.items()
                for g in groups
            ],
        ),
        f"Tokens per round at k = {k}: {parted}. An average over all requests hides that."
        if parted
        else "The intervals of all groups overlap: none is known to differ from another.",
    )
