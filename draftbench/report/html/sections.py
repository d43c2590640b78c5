"""The six sections of the page: a sentence that says what to see, the charts, the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftbench.planner.recommendation import Latency, Recommendation
from draftbench.records import SELF
from draftbench.report.charts.chart import Chart, Table
from draftbench.report.charts.load import by_concurrency, milliseconds
from draftbench.report.figures import Figures, Part
from draftbench.report.html.method import method
from draftbench.report.html.tables import coded, figure, folded, table
from draftbench.report.markup import Html, element
from draftbench.run_folder.run import Run


@dataclass(frozen=True)
class Section:
    """A part of the page; `key` is its id."""

    key: str
    title: str
    lead: str
    parts: Sequence[Html | None]

    def html(self, number: int) -> Html:
        """The section under its number."""
        heading = element("h2", element("span", str(number), class_="number"), self.title)
        return element(
            "section",
            heading,
            element("p", coded(self.lead), class_="lead"),
            *self.parts,
            id=self.key,
        )


def sections(
    name: str,
    run: Run,
    answer: Recommendation,
    charts: Mapping[str, Sequence[Chart]],
    figures: Figures,
) -> list[Html]:
    """All sections in reading order; what was not measured says so in its sentence."""
    every = [
        _candidates(answer, charts["candidates"]),
        _acceptance(charts["acceptance"]),
        _by_k(answer, charts["k"]),
        _load(answer, charts["load"]),
        _segments(answer, figures, charts["segments"]),
        Section(
            "method",
            "How this was measured",
            "What limits these figures, how they were checked, and how to repeat them.",
            method(name, run, answer),
        ),
    ]
    return [section.html(number) for number, section in enumerate(every, 1)]


def _drawn(charts: Sequence[Chart], *beside: Html | None) -> Html | None:
    """Charts side by side where the page is wide, with what is read beside them."""
    parts = [*map(figure, charts), *beside]
    return element("div", *parts, class_="charts beside" if beside else "charts") if parts else None


def _candidates(answer: Recommendation, charts: Sequence[Chart]) -> Section:
    drafts = [each for each in answer.by_candidate if each.draft != SELF]
    speeds = [each.speedup_expected or each.speedup_predicted for each in drafts]
    faster = sum(speed is not None and speed.low > 1 for speed in speeds)
    if not charts:
        lead = "No pass was timed, so no candidate's speed is known."
    elif len(drafts) == faster == 1:
        lead = "The candidate clearly speeds up decoding."
    elif faster in (0, len(drafts)):
        which = (
            f"All {faster} candidates clearly speed" if faster else "No candidate clearly speeds"
        )
        lead = f"{which} up decoding."
    else:
        lead = f"{faster} of {len(drafts)} candidates clearly speed up decoding."
    reasons = [element("li", f"{e.candidate}: {e.reason}") for e in drafts if e.reason]
    parts = [
        _drawn(charts, *(table(chart.table) for chart in charts)),
        folded("Why not the others", element("ul", *reasons)) if reasons else None,
    ]
    return Section("candidates", "Candidates", lead, parts)


def _acceptance(charts: Sequence[Chart]) -> Section:
    lead = (
        "How many drafted tokens the target accepts decides what a longer draft can win: a curve "
        "that flattens shows the k beyond which drafting is wasted."
        if charts
        else "Nothing was replayed, so acceptance is unknown."
    )
    return Section("acceptance", "Acceptance by position and k", lead, [_drawn(charts)])


def _by_k(answer: Recommendation, charts: Sequence[Chart]) -> Section:
    error = answer.prediction_error
    lead = "A longer draft wins more tokens per round and costs more to propose and to verify. "
    if not charts:
        lead = "No pass was timed, so the speed-up at each k is unknown."
    elif error is None:
        lead += "Nothing was decoded, so these predictions are unchecked."
    else:
        lead += (
            f"Predictions were off by {error.median:.1%} in the median and {error.worst:.1%} at "
            f"worst over {error.configurations} measured configurations."
        )
    return Section("k", "Speed-up by k", lead, [_drawn(charts)])


def _load(answer: Recommendation, charts: Sequence[Chart]) -> Section:
    timed = [level for level in answer.levels if level.decision is not None]
    if len(timed) < 2:
        lead = (
            f"Only concurrency {answer.concurrency} was timed; sweep with `--concurrency 1,4,16` "
            "to see how the speed-up falls under load."
        )
    elif answer.crossover is None:
        lead = "It clearly pays at every concurrency that was timed, the largest included."
    elif answer.crossover == 0:
        lead = "It clearly pays at no concurrency that was timed."
    else:
        between = answer.crossover_between
        how = f" (interpolated between {between[0]} and {between[1]})" if between else ""
        lead = (
            "The more requests decode together, the less room a pass has for drafted tokens. "
            f"Speculation pays off up to about {answer.crossover} concurrent requests{how}."
        )
    beside = table(by_concurrency(answer)) if len(answer.levels) > 1 else None
    waits = answer.latency
    parts = [
        _drawn(charts),
        beside,
        _schedule(answer),
        None if waits is None else element("h3", "What a request waits for, in milliseconds"),
        None if waits is None else table(_waits(waits)),
    ]
    return Section("load", "Load and latency", lead, parts)


def _schedule(answer: Recommendation) -> Html | None:
    """k by concurrency with the leader's draft, which is what an engine loads."""
    if len(answer.schedule) < 2 or answer.leader is None:
        return None
    steps = ", ".join(
        f"{step.concurrency} → {'open' if step.k is None else step.k}" for step in answer.schedule
    )
    words = f"k by concurrency with {answer.leader.candidate} (0: do not speculate): {steps}."
    return element("p", words, class_="note")


def _waits(latency: Latency) -> Table:
    """Percentiles without and with speculation; a dash where the values are too few for one."""
    rows = []
    for field, name in (
        ("time_per_output_token", "per output token"),
        ("chunk_gap", "between chunks of a stream"),
        ("time_to_first_token", "first token"),
    ):
        for word, side in (("without", latency.plain), ("with", latency.speculative)):
            found = getattr(side, field)
            times = (found.p50, found.p90, found.p99, found.largest)
            shown = [None if time is None else milliseconds(time) for time in times]
            rows.append([name if word == "without" else "", word, *shown, str(found.values)])
    head = ("", "speculation", "p50", "p90", "p99", "max", "values")
    return Table(head, rows, words=2)


def _segments(answer: Recommendation, figures: Figures, charts: Sequence[Chart]) -> Section:
    if not charts:
        lead = (
            "All requests belong to one segment and one temperature; `--segment-by FIELD` of "
            "`sweep` splits them."
        )
        return Section("segments", "Segments", lead, [])
    lead = "An average can hide segments where a draft performs poorly. "
    name = None if answer.leader is None else str(answer.leader.candidate)
    own = [part for part in figures.parts if part.candidate == name and part.by == "segment"]
    known = [(part.tokens_per_round.value, part) for part in own if part.tokens_per_round]
    if len(known) > 1:
        least, most = (end(known, key=lambda pair: pair[0]) for end in (min, max))
        lead += (
            f"{name} yields {least[0]:.2f} tokens per round on {_of(least[1])} and {most[0]:.2f} "
            f"on {_of(most[1])}."
        )
    return Section("segments", "Segments", lead, [_drawn(charts)])


def _of(part: Part) -> str:
    return f"“{part.name}”"
