"""Saves a model without a block of its layers, as a draft that training can mend.

    python scripts/prune_layers.py MODEL OUT --keep 0.67

The block comes after the first sixth, where it is missed least: of SmolLM2's 30 layers without ten
25% of the target's tokens are still the best one, without ten in the middle 12%, and without those
before the last none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=float, default=2 / 3, help="share of its layers")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto")
    layers, kept = model.model.layers, round(args.keep * len(model.model.layers))
    first = len(layers) // 6
    model.model.layers = nn.ModuleList([*layers[:first], *layers[first - kept :]])
    for at, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = at
    config = model.config
    config.num_hidden_layers = kept
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:kept]
    model.save_pretrained(args.out)
    AutoTokenizer.from_pretrained(args.model).save_pretrained(args.out)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{args.out}: {kept} of {len(layers)} layers, {parameters:,} parameters")


if __name__ == "__main__":
    with torch.no_grad():
        main()
