"""Append-only files of records: each append is one line, written whole or not at all.

A line is a record, or a list of records that are kept together or not at all. A line cut short by a
kill has no newline at its end: it is not read, and the next append overwrites it. Links and pipes
in place of these files are refused, so that a run folder from elsewhere cannot point out of itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from draftbench.errors import RunFolderError
from draftbench.records import Record
from draftbench.run_folder.manifest import Seal
from draftbench.safe_files import json_without_controls, sync_folder

MAX_LINE_BYTES = 64 << 20
_READ_AHEAD = 4 << 20  # whole lines of a sweep, which take four times as long in pieces

_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "your quota is used up; free some space",
    errno.EROFS: "the file system is read-only; take another --out",
    errno.EACCES: "you may not write there; take another --out",
    errno.ELOOP: "a run folder holds no links; take another --out",
    errno.ENOTDIR: "a part of this path is a file; take another --out",
    errno.ENOENT: "no folder can be made there; take another --out",
}


def append_line(path: Path, records: Sequence[Record]) -> None:
    """Append records as one line and sync it to disk.

    Raises:
        RunFolderError: the line cannot be written, or is longer than readers accept; the file stays
            as it was.
    """
    whole = records[0] if len(records) == 1 else list(records)
    line = msgspec.json.encode(whole, enc_hook=list) + b"\n"
    if len(line) >= MAX_LINE_BYTES:
        raise RunFolderError(
            f"record too large for `{path}` ({len(line) >> 20} MiB; limit 64 MiB)",
            hint="decode fewer requests at a time (--concurrency) or shorter responses "
            "(--max-new-tokens)",
        )
    try:
        new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "rb"):
            # Up to the last newline: behind it is a line that was cut short, if anything.
            end = os.fstat(descriptor).st_size
            while end > 0:
                start = max(0, end - 65536)
                newline = os.pread(descriptor, end - start, start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            try:
                unwritten = memoryview(line)
                while unwritten:
                    unwritten = unwritten[os.write(descriptor, unwritten) :]
                os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):  # a cut line is recognized anyway
                    os.ftruncate(descriptor, end)
                raise
        if new:
            sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def new_digest() -> hashlib.blake2b:
    """A fresh digest of a file's lines."""
    return hashlib.blake2b(digest_size=16)


def read_lines(path: Path, kind: Any, digest: hashlib.blake2b | None = None) -> Iterator[Any]:
    """Yield the records of a file, which are of one kind, in the order in which they were appended;
    none if there is no file. Every line updates the `digest`.

    Raises:
        RunFolderError: it cannot be read, or a line holds something else; names file and line.
    """
    decoder = msgspec.json.Decoder(kind | list[kind])
    for number, line in enumerate(_whole_lines(path), start=1):
        if digest:
            digest.update(line)
        try:
            content = decoder.decode(json_without_controls(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RunFolderError(
                f"`{path}` line {number}: {error}", hint="the file was changed by something else"
            ) from error
        yield from content if isinstance(content, list) else [content]


def seal_of(path: Path) -> Seal:
    """How many records a file holds, and a hash of its lines."""
    digest, records = new_digest(), 0
    for line in _whole_lines(path):
        digest.update(line)
        records += line.count(b'{"kind":')  # each record begins so; inside a text it is escaped
    return Seal(records=records, digest=digest.hexdigest()) if records else Seal()


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb", _READ_AHEAD) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise RunFolderError(f"`{path}` is not a file", hint="this is not a run's folder")
            while line := stream.readline(MAX_LINE_BYTES):
                if line.endswith(b"\n"):
                    yield line
                elif len(line) == MAX_LINE_BYTES:
                    raise RunFolderError(
                        f"`{path}` at byte {stream.tell() - len(line)}: the line is too long",
                        hint="this is not a run's file",
                    )
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"cannot read `{path}`: {error.strerror}",
            hint="make it readable, and no link, or run this as the user who swept",
        ) from error


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """The error for a write that failed, with a hint by its cause."""
    return RunFolderError(
        f"cannot write to `{path}`: {error.strerror}",
        hint=_HINTS.get(error.errno or 0, "repeat the command when it can be written again"),
    )
