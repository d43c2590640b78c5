"""`draftbench traffic`: a log → how it is parsed. No model runs here."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import typer

from draftbench.cli.flags import traffic_query
from draftbench.cli.output import TextOutput
from draftbench.flags import flag
from draftbench.records import to_json
from draftbench.report.terminal.traffic import request_lines, traffic_lines
from draftbench.traffic import TrafficQuery, load
from draftbench.traffic.constraints import KINDS
from draftbench.traffic.summary import first_request

SourceArgument = Annotated[
    str, typer.Argument(help="A log file, suite:NAME or hf:DATASET.", metavar="SOURCE")
]


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
