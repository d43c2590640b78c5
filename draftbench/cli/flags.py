"""Text of flags → checked values, and results → where the user wants them. Every failure says what
would do.
"""

from __future__ import annotations

import contextlib
import difflib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.completing import among, sources
from draftbench.errors import UsageError
from draftbench.memory import LEVELS, parse_size
from draftbench.safe_files import write_whole

FORMATS = ["table", "json", "markdown", "csv"]
FormatOption = Annotated[
    str,
    typer.Option("--format", help="table, json, markdown or csv.", autocompletion=among(*FORMATS)),
]
# Of what is no grid of figures.
TEXT_FORMATS = ["table", "json", "markdown"]
TextFormatOption = Annotated[
    str,
    typer.Option("--format", help="table, json or markdown.", autocompletion=among(*TEXT_FORMATS)),
]
OutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        help="Write the result to a file instead of stdout (`-`).",
        metavar="FILE",
        show_default=False,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result and errors.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="A line for every unit of work, with its figures.")
]
TargetOption = Annotated[
    str, typer.Option(help="Directory, .gguf file or hub id of the target.", metavar="MODEL")
]
TrafficOption = Annotated[
    str,
    typer.Option(
        help="Request log, `suite:NAME`, or `hf:DATASET[/CONFIG][:SPLIT][@REVISION]`.",
        metavar="SOURCE",
        autocompletion=sources,
    ),
]
SegmentByOption = Annotated[str | None, typer.Option(help="Field that holds the segment.")]
PromptFieldOption = Annotated[str | None, typer.Option(help="Field that holds the prompt.")]
ResponseFieldOption = Annotated[
    str | None, typer.Option(help="Field that holds the logged answer.")
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="CPU threads (default: one per core).")
]


def size_of(flag: str, text: str) -> int:
    """`20GB` → bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        sentence, _, hint = str(error).partition(": ")
        raise UsageError(f"{flag} {sentence}", hint=hint) from None


def width() -> int:
    """Columns to fill: the terminal's, `COLUMNS`, or 100."""
    return shutil.get_terminal_size((100, 24)).columns


LARGEST_BATCH = 256


def draft_lengths(text: str) -> tuple[int, ...]:
    """`1-8`, `2,4` or a mixture → sorted draft lengths."""
    return _numbers("--k", text, 64, "draft lengths")


def batch_sizes(text: str) -> tuple[int, ...]:
    """`1,4,16` → sorted numbers of rows that decode together."""
    return _numbers("--batch", text, LARGEST_BATCH, "batch sizes")


def _numbers(flag: str, text: str, largest: int, what: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        low, high = number_range(flag, part)
        if not 1 <= low <= high <= largest:
            raise UsageError(
                f"{flag} {text}: {what} run from 1 to {largest}", hint="for example 1,4"
            )
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def model_names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """`a,b`, or the flag repeated → each name once. What stands whole on the disk holds its commas
    itself.
    """
    found: dict[str, None] = {}
    for text in texts:
        names = [text] if Path(text).expanduser().exists() else text.split(",")
        if not all(name.strip() for name in names):
            raise UsageError(
                f"{flag} `{text}` has an empty name", hint=f"for example {flag} ./a,./b"
            )
        found.update((name.strip(), None) for name in names)
    return tuple(found)


def level_names(flag: str, text: str) -> tuple[str, ...]:
    """`none,int4` → each level once."""
    return tuple(dict.fromkeys(level_name(flag, part.strip()) for part in text.split(",")))


def level_name(flag: str, text: str) -> str:
    """A level; those of stored formats (`gptq-int4`) are known to the library that reads them."""
    return text if "-" in text else one_of(flag, text, list(LEVELS))


def confidences(text: str | None) -> tuple[float, ...]:
    """`0.4,0.75` → sorted thresholds of a draft's confidence."""
    try:
        found = {float(part) for part in text.split(",")} if text else set()
    except ValueError:
        found = {-1.0}
    if not all(0 < value < 1 for value in found):
        raise UsageError(
            f"--stop-below {text}: a confidence lies between 0 and 1", hint="for example 0.4,0.75"
        )
    return tuple(sorted(found))


def number_range(flag: str, text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    try:
        first, last = int(low), int(high if dash else low)
    except ValueError:
        raise UsageError(
            f"{flag} {text} is not a number or a range", hint="for example 2-4"
        ) from None
    if not 1 <= first <= last:
        raise UsageError(f"{flag} {text} is not a rising range from 1", hint="for example 2-4")
    return first, last


def one_of(flag: str, value: str, allowed: list[str]) -> str:
    if value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, 1)
    hint = f"did you mean `{near[0]}`?" if near else "one of " + ", ".join(allowed)
    raise UsageError(f"{flag} cannot be `{value}`", hint=hint)


def check_output(output: str) -> None:
    """A path that cannot be written fails now, not after the sweep."""
    if output == "-":
        return
    parent = Path(output).parent
    if not parent.is_dir() or Path(output).is_dir():
        raise UsageError(f"cannot write to `{output}`", hint="the folder must exist")


def write_result(text: str, output: str) -> None:
    """A file is replaced as a whole; a write that fails leaves what was there.

    Raises:
        UsageError: the file cannot be written, for example for want of space.
        OSError: stdout takes no more.
    """
    # A reader that has seen enough is no fault, and the exit code stays the answer's.
    with contextlib.suppress(BrokenPipeError):
        if output == "-":
            typer.echo(text)
            return
        check_output(output)
        try:
            write_whole(Path(output), f"{text}\n".encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot_write(output, error) from error


def cannot_write(where: str, error: OSError) -> UsageError:
    """What a write that failed means for whoever asked for it."""
    return UsageError(
        f"cannot write to `{where}`: {error.strerror}",
        hint="free some space or give another file with --output; nothing measured is lost",
    )
