"""A verdict → the history file, the terminal, CI's files and the exit code."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftbench.cli.values import width, write_result

if TYPE_CHECKING:
    from draftbench.gate.result import GateResult


def recorded(result: GateResult, history: Path, plot: Path | None) -> tuple[GateResult, str]:
    """Append the verdict; it comes back with any drift among its notes, and with the history as
    text.
    """
    from draftbench.gate.history import read_history, record_verdict
    from draftbench.report.history import draw, text

    result = record_verdict(history, result, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    entries = read_history(history)
    if plot is not None:
        draw(entries, plot)
    return result, text(entries, result, width())


def publish(
    result: GateResult,
    past: str,
    style: str,
    output: str,
    *,
    junit: Path | None,
    annotations: str | None,
) -> None:
    """The verdict where the user looks, and where CI systems do; `past` follows it in a table."""
    from draftbench.gate import ci
    from draftbench.report.verdict import text

    if style == "json":
        write_result(ci.to_json(result).rstrip("\n"), output)
    elif style == "markdown":
        write_result(ci.to_markdown(result).rstrip("\n"), output)
    else:
        write_result("\n\n".join(filter(None, (text(result, width()), past))), output)
    if junit is not None:
        write_result(ci.to_junit(result).rstrip("\n"), str(junit))
    if annotations is not None:
        for line in ci.to_annotations(result, ci.AnnotationStyle(annotations)):
            typer.echo(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a") as stream:
            stream.write(ci.to_markdown(result) + "\n")


def exit_code(result: GateResult, inconclusive: str, *, exit_zero: bool) -> int:
    """The verdict's own code unless a flag says otherwise."""
    if exit_zero:
        return 0
    if result.exit_code == 3 and inconclusive != "report":
        return 0 if inconclusive == "pass" else 1
    return result.exit_code
