"""Counts the experts of a mixture: a configuration and the model that it describes → how many
experts a layer has, how many of them each token is sent to, and how many weights they are.

Shared experts and layers without experts are read by every token, as in a model that is no mixture.
"""

from __future__ import annotations

from typing import Any

from draftbench.decoder.routing import STACKED, expert_layers
from draftbench.records import Mixture

# What the experts of a token are called in configurations: transformers gives most of them the
# first name, whatever config.json calls them.
_PER_TOKEN = (
    *("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    *("moe_topk", "moe_top_k", "moe_k"),
)


def mixture_of(model: Any) -> Mixture | None:
    """The routed experts of a model, which may be without storage; None where it has none, or its
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
