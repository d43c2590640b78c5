"""Makes functions commands, and writes their `--help` as plain text under headings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from draftbench.cli.flags import with_flags
from draftbench.flags import LAST

# Width of the column of flags; a longer flag has its help on the next line.
_FLAGS_WIDTH = 26


def add_command(
    app: typer.Typer, command: Callable[..., int], summary: str, name: str | None = None
) -> None:
    """Make a function with flags a command; `summary` is its line in the list of commands."""
    app.command(name, cls=Command, help=help_of(command), short_help=summary)(with_flags(command))


def help_of(command: Callable[..., object]) -> str:
    """A command's docstring; \\b keeps its example lines as they are."""
    text = inspect.cleandoc(command.__doc__ or "")
    return text.replace("\n\ndraftbench ", "\n\n\b\ndraftbench ")


class Commands(TyperGroup):
    """The program, whose help has its commands on one screen and its few flags on one line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the names of the flags."""
        self.format_commands(ctx, formatter)
        names = [max(parameter.opts, key=len) for parameter in self.get_params(ctx)]
        formatter.write(f"\nOptions: {', '.join(names)}\n")


class Command(TyperCommand):
    """A command whose help lists the flags used first, then the others by subject."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`RUN` where Typer writes `{RUN}`."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the flags, each under its heading."""
        headings: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                row = (_name(record[0], parameter), _words(record[1]))
                headings.setdefault("Arguments" if argument else panel, []).append(row)
        for heading in sorted(headings, key=lambda each: LAST.index(each) if each in LAST else -1):
            if headings[heading]:
                with formatter.section(heading):
                    formatter.write_dl(headings[heading], col_max=_FLAGS_WIDTH)


def _name(shown: str, parameter: Any) -> str:
    """`--sample <int range>` → `--sample N`; `--on / --off` → the one that is not the default."""
    on, slash, off = shown.partition(" / ")
    if slash:
        shown = off if parameter.default else on
    kind_shown = re.search(r" <(?:list\[)?(\w+)[^>]*>$", shown)
    if kind_shown is None:
        return shown
    kind = {"int": " N", "float": " X", "path": " PATH"}.get(kind_shown[1].lower(), " TEXT")
    return shown[: kind_shown.start()] + ("" if parameter.param_type_name == "argument" else kind)


def _words(shown: str) -> str:
    """Help without the limits of numbers and the default of a switch that is off; 900.0 → 900."""
    shown = re.sub(r"\[default: no-[a-z-]+\]|(; )?([\d.e-]+<=)?x[<>]=[\d.e-]+", "", shown)
    return re.sub(r"(\[default: \d+)\.0\]", r"\1]", shown).replace("[]", "").strip()
