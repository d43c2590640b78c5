"""`draftbench traffic`: a log → how it is parsed. No model runs here."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from draftbench.cli.flags import traffic_query
from draftbench.cli.output import TextOutput
from draftbench.flags import flag
from draftbench.records import to_json
from draftbench.report.text import SCREEN_COLUMNS, Section, counted, paragraph, printable
from draftbench.traffic import TrafficQuery, load
from draftbench.traffic.constraints import KINDS
from draftbench.traffic.suites import suites
from draftbench.traffic.summary import ORDINARY, TrafficSummary, first_request

SourceArgument = Annotated[
    str | None,
    typer.Argument(
        help="A log file, suite:NAME or hf:DATASET (default: list the built-in suites).",
        metavar="SOURCE",
    ),
]
# How many fields are named; the others are counted.
_NAMED = 8


def traffic(
    *,
    source: SourceArgument = None,
    reading: Annotated[dict[str, Any], TrafficQuery],
    show_prompt: bool = flag(False, "Show how the first request's text ends."),
    output: TextOutput,
) -> int:
    """Show how a request log is parsed, and which fields are ignored: the first thing to try with a
    new one.

    draftbench traffic prod.jsonl
    draftbench traffic prod.jsonl --show-prompt
    draftbench traffic suite:chat --format json | jq .forms
    """
    if source is None:
        every = suites()
        rows = [[f"suite:{each.name}", str(each.requests), each.title] for each in every]
        output.show(every, [Section("Built-in suites", ["suite", "requests", "what"], rows)])
        return 0
    read = load(traffic_query(source, constraints=frozenset(KINDS), **reading))
    shown = show_prompt or source.startswith("suite:")
    first = first_request(read.requests[0], None, shown=shown)
    summary = msgspec.structs.replace(read.summary, first=first)
    if output.style == "json":
        output.write(to_json(summary))
        return 0
    bullet = "- " if output.style == "markdown" else ""
    lines = [*traffic_lines(summary), *request_lines(summary)]
    output.write("\n".join(bullet + line for line in lines))
    return 0


def traffic_lines(summary: TrafficSummary) -> list[str]:
    """How a source was parsed, and what was ignored."""
    forms = sorted(summary.forms.items())
    named = ", ".join(f"{form} ({rows})" if len(forms) > 1 else form for form, rows in forms)
    requests = counted(summary.requests, "request")
    lines = [
        f"{requests} from {counted(summary.rows, 'row')}; format{'s' * (len(forms) > 1)}: {named}"
    ]
    if summary.merged:
        lines.append(f"{counted(summary.merged, 'row')} repeated: a request counts once per row")
    if len(summary.models) > 1:
        apart = f"--segment-by {summary.model_field}"
        lines.append(f"models: {_named(summary.models)}; {apart} reports on each")
    if summary.several:
        rows = counted(summary.several, "row")
        lines.append(f"{rows} asking for several answers (n): the request counts n times")
    if summary.layout not in ((), ORDINARY):
        lines.append(f"the file is read as {', '.join(summary.layout)}")
    if summary.unread:
        names = list(summary.unread)[:_NAMED]
        more = len(summary.unread) - len(names)
        listed = ", ".join(printable(name) for name in names)
        lines.append(f"ignored fields: {listed}" + f" and {more} more" * (more > 0))
    lines += [f"{count} left out: {reason}" for reason, count in summary.left_out.items()]
    for bad in summary.bad_rows:
        others = f" ({bad.rows} such rows)" if bad.rows > 1 else ""
        lines.append(f"bad row {bad.first}: {bad.reason}{others}")
    if summary.assumed:
        heats = {"temperature 0": ", greedy", "temperature 1": ", the default of servers"}
        order = sorted(summary.assumed, key=lambda what: (what[:4] != "temp", what))
        each = "; ".join(f"{it}{heats.get(it, '')} ({summary.assumed[it]})" for it in order)
        sets = " (--temperature sets another)" * (not heats.keys().isdisjoint(order))
        lines.append(f"assumed where rows do not say it: {each}{sets}")
    if summary.constrained:
        other = 1 - summary.constrained / summary.requests
        lines.append(
            f"{summary.constrained} of {requests} with structured output, which only an engine "
            "applies: the built-in decoder leaves them out; beside an engine draft models are "
            f"replayed without it, so α holds only for the other {other:.0%}"
        )
    if (first := summary.first) is not None:
        roles = ", ".join(map(printable, first.roles))
        plain = "a plain prompt, used as it is (--as-chat makes it a user's message)"
        end = "" if first.end is None else f"; ends with {printable(repr(first.end))}"
        lines.append(f"first request: {f'roles {roles}' if roles else plain}{end}")
    return [paragraph(line, SCREEN_COLUMNS) for line in lines]


def request_lines(summary: TrafficSummary) -> list[str]:
    """What the requests ask for, of which model, and how many were answered."""
    figures = summary.figures
    temperatures = ", ".join(f"{heat} ({count})" for heat, count in figures.temperatures.items())
    limits = "no limit on output tokens"
    if figures.limits is not None:
        limits = f"max output tokens {'–'.join(map(str, dict.fromkeys(figures.limits)))}"
    lines = [f"temperatures: {temperatures}; {limits}; prompts of {_lengths(figures.characters)}"]
    used = summary.rows - sum(summary.left_out.values()) - sum(bad.rows for bad in summary.bad_rows)
    of_lengths = f", of {_lengths(figures.answers)}" if figures.answers else ""
    lines.append(f"logged answers: {summary.answered} of {counted(used, 'row')}{of_lengths}")
    if len(summary.models) == 1:
        lines.append(f"model: {_named(summary.models)}")
    if figures.segments:
        lines.append(f"segments: {_named(figures.segments)}")
    if figures.timed:
        lines.append(f"times of arrival: {counted(figures.timed, 'request')}")
    return [paragraph(line, SCREEN_COLUMNS) for line in lines]


def _named(counts: dict[str, int]) -> str:
    names = [f"{printable(name)} ({count})" for name, count in counts.items()]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + f" and {more} more" * (more > 0)


def _lengths(characters: tuple[int, int]) -> str:
    usual, longest = characters
    return f"{usual:,} character{'s' * (usual != 1)} (median; at most {longest:,})"
