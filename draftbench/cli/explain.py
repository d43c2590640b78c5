"""`draftbench explain`: what a caveat means, from when on it is said, and what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from draftbench.cli.output import TextOutput
from draftbench.errors import UsageError, did_you_mean
from draftbench.planner.caveat_kinds import CAVEATS, AboutCaveat
from draftbench.report.text import Section


def explain(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND]...", help="Caveats, as `recommend` names them (default: all of them)."
        ),
    ] = None,
    *,
    output: TextOutput,
) -> int:
    """Explain caveats: what each means, when it is said, and what to do about it.

    draftbench explain
    draftbench explain drift looping
    """
    if not kinds:
        rows = [[name, about.means] for name, about in CAVEATS.items()]
        notes = ["In full: draftbench explain KIND …"]
        output.show(CAVEATS, [Section("Caveats", ["kind", "what it means"], rows, notes)])
        return 0
    asked = {kind: about for kind, about in CAVEATS.items() if kind in kinds}
    for kind in kinds:
        if kind not in asked:
            raise UsageError(
                f"there is no caveat `{kind}`",
                hint=did_you_mean(kind, CAVEATS, "`draftbench explain` lists them"),
            )
    output.show(asked, [Section(kind, notes=_in_full(about)) for kind, about in asked.items()])
    return 0


def _in_full(about: AboutCaveat) -> list[str]:
    """What a kind of caveat means, when it is said, what it concerns, and what to do."""
    doubted = {
        "acceptance": "Every answer about acceptance: also those of gate, compare and train.",
        "speed": "Every answer about speed; acceptance is not affected.",
        "": "Only what it names.",
    }[about.doubts]
    return [
        about.means,
        f"Said when: {about.when}",
        f"Affects: {doubted}",
        f"Makes the answer provisional: {about.decisive}.",
        f"What to do: {about.advice}",
    ]
