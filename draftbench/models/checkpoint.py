"""Refuses a checkpoint whose files could point out of its folder, fill the memory, or never end;
and a .gguf file that holds other layers than it says.

Looks at names, sizes and headers before any library reads the files; whether the model works is for
the libraries to say. Links are followed, since the hub's cache is made of them, but only to plain
files.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from draftbench.safe_files import UnreadableError, read_limited

# The most bytes of a file whose name matches a pattern; the first that matches counts.
LIMITS = {
    "config.json": 4 << 20,
    "generation_config.json": 4 << 20,
    "*.jinja": 4 << 20,
    "*.index.json": 64 << 20,
    "*.json": 256 << 20,
    "*.model": 256 << 20,
    "merges.txt": 256 << 20,
    "vocab.txt": 256 << 20,
}
# The most layers, blocks or experts, which are built one by one, and positions, which have a table:
# far more than any model has, far less than would fill the memory. `MOST` is for all other numbers.
MOST_PARTS = {"layer": 10_000, "block": 10_000, "expert": 100_000, "position": 1 << 24}
MOST = 1 << 40
# Numbers of config.json that are at least 1 in every model.
_AT_LEAST_ONE = ("hidden_size", "max_position_embeddings", "num_hidden_layers", "vocab_size")

# GGUF's numbers for kinds of values, and how those of a fixed size are stored.
_STRING, _ARRAY, _DEEPEST = 8, 9, 4
_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8
_MOST_DIMENSIONS, _LONGEST_NAME = 4, 1 << 16
# A tensor of one of a GGUF file's layers; the names of metadata that say how many of something
# there are, without the architecture before them. `split.count` is of files.
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")
_COUNTS = ("block_count", "expert_count", "nextn_predict_layers", "split.count")


def check_files(path: Path) -> None:
    """Check a model's folder, or a .gguf file.

    Raises:
        UnreadableError: names a file that must not be handed to a library, and the key in it.
        OSError: a file that cannot be opened.
    """
    if path.is_file():
        with path.open("rb") as stream:
            _check_gguf(_Header(stream, path.stat().st_size))
        return
    if (path / "adapter_config.json").exists():
        raise UnreadableError("it is an adapter, which would load another model beneath it")
    for file in sorted(path.iterdir()):
        most = next((most for like, most in LIMITS.items() if fnmatch(file.name, like)), None)
        if most is None:
            continue
        try:
            raw = read_limited(file, most)
            if file.name == "config.json":
                _check_numbers(file.name, json.loads(raw))
            elif file.name.endswith(".index.json"):
                _check_index(json.loads(raw))
            elif file.suffix == ".json":
                # The tokenizers library aborts the whole process on text that is not UTF-8.
                raw.decode()
        except (UnreadableError, RecursionError, ValueError) as error:
            raise UnreadableError(f"{file.name}: {error}") from error


def _check_numbers(where: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            most = next((m for part, m in MOST_PARTS.items() if part in key.lower()), MOST)
            if isinstance(inner, int | float) and not abs(inner) <= most:
                raise UnreadableError(f"`{key}` is more than any model has")
            if key in _AT_LEAST_ONE and isinstance(inner, int | float) and inner < 1:
                raise UnreadableError(f"`{key}` is less than any model has")
            _check_numbers(key, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(where, inner)


def _check_index(index: Any) -> None:
    """Check that an index names only files in its folder: a path could lead anywhere."""
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise UnreadableError("no `weight_map`")
    for tensor, name in names.items():
        if not isinstance(name, str) or not name or Path(name).name != name or "\\" in name:
            raise UnreadableError(f"the file of `{tensor[:80]}` is not in this folder")


class _Header:
    """Reads the header of a file of `size` bytes. Every length in it must fit into the file, else
    reading would never end.
    """

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.size = stream, size

    def skip(self, count: int) -> None:
        if count > self.size or self.stream.seek(count, os.SEEK_CUR) > self.size:
            raise UnreadableError("its header ends beyond the end of the file")

    def number(self, form: str = "<Q") -> int:
        raw = self.stream.read(struct.calcsize(form))
        if len(raw) < struct.calcsize(form):
            raise UnreadableError("its header ends beyond the end of the file")
        number: int = struct.unpack(form, raw)[0]
        return number

    def counted(self, count: int, least: int) -> Iterator[int]:
        """Indices of `count` entries that take at least so many bytes each."""
        if count * least > self.size - self.stream.tell():
            raise UnreadableError(f"its header promises {count} entries, more than the file holds")
        return iter(range(count))

    def name(self) -> str:
        """A name, or the beginning of a long one."""
        length = self.number()
        name = self.stream.read(min(length, _LONGEST_NAME))
        self.skip(length - len(name))
        return name.decode(errors="replace")

    def value(self, kind: int, depth: int = 0) -> float | None:
        """A number; None, and skipped, if it is anything else."""
        if kind in _SCALARS:
            return self.number(f"<{_SCALARS[kind]}")
        if kind == _STRING:
            self.skip(self.number())
        elif kind == _ARRAY and depth < _DEEPEST:
            inner, count = self.number("<I"), self.number()
            if inner in _SCALARS:
                self.skip(struct.calcsize(f"<{_SCALARS[inner]}") * count)
            else:
                for _ in self.counted(count, 8):
                    self.value(inner, depth + 1)
        else:
            raise UnreadableError(f"its header holds a value of the unknown kind {kind}")
        return None


def _check_gguf(header: _Header) -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if header.number("<I") != int.from_bytes(b"GGUF", "little"):
        raise UnreadableError("no GGUF file")
    header.number("<I")
    tensors, fields = header.number(), header.number()
    counts: dict[str, float] = {}
    for _ in header.counted(fields, 8 + 4):
        name, value = header.name(), header.value(header.number("<I"))
        key = name if name in _COUNTS else name.rpartition(".")[2]
        if value is not None and key in _COUNTS:
            counts[key] = value
    _check_numbers("", counts)
    layers = 0
    end = 0  # of the tensors, which follow the header
    for _ in header.counted(tensors, _LEAST_TENSOR_BYTES):
        if found := _BLOCK.match(header.name()):
            layers = max(layers, int(found[1]) + 1)
        dimensions = header.number("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise UnreadableError(f"its header holds a tensor of {dimensions} dimensions")
        numbers = math.prod(header.number() for _ in range(dimensions))
        kind, start = header.number("<I"), header.number()
        if kind in GGML_QUANT_SIZES:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            end = max(end, start + numbers // block * block_bytes)
    if (missing := header.stream.tell() + end - header.size) > 0:
        raise UnreadableError(f"it is cut off: {missing:,} bytes or more are missing")
    # A tokenizer alone has no layers, one file of several not all. Those that draft for the others
    # may have been left out, or not counted.
    asked, drafting = counts.get("block_count", layers), counts.get("nextn_predict_layers", 0)
    if layers and abs(layers - asked) > drafting and counts.get("split.count", 1) <= 1:
        raise UnreadableError(f"it holds {layers} layers, and its `block_count` asks for {asked}")
