"""Every flag is declared once: as a field of the record that the code works with, or as a parameter
of the only command that has it.

A declaration holds the default, the help, how text becomes a value, and what the flag needs;
`cli/commands.py` turns it into a parameter of the command line. A flag's panel is its heading in
`--help`; flags without one come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from draftbench.errors import UsageError, did_you_mean
from draftbench.memory import LEVELS, parse_size

# The headings that come last in `--help`, in this order.
LAST = ("Decision", "Safety", "Output")

# Far beyond what anyone would measure.
LARGEST_K, LARGEST_CONCURRENCY, LARGEST_CARD = 64, 4096, 255


def flag(
    default: Any,
    help: str,
    metavar: str | None = None,
    names: Sequence[str] = (),
    *,
    among: Collection[str] = (),
    parse: Callable[[Any], Any] | None = None,
    many: bool = False,
    unset: Any = None,
    panel: str | None = None,
    needs: object = None,
    hint: str = "",
    **more: Any,
) -> Any:
    """One flag, as the default of a record's field or of a command's parameter.

    Args:
        default: as it would be typed; `...` if the flag must be given.
        names: if they differ from the field's name.
        among: the only allowed values; the shell completes them.
        parse: text → value; with `many`, the flag may be repeated: texts → value.
        unset: the value if it is not given and its default is None.
        needs: what it makes no sense without; `hint` is for a user who gives it anyway.
        more: further arguments of `typer.Option`.
    """
    if among:
        more["autocompletion"] = lambda incomplete: list(among)
    more |= {"help": help, "metavar": metavar, "rich_help_panel": panel}
    metadata = {"default": default, "option": more, "names": names, "among": among, "parse": parse}
    metadata |= {"many": many, "needs": needs, "hint": hint}
    value = unset if default is None else default
    if parse and default not in (None, ...):
        value = parse(default)
    return field(default=MISSING if value is ... else value, metadata=metadata)


in_traffic = partial(flag, panel="Traffic")
in_models = partial(flag, panel="Models and hardware")
in_measure = partial(flag, panel="What to measure")
in_decision, in_safety, in_output = (partial(flag, panel=panel) for panel in LAST)


def flags_of(group: Any) -> list[Field[Any]]:
    """The fields of a record or of its class that are flags."""
    return [each for each in fields(group) if each.metadata]


def flag_name(declared: Field[Any], name: str = "") -> str:
    """A flag's name, such as `--max-memory`; a field does not know the name of its parameter."""
    return next(iter(declared.metadata["names"]), f"--{(name or declared.name).replace('_', '-')}")


def one_of(flag: str, value: str, allowed: Collection[str]) -> None:
    """Refuse a value that the flag does not know."""
    if value not in allowed:
        hint = did_you_mean(value, allowed, f"it can be {', '.join(allowed)}")
        raise UsageError(f"{flag} cannot be `{value}`", hint=hint)


def numbers(flag: str, largest: int, text: str, *, smallest: int = 1) -> tuple[int, ...]:
    """`8,1-3` → (8, 1, 2, 3): each number once, in the order given."""
    chosen: dict[int, None] = {}
    for part in text.split(","):
        low, high = number_range(flag, part, text, smallest=smallest)
        if high > largest:
            raise UsageError(
                f"{flag} {text}: the largest value is {largest}", hint=f"for example {flag} 1,4"
            )
        chosen.update(dict.fromkeys(range(low, high + 1)))
    return tuple(chosen)


def number(flag: str, kind: type[float], low: float, high: float, text: str) -> float:
    """`48` → 48, within the limits of a flag."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if low <= value <= high:
        return value
    end, bound = ("largest", high) if value > high else ("smallest", low)
    limit = f"the {end} value is {bound:.10g}"
    if math.isnan(value):
        limit = f"expected a {'whole ' * (kind is int)}number"
    raise UsageError(f"{flag} {text}: {limit}", hint=f"for example {flag} {max(low, 1):g}")


def path(flag: str, text: str) -> Path:
    """A path; empty text is refused, since it would mean the current folder."""
    if not text:
        raise UsageError(f"{flag} is empty", hint="a variable of the shell may be unset")
    return Path(text)


def number_range(flag: str, part: str, text: str, *, smallest: int = 1) -> tuple[int, int]:
    """`2-4` or `3`, a part of a flag's text → first and last."""
    low, dash, high = part.strip().partition("-")
    try:
        # A number below 0 begins with the dash.
        first, last = int(low or part), int(high if dash else low)
    except ValueError:
        raise UsageError(
            f"{flag} {text}: expected a number or a range", hint=f"for example {flag} 2-4"
        ) from None
    if first < smallest:
        raise UsageError(
            f"{flag} {text}: the smallest value is {smallest}", hint=f"for example {flag} 1-4"
        )
    if first > last:
        raise UsageError(
            f"{flag} {text}: the start of a range must not exceed its end",
            hint=f"for example {flag} {last}-{first}",
        )
    return first, last


def draft_lengths(text: str) -> tuple[int, ...]:
    """`2,4-6` → draft lengths, the shortest first."""
    return tuple(sorted(numbers("--k", LARGEST_K, text)))


def model_names(texts: Sequence[str]) -> tuple[str, ...]:
    """`a,b`, or the flag repeated → each name once, whether a shell completed it with a slash or
    not. A path that exists keeps its commas.
    """
    names: dict[str, str] = {}
    for text in texts:
        parts = [text] if Path(text).expanduser().exists() else text.split(",")
        if not all(part.strip() for part in parts):
            raise UsageError(
                f"--drafts {text}: a name between commas is empty",
                hint="for example --drafts ./a,./b",
            )
        for part in map(str.strip, parts):
            names.setdefault(part.rstrip("/"), part)
    return tuple(names.values())


def level_names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """`none,int4`, or the flag repeated → each level once."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(level_name(flag, part) for part in parts))


def level_name(flag: str, text: str) -> str:
    """Refuse an unknown level; a stored format's level (`gptq-int4`) is checked when it is read."""
    stored = "-" in text and "," not in text
    one_of(flag, text, LEVELS if not stored else (text,))
    return text


def size_of(flag: str, text: str) -> int:
    """`20GB` → bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        hint = "a number and a unit, for example 24GB or 16GiB"
        raise UsageError(f"{flag} {error}", hint=hint) from None


def target_flag(default: Any = ..., unless: str = "") -> Any:
    """A flag for the target model, needed unless another one is given."""
    needed = f" Required without {unless}." if unless else ""
    help = f"The target model: a folder, a .gguf file or a Hugging Face id.{needed}"
    return flag(default, help, "MODEL")


def drafts_flag(
    help: str = "The drafts, separated by commas: models or eagle3:HEAD.", default: Any = ...
) -> Any:
    """A flag for names of models."""
    return flag(default, help, "MODEL,…", parse=model_names, many=True)
