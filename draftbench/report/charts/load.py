"""Load: what more active rows do to the speed-up and to the tokens per second of the machine."""

from __future__ import annotations

from draftbench.planner.recommendation import LoadLevel, Recommendation
from draftbench.report.charts.chart import Cell, Chart, Table
from draftbench.report.charts.plot import Plot, doublings_axis, room_for, values_axis
from draftbench.report.charts.speedups import SPEED_UP

ROWS = "concurrency (active decoding rows)"


def speedup(answer: Recommendation) -> list[Chart]:
    """The speed-up of each concurrency's leader; empty where only one is known."""
    known = [
        (level, level.speedup_expected)
        for level in sorted(answer.levels, key=lambda level: level.concurrency)
        if level.speedup_expected is not None
    ]
    if len(known) < 2:
        return []
    ends = [1.0, *(end for _, e in known for end in (e.low, e.high))]
    rows = doublings_axis(ROWS, [level.concurrency for level, _ in known])
    plot = Plot(rows, values_axis(SPEED_UP, [*ends, max(ends) + 0.08 * (max(ends) - min(ends))]))
    plot.mark_y(1.0)
    plot.line([(level.concurrency, e.value) for level, e in known], 0)
    for level, e in known:
        plot.point(level.concurrency, e, 0, hollow=level.speedup_measured is None)
        if level.leader is not None:
            plot.words((level.concurrency, e.high), f"k = {level.leader.k}", above=9)
    return [
        Chart(
            name="speedup-by-concurrency",
            title="Speed-up by concurrency",
            caption="The best candidate of each concurrency at its k; lines are 95 % intervals "
            f"over {answer.requests} requests; hollow: predicted only.",
            plot=plot,
            table=by_concurrency(answer),
            folded=False,
        )
    ]


def throughput(answer: Recommendation) -> list[Chart]:
    """Tokens per second of all rows, with and without speculation."""
    known = [
        (level.concurrency, level.tokens_per_second_plain, level.tokens_per_second)
        for level in sorted(answer.levels, key=lambda level: level.concurrency)
        if level.tokens_per_second_plain and level.tokens_per_second
    ]
    if len(known) < 2:
        return []
    names = ["with", "without"]
    rates = values_axis(
        "tokens per second, all rows", [0.0, *(x for _, *pair in known for x in pair)]
    )
    plot = Plot(doublings_axis(ROWS, [rows for rows, *_ in known]), rates, room=room_for(names))
    plain = [(float(rows), rate) for rows, rate, _ in known]
    fast = [(float(rows), rate) for rows, _, rate in known]
    plot.line(plain, 5, dashed=True)
    plot.line(fast, 0)
    plot.names([(fast[-1][1], "with", 0), (plain[-1][1], "without", 5)])
    table = Table(
        ("concurrency", "without", "with"),
        [[str(rows), f"{plain:.3g}", f"{fast:.3g}"] for rows, plain, fast in known],
    )
    return [
        Chart(
            name="throughput-by-concurrency",
            title="Throughput by concurrency",
            caption="Tokens per second of all rows while they decode, with and without "
            "speculation. Where the lines meet, speculation stops paying.",
            plot=plot,
            table=table,
        )
    ]


def by_concurrency(answer: Recommendation) -> Table:
    """What to run at each concurrency."""
    head = ("concurrency", "answer", "speed-up ×", "ms per token, without → with")
    return Table(head, [_level(level) for level in answer.levels], words=2)


def _level(level: LoadLevel) -> list[Cell]:
    best = None if level.leader is None else f"{level.leader.candidate}, k = {level.leader.k}"
    if level.decision == "speculate":
        words = best or ""
    elif level.decision is None:
        words = "costs unknown"
    else:
        words = "inconclusive" if level.decision == "inconclusive" else "do not speculate"
        words += "" if best is None else f" (best: {best})"
    times = [level.seconds_per_token_plain, level.seconds_per_token]
    shown = " → ".join("–" if time is None else milliseconds(time) for time in times)
    return [str(level.concurrency), words, level.speedup_expected, shown]


def milliseconds(seconds: float) -> str:
    """Three digits, more where they stand before the point."""
    time = 1000 * seconds
    return f"{time:.3g}" if time < 100 else f"{time:.0f}"
