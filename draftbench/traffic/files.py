"""Reads a traffic file's raw rows one at a time, with their numbers.

Reads `.jsonl` (also named `.ndjson`), `.json` and `.csv`, plain or compressed (`.gz`, `.zst`), and
`.parquet`. Texts are UTF-8; a `.csv` is split at whichever separator occurs most in its header.
Only one row, one buffer or one small parquet batch is in memory at a time, and everything that
could grow without end has a limit.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from draftbench.errors import TrafficError, closest
from draftbench.traffic.errors import BadRowError
from draftbench.traffic.suites import suite_names

# Most bytes of one row; a longer row is a bad row.
MAX_ROW = 16 << 20
# Most rows of one file: with run-length coding a few bytes can stand for billions of rows.
MAX_ROWS = 50_000_000
MAX_COLUMNS = 1000
# A compressed file may unpack to this many times its size, and to a gibibyte in any case.
MAX_RATIO, _ALWAYS_UNPACKED = 1000, 1 << 30

# OverflowError: a date of a parquet file beyond Python's.
_BROKEN = (OSError, ValueError, NotImplementedError, RecursionError, OverflowError, csv.Error)
_CHUNK = 1 << 20
_BATCH = 64
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# First bytes of files that are not rows of text, and what to do; `{}`: the name without its ending.
_BEGINNINGS = {
    b"\x1f\x8b": "it is packed with gzip: name it {}.jsonl.gz",
    b"(\xb5/\xfd": "it is packed with zstd: name it {}.jsonl.zst",
    b"PAR1": "it is a Parquet file: name it {}.parquet",
    b"PK\x03\x04": "it is a zip archive or a spreadsheet: unpack it, or save it as .csv",
    b"version https://git-lfs": "it is a pointer of Git LFS: `git lfs pull` fetches the file",
    b"<": "it is a page of HTML or XML: download the file itself",
    b"[": "it is one JSON list: name it {}.json",
    b"{\n": "its objects go over several lines: name it {}.json",
}
_BETWEEN_ROWS = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class Row:
    """One raw row of a log."""

    number: int  # its line (.jsonl, .csv) or its place in the file, from 1
    data: bytes | dict[str, Any] | BadRowError  # JSON text, an object, or why it is neither


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a traffic file.

    Raises:
        TrafficError: the file is missing, of an unknown kind, broken, or over a limit.
    """
    try:
        kind, compression = _checked_kind(path)
        with _open(path, compression) as stream:
            if stream.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise TrafficError(f"`{path.name}` is UTF-16", hint="save the file as UTF-8")
            for count, row in enumerate(_READERS[kind](stream), 1):
                if count > MAX_ROWS:
                    raise ValueError(f"more than {MAX_ROWS} rows")
                yield row
    except _BROKEN as error:
        reason, hint = str(error), "check that the file is complete and is what its name says"
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        elif isinstance(error, OSError) and error.errno is not None:
            reason, hint = os.strerror(error.errno), "see whether you may read it and its folder"
        raise TrafficError(f"`{path.name}` cannot be read: {reason}", hint=hint) from error


def first_look(path: Path) -> tuple[tuple[str, ...], str | None]:
    """What was guessed about a text file (its separator), and what to do if it does not hold what
    its name says, judged by its first bytes.
    """
    kind, compression = _checked_kind(path)
    layout: tuple[str, ...] = ()
    meant = None
    if kind in (".jsonl", ".ndjson", ".csv"):
        with contextlib.suppress(*_BROKEN), _open(path, compression) as stream:
            start = stream.peek(64)[:64].removeprefix(codecs.BOM_UTF8)
            start = start.lstrip().replace(b"\r", b"")
            meant = "it is binary: a log is text" if b"\0" in start else None
            for beginning, hint in _BEGINNINGS.items():
                if start.startswith(beginning):
                    meant = hint.format(path.name.partition(".")[0])
            if kind == ".csv":
                header = next(_lines(stream), b"").decode(errors="replace")
                layout = (f"columns separated by {_DELIMITERS[_delimiter(header)]}",)
    return layout, meant


def _checked_kind(path: Path) -> tuple[str, str | None]:
    """The kind and compression of a file that draftbench can read; else raises a TrafficError."""
    if path.is_dir():
        raise TrafficError(
            f"`{path}` is a folder, not a traffic file",
            hint="name a file in it",
        )
    if not path.exists():
        names: set[str] = set()
        with contextlib.suppress(OSError):
            names = {file.name for file in path.parent.iterdir() if _kind(file)} - {path.name}
        # An ending may be missing. 0.8, since equal endings alone make two names half alike.
        longer = sorted(name for name in names if name.startswith(f"{path.name}."))
        if name := next(iter(longer), None) or closest(path.name, sorted(names), 0.8):
            hint = f"did you mean `{path.with_name(name)}`?"
        elif suite := closest(str(path).rpartition(":")[2], suite_names(), 0.7):
            hint = f"did you mean `suite:{suite}`?"
        else:
            hint = "give a file, `suite:NAME` or `hf:DATASET[/CONFIG][:SPLIT][@REVISION]`"
        raise TrafficError(f"traffic file `{path}` not found", hint=hint)
    if not path.is_file():  # a pipe may have to be read twice, a device never ends
        raise TrafficError(f"`{path}` is not a plain file", hint="write the requests to a file")
    if (kind := _kind(path)) is None:
        raise TrafficError(
            f"`{path.name}` is not a kind of file that draftbench reads",
            hint="use .jsonl, .json or .csv, each also with .gz or .zst, or .parquet",
        )
    return kind


def _kind(path: Path) -> tuple[str, str | None] | None:
    """A file's kind, which is its extension, and its compression; None for one that is not read."""
    compression = _COMPRESSIONS.get(path.suffix.lower())
    kind = Path(path.stem if compression else path.name).suffix.lower()
    if kind not in _READERS or (compression and kind == ".parquet"):
        return None
    return kind, compression


def _open(path: Path, compression: str | None) -> io.BufferedReader:
    if compression is None:
        return path.open("rb")
    # pyarrow, because zstandard does not notice a truncated stream: rows would be lost.
    import pyarrow

    most = max(_ALWAYS_UNPACKED, MAX_RATIO * path.stat().st_size)
    unpacked = pyarrow.input_stream(str(path), compression=compression)
    return io.BufferedReader(_Limited(unpacked, most), _CHUNK)


class _Limited(io.RawIOBase):
    """A stream that fails after `most` bytes."""

    def __init__(self, stream: Any, most: int) -> None:
        self.stream, self.left = stream, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data: bytes = self.stream.read(len(buffer))
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(f"it unpacks to more than {MAX_RATIO} times its size")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.stream.close()
        super().close()


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield every line; a line over the limit is cut one byte past it, so that it is noticed."""
    while line := stream.readline(MAX_ROW + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_ROW)


def _read_jsonl(stream: BinaryIO) -> Iterator[Row]:
    for number, line in enumerate(_lines(stream), 1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            yield Row(number, text)


def _read_json(stream: BinaryIO) -> Iterator[Row]:
    """Yield rows from an array, or from values one after another, reading a buffer at a time."""
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape") as text:
        find_end = json.JSONDecoder().raw_decode
        buffer = text.read(_CHUNK).lstrip()
        array = buffer.startswith("[")
        at, number = int(array), 0
        while True:
            between = _BETWEEN_ROWS.match(buffer, at)
            at = between.end() if between else at
            try:
                end = find_end(buffer, at)[1]
            except json.JSONDecodeError:  # broken, or cut by the end of the buffer
                if len(buffer) - at > MAX_ROW + _CHUNK:
                    reason = f"row {number + 1} is not JSON, or longer than 16 MiB"
                    raise ValueError(reason) from None
                if not (more := text.read(_CHUNK)):
                    break
                buffer, at = buffer[at:] + more, 0
                continue
            number += 1
            yield Row(number, buffer[at:end].encode(errors="surrogateescape"))
            at = end
        if buffer[at:].rstrip() != "]" * array:
            raise ValueError(f"row {number + 1} is not JSON, or the file is cut off")


def _read_csv(stream: BinaryIO) -> Iterator[Row]:
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in _lines(stream):
            size += len(line)
            if size > MAX_ROW:
                raise ValueError("a row is longer than 16 MiB, or a quote is not closed")
            yield line.decode(errors="surrogateescape").removeprefix("\ufeff")

    csv.field_size_limit(MAX_ROW)
    texts = lines()
    header = next(texts, "")
    delimiter = _delimiter(header)
    reader = csv.reader(itertools.chain([header], texts), strict=True, delimiter=delimiter)
    names = next(reader, [])
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"more than {MAX_COLUMNS} columns")
    for column, name in enumerate(names, 1):
        if name and (first := names.index(name) + 1) < column:
            raise ValueError(f"columns {first} and {column} of line 1 have the same name")
    start = reader.line_num + 1
    for cells in reader:
        if len(cells) == len(names):
            yield Row(start, {name: text for name, text in zip(names, cells, strict=True) if text})
        elif cells:
            reason = f"it ends in column {len(cells)}, and the header in column {len(names)}"
            yield Row(start, BadRowError(reason))
        start, size = reader.line_num + 1, 0


def _delimiter(header: str) -> str:
    """The separator of a table's columns: the most frequent one in its first line."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=bare.count)


def without_padding(value: Any) -> Any:
    """A table's value without the nulls and NaNs that stand for fields the row does not have. A
    message's content may really be null.
    """
    if isinstance(value, dict):
        fields = {name: without_padding(inner) for name, inner in value.items()}
        return {n: v for n, v in fields.items() if v is not None or n == "content"}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [without_padding(inner) for inner in value] if isinstance(value, list) else value


def _read_parquet(stream: BinaryIO) -> Iterator[Row]:
    import pyarrow.parquet

    # Buffering ahead would hold a whole row group, which can be the whole file.
    file = pyarrow.parquet.ParquetFile(stream, buffer_size=_CHUNK, pre_buffer=False)
    batches = file.iter_batches(batch_size=_BATCH)
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows, 1):
        yield Row(number, without_padding(row))


_READERS: dict[str, Callable[[BinaryIO], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
