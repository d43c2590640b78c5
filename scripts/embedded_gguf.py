"""Writes the embedded models as GGUF files, so that a real llama-server can be tried with models of
a few megabytes.

    python scripts/embedded_gguf.py OUT [f32|f16]

makes OUT/target.gguf, draft.gguf, distilled.gguf and foreign.gguf. Matrices get the type named
(default f32: the weights are stored in bfloat16, which f32 holds exactly); vectors stay f32.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

FAMILY = ("target", "draft", "distilled", "foreign")
TYPES = {"f32": np.float32, "f16": np.float16}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write(source: Path, path: Path, matrix: type[np.floating]) -> None:
    """One model with its tokenizer as a GGUF file."""
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"draftbench {source.name}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, source, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, stored in load_file(source / "model.safetensors").items():
        weights = stored.to(torch.float32).numpy()
        place, _, part = name.removesuffix(".weight").partition("layers.")
        number, _, layer = part.partition(".")
        if (count := heads.get(layer.rpartition(".")[2])) is not None:
            weights = _interleaved(weights, count)
        new = f"blk.{number}.{NAMES[layer]}" if layer else NAMES[place]
        writer.add_tensor(
            f"{new}.weight", weights.astype(matrix if weights.ndim > 1 else np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path, config: dict[str, object]) -> None:
    """Byte-level BPE that splits text as GPT-2's does."""
    stored = json.loads((source / "tokenizer.json").read_text())
    ids = stored["model"]["vocab"]
    special = {token["id"] for token in stored["added_tokens"]}
    words = sorted(ids, key=ids.get)
    kinds = [
        gguf.TokenType.CONTROL if ids[word] in special else gguf.TokenType.NORMAL for word in words
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_bos_token_id(config["eos_token_id"])  # never added, but id 11 without it
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _interleaved(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as llama.cpp reads them, where transformers has them in halves."""
    rows, columns = weights.shape
    halves = weights.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def main() -> None:
    if len(sys.argv) not in (2, 3) or (kind := (sys.argv[2:] or ["f32"])[0]) not in TYPES:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in FAMILY:
        path = folder / f"{name}.gguf"
        write(Path(str(files("draftbench") / "embedded" / name)), path, TYPES[kind])
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
