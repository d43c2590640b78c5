"""Whether the tensors of a head's files are those that its config.json asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.models.source import not_finite

Sizes = Mapping[str, tuple[int, ...]]

# Rotary tables that do not depend on the sequence, and types of numbers that need no scale.
ROTARY = ("default", "linear", "llama3", "yarn")
_NUMBERS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Which of the target's tokens a head drafts: offsets from its ids to the target's, and a mask.
_MAPPINGS = {"d2t", "t2d"}


def misfitting(
    tensors: Mapping[str, Tensor], sizes: Sizes, *, drafted: int, vocabulary: int
) -> list[str]:
    """What of the tensors has another size than it must, holds what is no number, or leads from the
    `drafted` tokens to other tokens than the target's.
    """
    wrong = list[str]()
    for name, size in sizes.items():
        if name in tensors and (stored := tuple(tensors[name].shape)) != size:
            wrong.append(f"{name} is {list(stored)}, not {list(size)}")
        elif name in tensors and (why := not_finite(name, tensors[name])):
            wrong.append(why)
    if "d2t" not in tensors and drafted != vocabulary:
        wrong.append(
            f"it drafts {drafted} of the target's {vocabulary} tokens, and has no d2t, which says "
            "which"
        )
    if (offsets := tensors.get("d2t")) is not None and offsets.shape == (drafted,):
        ids = torch.arange(drafted) + offsets
        outside = ids[(ids < 0) | (ids >= vocabulary)]
        if len(outside):
            last = int(outside[-1])
            wrong.append(f"its d2t leads to token {last}, and the target has {vocabulary}")
        elif "t2d" in tensors and ids.tolist() != tensors["t2d"].nonzero().flatten().tolist():
            wrong.append("its d2t and t2d name different tokens, or the same in another order")
        elif len(ids.unique()) < drafted:
            wrong.append("its d2t leads to the same token twice")
    return wrong


def unusable(tensors: Mapping[str, Tensor], known: Sizes) -> list[str]:
    """What of the tensors is not known here, or stored in a way that is not read here."""
    found = list[str]()
    if unknown := sorted(tensors.keys() - known.keys()):
        found.append(f"it has a tensor that such a head does not have, {first_of(unknown)}")
    for name in sorted(known.keys() - _MAPPINGS):
        if name in tensors and (dtype := tensors[name].dtype) not in _NUMBERS:
            stored_as = str(dtype).removeprefix("torch.")
            found.append(f"{name} is stored as {stored_as}, without a scale")
    return found


def first_of(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def layer_not_run(layer: Any) -> list[str]:
    """What of the configuration of a head's layers is not run here."""
    found, rope = list[str](), layer.rope_parameters
    if (act := getattr(layer, "hidden_act", "silu")) != "silu":
        found.append(f"its activation is not supported here: {act} (silu is)")
    if rope["rope_type"] not in ROTARY:
        known = ", ".join(ROTARY)
        found.append(f"its rope type is not supported here: {rope['rope_type']} ({known} are)")
    if rope.get("partial_rotary_factor", 1) != 1:
        found.append("a partial rotary factor is not supported here")
    return found


def rotary_of(layer: Any) -> nn.Module:
    """The module that gives rotary tables for a head's layers."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    module: nn.Module = LlamaRotaryEmbedding(layer)
    return module


def reads_outside(reads: Sequence[int], layers: int) -> list[str]:
    """That a head reads layers which the target does not have."""
    if min(reads) >= 0 and max(reads) < layers:
        return []
    return [
        f"it reads what enters the layers {list(reads)}, and the target's are 0 to {layers - 1}"
    ]
