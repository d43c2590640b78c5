"""A YAML file ↔ the flags of a command.

Keys are the long flag names, with dashes or underscores. Values go through the flags' own checks;
the command line overrides the file. A relative path in it is relative to where the command runs,
like one on the command line.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftbench.errors import UsageError, did_you_mean
from draftbench.safe_files import UnreadableError, read_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PRINT = "print_config"


def read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Make a file's values the defaults of the command's flags.

    Raises:
        UsageError: no such file, a folder, not a YAML mapping, an unknown key or a value of another
        kind.
    """
    # While the shell completes a half-typed command line, no value is needed.
    if file is None or context.resilient_parsing:
        return file
    if file.is_dir():
        raise UsageError(
            f"`{file}` is a folder, not a YAML file of flags",
            hint="separate several drafts by commas: `--drafts A,B`",
        )
    try:
        mapping = read_yaml(file)
    except UnreadableError as error:
        raise UsageError(
            f"cannot read `{file}`: {error}",
            hint="give a YAML file of `flag: value` lines; `--print-config` writes one",
        ) from error
    if not isinstance(mapping, dict):
        raise UsageError(f"`{file}` holds no flags", hint="write one `flag: value` a line")
    flags = dict(_flags(context))
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        flag = str(key).replace("_", "-")
        if flag not in flags:
            hint = did_you_mean(flag, flags, "keys are the long flags of `--help`")
            raise UsageError(f"unknown key `{key}` in `{file}`", hint=hint)
        if flags[flag].name in values:
            raise UsageError(
                f"`{key}` is given twice in `{file}`", hint="once with - and once with _; keep one"
            )
        if value is not None:
            values[flags[flag].name] = _checked(f"`{key}` in `{file}`", flags[flag], value)
    context.default_map = values
    return file


ConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A YAML file of flags. Flags on the command line override it.",
        metavar="FILE.yaml",
        callback=read_config,
        is_eager=True,
    ),
]


def config_text(context: typer.Context, without: Collection[str] = ()) -> str:
    """Every flag's value as a file that gives the same values; unset flags are left out, and those
    `without` which it is wanted.
    """
    import yaml

    shown = {}
    for flag, parameter in _flags(context):
        value = context.params[parameter.name]
        if value is not None and flag not in without:
            shown[flag] = str(value) if isinstance(value, Path) else value
    text: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


def _flags(context: typer.Context) -> Iterator[tuple[str, Any]]:
    """Long flag names without their dashes, and the parameters they set."""
    for parameter in context.command.params:
        long = [opt for opt in parameter.opts if opt.startswith("--")]
        if long and parameter.name not in (PRINT, "help"):
            yield long[0].removeprefix("--"), parameter


def _checked(what: str, parameter: Any, value: Any) -> Any:
    """A value as text, as it would be typed: the flag's type then refuses 1.5 requests."""
    if parameter.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{what} must be true or false", hint="without quotes")
        return value
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        # A number of thousands of digits cannot be written out.
        long = isinstance(part, int) and part.bit_length() >= 64
        if long or isinstance(part, bool) or not isinstance(part, (str, int, float, date)):
            raise UsageError(
                f"{what} must be text, a number or a list of these",
                hint="write true and false only for switches, and nest nothing",
            )
    texts = [str(part) for part in parts]
    return texts if parameter.multiple else ",".join(texts)
