"""Block drafters with random weights, of every variant, and what they draft by plain formulas."""

from collections.abc import Mapping, Sequence
from typing import Any

import random_heads
import torch
from torch import Tensor
from torch.nn import functional

HIDDEN, HEADS, KEY_HEADS, HEAD = 32, 4, 2, 8
BLOCK, MASK, READS, VOCABULARY = 6, 9, (1, 3, 4), 10
_TWO = {"speculators_model_type": "dflash2", "conv_kernel_size": 2, "conv_group_size": 4}
_SPARK = {"speculators_model_type": "dspark", "markov_rank": 5, "sample_from_anchor": True}
_SPARK |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
_SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7,
    "use_sliding_window": True,
}
# By what they set beside DFlash with two layers that see all.
VARIANTS: Mapping[str, dict[str, Any]] = {
    "dflash": {},
    "dflash, some tokens": {"draft_vocab_size": 7},
    "dflash, sliding causally": _SLIDING,
    "dflash, sliding both ways": {**_SLIDING, "sliding_window_non_causal": True},
    "dflash, anchored": {"sample_from_anchor": True},
    "dflash, scaled": {
        "input_embedding_scale": 2.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 1.5,
    },
    "dflash, causal": {"is_causal": True},
    "dflash 2": {**_TWO, "selector_rank": 6, "selector_top_k": 3},
    "dspark": {**_SPARK, "markov_head_type": "vanilla"},
    "dspark, gated": {**_SPARK, "markov_head_type": "gated"},
    "dspark, rnn": {**_SPARK, "markov_head_type": "rnn"},
    "dspark, some tokens, not anchored": {
        **_SPARK,
        "markov_head_type": "vanilla",
        "draft_vocab_size": 7,
        "sample_from_anchor": False,
    },
}


def config(vocabulary: int = VOCABULARY, **fields: Any) -> dict[str, Any]:
    """A config.json in the format of speculators."""
    inside = ("layer_types", "sliding_window", "use_sliding_window", "model_type")
    of_layer = {name: fields.pop(name) for name in inside if name in fields}
    layer = {
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD,
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        **of_layer,
    }
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "draft_vocab_size": vocabulary,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": list(READS),
        "mask_token_id": MASK,
        "transformer_layer_config": layer,
        **fields,
    }


def authors_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the format of the authors: layer ids one less, the drafting apart."""
    named = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    drafting: dict[str, Any] = {name: config[name] for name in named if name in config}
    drafting["target_layer_ids"] = [i - 1 for i in config["aux_hidden_state_layer_ids"]]
    drafting["mask_token_id"] = config["mask_token_id"]
    if "sample_from_anchor" in config:
        drafting["sample_from_anchor"] = config["sample_from_anchor"]
    name = "DFlash2DraftModel" if "selector_rank" in config else "DFlashDraftModel"
    return {
        "architectures": [name],
        **config["transformer_layer_config"],
        "block_size": config["block_size"],
        "num_target_layers": random_heads.LAYERS,
        "dflash_config": drafting,
    }


def tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random weights of the sizes that a configuration asks for."""
    generator, layer = torch.Generator().manual_seed(seed), config["transformer_layer_config"]
    inner, vocabulary = layer["intermediate_size"], layer["vocab_size"]
    drafted, queries, keys = config["draft_vocab_size"], HEADS * HEAD, KEY_HEADS * HEAD

    def matrix(*size: int) -> Tensor:
        return 0.3 * torch.randn(size, generator=generator)

    def norm(size: int) -> Tensor:
        return 1 + matrix(size)

    found = {
        "fc.weight": matrix(HIDDEN, len(config["aux_hidden_state_layer_ids"]) * HIDDEN),
        "hidden_norm.weight": norm(HIDDEN),
        "norm.weight": norm(HIDDEN),
        "embed_tokens.weight": matrix(vocabulary, HIDDEN),
        "lm_head.weight": matrix(drafted, HIDDEN),
    }
    if drafted != vocabulary:
        kept = torch.randperm(vocabulary, generator=generator)[:drafted].sort().values
        found["d2t"] = kept - torch.arange(drafted)
        found["t2d"] = torch.isin(torch.arange(vocabulary), kept)
    for at in (f"layers.{index}." for index in range(layer["num_hidden_layers"])):
        inside = {
            "self_attn.q_proj": matrix(queries, HIDDEN),
            "self_attn.k_proj": matrix(keys, HIDDEN),
            "self_attn.v_proj": matrix(keys, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, queries),
            "self_attn.q_norm": norm(HEAD),
            "self_attn.k_norm": norm(HEAD),
            "mlp.gate_proj": matrix(inner, HIDDEN),
            "mlp.up_proj": matrix(inner, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, inner),
            "input_layernorm": norm(HIDDEN),
            "post_attention_layernorm": norm(HIDDEN),
        }
        found |= {f"{at}{name}.weight": weight for name, weight in inside.items()}
        if "conv_kernel_size" in config:
            taps, groups = config["conv_kernel_size"], HIDDEN // config["conv_group_size"]
            for half in ("attention_conv", "mlp_conv"):
                found[f"{at}{half}.base_kernel"] = matrix(2, taps, HIDDEN)
                projection = matrix(2 * taps * groups, HIDDEN)
                found[f"{at}{half}.kernel_projection.weight"] = projection
    if rank := config.get("selector_rank"):
        for side in ("predecessor", "successor"):
            found[f"candidate_selector.{side}_codebook"] = 2 * matrix(vocabulary, rank)
        found["candidate_selector.hidden_projection.weight"] = matrix(rank, HIDDEN)
    if rank := config.get("markov_rank"):
        found["markov_head.markov_w1.weight"] = 2 * matrix(vocabulary, rank)
        found["markov_head.markov_w2.weight"] = matrix(drafted, rank)
        if config["markov_head_type"] == "gated":
            found["markov_head.gate_proj.weight"] = matrix(rank, HIDDEN + rank)
            found["markov_head.gate_proj.bias"] = matrix(rank)
        if config["markov_head_type"] == "rnn":
            found["markov_head.joint_proj.weight"] = matrix(3 * rank, 2 * rank + HIDDEN)
            found["markov_head.joint_proj.bias"] = matrix(3 * rank)
        found["confidence_head.proj.weight"] = matrix(1, HIDDEN + rank)
        found["confidence_head.proj.bias"] = matrix(1)
    return found


def drafted_from(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    text: Sequence[int],
    states: Tensor,
    newest: int,
    k: int,
) -> list[tuple[int, float]]:
    """The k tokens that a block drafts whose newest known token is text[newest], place by place,
    each with how sure it is of it.
    """
    given = {name: tensor.double() for name, tensor in weights.items()}
    layer = config["transformer_layer_config"]
    anchored = config.get("sample_from_anchor", False)
    width = k if anchored else k + 1

    def normed(x: Tensor, name: str) -> Tensor:
        return given[f"{name}.weight"] * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    def turned(x: Tensor, places: Tensor) -> Tensor:  # [rows, heads, head]
        half = HEAD // 2
        angle = places[:, None, None] * 10000.0 ** (-torch.arange(half) / half)
        one, other = x[..., :half], x[..., half:]
        parts = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.cat(parts, -1)

    def convolved(x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
        """Channel by channel, place by place: a kernel over the places before."""
        out = torch.zeros_like(x)
        for place in range(width):
            for channel in range(HIDDEN):
                for tap in range(min(len(base), place + 1)):
                    kernel = base[tap, channel]
                    kernel = kernel + dynamic[place, tap, channel // config["conv_group_size"]]
                    out[place, channel] += kernel * x[place - tap, channel]
        return out

    def around(at: str, inner: Any, x: Tensor) -> Tensor:
        if f"{at}.base_kernel" not in given:
            return inner(x)
        base, groups = given[f"{at}.base_kernel"], HIDDEN // config["conv_group_size"]
        dynamic = (x @ given[f"{at}.kernel_projection.weight"].T).view(width, 2, -1, groups)
        return convolved(inner(convolved(x, dynamic[:, 0], base[0])), dynamic[:, 1], base[1])

    context = normed(states[:newest].double() @ given["fc.weight"].T, "hidden_norm")
    x = given["embed_tokens.weight"][[text[newest]] + [config["mask_token_id"]] * (width - 1)]
    x = x * config.get("input_embedding_scale", 1.0)
    before, own = torch.arange(newest), newest + torch.arange(width)
    every = torch.cat([before, own])
    for index in range(layer["num_hidden_layers"]):
        at = f"layers.{index}."
        kind = layer.get("layer_types", ["full_attention"] * 2)[index]
        causal = kind == "sliding_attention" and not config.get("sliding_window_non_causal")
        causal = config.get("is_causal", causal)
        window = layer["sliding_window"] if kind == "sliding_attention" else 10**6

        def attention(x: Tensor, at=at, causal=causal, window=window) -> Tensor:
            both = torch.cat([context, x])

            def heads_of(rows: Tensor, name: str) -> Tensor:
                return (rows @ given[f"{at}self_attn.{name}_proj.weight"].T).view(
                    len(rows), -1, HEAD
                )

            q = turned(normed(heads_of(x, "q"), f"{at}self_attn.q_norm"), own)
            k = turned(normed(heads_of(both, "k"), f"{at}self_attn.k_norm"), every)
            k = k.repeat_interleave(HEADS // KEY_HEADS, 1)
            v = heads_of(both, "v").repeat_interleave(HEADS // KEY_HEADS, 1)
            hidden = own[:, None] - every >= window
            hidden |= (every > own[:, None]) & causal
            scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD**0.5
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v.transpose(0, 1)
            return mixed.transpose(0, 1).flatten(1) @ given[f"{at}self_attn.o_proj.weight"].T

        def mlp(x: Tensor, at=at) -> Tensor:
            gate, up = (x @ given[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            return (functional.silu(gate) * up) @ given[f"{at}mlp.down_proj.weight"].T

        x = x + around(f"{at}attention_conv", attention, normed(x, f"{at}input_layernorm"))
        x = x + around(f"{at}mlp_conv", mlp, normed(x, f"{at}post_attention_layernorm"))
    drafting = normed(x, "norm")[width - k :]
    logits = config.get("output_multiplier", 1.0) * (drafting @ given["lm_head.weight"].T)
    if cap := config.get("final_logit_softcapping"):
        logits = cap * torch.tanh(logits / cap)
    found, previous = list[tuple[int, float]](), text[newest]
    memory = torch.zeros(config.get("markov_rank") or 1, dtype=torch.float64)
    for place in range(k):
        scores, sure = logits[place], None
        if "selector_rank" in config:
            side = "candidate_selector."
            follows = given[f"{side}predecessor_codebook"][previous]
            follows = follows * (given[f"{side}hidden_projection.weight"] @ drafting[place])
            total = scores + given[f"{side}successor_codebook"] @ follows
            best = scores.topk(config["selector_top_k"]).indices
            scores = torch.full_like(total, float("-inf"))
            scores[best] = total[best]
        if "markov_rank" in config:
            vector = given["markov_head.markov_w1.weight"][previous]
            heard = given["confidence_head.proj.weight"] @ torch.cat([drafting[place], vector])
            sure = torch.sigmoid(heard + given["confidence_head.proj.bias"])
            if config["markov_head_type"] == "gated":
                read = torch.cat([drafting[place], vector])
                gate = given["markov_head.gate_proj.weight"] @ read
                vector = vector * torch.sigmoid(gate + given["markov_head.gate_proj.bias"])
            if config["markov_head_type"] == "rnn":
                read = torch.cat([memory, vector, drafting[place]])
                mixed = given["markov_head.joint_proj.weight"] @ read
                mixed = mixed + given["markov_head.joint_proj.bias"]
                gate, new, out = mixed.chunk(3)
                memory = torch.sigmoid(gate) * memory + (1 - torch.sigmoid(gate)) * torch.tanh(new)
                vector = torch.tanh(out)
            scores = scores + given["markov_head.markov_w2.weight"] @ vector
        best = int(scores.argmax())
        previous = best + int(weights["d2t"][best]) if "d2t" in weights else best
        found.append((previous, float(scores.softmax(-1).max() if sure is None else sure)))
    return found
