"""Heads in .gguf files, by the architecture that a file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from draftbench.drafts.block import gguf_file as block
from draftbench.drafts.eagle3 import gguf_file as eagle3
from draftbench.models.checkpoint import gguf_header

_KINDS = {kind.ARCHITECTURE: kind for kind in (eagle3, block)}


def holds_head(path: Path) -> bool:
    """Whether this is a head's .gguf file."""
    return path.suffix == ".gguf" and gguf_header(path).architecture in _KINDS


def head_config(path: Path) -> dict[str, Any]:
    """What the head's config.json would contain.

    Raises:
        UnreadableError: something that it must say is missing.
    """
    return _KINDS[gguf_header(path).architecture].config_of(_reader(path))


def head_tensors(path: Path) -> dict[str, Tensor]:
    """Its tensors by their names in a checkpoint, quantized ones unpacked."""
    return _KINDS[gguf_header(path).architecture].tensors_of(_reader(path))


def _reader(path: Path) -> Any:
    from gguf import GGUFReader

    return GGUFReader(path)
