"""Refuses a checkpoint whose files could point out of its folder, fill the memory, or never end,
and a .gguf file that has other layers than it says.

Names, sizes and headers are checked before any library loads the files; whether the model works is
for the libraries to find out. Links are followed, since the hub's cache consists of them, but only
to plain files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftbench.safe_files import UnreadableError, read_limited

# The most bytes of a file whose name matches a pattern; the first matching pattern is used.
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
_AT_LEAST_ONE = (
    *("hidden_size", "max_position_embeddings", "num_hidden_layers", "rope_theta", "vocab_size"),
)

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
        header = gguf_header(path)
        counts, layers = header.counts, header.layers
        _check_numbers("", counts)
        # A file with only a tokenizer has no layers, one of several files has only some; layers
        # that draft for the others may be missing or not counted.
        asked, drafting = counts.get("block_count", layers), counts.get("nextn_predict_layers", 0)
        if layers and abs(layers - asked) > drafting and counts.get("split.count", 1) <= 1:
            raise UnreadableError(
                f"it holds {layers} layers, and its `block_count` asks for {asked}"
            )
        return
    if (path / "adapter_config.json").exists():
        raise UnreadableError(
            "it is an adapter, which would load another model beneath it",
            hint="merge it into that model, and give the merged checkpoint",
        )
    for file in sorted(path.iterdir()):
        most = next((most for like, most in LIMITS.items() if fnmatch(file.name, like)), None)
        if most is None:
            continue
        try:
            raw = read_limited(file, most)
            if file.name == "config.json":
                _check_numbers(file.name, json.loads(raw))
            elif file.name.endswith(".index.json"):
                index = json.loads(raw)
                names = index.get("weight_map") if isinstance(index, dict) else None
                if not isinstance(names, dict):
                    raise UnreadableError("no `weight_map`")
                for tensor, name in names.items():  # only files in this folder
                    plain = isinstance(name, str) and name and Path(name).name == name
                    if not plain or "\\" in name:
                        raise UnreadableError(f"the file of `{tensor[:80]}` is not in this folder")
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


class GgufHeader(NamedTuple):
    """What the header of a .gguf file says."""

    architecture: str
    counts: dict[str, float]  # by name: how many of something there are
    layers: int  # of which there are tensors
    weights: Counter[str]  # how many weights have each type


@cache
def gguf_header(path: Path) -> GgufHeader:
    """A .gguf file's header. Cached, since reading a large vocabulary takes seconds.

    Raises:
        UnreadableError: it is not a GGUF file, or ends earlier than its header says.
    """
    from gguf import GGUFReader

    class Bounded(GGUFReader):  # type: ignore[misc]
        """A reader with a limit: the library would walk an array of 2^60 missing numbers."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise UnreadableError("it is cut off: its header promises more")
            return super()._get(offset, dtype, count, *order, **named)

    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise UnreadableError(
                "it is not a GGUF file",
                hint="a failed download or a pointer of Git LFS may have its name: get the file "
                "itself, or give a directory with config.json",
            )
    try:
        reader = Bounded(path)
        counts = {
            key: count
            for name, field in reader.fields.items()
            if (key := name if name in _COUNTS else name.rpartition(".")[2]) in _COUNTS
            and isinstance(count := field.contents(), int | float)
        }
        named = reader.fields.get("general.architecture")
        architecture = str(named.contents()) if named else ""
        weights: Counter[str] = Counter()
        layers = 0
        for tensor in reader.tensors:
            weights[tensor.tensor_type.name.lower()] += int(tensor.n_elements)
            if found := _BLOCK.match(tensor.name):
                layers = max(layers, int(found[1]) + 1)
    except Exception as error:  # whatever the library meets in a spoiled file
        raise UnreadableError(str(error)) from error
    return GgufHeader(architecture, counts, layers, weights)
