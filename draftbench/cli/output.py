"""Where a command's result goes: stdout or a file that is replaced as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from draftbench.errors import UsageError
from draftbench.flags import in_output
from draftbench.safe_files import is_other_work, write_whole

if TYPE_CHECKING:
    from draftbench.report.text import Section

FORMATS = ("table", "json", "markdown", "csv")
# The formats of results that are not a table of figures.
TEXT_FORMATS = ("table", "json", "markdown")
# Colours by the first word of an answer.
_COLOURS = {"speculate": "green", "pass": "green", "fail": "red", "inconclusive": "yellow"}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

QUIET = in_output(False, "Print only the device, the result and errors.", names=("--quiet", "-q"))


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """Where a result is written.

    Raises:
        UsageError: the path cannot be written; raised before any work is done.
    """

    output: str = in_output(
        "-",
        "Write the result to this file, replacing what it holds, instead of stdout.",
        "FILE",
        ("--output", "-o"),
        show_default=False,
    )

    def __post_init__(self) -> None:
        check_output(self.output, force=True)

    def write(self, text: str) -> None:
        """Print the text, or replace the file by it."""
        write_result(text, self.output)


@dataclass(frozen=True, kw_only=True)
class TextOutput(ResultFile):
    """Where a text is written, and in which format."""

    style: str = in_output(
        "table", "Print a table, json or markdown.", "FORMAT", ("--format",), among=TEXT_FORMATS
    )

    def write(self, text: str) -> None:
        """Print the text, a table's first line in bold, or replace the file by it."""
        if (self.style, self.output) == ("table", "-"):
            first, end, rest = text.partition("\n")
            text = bold(first) + end + rest
        super().write(text)

    def show(self, answer: Any, sections: Iterable[Section], rest: str = "") -> None:
        """Write an answer, see `rendered`, as wide as the terminal."""
        self.write(rendered(answer, sections, self.style, width(), rest))


@dataclass(frozen=True, kw_only=True)
class Output(TextOutput):
    """Where a table of figures is written, and in which format."""

    style: str = in_output(
        "table", "Print a table, json, markdown or csv.", "FORMAT", ("--format",), among=FORMATS
    )


def bold(text: str) -> str:
    """The text in bold, and a verdict in its colour, if stdout is a terminal that shows them and
    NO_COLOR is not set.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not sys.stdout.isatty():
        return text
    return typer.style(text, bold=True, fg=_COLOURS.get(re.split(r"\W", text)[0].lower()))


def rendered(
    answer: Any, sections: Iterable[Section], style: str, width: int, rest: str = ""
) -> str:
    """A record as json, or as its sections in a table or in markdown; with `rest`, the flag that
    shows everything, a table is one screen.
    """
    if style == "json":
        from draftbench.records import to_json

        return to_json(answer)
    from draftbench.report.text import render_sections

    return render_sections(sections, style, width, rest)


def width() -> int:
    """How many columns to fill: the terminal's, `COLUMNS`, or 100."""
    return shutil.get_terminal_size((100, 24)).columns


def note(text: str) -> None:
    """Print a line on stderr: stdout holds nothing but the result."""
    typer.echo(text, err=True)


def check_output(output: str | Path, force: bool) -> None:
    """Refuse a path that cannot be written; `-` is stdout.

    Raises:
        UsageError: its folder is missing, the path is a folder or part of a run, or it holds a file
            that draftbench did not write, which only `force` replaces.
    """
    path = Path(output)
    if str(output) == "-":
        return
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write to `{output}`",
            hint=f"create the folder `{path.parent}` first, or name another file",
        )
    if path.is_dir():
        raise UsageError(f"cannot write to `{output}`: it is a folder", hint="name a file")
    from draftbench.run_folder.folder import RunFolder  # not where a result goes to stdout

    if RunFolder.holds(path):
        raise UsageError(
            f"cannot write to `{output}`: it is a part of a run", hint="name another file"
        )
    if not force and is_other_work(path):
        raise UsageError(
            f"`{output}` exists, and draftbench cannot tell that it wrote it",
            hint="name another file, or replace it with --force",
        )


def write_result(text: str, output: str | Path = "-") -> None:
    """Print the text, or replace a file by it; if that fails, the old file is still complete.

    Raises:
        UsageError: the file cannot be written, for example because the disk is full.
        OSError: stdout cannot be written.
    """
    # If `head` has read enough, the exit code is still the answer's.
    with contextlib.suppress(BrokenPipeError):
        if str(output) == "-":
            typer.echo(text)
            return
        try:
            write_whole(Path(output), (text.rstrip("\n") + "\n").encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot_write(str(output), error) from error


def cannot_write(where: str, error: OSError) -> UsageError:
    """The error for a result that could not be written."""
    room = "free some space or " if error.errno in FULL else ""
    return UsageError(
        f"cannot write to `{where}`: {error.strerror}",
        hint=f"{room}name another file; nothing measured is lost",
    )
