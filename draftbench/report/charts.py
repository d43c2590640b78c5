"""A run and its answer → the charts of a report, each with its caption and the table of what it
draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, methodcaller
from pathlib import Path

from draftbench.acceptance.breakdown import extremes
from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate
from draftbench.acceptance.summary import groups_at
from draftbench.errors import UsageError
from draftbench.planner.recommendation import Configuration, Recommendation
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
from draftbench.report.text import Section, TableCell, counted
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


@dataclass(frozen=True)
class Bar:
    """A row of `bars`: a name with its figure, None if it is unknown; hollow if only predicted."""

    name: str
    figure: Estimate | None
    colour: int = 0
    hollow: bool = False


def bars(label: str, rows: Sequence[Bar], asked: float | None = None) -> Plot:
    """A drawing with a figure a row. `asked` is the speed-up asked for: it is marked then, and all
    that is slower than decoding without speculation is shaded.
    """
    figures = [row.figure for row in rows if row.figure]
    ends = [end for figure in figures for end in (figure.low, figure.high)]
    axis = values_axis(label, [1.0, asked or 1.0, *ends])
    plot = Plot(axis, rows_axis([row.name for row in rows]), upright=True)
    if asked is not None:
        plot.slower(asked)
    for at, row in enumerate(rows):
        if row.figure:
            plot.bar(row.figure, -at, row.colour, hollow=row.hollow)
    return plot


def charts_of(run: Run, answer: Recommendation) -> Iterator[Chart]:
    """The charts in the order of the page, without those of what was not measured.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    over = f"over {counted(answer.requests, 'request')}"
    label = "end-to-end speed-up (×)" if answer.prefills_counted else _SPEED_UP
    drawn: list[Bar] = []
    for row, each in enumerate(answer.by_candidate):
        if speed := answer.ranked_by(each):
            name = f"{short(str(each.candidate))}, {_of_k(each)}"
            drawn.append(Bar(name, speed, row % SERIES, hollow=each.speedup_measured is None))
    if drawn:
        yield Chart(
            "speedup-by-candidate",
            "Each candidate at its best k",
            "Left of 1× speculation is slower than decoding without it. Points: the speed-ups of "
            f"the table, hollow if too little was decoded. Lines: 95% intervals {over}.",
            bars(label, drawn, answer.min_speedup),
            candidates(answer),
        )
    yield from _by_k(answer, over)

    # The speed-up of each concurrency's leader, where more than one is known.
    every = sorted(answer.by_concurrency, key=lambda at: at.concurrency)
    known = [(at, s) for at in every if (s := at.speedup_deciding or at.speedup_expected)]
    if len(known) > 1:
        ends = [1.0, *(end for _, speed in known for end in (speed.low, speed.high))]
        # Room for the label above the highest point.
        ends.append(max(ends) + 0.08 * (max(ends) - min(ends)))
        load = "requests in flight" if run.manifest.question.engine else "active decoding rows"
        axis = doublings_axis(f"concurrency ({load})", [at.concurrency for at, _ in known])
        plot = Plot(axis, values_axis(label, ends))
        plot.threshold(1.0)
        plot.line([(at.concurrency, speed) for at, speed in known], 0)
        for at, speed in known:
            plot.point(at.concurrency, speed, 0, hollow=at.speedup_measured is None)
            if at.leader is not None:
                plot.words((at.concurrency, speed.high), _of_k(at.leader), above=9)
        predicted = any(at.speedup_measured is None for at, _ in known)
        yield Chart(
            "speedup-by-concurrency",
            "Speed-up by concurrency",
            f"The best candidate and k at each concurrency. Upright lines: 95% intervals {over}."
            + " Hollow points: too little was decoded." * predicted,
            plot,
            loads(answer),
        )

    # The median and the longest wait of each kind.
    if (waits := answer.latency) is not None:
        drawn = []
        for name, words in WAITS.items():
            sides = getattr(waits.plain, name), getattr(waits.speculative, name)
            for label, side, colour in zip(
                (words, "with speculation"), sides, (_GREY, 0), strict=True
            ):
                if all(sides) and (middle := 1e3 * (side.p50 or side.largest)):
                    drawn.append(Bar(label, Estimate(middle, middle, 1e3 * side.largest), colour))
        yield Chart(
            "latency",
            "What a request waits for",
            "Point: the median. Line: up to the longest wait. Grey: without speculation.",
            bars("milliseconds", drawn),
            latency(waits, answer.engine, answer.arrivals),
        )

    # Tokens per round in each segment and at each temperature, if the traffic has several and
    # enough requests of one for an interval.
    k = answer.leader.k if answer.leader else max(run.manifest.question.ks)
    drafts = [each.candidate for each in answer.by_candidate if each.draft != SELF]
    by_candidate = groups_at(run, drafts, k)
    groups = next(iter(by_candidate.values()), ())
    if any(group.tokens_per_round for group in groups):
        label = f"tokens per round at k = {k}"
        parted = "; ".join(
            f"from {fewest.value:.2f} ({worst.name}) to {most.value:.2f} ({best.name})"
            for worst, best in extremes(groups)
            if (fewest := worst.tokens_per_round) and (most := best.tokens_per_round)
        )
        drawn = [
            Bar(
                f"{short(g.name if g.by == 'segment' else f'{g.by} {g.name}')} ({g.requests})",
                g.tokens_per_round,
            )
            for g in groups
        ]
        rows: list[list[TableCell]] = [
            [g.by, g.name, str(g.requests), str(candidate), g.tokens_per_round]
            for candidate, groups in by_candidate.items()
            for g in groups
        ]
        yield Chart(
            "tokens-per-round-by-group",
            f"Tokens per round by group: {next(iter(by_candidate))}",
            "In parentheses: how many requests. Lines: 95% intervals over the requests of a group; "
            f"fewer than {MIN_REQUESTS} have none."
            + " “The numbers” has the other candidates too."
            * (len(by_candidate) > 1),
            bars(label, drawn),
            Section("", ("by", "group", "requests", "candidate", label), rows),
            f"Tokens per round at k = {k}: {parted}. An average over all requests hides that."
            if parted
            else "The intervals of all groups overlap: none is known to differ from another.",
        )

    # How far the prediction was off for each configuration that was decoded.
    if checked := answer.prediction_error.by_configuration if answer.prediction_error else ():
        row_of = {
            name: -at for at, name in enumerate(dict.fromkeys(str(e.candidate) for e in checked))
        }
        errors = values_axis("prediction error (%)", [0.0, *(100 * e.error for e in checked)])
        plot = Plot(errors, rows_axis(list(row_of)), upright=True)
        plot.threshold(0.0)
        for e in checked:
            error = 100 * e.error
            plot.bar(Estimate(error, error, error), row_of[str(e.candidate)], 0)
        rows = [
            [str(e.candidate), e.length.short, str(e.concurrency), f"{e.error:+.1%}"]
            for e in checked
        ]
        yield Chart(
            "prediction-errors",
            "Predictions against what was measured",
            "A point for each configuration that was decoded, at every k and concurrency. Right of "
            "0 the prediction was too high.",
            plot,
            Section("", ("candidate", "k", "concurrency", "off by"), rows),
        )


def _of_k(configuration: Configuration) -> str:
    short = configuration.length.short
    return f"k = {short}" if configuration.stop is None else f"k {short}"


def _by_k(answer: Recommendation, over: str) -> Iterator[Chart]:
    """Tokens per round, and the speed-up, as lines over k; the speed-up also as filled points where
    it was decoded, and hollow ones at each candidate's best, with the choice marked. Neither has
    the control, nor the candidates for which there is no colour.
    """
    evaluations = answer.evaluations
    rows: list[list[TableCell]] = []
    for e in evaluations:
        error = None if e.prediction_error is None else f"{e.prediction_error:+.1%}"
        figures = (e.tokens_per_round, e.speedup_predicted, e.speedup_measured, error)
        rows.append([str(e.candidate), e.length.short, *figures, e.speedup_expected])
    head = ("candidate", "k", "tokens per round", "predicted ×", "measured ×", "error on decoded")
    table = Section("", (*head, "expected ×"), rows)
    colours = {e.candidate: at % SERIES for at, e in enumerate(answer.by_candidate)}
    drafts = [candidate for candidate in colours if candidate.draft != SELF]
    drawn, more = drafts[:SERIES], ""
    if len(drafts) > SERIES:
        more = f" Drawn are the first {SERIES} of {len(drafts)} candidates."
    if len(drafts) < len(colours):
        more += " The target as its own draft (self) is only in the numbers."
    shown = [e for e in evaluations if e.stop is None or e.best]
    measured = [(e, e.speedup_measured, False) for e in shown if e.speedup_measured]
    points = f"the {counted(len(measured), 'configuration')} that were decoded"
    best = [(e, e.speedup_expected, True) for e in answer.by_candidate if e.speedup_expected]
    of_speed = f"Lines and bands: expected, with 95% intervals {over}."
    of_speed += f" Filled points: measured, {points}." if measured else " Too little was decoded."
    of_speed += " Hollow points: each candidate at its best k." * bool(best)
    of_speed += " A rule's point stands at its largest k." * any(e.stop for e in shown)
    of_tokens = f"1: no drafted token is accepted; k + 1: all are. Bands: 95% intervals {over}."
    tokens = attrgetter("tokens_per_round")
    expected = methodcaller("ranked", prefills_counted=False)
    for title, label, figure_of, points_of, caption in (
        ("Tokens per round by k", "tokens per round", tokens, [], of_tokens),
        ("Speed-up by k", _SPEED_UP, expected, measured + best, of_speed),
    ):
        fixed = (e for e in evaluations if e.stop is None)
        lines = [(e, figure) for e in fixed if (figure := figure_of(e))]
        if not lines:
            continue
        lines = [line for line in lines if line[0].candidate in drawn]
        dots = [dot for dot in points_of if dot[0].candidate in drawn]
        every = [*lines, *((e, figure) for e, figure, _ in dots)]
        ks = counts_axis("draft length k (tokens)", [e.k for e, _ in every])
        ends = [end for _, figure in every for end in (figure.low, figure.high)]
        plot = Plot(ks, values_axis(label, [1.0, *ends]), names=list(map(str, drawn)))
        plot.threshold(1.0)
        names = []
        for candidate in drawn:
            curve = [(float(e.k), figure) for e, figure in lines if e.candidate == candidate]
            if curve:
                plot.line(curve, colours[candidate])
                names.append((curve[-1][1].value, str(candidate), colours[candidate]))
        dots.sort(key=lambda dot: (dot[0].k, drawn.index(dot[0].candidate), dot[2]))
        for k, group in groupby(dots, key=lambda dot: dot[0].k):
            at_k = list(group)
            top = max(figure.high for _, figure, _ in at_k)
            for (e, figure, hollow), aside in zip(at_k, plot.side_by_side(len(at_k)), strict=True):
                plot.point(k + aside, figure, colours[e.candidate], hollow=hollow)
                if hollow and e.configuration == answer.choice:
                    plot.ring(k + aside, figure, "choice", top)
        plot.names(names)
        name = title.lower().replace("speed-up", "speedup").replace(" ", "-")
        yield Chart(name, title, f"{caption}{more}", plot, table)
