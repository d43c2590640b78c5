"""EAGLE-3 heads with random weights, of every variant, and what they draft by plain formulas."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, HEADS, KEY_HEADS, HEAD, LAYERS, VOCABULARY, DRAFTED = 32, 4, 2, 8, 6, 10, 7
READS = (1, 3, 4)
# By what they set: the authors', that of speculators' default, EAGLE-3.1, and what else there is.
VARIANTS: Mapping[str, dict[str, Any]] = {
    "eagle-3": {},
    "norm_before_residual": {"norm_before_residual": True},
    "eagle-3.1": {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
    "norm_before_fc": {"norm_before_fc": True},
    "qwen3": {"model_type": "qwen3"},
}


def target(vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    """A Llama with random weights that says something else after every text."""
    torch.manual_seed(1)
    sizes = {"vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": 64}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD}
    config = LlamaConfig(
        **(sizes | heads | {"bos_token_id": None, "eos_token_id": None}),
        num_hidden_layers=LAYERS,
        max_position_embeddings=128,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def config(
    vocabulary: int = VOCABULARY, drafted: int = DRAFTED, hidden: int = HIDDEN, **fields: Any
) -> dict[str, Any]:
    """A config.json in the format of speculators."""
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": 48}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD}
    rest = {"num_hidden_layers": 1, "max_position_embeddings": 128}
    layer = {
        "model_type": fields.pop("model_type", "llama"),
        "rms_norm_eps": 1e-6,
        **(sizes | heads | rest | {"rope_theta": 10000.0}),
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": drafted,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(READS),
        "transformer_layer_config": layer,
        **fields,
    }


def tensors(
    config: Mapping[str, Any], seed: int = 0, *, embedded: bool = True
) -> dict[str, Tensor]:
    """Random weights of the sizes that a configuration asks for."""
    generator, layer = torch.Generator().manual_seed(seed), config["transformer_layer_config"]
    hidden, inner = layer["hidden_size"], layer["intermediate_size"]
    vocabulary, drafted = layer["vocab_size"], config["draft_vocab_size"]
    queries, keys = layer["num_attention_heads"] * HEAD, layer["num_key_value_heads"] * HEAD

    def matrix(*size: int) -> Tensor:
        return 0.3 * torch.randn(size, generator=generator)

    def norm(size: int) -> Tensor:
        return 1 + matrix(size)

    kept = torch.randperm(vocabulary, generator=generator)[:drafted].sort().values
    found = {
        "fc.weight": matrix(hidden, 3 * hidden),
        "norm.weight": norm(hidden),
        "lm_head.weight": matrix(drafted, hidden),
        "d2t": kept - torch.arange(drafted),
        "t2d": torch.isin(torch.arange(vocabulary), kept),
    }
    inside = {
        "self_attn.q_proj": matrix(queries, 2 * hidden),
        "self_attn.k_proj": matrix(keys, 2 * hidden),
        "self_attn.v_proj": matrix(keys, 2 * hidden),
        "self_attn.o_proj": matrix(hidden, queries),
        "mlp.gate_proj": matrix(inner, hidden),
        "mlp.up_proj": matrix(inner, hidden),
        "mlp.down_proj": matrix(hidden, inner),
        "input_layernorm": norm(hidden),
        "hidden_norm": norm(hidden),
        "post_attention_layernorm": norm(hidden),
    }
    if layer["model_type"] == "qwen3":
        inside |= {"self_attn.q_norm": norm(HEAD), "self_attn.k_norm": norm(HEAD)}
    if config.get("norm_before_fc"):
        found["input_norm.weight"] = norm(3 * hidden)
    if config.get("fc_norm"):
        found |= {f"fc_norm.{i}.weight": norm(hidden) for i in range(3)}
    if embedded:
        found["embed_tokens.weight"] = matrix(vocabulary, hidden)
    return found | {f"layers.0.{name}.weight": weight for name, weight in inside.items()}


def save(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Path:
    """Write a checkpoint."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: w.contiguous() for n, w in weights.items()}, folder / "model.safetensors")
    return folder


def drafted_from(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    text: Sequence[int],
    states: Tensor,
    newest: int,
    depths: int,
    along: Sequence[int] = (),
) -> list[int]:
    """What a round drafts whose newest token is text[newest]: all rows anew for every token, as one
    causal layer. It reads its own tokens, or those that it is taken `along`.
    """
    given = {name: tensor.double() for name, tensor in weights.items()}

    def normed(x: Tensor, name: str) -> Tensor:
        return given[f"{name}.weight"] * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    def turned(x: Tensor) -> Tensor:  # [rows, heads, head]
        half = HEAD // 2
        angle = torch.arange(len(x))[:, None, None] * 10000.0 ** (-torch.arange(half) / half)
        one, other = x[..., :half], x[..., half:]
        parts = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.cat(parts, -1)

    aux = states[:newest].double()
    if config.get("norm_before_fc"):
        aux = normed(aux, "input_norm")
    if config.get("fc_norm"):
        aux = torch.cat([normed(x, f"fc_norm.{i}") for i, x in enumerate(aux.chunk(3, -1))], -1)
    state, read = aux @ given["fc.weight"].T, [*text[1 : newest + 1]]
    found, at = [], "layers.0."
    for _ in range(depths):
        before = normed(state, f"{at}hidden_norm")
        embedded = normed(given["embed_tokens.weight"][read], f"{at}input_layernorm")
        both = torch.cat([embedded, before], -1)
        q, k, v = (
            (both @ given[f"{at}self_attn.{n}_proj.weight"].T).view(len(read), -1, HEAD)
            for n in "qkv"
        )
        if f"{at}self_attn.q_norm.weight" in given:
            q, k = normed(q, f"{at}self_attn.q_norm"), normed(k, f"{at}self_attn.k_norm")
        q, k = turned(q), turned(k).repeat_interleave(HEADS // KEY_HEADS, 1)
        v = v.repeat_interleave(HEADS // KEY_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD**0.5
        future = torch.ones(len(read), len(read), dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v.transpose(0, 1)
        x = before if config.get("norm_before_residual") else state
        x = x + mixed.transpose(0, 1).flatten(1) @ given[f"{at}self_attn.o_proj.weight"].T
        y, mlp = normed(x, f"{at}post_attention_layernorm"), f"{at}mlp."
        gate, up = (y @ given[f"{mlp}{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (functional.silu(gate) * up) @ given[f"{mlp}down_proj.weight"].T
        last = normed(x, "norm")
        best = int((last[-1] @ given["lm_head.weight"].T).argmax())
        found.append(best + int(weights["d2t"][best]))
        left = last if config.get("norm_output") else x
        following = [*along, found[-1]][min(len(found) - 1, len(along))]
        state, read = torch.cat([state, left[-1:]]), [*read, following]
    return found
