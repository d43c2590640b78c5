"""What a traffic source holds, as lines: printed before every sweep and by `draftbench traffic`."""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.report.terminal.text import SCREEN_COLUMNS, counted, paragraph, printable
from draftbench.traffic.summary import ORDINARY, RequestFigures, TrafficSummary

# Fields that are named; the others are counted.
_NAMED = 8
# Forms of plain prompts that other benchmarks put through the chat template.
_PLAIN = {"vLLM custom", "text"}


def traffic_lines(summary: TrafficSummary) -> list[str]:
    """What was read of a source, and what was not."""
    return [paragraph(line, SCREEN_COLUMNS) for line in _lines(summary)]


def request_lines(figures: RequestFigures) -> list[str]:
    """What its requests ask for."""
    temperatures = ", ".join(f"{heat} ({count})" for heat, count in figures.temperatures.items())
    limits = "no limits of output tokens"
    if figures.limits is not None:
        least, most = figures.limits
        limits = f"limits of {least if least == most else f'{least} to {most}'} output tokens"
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
    yield f"{requests} in {counted(summary.rows, 'row')}, read as {forms}{merged}"
    if summary.layout not in ((), ORDINARY):
        yield f"the file is read as {', '.join(summary.layout)}"
    if summary.unread:
        names = list(summary.unread)[:_NAMED]
        more = len(summary.unread) - len(names)
        listed = ", ".join(printable(name) for name in names)
        yield f"fields that are not read: {listed}" + f" and {more} more" * (more > 0)
    for reason, rows in summary.left_out.items():
        yield f"{rows} left out: {reason}"
    for bad in summary.bad_rows:
        others = f" ({bad.rows} such rows)" if bad.rows > 1 else ""
        yield f"bad row {bad.first}: {bad.reason}{others}"
    if _PLAIN & summary.forms.keys():
        yield (
            "prompts are used as they are; vLLM and AIPerf would put them through the chat "
            "template (--as-chat)"
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
            "applies: draft models are replayed without it, so α holds for the other "
            f"{1 - summary.constrained / summary.requests:.0%}"
        )
    if (first := summary.first) is not None:
        roles = ", ".join(map(printable, first.roles))
        shape = f"turns of {roles}" if roles else "a plain prompt"
        end = "" if first.end is None else f"; it ends: {printable(repr(first.end))}"
        yield f"the first request: {shape}{end}"
