"""`draftbench explain`: what a caveat means, from when on it is said, and what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from draftbench.cli.output import TextOutput
from draftbench.errors import UsageError, did_you_mean
from draftbench.planner.caveat_kinds import CAVEATS
from draftbench.report.text import Section


def explain(
    kind: Annotated[
        str | None,
        typer.Argument(help="A caveat, as `recommend --all` names it (default: all of them)."),
    ] = None,
    *,
    output: TextOutput,
) -> int:
    """Explain a caveat: what it means, when it is said, and what to do about it.

    draftbench explain
    draftbench explain drift
    """
    if kind is None:
        rows = [[name, about.means] for name, about in CAVEATS.items()]
        notes = ["One of them in full: draftbench explain KIND"]
        output.show(CAVEATS, [Section("Caveats", ["kind", "what it means"], rows, notes)])
        return 0
    about = CAVEATS.get(kind)  # type: ignore[call-overload]
    if about is None:
        raise UsageError(
            f"there is no caveat `{kind}`",
            hint=did_you_mean(kind, CAVEATS, "`draftbench explain` lists them"),
        )
    doubted = {
        "acceptance": "Every answer about acceptance: also those of gate, compare and train.",
        "speed": "Every answer about speed; acceptance is not affected.",
        "": "What it names.",
    }[about.doubts]
    lines = (
        about.means,
        f"Said when: {about.when}",
        f"Concerns: {doubted}",
        f"Makes the answer provisional: {about.decisive}.",
        f"What to do: {about.advice}",
    )
    output.show({kind: about}, [Section(kind, notes=list(lines))])
    return 0
