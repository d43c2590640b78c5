"""Finds the routed experts of a mixture, and counts those that a pass reads.

transformers stacks the experts of a layer in tensors [experts, …] of a module whose class is named
after them, and hands that module the experts of every token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

# Dimensions of a tensor with the weights of all experts of a layer.
STACKED = 3


def expert_layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those of a model's modules that hold the routed experts of a layer."""
    return [
        module
        for module in modules
        if type(module).__name__.endswith("Experts")
        and any(weight.ndim >= STACKED for weight in module.parameters(recurse=False))
    ]


@contextmanager
def counted_experts(modules: Iterable[nn.Module]) -> Iterator[list[int]]:
    """Lists how many different experts each pass through a layer reads, in the order of passes;
    nothing of a model whose experts are not handed the choice of each token (Llama 4).
    """
    counts: list[int] = []

    def count(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        for value in (*args, *named.values()):
            if isinstance(value, Tensor) and value.ndim > 1 and not value.is_floating_point():
                counts.append(value.unique().numel())

    hooks = [
        layer.register_forward_pre_hook(count, with_kwargs=True) for layer in expert_layers(modules)
    ]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()
