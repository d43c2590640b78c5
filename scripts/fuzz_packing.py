"""Rows as JSON lines → the same rows in the other kinds of traffic files, for the fuzzer. What a
kind cannot hold comes back as it was.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_csv(plain: bytes) -> bytes:
    cells = [json.loads(line) for line in plain.splitlines()]
    names = list(dict.fromkeys(name for row in cells if isinstance(row, dict) for name in row))
    text = [",".join(names)]
    for row in cells:
        values = (
            [json.dumps(row.get(n, "")) for n in names] if isinstance(row, dict) else [str(row)]
        )
        text.append(",".join('"' + value.replace('"', '""') + '"' for value in values))
    return "\n".join(text).encode(errors="surrogatepass")


def as_parquet(plain: bytes) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    try:
        table = pyarrow.Table.from_pylist([json.loads(line) for line in plain.splitlines()])
        pyarrow.parquet.write_table(table, sink)
    except (pyarrow.ArrowException, ValueError, AttributeError, RecursionError, OverflowError,
            TypeError):  # fmt: skip
        return plain  # rows that no table can hold
    return sink.getvalue()


def as_zstd(plain: bytes) -> bytes:
    import pyarrow

    packed: bytes = pyarrow.compress(plain, codec="zstd", asbytes=True)
    return packed


def or_plain(pack: Callable[[bytes], bytes], plain: bytes) -> bytes:
    try:
        return pack(plain)
    except (ValueError, RecursionError):
        return plain
