"""Speed-ups: each candidate at its best k, and every k as predicted and as measured."""

from __future__ import annotations

from draftbench.memory import format_size
from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.records import SELF
from draftbench.report.charts.chart import Chart, Table, series_of
from draftbench.report.charts.plot import (
    WIDTH,
    Axis,
    Plot,
    counts_axis,
    room_for,
    rows_axis,
    short,
    values_axis,
)

SPEED_UP = "decode speed-up (×)"


def by_candidate(answer: Recommendation) -> list[Chart]:
    """Each candidate at its best k as a row; empty where no speed is known."""
    known = [
        (each, speed)
        for each in answer.by_candidate
        if (speed := each.speedup_expected or each.speedup_predicted) is not None
    ]
    if not known:
        return []
    ends = [1.0, answer.min_speedup, *(end for _, e in known for end in (e.low, e.high))]
    rows = rows_axis([f"{short(str(each.candidate))}, k = {each.k}" for each, _ in known])
    tall = 44.0 + 34.0 * len(known)
    plot = Plot(values_axis(SPEED_UP, ends), rows, height=tall, room=50.0, upright=True)
    plot.thresholds(answer.min_speedup)
    series = series_of(answer)
    for at, (each, speed) in enumerate(known):
        plot.bar(speed, -at, series[str(each.candidate)], hollow=each.speedup_measured is None)
        place, coords = (WIDTH - 2, -at), ("figure points", "data")
        plot.words(place, f"{speed.value:.2f}×", "right", "ink", coords, -4, "bold")
    decoded = sum(each.speedup_measured is not None for each, _ in known)
    return [
        Chart(
            name="speedup-by-candidate",
            title="Each candidate at its best k",
            caption=f"Lines are 95 % intervals over {answer.requests} requests. Filled: predicted "
            f"for all requests and corrected by decoding some ({decoded} of {len(known)}); hollow: "
            "predicted only. Left of 1× speculation is slower than decoding without it.",
            plot=plot,
            table=_candidates(answer),
            folded=False,
        )
    ]


def _candidates(answer: Recommendation) -> Table:
    rows = [
        [
            str(each.candidate),
            str(each.k),
            each.speedup_expected or each.speedup_predicted,
            each.alpha,
            each.tokens_per_round,
            each.draft_cost_ratio,
            None if each.memory_bytes is None else format_size(each.memory_bytes),
        ]
        for each in answer.by_candidate
    ]
    head = ("candidate", "k", "speed-up ×", "α", "tokens per round", "cost ratio c", "memory")
    return Table(head, rows, chosen=None if answer.choice is None else 0)


def by_k(answer: Recommendation) -> list[Chart]:
    """One chart per draft, its quantization levels as lines, all on one scale."""
    known = [
        e
        for e in answer.evaluations
        if (e.speedup_predicted or e.speedup_measured) and e.draft != SELF
    ]
    ends = [s for e in known for s in (e.speedup_predicted, e.speedup_measured) if s]
    if not ends:
        return []
    scale = values_axis(SPEED_UP, [1.0, *(end for s in ends for end in (s.low, s.high))])
    drafts = dict.fromkeys(each.draft for each in answer.by_candidate if each.draft != SELF)
    return [
        _of_draft(answer, draft, at, scale, [each for each in known if each.draft == draft])
        for at, draft in enumerate(drafts, 1)
        if any(each.draft == draft for each in known)
    ]


def _of_draft(
    answer: Recommendation, draft: str, number: int, scale: Axis, known: list[Evaluation]
) -> Chart:
    series = series_of(answer)
    levels: dict[str, list[Evaluation]] = {}
    for each in known:
        levels.setdefault(each.quant, []).append(each)
    words = {level: "unquantized" if level == "none" else level for level in levels}
    several = len(levels) > 1
    ks = counts_axis("draft length k (tokens)", [each.k for each in known])
    plot = Plot(ks, scale, room=room_for(list(words.values())) if several else 12.0)
    plot.mark_y(1.0)
    names, chosen = [], None
    for at, (level, cells) in enumerate(levels.items()):
        colour = series[str(cells[0].candidate)]
        shift = 0.08 * (at - (len(levels) - 1) / 2)
        curve = [(float(e.k), s) for e in cells if (s := e.speedup_predicted)]
        if curve:
            plot.band(curve, colour)
            plot.line([(k, s.value) for k, s in curve], colour)
            names.append((curve[-1][1].value, words[level], colour))
        for each in cells:
            place = each.k + shift
            if each.speedup_measured:
                plot.point(place, each.speedup_measured, colour)
            if each.configuration == answer.choice:
                chosen = each, place
    if several:
        plot.names(names)
    if chosen is not None:
        each, place = chosen
        tops = [s for s in (each.speedup_measured, each.speedup_predicted) if s]
        plot.ring(place, tops[0].value, "choice", max(s.high for s in tops))
    measured = sum(e.speedup_measured is not None for e in known)
    points = (
        f"points: measured on the decoded requests ({measured})" if measured else "none decoded"
    )
    return Chart(
        name=f"speedup-by-k-{number}",
        title=f"Speed-up by k: {draft}",
        caption=f"Line and band: predicted on all {answer.requests} requests, 95 %; {points}.",
        plot=plot,
        table=_every_k(known),
    )


def _every_k(known: list[Evaluation]) -> Table:
    rows = [
        [
            str(each.candidate),
            str(each.k),
            each.speedup_predicted,
            each.speedup_measured,
            None if each.prediction_error is None else f"{each.prediction_error:+.1%}",
            each.speedup_expected,
        ]
        for each in known
    ]
    head = ("candidate", "k", "predicted ×", "measured ×", "prediction off by", "expected ×")
    return Table(head, rows)
