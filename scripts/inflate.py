"""Gives a small Llama the shape, and so the cost, of a large one without changing what it computes.

    python scripts/inflate.py SOURCE DEST --hidden 4096 --layers 32 --inner 14336 --heads 64 \
        --kv-heads 16 --vocab 128256

A pair of such models accepts what the small pair accepts, at the cost of the large one. The
residual stream has zeros beyond the source's width: norms are scaled for the mean over more
numbers. Heads, neurons and layers that are added hold random weights, which are read and
multiplied, and their results are projected back by zeros. Rows that are added to the vocabulary
repeat token 0, which comes first where it is best.
"""

import argparse
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

KEPT = ("config.json", "model.safetensors")  # all other files are copied


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama that are enlarged."""

    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int

    @classmethod
    def of(cls, config: dict) -> "Shape":
        names = ("hidden_size", "num_hidden_layers", "intermediate_size")
        names += ("num_attention_heads", "num_key_value_heads", "vocab_size")
        return cls(*(config[name] for name in names))

    @property
    def group(self) -> int:
        """Query heads to a key head."""
        return self.heads // self.kv_heads

    def holds(self, small: "Shape") -> bool:
        """Whether a model of the shape `small` fits into one of this shape."""
        sizes = ("hidden", "layers", "inner", "kv_heads", "group", "vocab")
        return all(getattr(self, size) >= getattr(small, size) for size in sizes)


class Inflated:
    """The weights of a source in a larger shape, made one by one on a device."""

    def __init__(self, config: dict, weights: dict, shape: Shape, device: str) -> None:
        self.small, self.large, self.head = Shape.of(config), shape, config["head_dim"]
        self.weights = {name: w.to(device, torch.bfloat16) for name, w in weights.items()}
        self.device, self.generator = device, torch.Generator(device).manual_seed(0)
        # Query heads stay with their key head.
        heads = [
            key * shape.group + query
            for key in range(self.small.kv_heads)
            for query in range(self.small.group)
        ]
        within = torch.arange(self.head, device=device)
        self.queries = (torch.tensor(heads, device=device)[:, None] * self.head + within).flatten()
        self.keys = torch.arange(self.small.kv_heads * self.head, device=device)

    def tensors(self) -> dict:
        """Every weight by its name."""
        embedding = self.weights["model.embed_tokens.weight"]
        found = {
            "model.embed_tokens.weight": self._vocabulary(embedding),
            "lm_head.weight": self._vocabulary(self.weights.get("lm_head.weight", embedding)),
            "model.norm.weight": self._norm("model.norm.weight"),
        }
        for layer in range(self.large.layers):
            found |= self._layer(f"model.layers.{layer}.")
        return {name: weight.contiguous().cpu() for name, weight in found.items()}

    def _layer(self, prefix: str) -> dict:
        small, large = self.small, self.large
        inner = torch.arange(small.inner, device=self.device)
        queries, keys = large.heads * self.head, large.kv_heads * self.head
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return {
            f"{attention}q_proj.weight": self._read(f"{attention}q_proj", queries, self.queries),
            f"{attention}k_proj.weight": self._read(f"{attention}k_proj", keys, self.keys),
            f"{attention}v_proj.weight": self._read(f"{attention}v_proj", keys, self.keys),
            f"{attention}o_proj.weight": self._written(f"{attention}o_proj", queries, self.queries),
            f"{mlp}gate_proj.weight": self._read(f"{mlp}gate_proj", large.inner, inner),
            f"{mlp}up_proj.weight": self._read(f"{mlp}up_proj", large.inner, inner),
            f"{mlp}down_proj.weight": self._written(f"{mlp}down_proj", large.inner, inner),
            f"{prefix}input_layernorm.weight": self._norm(f"{prefix}input_layernorm.weight"),
            f"{prefix}post_attention_layernorm.weight": self._norm(
                f"{prefix}post_attention_layernorm.weight"
            ),
        }

    def _read(self, name: str, outputs: int, places: torch.Tensor) -> torch.Tensor:
        """A matrix that reads the residual stream: the source's rows at their places."""
        weight = self._random(outputs, self.large.hidden)
        if (source := self.weights.get(f"{name}.weight")) is not None:
            weight[places] = 0
            weight[places, : self.small.hidden] = source
        return weight

    def _written(self, name: str, inputs: int, places: torch.Tensor) -> torch.Tensor:
        """A matrix that writes to the residual stream: zeros but for the source's columns."""
        weight = self._zeros(self.large.hidden, inputs)
        if (source := self.weights.get(f"{name}.weight")) is not None:
            weight[: self.small.hidden, places] = source
        return weight

    def _norm(self, name: str) -> torch.Tensor:
        weight = torch.ones(self.large.hidden, device=self.device, dtype=torch.bfloat16)
        if (source := self.weights.get(name)) is not None:
            scale = math.sqrt(self.small.hidden / self.large.hidden)
            weight[: self.small.hidden] = (source.float() * scale).to(torch.bfloat16)
        return weight

    def _vocabulary(self, source: torch.Tensor) -> torch.Tensor:
        weight = self._zeros(self.large.vocab, self.large.hidden)
        weight[:, : self.small.hidden] = source[0]
        weight[: len(source), : self.small.hidden] = source
        return weight

    def _random(self, *size: int) -> torch.Tensor:
        made = torch.randn(*size, device=self.device, generator=self.generator)
        return made.mul_(0.02).to(torch.bfloat16)

    def _zeros(self, *size: int) -> torch.Tensor:
        return torch.zeros(*size, device=self.device, dtype=torch.bfloat16)


def inflate(source: Path, dest: Path, shape: Shape, device: str, positions: int) -> int:
    """Write the model to a folder, and return how many parameters it has."""
    config = json.loads((source / "config.json").read_text())
    small = Shape.of(config)
    if not shape.holds(small):
        raise SystemExit(f"error: {small} does not fit into {shape}")
    tensors = Inflated(config, load_file(source / "model.safetensors"), shape, device).tensors()
    config |= {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "rms_norm_eps": config["rms_norm_eps"] * small.hidden / shape.hidden,
        "tie_word_embeddings": False,
        "max_position_embeddings": max(positions, config["max_position_embeddings"]),
        "dtype": "bfloat16",
    }
    config.pop("layer_types", None)
    dest.mkdir(parents=True, exist_ok=True)
    save_file(tensors, dest / "model.safetensors", metadata={"format": "pt"})
    (dest / "config.json").write_text(json.dumps(config, indent=1))
    for file in source.iterdir():
        if file.name not in KEPT:
            shutil.copy(file, dest / file.name)
    return sum(tensor.numel() for tensor in tensors.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("dest", type=Path)
    for size in Shape.__dataclass_fields__:
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, required=True)
    parser.add_argument("--device", default="cpu", help="where weights are made")
    parser.add_argument("--positions", type=int, default=8192, help="the least context length")
    given = vars(parser.parse_args())
    source, dest, device, positions = map(given.pop, ("source", "dest", "device", "positions"))
    parameters = inflate(source, dest, Shape(**given), device, positions)
    print(f"{dest}: {parameters / 1e9:.2f}B parameters")


if __name__ == "__main__":
    main()
