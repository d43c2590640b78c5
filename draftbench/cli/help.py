"""The list of commands, each imported when it is called, and their `--help`, in plain text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from draftbench.cli.flags import with_flags
from draftbench.cli.output import bold
from draftbench.flags import LAST

# In the order of use, each with its line in `draftbench --help`.
COMMANDS = {
    "demo": "Try everything on small models, offline, in a minute or two.",
    "suggest": "List drafts that are known to be used with a target.",
    "traffic": "Show how a request log is parsed.",
    "check": "Check whether drafts can work with a target.",
    "sweep": "Measure drafts on your traffic.",
    "recommend": "Decide: speculate or not, which draft, which k, how sure.",
    "acceptance": "Show acceptance, and where drafts lose it.",
    "report": "Write one HTML page that explains a run, with charts.",
    "train": "Fine-tune a draft on your traffic if it is forecast to pay off.",
    "compare": "Show what differs between two runs.",
    "gate": "Fail a CI job when acceptance regresses.",
    "export": "Print the configuration of a serving engine.",
    "estimate": "Compute a speed-up by formula, without measuring.",
    "suites": "List the built-in traffic.",
    "selfcheck": "Test what works on this machine's CPU or GPU.",
    "runs": "List, prune or redact run folders.",
}
# Width of the column of flags; a longer flag has its help on the next line.
_FLAGS_WIDTH = 26


def add_command(
    app: typer.Typer, command: Callable[..., int], summary: str, name: str | None = None
) -> None:
    """Turn a function with flags into a command; `summary` is its line in the list of commands."""
    app.command(name, cls=Command, help=help_of(command), short_help=summary)(with_flags(command))


def help_of(command: Callable[..., object]) -> str:
    """A command's docstring; \\b keeps its example lines as they are."""
    text = inspect.cleandoc(command.__doc__ or "")
    return text.replace("\n\ndraftbench ", "\n\n\b\ndraftbench ")


class Commands(TyperGroup):
    """The program; its help shows the commands on one screen and the few flags on one line."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, as help and the shell list them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, from the file of the same name; None: there is none."""
        if cmd_name not in COMMANDS:
            return None
        made = getattr(import_module(f"draftbench.cli.{cmd_name}"), cmd_name)
        if not isinstance(made, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            add_command(app, made, COMMANDS[cmd_name])
            made = app
        return typer.main.get_command(made)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the names of the flags."""
        with formatter.section(bold("Commands")):
            formatter.write_dl(list(COMMANDS.items()))
        names = [max(parameter.opts, key=len) for parameter in self.get_params(ctx)]
        formatter.write(f"\nOptions: {', '.join(names)}\n")


class Command(TyperCommand):
    """A command whose help lists the most used flags first, then the others by subject."""

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
                with formatter.section(bold(heading)):
                    formatter.write_dl(headings[heading], col_max=_FLAGS_WIDTH)


def _name(shown: str, parameter: Any) -> str:
    """`--field <str>` → `--field TEXT`; `--on / --off` → the one that is not the default."""
    on, slash, off = shown.partition(" / ")
    if slash:
        shown = off if parameter.default else on
    kind_shown = re.search(r" <(?:list\[)?(\w+)[^>]*>$", shown)
    if kind_shown is None:
        return shown
    return shown[: kind_shown.start()] + " TEXT" * (parameter.param_type_name != "argument")


def _words(shown: str) -> str:
    """Help without the default of a switch that is off; 900.0 → 900."""
    shown = re.sub(r"\[default: no-[a-z-]+\]", "", shown)
    return re.sub(r"(\[default: \d+)\.0\]", r"\1]", shown).strip()
