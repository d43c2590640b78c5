"""Where a command's result goes: stdout or a file that is replaced as a whole."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import typer

from draftbench.errors import UsageError
from draftbench.safe_files import write_whole


def width() -> int:
    """Columns to fill: the terminal's, `COLUMNS`, or 100."""
    return shutil.get_terminal_size((100, 24)).columns


def note(text: str) -> None:
    """A line on stderr, so that stdout holds nothing but the result."""
    typer.echo(text, err=True)


def check_output(*outputs: str | Path | None) -> None:
    """Refuse paths that cannot be written before any work is done; `-` is stdout.

    Raises:
        UsageError: a folder is missing, or the path is one.
    """
    for output in outputs:
        if output is None or str(output) == "-":
            continue
        if not Path(output).parent.is_dir():
            raise UsageError(
                f"cannot write to `{output}`",
                hint=f"create the folder `{Path(output).parent}` first, or name another file",
            )
        if Path(output).is_dir():
            raise UsageError(f"cannot write to `{output}`: it is a folder", hint="name a file")


def write_result(text: str, output: str | Path) -> None:
    """Print the text, or replace a file by it; when that fails the old file is still whole.

    Raises:
        UsageError: the file cannot be written, for example because the disk is full.
        OSError: stdout cannot be written.
    """
    # A reader that has seen enough is no error, and the exit code stays the answer's.
    with contextlib.suppress(BrokenPipeError):
        if str(output) == "-":
            typer.echo(text)
            return
        check_output(output)
        try:
            write_whole(Path(output), (text.rstrip("\n") + "\n").encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot_write(str(output), error) from error


def cannot_write(where: str, error: OSError) -> UsageError:
    """The error for a result that could not be written."""
    return UsageError(
        f"cannot write to `{where}`: {error.strerror}",
        hint="free some space or name another file with --output; nothing measured is lost",
    )
