"""The commands: imported when they are called, made of functions with flags, and their `--help`."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from threadpoolctl import threadpool_limits
from typer.core import TyperCommand, TyperGroup

from draftbench.cli.output import bold
from draftbench.flags import LAST, flag_name, flags_of, number, one_of, path

# In the order of use, each with its line in `draftbench --help`.
COMMANDS = {
    "demo": "Try everything on small models, offline, in a minute or two.",
    "suggest": "List drafts that are known to be used with a target.",
    "traffic": "Show how a request log is parsed; list the built-in ones.",
    "check": "Check whether drafts can work with a target, or a device.",
    "sweep": "Measure drafts on your traffic.",
    "recommend": "Decide: speculate or not, which draft, which k, how sure.",
    "explain": "Explain a caveat of an answer.",
    "acceptance": "Show acceptance, and where drafts lose it.",
    "report": "Write one HTML page that explains a run, with charts.",
    "train": "Fine-tune a draft on your traffic if it is forecast to pay off.",
    "audit": "Say why a decoder accepts differently from replay.",
    "compare": "Show what differs between two runs.",
    "gate": "Fail a CI job when acceptance regresses.",
    "export": "Print the configuration of a serving engine.",
    "estimate": "Compute a speed-up by formula, without measuring.",
    "schema": "Print the JSON Schema of what a command prints.",
    "runs": "List, prune or redact run folders.",
}
# Types of flags that nothing parses, by their names in annotations.
_KINDS = {kind.__name__: kind for kind in (bool, int, float, str, Path)}
# Width of the column of flags; a longer flag has its help on the next line.
_FLAGS_WIDTH = 26


def add_command(
    app: typer.Typer, command: Callable[..., int], summary: str, name: str | None = None
) -> None:
    """Turn a function with flags into a command; `summary` is its line in the list of commands."""
    app.command(name, cls=Command, help=help_of(command), short_help=summary)(with_flags(command))


def with_flags(command: Callable[..., int]) -> Callable[..., int]:
    """The command as typer calls it: every flag is a parameter, every value is parsed.

    A parameter typed as a record receives the record, made from its flags' values; one typed
    `Annotated[dict[str, Any], Record]` receives the values as a dict.

    The returned command raises a UsageError for a value that a flag does not allow.
    """
    flags: dict[str, Field[Any]] = {}
    groups: dict[str, tuple[type[Any], Callable[..., Any]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, declared = parameter.annotation, parameter.default
        group = next((each for each in (kind, *get_args(kind)[1:]) if is_dataclass(each)), None)
        if isinstance(group, type):
            groups[parameter.name] = (group, group if group is kind else dict)
            for each in flags_of(group):
                flags[each.name] = each
                parameters.append(_parameter(each.name, each, each.type))
        elif isinstance(declared, Field):
            flags[parameter.name] = declared
            parameters.append(_parameter(parameter.name, declared, kind))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def called(**values: Any) -> int:
        for name, declared in flags.items():
            value, among = values[name], declared.metadata["among"]
            if value is None:
                values[name] = None if declared.default is MISSING else declared.default
                continue
            if among:
                one_of(flag_name(declared, name), value, among)
            if parse := declared.metadata["parse"]:
                values[name] = parse(value)
        for name, (group, made) in groups.items():
            values[name] = made(**{each.name: values.pop(each.name) for each in flags_of(group)})
        # A second thread of numpy's BLAS would only spin: the products here are small.
        with threadpool_limits(1, "blas"):
            return command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(name: str, declared: Field[Any], kind: Any) -> inspect.Parameter:
    """A flag as a parameter for typer, of type str if its text is parsed later."""
    about = declared.metadata
    default = about["default"]
    if about["many"]:
        kind = list[str]
    elif about["parse"] or about["among"]:
        kind = str
    elif isinstance(kind, str):  # as a record's annotations are
        kind = _KINDS[kind.removesuffix(" | None")]
    shown = dict(about["option"])
    if number_kind := next((n for n in (int, float) if n in (kind, *get_args(kind))), None):
        limits = shown.pop("min", -math.inf), shown.pop("max", math.inf)
        known = (flag_name(declared, name), number_kind, *limits)
        # Not typer's own types, whose errors are in the words of a library.
        shown["parser"] = lambda text: number(*known, text)
        shown["metavar"] = shown["metavar"] or ("N" if number_kind is int else "X")
    elif Path in (kind, *get_args(kind)):
        shown["parser"] = lambda text: path(flag_name(declared, name), text)
        shown["metavar"] = shown["metavar"] or "PATH"
    option = typer.Option(*about["names"], **shown)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind | None if default is None else kind, option],
    )


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
        formatter.write(f"Options: {', '.join(names)}\n")


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
                name, words = record
                # `--on / --off` → the one that is not the default.
                on, slash, off = name.partition(" / ")
                if slash:
                    name = off if parameter.default else on
                # `--field <str>` → `--field TEXT`
                name = re.sub(r" <(?:list\[)?\w+[^>]*>$", "" if argument else " TEXT", name)
                # No default of a switch that is off; 900.0 → 900.
                words = re.sub(r"\[default: no-[a-z-]+\]", "", words)
                words = re.sub(r"(\[default: \d+)\.0\]", r"\1]", words).strip()
                headings.setdefault("Arguments" if argument else panel, []).append((name, words))
        for heading in sorted(headings, key=lambda each: LAST.index(each) if each in LAST else -1):
            if headings[heading]:
                with formatter.section(bold(heading)):
                    formatter.write_dl(headings[heading], col_max=_FLAGS_WIDTH)
