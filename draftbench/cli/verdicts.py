"""A verdict → the history file, the terminal, CI's files and the exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftbench.cli.flags import width, write_result

if TYPE_CHECKING:
    from draftbench.errors import IncomparableError
    from draftbench.gate.ci import Finding
    from draftbench.gate.result import GateResult


def recorded(result: GateResult, history: Path, plot: Path | None) -> tuple[GateResult, str]:
    """Append the verdict; it comes back with any drift among its notes, and with the history as
    text.
    """
    from draftbench.gate.history import read_history, record_verdict
    from draftbench.report.history import draw, text

    result = record_verdict(history, result, _now())
    entries = read_history(history)
    if plot is not None:
        draw(entries, plot)
    return result, text(entries, result, width())


@dataclass(frozen=True)
class Places:
    """Where a verdict goes: the format and file of the result, and the files that CI reads.
    `baseline` is what an annotation points at.
    """

    style: str
    output: str
    junit: Path | None
    code_quality: Path | None
    annotations: str | None
    baseline: str


def publish(result: GateResult, past: str, places: Places) -> None:
    """The verdict where the user looks, and where CI systems do; `past` follows it in a table."""
    from draftbench.gate import ci
    from draftbench.gate.junit import to_junit
    from draftbench.report.verdict import text

    if places.style == "json":
        shown = ci.to_json(result)
    elif places.style == "markdown":
        shown = ci.to_markdown(result)
    else:
        shown = "\n\n".join(filter(None, (text(result, width()), past)))
    # Before the verdict is shown: a file that cannot be written leaves no answer behind.
    _to_ci(places, to_junit(result, _now()), ci.findings(result), ci.to_markdown(result))
    write_result(shown.rstrip("\n"), places.output)


def refuse(error: IncomparableError, places: Places) -> None:
    """A baseline that cannot be compared, where CI systems look; the user reads the error."""
    from draftbench.gate import ci
    from draftbench.gate.junit import refused_junit

    junit = refused_junit(error, _now())
    _to_ci(places, junit, [ci.refused_finding(error)], ci.refused_markdown(error))


def _to_ci(places: Places, junit: str, findings: Sequence[Finding], markdown: str) -> None:
    from draftbench.gate import ci

    if places.junit is not None:
        write_result(junit.rstrip("\n"), str(places.junit))
    if places.code_quality is not None:
        document = ci.to_code_quality(findings, places.baseline)
        write_result(document.rstrip("\n"), str(places.code_quality))
    if places.annotations is not None:
        for line in ci.to_github(findings):
            typer.echo(line, err=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a") as stream:
                stream.write(markdown + "\n")
        except OSError as failed:  # a summary that is lost must not hide the verdict
            typer.echo(f"cannot write the summary to `{summary}`: {failed.strerror}", err=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def exit_code(result: GateResult, inconclusive: str, *, exit_zero: bool) -> int:
    """The verdict's own code unless a flag says otherwise."""
    if exit_zero:
        return 0
    if result.exit_code == 3 and inconclusive != "report":
        return 0 if inconclusive == "pass" else 1
    return result.exit_code
