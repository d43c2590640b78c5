"""A verdict → the terminal, the files that CI reads and the exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftbench.cli.output import width, write_result

if TYPE_CHECKING:
    from draftbench.errors import IncomparableError
    from draftbench.gate.ci import Annotation
    from draftbench.gate.result import GateResult


@dataclass(frozen=True)
class Places:
    """Where a verdict goes: format and file of the result, and the files that CI reads."""

    style: str
    output: str
    junit: Path | None
    annotations: str | None
    history: Path | None


def publish(result: GateResult, places: Places) -> None:
    """The verdict where the user looks, and where CI systems do."""
    from draftbench.gate import ci
    from draftbench.report.terminal.verdict import text

    if places.style == "json":
        shown = ci.to_json(result)
    elif places.style == "markdown":
        shown = ci.to_markdown(result)
    else:
        shown = text(result, width())
    # Before the verdict is shown: a file that cannot be written leaves no answer behind.
    if places.history is not None:
        ci.append_to_history(places.history, result, _now())
    junit = ci.to_junit(result, _now())
    _to_ci(places, junit, ci.annotations_of(result), ci.to_markdown(result))
    write_result(shown.rstrip("\n"), places.output)


def refuse(error: IncomparableError, places: Places) -> None:
    """A baseline that cannot be compared, where CI systems look; the user reads the error."""
    from draftbench.gate import ci

    junit = ci.refused_junit(error, _now())
    _to_ci(places, junit, [ci.refused_annotation(error)], ci.refused_markdown(error))


def _to_ci(places: Places, junit: str, annotations: Sequence[Annotation], markdown: str) -> None:
    from draftbench.gate import ci

    if places.junit is not None:
        write_result(junit.rstrip("\n"), str(places.junit))
    if places.annotations is not None:
        for line in ci.to_github(annotations):
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
