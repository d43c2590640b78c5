"""A command's declaration → its help: examples that keep their lines, and words for its values in
place of Python's types.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand

# A number is called what its bounds call it, `[x>=1]`.
_KINDS = {"str": " TEXT", "int": " x", "float": " x", "path": " PATH"}


def help_of(command: Callable[..., object]) -> str:
    """A command's docstring; \\b keeps the help from refilling its example lines."""
    text = inspect.cleandoc(command.__doc__ or "")
    return text.replace("\n\ndraftbench ", "\n\n\b\ndraftbench ")


class Command(TyperCommand):
    """A command whose help has no Python in it, and no default of a flag that is off."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and then the flags."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            own = [known for known in self.get_params(ctx) if known.param_type_name == kind]
            records = filter(None, (known.get_help_record(ctx) for known in own))
            rows = [(_name(name, kind), _words(text)) for name, text in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _name(shown: str, kind: str) -> str:
    """`--sample <int range>` → `--sample x`, `RUN <path>` → `RUN`."""
    found = re.search(r" <(?:list\[)?(\w+)[^>]*>$", shown)
    if found is None:
        return shown
    return shown[: found.start()] + (_KINDS[found[1].lower()] if kind == "option" else "")


def _words(shown: str) -> str:
    return re.sub(r" *\[default: no-[a-z-]+\]", "", shown)
