"""Append-only files of records: one append a line, written whole or not at all, read back in order.

A line is a record, or a list of records that stand or fall together. A line that a kill cut short
has no newline at its end: it is not read, and the next append takes its place. Links and pipes in
place of such a file are refused, so that a run folder from elsewhere cannot lead out of itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from draftbench.errors import RunFolderError
from draftbench.records import Observation, Record, Replay, Trajectory
from draftbench.run_folder.manifest import SCHEMA_VERSION
from draftbench.run_folder.validate import objection, upgraded
from draftbench.safe_files import json_without_controls, sync_folder

MAX_LINE_BYTES = 64 << 20


_HINTS = {
    errno.ENOSPC: "free some space and repeat the command",
    errno.EDQUOT: "your quota is used up; free some space and repeat the command",
    errno.EFBIG: "a limit on file sizes is set (`ulimit -f`); raise it and repeat the command",
    errno.EROFS: "the file system is read-only; take another --out",
    errno.EACCES: "you may not write there; take another --out",
    errno.ELOOP: "a run folder holds no links; take another --out",
    errno.ENOTDIR: "a part of this path is a file; take another --out",
}


def append_line(path: Path, records: Sequence[Record]) -> None:
    """Append records as one line and sync it to disk.

    Raises:
        RunFolderError: it cannot be written, or is longer than a reader takes; the file is as it
        was before.
    """
    line = msgspec.json.encode(records[0] if len(records) == 1 else list(records)) + b"\n"
    if len(line) >= MAX_LINE_BYTES:
        raise RunFolderError(
            f"record too large for `{path}` ({len(line) >> 20} MiB; limit 64 MiB)",
            hint="decode fewer requests at a time (--concurrency) or shorter responses "
            "(--max-new-tokens)",
        )
    try:
        new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _append(descriptor, line)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def _append(descriptor: int, line: bytes) -> None:
    whole = _whole_length(descriptor)
    os.ftruncate(descriptor, whole)
    os.lseek(descriptor, whole, os.SEEK_SET)
    try:
        left = memoryview(line)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # a torn line is recognized anyway
            os.ftruncate(descriptor, whole)
        raise


def _whole_length(descriptor: int) -> int:
    """Bytes up to and including the last newline; a torn line behind it does not count."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_lines(path: Path, kind: Any, schema: int = SCHEMA_VERSION) -> Iterator[Any]:
    """Yield the records of a file, in the order in which they were appended; none where there is no
    file.

    Args:
        kind: the records' type.
        schema: the layout in which they were written.

    Raises:
        RunFolderError: it cannot be read, or a line holds something else; names file and line.
    """
    decode = _decoder(kind, schema)
    for number, line in enumerate(whole_lines(path), start=1):
        yield from _records(decode, line, f"`{path}` line {number}")


def _decoder(kind: Any, schema: int) -> Callable[[bytes], Any]:
    """From a line's JSON to its record, or to the list of them."""
    if schema == SCHEMA_VERSION:
        return msgspec.json.Decoder(kind | list[kind]).decode
    plain = msgspec.json.Decoder(dict[str, Any] | list[dict[str, Any]])

    def upgrade(line: bytes) -> list[Any]:
        values = plain.decode(line)
        found = values if isinstance(values, list) else [values]
        layouts = map(upgraded, found)
        return [msgspec.convert(value, kind) for value in layouts if value is not None]

    return upgrade


def _records(decode: Callable[[bytes], Any], line: bytes, where: str) -> list[Any]:
    """The records of one line.

    Raises:
        RunFolderError: it holds something else.
    """
    try:
        found = decode(json_without_controls(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(
            f"{where}: {error}", hint="the file was changed by something else"
        ) from error
    records = found if isinstance(found, list) else [found]
    for record in records:
        if isinstance(record, Observation):
            if reason := objection(record):
                raise RunFolderError(
                    f"{where}: {reason}", hint="the file was changed by something else"
                )
            _share(record)
    return records


# Numbers of long lists were rounded to three digits when they were written, so a run of millions of
# them holds a few thousand different ones. Equal ones become one object: eight bytes each are left
# of thirty-two.
_ROUNDED: dict[type[Observation], tuple[str, ...]] = {
    Trajectory: ("margins",),
    Replay: ("accept", "confidence", "margin", "overlap"),
}
_MOST_SHARED = 100_000  # a file that was not rounded must not fill the memory from here
_shared: dict[float, float] = {}


def _share(record: Observation) -> None:
    for name in _ROUNDED.get(type(record), ()):
        values: tuple[float, ...] | None = getattr(record, name)
        if values is not None:
            shared = tuple(map(_shared.setdefault, values, values))
            msgspec.structs.force_setattr(record, name, shared)
    if len(_shared) > _MOST_SHARED:
        _shared.clear()


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield each line that was written whole.

    Raises:
        RunFolderError: it cannot be read, or is no file of lines.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_read(path, error) from error
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RunFolderError(f"`{path}` is not a file", hint="this is not a run's folder")
        place = 0
        try:
            while line := stream.readline(MAX_LINE_BYTES):
                if line.endswith(b"\n"):
                    yield line
                elif len(line) == MAX_LINE_BYTES:
                    raise RunFolderError(
                        f"`{path}` at byte {place}: the line is too long",
                        hint="this is not a run's file",
                    )
                place += len(line)
        except OSError as error:
            raise _cannot_read(path, error) from error


def _cannot_read(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"cannot read `{path}`: {error.strerror}",
        hint="a run folder holds plain files that you may read, and no links",
    )


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """What a failed write means and what would do."""
    return RunFolderError(
        f"cannot write to `{path}`: {error.strerror}",
        hint=_HINTS.get(error.errno or 0, "repeat the command when it can be written again"),
    )
