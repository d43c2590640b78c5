"""A run and its answer → the charts of a report, each with its caption and the table of what it
draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftbench.acceptance.breakdown import GroupRounds, rounds_by_group
from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.rounds import expected_rounds, law_of, replays_of
from draftbench.errors import UsageError
from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.records import SELF
from draftbench.report.answer import candidates, loads
from draftbench.report.plot import (
    SERIES,
    WIDTH,
    Plot,
    counts_axis,
    doublings_axis,
    rows_axis,
    short,
    values_axis,
)
from draftbench.report.terminal.text import Cell, Section
from draftbench.run_folder.run import Run

_SPEED_UP = "decode speed-up (×)"


@dataclass(frozen=True)
class Chart:
    """A drawing with its title, its caption and its table; `name` is that of its file."""

    name: str
    title: str
    caption: str
    plot: Plot
    table: Section

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
    """Every chart by its name, in the order of the page; those of what was not measured left out.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    charts = (
        _by_candidate(answer),
        _tokens_by_k(answer),
        _speedup_by_k(answer),
        _by_concurrency(answer),
        _by_group(run, answer),
    )
    return {chart.name: chart for chart in charts if chart is not None}


def _by_candidate(answer: Recommendation) -> Chart | None:
    """Each candidate at its best k as a row."""
    known = [
        (each, speed)
        for each in answer.by_candidate
        if (speed := each.speedup_expected or each.speedup_predicted) is not None
    ]
    if not known:
        return None
    limits = [1.0, answer.min_speedup, *_ends(speed for _, speed in known)]
    rows = rows_axis([f"{short(str(each.candidate))}, k = {each.k}" for each, _ in known])
    axis, tall = values_axis(_SPEED_UP, limits), 44.0 + 34.0 * len(known)
    plot = Plot(axis, rows, height=tall, names=["2.00×"], upright=True)
    plot.slower(answer.min_speedup)
    colours = _colours(answer)
    for at, (each, speed) in enumerate(known):
        plot.bar(speed, -at, colours[str(each.candidate)], hollow=each.speedup_measured is None)
        place, coords = (WIDTH - 2, -at), ("figure points", "data")
        plot.words(place, f"{speed.value:.2f}×", "right", "ink", coords, -4, "bold")
    decoded = sum(each.speedup_measured is not None for each, _ in known)
    return Chart(
        "speedup-by-candidate",
        "Each candidate at its best k",
        f"Lines are 95 % intervals over {answer.requests} requests. Filled: predicted for all "
        f"requests and corrected by decoding some ({decoded} of {len(known)}); hollow: predicted "
        "only. Left of 1× speculation is slower than decoding without it.",
        plot,
        candidates(answer),
    )


def _tokens_by_k(answer: Recommendation) -> Chart | None:
    known = [(e, e.tokens_per_round) for e in answer.evaluations if e.tokens_per_round]
    plot = _curves(answer, "tokens per round", known, [])
    if plot is None:
        return None
    caption = (
        "1 means the draft never helps, k + 1 that it is always right. Bands are 95 % intervals "
        f"over {answer.requests} requests.{_left_out(answer)}"
    )
    return Chart("tokens-per-round-by-k", "Tokens per round by k", caption, plot, _every_k(answer))


def _speedup_by_k(answer: Recommendation) -> Chart | None:
    """Every k as predicted and as measured."""
    predicted = [(e, e.speedup_predicted) for e in answer.evaluations if e.speedup_predicted]
    measured = [(e, e.speedup_measured) for e in answer.evaluations if e.speedup_measured]
    plot = _curves(answer, _SPEED_UP, predicted, measured)
    if plot is None:
        return None
    plot.threshold(1.0)
    points = f"measured on the decoded requests ({len(measured)})" if measured else "none decoded"
    caption = (
        f"Line and band: predicted on all {answer.requests} requests, 95 %; points: {points}."
        f"{_left_out(answer)}"
    )
    return Chart("speedup-by-k", "Speed-up by k", caption, plot, _every_k(answer))


def _curves(
    answer: Recommendation,
    label: str,
    lines: Sequence[tuple[Evaluation, Estimate]],
    points: Sequence[tuple[Evaluation, Estimate]],
) -> Plot | None:
    """A line per candidate over k, points beside one another; the choice is marked among them. The
    control and all but the first candidates are left out.
    """
    drawn = _drawn(answer)
    lines = [pair for pair in lines if str(pair[0].candidate) in drawn]
    points = [pair for pair in points if str(pair[0].candidate) in drawn]
    if not lines:
        return None
    ks = counts_axis("draft length k (tokens)", [each.k for each, _ in (*lines, *points)])
    limits = [1.0, *_ends(figure for _, figure in (*lines, *points))]
    plot = Plot(ks, values_axis(label, limits), names=drawn)
    colours, names = _colours(answer), []
    for name in drawn:
        curve = [(float(e.k), figure) for e, figure in lines if str(e.candidate) == name]
        if curve:
            plot.line(curve, colours[name])
            names.append((curve[-1][1].value, name, colours[name]))
    for each, figure in points:
        shift = 0.08 * (drawn.index(str(each.candidate)) - (len(drawn) - 1) / 2)
        plot.point(each.k + shift, figure, colours[str(each.candidate)])
        if each.configuration == answer.choice:
            plot.ring(each.k + shift, figure.value, "choice", figure.high)
    plot.names(names)
    return plot


def _every_k(answer: Recommendation) -> Section:
    rows: list[list[Cell]] = [
        [
            str(each.candidate),
            str(each.k),
            each.tokens_per_round,
            each.speedup_predicted,
            each.speedup_measured,
            None if each.prediction_error is None else f"{each.prediction_error:+.1%}",
            each.speedup_expected,
        ]
        for each in answer.evaluations
    ]
    figures = ("predicted ×", "measured ×", "prediction off by", "expected ×")
    return Section("", ("candidate", "k", "tokens per round", *figures), rows)


def _by_concurrency(answer: Recommendation) -> Chart | None:
    """The speed-up of each concurrency's leader, where more than one is known."""
    levels = sorted(answer.levels, key=lambda level: level.concurrency)
    known = [(level, speed) for level in levels if (speed := level.speedup_expected) is not None]
    if len(known) < 2:
        return None
    limits = [1.0, *_ends(speed for _, speed in known)]
    # Room for the words above the highest.
    limits.append(max(limits) + 0.08 * (max(limits) - min(limits)))
    rows = doublings_axis(
        "concurrency (active decoding rows)", [level.concurrency for level, _ in known]
    )
    plot = Plot(rows, values_axis(_SPEED_UP, limits))
    plot.threshold(1.0)
    plot.line([(level.concurrency, speed) for level, speed in known], 0)
    for level, speed in known:
        plot.point(level.concurrency, speed, 0, hollow=level.speedup_measured is None)
        if level.leader is not None:
            plot.words((level.concurrency, speed.high), f"k = {level.leader.k}", above=9)
    return Chart(
        "speedup-by-concurrency",
        "Speed-up by concurrency",
        "The best candidate of each concurrency at its k; lines are 95 % intervals over "
        f"{answer.requests} requests; hollow: predicted only.",
        plot,
        loads(answer),
    )


def _by_group(run: Run, answer: Recommendation) -> Chart | None:
    """What a round yields in each segment and at each temperature, where the traffic has several;
    at the leader's k.
    """
    k = answer.leader.k if answer.leader else max(run.manifest.question.ks)
    groups: list[tuple[str, GroupRounds]] = []
    for each in answer.by_candidate:
        if each.draft != SELF:
            pairs = replays_of(
                each.candidate, run.trajectories, run.replays, run.manifest.question.mode
            )
            rounds = expected_rounds([law_of(*pair) for pair in pairs], k)
            found = rounds_by_group([trajectory for trajectory, _ in pairs], {k: rounds})
            groups += [(str(each.candidate), group) for group in found]
    if not groups:
        return None
    drawn, colours = _drawn(answer), _colours(answer)
    counts = {_group_name(group): group.requests for _, group in groups}
    rows = rows_axis([f"{short(name)} ({count})" for name, count in counts.items()])
    known = [(name, group, e) for name, group in groups if (e := group.tokens_per_round)]
    limits = [1.0, *_ends(figure for name, _, figure in known if name in drawn)]
    tall = 14.0 + 12.0 * len(drawn)
    axis = values_axis(f"tokens per round at k = {k}", limits)
    plot = Plot(axis, rows, height=44.0 + tall * len(counts), upright=True)
    for name, group, figure in known:
        if name in drawn:
            line = drawn.index(name) - (len(drawn) - 1) / 2
            place = -list(counts).index(_group_name(group)) - 12 * line / tall
            plot.bar(figure, place, colours[name])
    if len(drawn) > 1:
        plot.key([(name, colours[name]) for name in drawn])
    table = Section(
        "",
        ("by", "group", "requests", "candidate", f"tokens per round, k = {k}"),
        [[g.by, g.name, str(g.requests), name, g.tokens_per_round] for name, g in groups],
    )
    return Chart(
        "tokens-per-round-by-group",
        "Tokens per round by group" if len(drawn) > 1 else f"Tokens per round by group: {drawn[0]}",
        "In parentheses the requests. Lines are 95 % intervals over the requests of a group; a "
        f"group of one request has none.{_left_out(answer)}",
        plot,
        table,
    )


def _group_name(group: GroupRounds) -> str:
    return group.name if group.by == "segment" else f"{group.by} {group.name}"


def _ends(figures: Iterable[Estimate]) -> list[float]:
    return [end for figure in figures for end in (figure.low, figure.high)]


def _drawn(answer: Recommendation) -> list[str]:
    """The candidates that there are colours for, the control left out."""
    return [str(e.candidate) for e in answer.by_candidate if e.draft != SELF][:SERIES]


def _left_out(answer: Recommendation) -> str:
    """What a caption adds where there are more candidates than colours: the table has them all."""
    count = sum(each.draft != SELF for each in answer.by_candidate)
    return "" if count <= SERIES else f" Drawn are the first {SERIES} of {count} candidates."


def _colours(answer: Recommendation) -> dict[str, int]:
    """The colour of each candidate by its name: the same in every chart, the first the leader's."""
    return {str(each.candidate): at % SERIES for at, each in enumerate(answer.by_candidate)}
