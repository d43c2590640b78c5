"""`draftbench traffic`: a log → how it is parsed. No model runs here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import typer

from draftbench.cli.flags import traffic_query
from draftbench.cli.output import TextOutput
from draftbench.flags import flag
from draftbench.records import to_json
from draftbench.report.text import SCREEN_COLUMNS, counted, paragraph, printable
from draftbench.traffic import TrafficQuery, load
from draftbench.traffic.constraints import KINDS
from draftbench.traffic.summary import (
    ORDINARY,
    RequestFigures,
    TrafficSummary,
    first_request,
)

SourceArgument = Annotated[
    str, typer.Argument(help="A log file, suite:NAME or hf:DATASET.", metavar="SOURCE")
]
# How many fields are named; the others are counted.
_NAMED = 8
# Forms of plain prompts to which other benchmarks apply the chat template.
_AS_CHAT_ELSEWHERE = {"vLLM custom", "text"}


def traffic(
    *,
    source: SourceArgument,
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
    query = replace(traffic_query(source, **reading), constraints=frozenset(KINDS))
    read = load(query)
    shown = show_prompt or source.startswith("suite:")
    first = first_request(read.requests[0], None, shown=shown)
    summary = msgspec.structs.replace(read.summary(source), first=first)
    if output.style == "json":
        output.write(to_json(summary))
        return 0
    bullet = "- " if output.style == "markdown" else ""
    lines = [*traffic_lines(summary), *request_lines(summary.figures)]
    output.write("\n".join(bullet + line for line in lines))
    return 0


def traffic_lines(summary: TrafficSummary) -> list[str]:
    """How a source was parsed, and what was ignored."""
    return [paragraph(line, SCREEN_COLUMNS) for line in _lines(summary)]


def request_lines(figures: RequestFigures) -> list[str]:
    """What the requests ask for."""
    temperatures = ", ".join(f"{heat} ({count})" for heat, count in figures.temperatures.items())
    limits = "no limit on output tokens"
    if figures.limits is not None:
        limits = f"max output tokens {'–'.join(map(str, dict.fromkeys(figures.limits)))}"
    usual, longest = figures.characters
    lines = [
        f"temperatures: {temperatures}; {limits}; prompts of {usual:,} characters (median; at most "
        f"{longest:,})"
    ]
    if figures.segments:
        names = [f"{printable(name)} ({count})" for name, count in figures.segments.items()]
        more = len(names) - _NAMED
        lines.append(f"segments: {', '.join(names[:_NAMED])}" + f" and {more} more" * (more > 0))
    if figures.timed:
        lines.append(f"times of arrival: {counted(figures.timed, 'request')}")
    return [paragraph(line, SCREEN_COLUMNS) for line in lines]


def _lines(summary: TrafficSummary) -> Iterator[str]:
    several = len(summary.forms) > 1
    forms = ", ".join(
        f"{form} ({rows})" if several else form for form, rows in sorted(summary.forms.items())
    )
    merged = f"; duplicates merged: {summary.merged}" if summary.merged else ""
    requests = counted(summary.requests, "request")
    form = "formats" if several else "format"
    yield f"{requests} in {counted(summary.rows, 'row')}; {form}: {forms}{merged}"
    if summary.layout not in ((), ORDINARY):
        yield f"the file is read as {', '.join(summary.layout)}"
    if summary.unread:
        names = list(summary.unread)[:_NAMED]
        more = len(summary.unread) - len(names)
        listed = ", ".join(printable(name) for name in names)
        yield f"ignored fields: {listed}" + f" and {more} more" * (more > 0)
    for reason, rows in summary.left_out.items():
        yield f"{rows} left out: {reason}"
    for bad in summary.bad_rows:
        others = f" ({bad.rows} such rows)" if bad.rows > 1 else ""
        yield f"bad row {bad.first}: {bad.reason}{others}"
    if _AS_CHAT_ELSEWHERE & summary.forms.keys():
        yield (
            "prompts are used as they are; vLLM and AIPerf would apply the chat template "
            "(--as-chat)"
        )
    for temperature, rows in sorted(summary.assumed.items()):
        meaning = "greedy" if temperature == "0" else "the default of servers"
        yield (
            f"rows without a temperature: {rows}; {temperature} is assumed, {meaning} "
            "(--temperature sets another)"
        )
    if summary.constrained:
        yield (
            f"{summary.constrained} of {requests} have structured output, which only an engine "
            "applies: draft models are replayed without it, so α holds only for the other "
            f"{1 - summary.constrained / summary.requests:.0%}"
        )
    if (first := summary.first) is not None:
        roles = ", ".join(map(printable, first.roles))
        shape = f"roles {roles}" if roles else "a plain prompt"
        end = "" if first.end is None else f"; ends with {printable(repr(first.end))}"
        yield f"first request: {shape}{end}"
