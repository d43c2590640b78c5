"""A mixture's experts: how many each layer has, how many of them a token is sent to, how many
weights they have, and which of them a pass reads.

transformers stacks a layer's experts in tensors [experts, …] of a module whose class is named after
them, and passes that module the experts of every token. Shared experts and layers without experts
are read by every token, as in any other model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from draftbench.records import Mixture

# Dimensions of a tensor with the weights of all of a layer's experts.
STACKED = 3
# The names of the number of experts per token in configurations: transformers renames most of them
# to the first one.
_PER_TOKEN = (
    *("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    *("moe_topk", "moe_top_k", "moe_k"),
)


def expert_layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules of a model that hold a layer's routed experts."""
    return [
        module
        for module in modules
        if type(module).__name__.endswith("Experts")
        and any(weight.ndim >= STACKED for weight in module.parameters(recurse=False))
    ]


def mixture_of(model: Any) -> Mixture | None:
    """The routed experts of a model, which may be without storage; None if it has none or its
    configuration does not say how many a token is sent to.
    """
    layers = expert_layers(model.modules())
    text = model.config.get_text_config()
    per_token = next((found for name in _PER_TOKEN if (found := getattr(text, name, None))), None)
    if not layers or per_token is None:
        return None
    weights = [weight for layer in layers for weight in layer.parameters(recurse=False)]
    experts = max(len(weight) for weight in weights if weight.ndim >= STACKED)
    if isinstance(per_token, list):  # by layer
        per_token = max(per_token)
    return Mixture(
        experts=experts,
        per_token=min(per_token, experts),
        layers=len(layers),
        parameters=sum(weight.numel() for weight in weights),
    )


@contextmanager
def counted_experts(modules: Iterable[nn.Module]) -> Iterator[list[int]]:
    """Lists how many different experts each pass through a layer reads, in the order of passes;
    empty for a model whose experts are not passed each token's choice (Llama 4).
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
