"""Refuses a checkpoint's files that could lead out of its folder, swell, or be read without end.

Looks at names, sizes and headers before any library reads the files; whether the model works is for
the libraries to say. Links are followed, since the hub's cache is made of them, but only to plain
files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from draftbench.safe_files import UnreadableError, read_limited

MAX_CONFIG_BYTES = 4 << 20
MAX_TOKENIZER_BYTES = 256 << 20
MAX_INDEX_BYTES = 64 << 20
_OTHER_TEXTS = {
    "*.jinja": MAX_CONFIG_BYTES,
    "*.model": MAX_TOKENIZER_BYTES,
    "merges.txt": MAX_TOKENIZER_BYTES,
    "vocab.txt": MAX_TOKENIZER_BYTES,
}
# Most layers, blocks or experts, which code builds one by one: far above any model, far below a
# machine's memory.
MOST_PARTS = {"layer": 10_000, "block": 10_000, "expert": 100_000}
MOST = 1 << 40

GGUF_MAGIC = b"GGUF"
_STRING, _ARRAY, _DEEPEST = 8, 9, 4
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8


def check_files(path: Path) -> None:
    """Check a model's folder, or a .gguf file.

    Raises:
        UnreadableError: names a file that must not be handed to a library, and the key in it.
        OSError: a file that cannot be opened.
    """
    if path.is_file():
        _check_gguf(path)
        return
    if (path / "adapter_config.json").exists():
        raise UnreadableError("it is an adapter, which would load another model beneath it")
    for file in sorted(path.glob("*.json")):
        _check_json(file)
    for pattern, most in _OTHER_TEXTS.items():
        for file in sorted(path.glob(pattern)):
            try:
                read_limited(file, most)
            except UnreadableError as error:
                raise UnreadableError(f"{file.name}: {error}") from error


def _check_json(file: Path) -> None:
    """Check the size, the numbers of a configuration, and the names in an index of weights."""
    kinds = {"config.json": MAX_CONFIG_BYTES, "generation_config.json": MAX_CONFIG_BYTES}
    index = file.name.endswith(".index.json")
    most = MAX_INDEX_BYTES if index else kinds.get(file.name, MAX_TOKENIZER_BYTES)
    try:
        if file.name == "config.json":
            _check_numbers(file.name, json.loads(read_limited(file, most)))
        elif index:
            _check_index(json.loads(read_limited(file, most)))
        else:
            # The tokenizers library aborts the whole process on text that is not UTF-8.
            read_limited(file, most).decode()
    except (UnreadableError, RecursionError, ValueError) as error:
        raise UnreadableError(f"{file.name}: {error}") from error


def _check_numbers(where: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            most = next((m for part, m in MOST_PARTS.items() if part in key.lower()), MOST)
            if isinstance(inner, int | float) and not abs(inner) <= most:
                raise UnreadableError(f"`{key}` is more than any model has")
            _check_numbers(key, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(where, inner)


def _check_index(index: Any) -> None:
    """Check that shards are beside their index: a path in a name could lead anywhere."""
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise UnreadableError("no `weight_map`")
    for tensor, name in names.items():
        if not isinstance(name, str) or not name or Path(name).name != name or "\\" in name:
            raise UnreadableError(f"the file of `{tensor[:80]}` is not in this folder")


def _check_gguf(path: Path) -> None:
    """Walk the header: every length in it must fit into the file, or reading it never ends."""
    with path.open("rb") as stream:
        header = _Header(stream, path.stat().st_size)
        if header.take(4) != GGUF_MAGIC:
            raise UnreadableError("no GGUF file")
        header.number("<I")
        tensors, fields = header.number("<Q"), header.number("<Q")
        for _ in header.counted(fields, 8 + 4):
            header.skip(header.number("<Q"))
            header.value(header.number("<I"), 0)
        for _ in header.counted(tensors, _LEAST_TENSOR_BYTES):
            header.skip(header.number("<Q"))
            dimensions = header.number("<I")
            header.skip(8 * dimensions + 4 + 8)


class _Header:
    """Reads the front of a file of `size` bytes."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.size, self.at = stream, size, 0

    def take(self, count: int) -> bytes:
        self.skip(count, seek=False)
        return self.stream.read(count)

    def skip(self, count: int, *, seek: bool = True) -> None:
        self.at += count
        if self.at > self.size:
            raise UnreadableError("its header ends beyond the end of the file")
        if seek:
            self.stream.seek(self.at)

    def number(self, form: str) -> int:
        number: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return number

    def counted(self, count: int, least: int) -> Iterator[int]:
        """Indices of `count` entries of at least so many bytes each."""
        if count * least > self.size - self.at:
            raise UnreadableError(f"its header promises {count} entries, more than the file holds")
        return iter(range(count))

    def value(self, kind: int, depth: int) -> None:
        if kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self.skip(self.number("<Q"))
        elif kind == _ARRAY and depth < _DEEPEST:
            inner, count = self.number("<I"), self.number("<Q")
            if inner in _SCALAR_BYTES:
                self.skip(_SCALAR_BYTES[inner] * count)
            else:
                for _ in self.counted(count, 8):
                    self.value(inner, depth + 1)
        else:
            raise UnreadableError(f"its header holds a value of the unknown kind {kind}")
