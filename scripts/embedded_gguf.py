"""Writes the embedded models as GGUF files, so that a real llama-server can be tried with models of
a few megabytes.

    python scripts/embedded_gguf.py OUT [f32|f16|bf16|q8_0|q4_0]

makes OUT/target.gguf, draft.gguf, distilled.gguf, foreign.gguf, head.gguf, an EAGLE-3 head, and
block.gguf, a DFlash drafter.
Matrices get the type named (default f32: the weights are stored in bfloat16, which f32 holds
exactly); vectors stay f32.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from draftbench.drafts.block import gguf_file as block_file
from draftbench.drafts.eagle3.gguf_file import ARCHITECTURE, NAMES

FAMILY = ("target", "draft", "distilled", "foreign")
KINDS = {kind.name.lower(): kind for kind in (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0)}


def write_family(folder: Path, kind: Kind = Kind.F32) -> list[Path]:
    """All of the embedded models; their files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.gguf" for name in FAMILY]
    embedded = Path(str(files("draftbench") / "embedded"))
    for name, path in zip(FAMILY, paths, strict=True):
        write(path, embedded / name, kind)
    write_head(folder / "head.gguf", embedded / "head", embedded / "target", kind)
    write_block(folder / "block.gguf", embedded / "block", embedded / "target", kind)
    return [*paths, folder / "head.gguf", folder / "block.gguf"]


def write(path: Path, folder: Path, kind: Kind) -> None:
    """The model of a directory with its tokenizer as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(folder.name)
    _add_sizes(writer, config)
    _add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in _weights(folder, config):
        _add_tensor(writer, names.get_name(name, (".weight",)), weight, kind)
    _finish(writer)


def write_head(path: Path, folder: Path, target: Path, kind: Kind) -> None:
    """The EAGLE-3 head of a directory as a GGUF file, with its target's tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    layer = config["transformer_layer_config"]
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    writer.add_name(folder.name)
    _add_sizes(writer, layer)
    writer.add_key_length(layer["head_dim"])
    writer.add_value_length(layer["head_dim"])
    writer.add_array(f"{ARCHITECTURE}.target_layers", config["eagle_aux_hidden_state_layer_ids"])
    writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", config["target_hidden_size"])
    writer.add_bool(f"{ARCHITECTURE}.norm_before_residual", config["norm_before_residual"])
    _add_tokenizer(writer, target)
    names = {there: here for here, there in NAMES.items()}
    for name, weight in _weights(folder, layer):
        if name == "d2t":  # offsets in a checkpoint, ids here
            ids = weight.astype(np.int64) + np.arange(len(weight))
            writer.add_tensor("d2t", ids, raw_dtype=Kind.I64)
        elif name != "t2d":
            _add_tensor(writer, f"{names[name.removesuffix('.weight')]}.weight", weight, kind)
    _finish(writer)


def write_block(path: Path, folder: Path, target: Path, kind: Kind = Kind.F32) -> None:
    """The block drafter of a directory, in the format of speculators, as a GGUF file with its
    target's tokenizer: DFlash, DFlash 2 or DSpark. Its architecture rotates the halves of a head,
    as transformers does.
    """
    config = json.loads((folder / "config.json").read_text())
    layer = config["transformer_layer_config"]
    writer = gguf.GGUFWriter(str(path), "dflash")
    writer.add_name(folder.name)
    _add_sizes(writer, layer)
    writer.add_key_length(layer["head_dim"])
    writer.add_value_length(layer["head_dim"])
    writer.add_array("dflash.target_layers", config["aux_hidden_state_layer_ids"])
    sizes = ("block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    for name in sizes:
        if name in config:
            writer.add_uint32(f"dflash.{name}", config[name])
    if "markov_rank" in config:
        writer.add_bool("dflash.sample_from_anchor", config["sample_from_anchor"])
        writer.add_bool("dflash.has_confidence_head", config["enable_confidence_head"])
    _add_tokenizer(writer, target)
    writer.add_mask_token_id(config["mask_token_id"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == "d2t":  # offsets in a checkpoint, ids here
            ids = tensor.numpy().astype(np.int64) + np.arange(len(tensor))
            writer.add_tensor("d2t", ids, raw_dtype=Kind.I64)
        elif name != "t2d":
            there = _in_gguf(name)
            _add_tensor(writer, there, tensor.to(torch.float32).numpy(), kind)
    _finish(writer)


def _in_gguf(name: str) -> str:
    """The name of a block drafter's tensor in a .gguf file."""
    ending = next((kind for kind in (".weight", ".bias") if name.endswith(kind)), "")
    stem, prefix = name.removesuffix(ending), ""
    if inside := re.match(r"layers\.(\d+)\.", stem):
        stem, prefix = stem[inside.end() :], f"blk.{inside[1]}."
    names = block_file.NAMES_IN_LAYERS if prefix else block_file.NAMES
    there = next(there for there, here in names.items() if here == stem)
    return f"{prefix}{there}{ending or '.weight' * stem.endswith('_codebook')}"


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])


def _weights(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a directory in 32 bits, q and k with their rows as llama.cpp wants them."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        weight = tensor.to(torch.float32).numpy()
        turned = next((heads[part] for part in heads if part in name), None)
        yield name, weight if turned is None else interleaved(weight, turned)


def _add_tensor(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: Kind) -> None:
    own = kind if weight.ndim > 1 else Kind.F32
    stored = gguf.quants.quantize(np.ascontiguousarray(weight), own)
    writer.add_tensor(name, stored, raw_dtype=own)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs, transformers the two halves of a head: its converter
    stores the rows of q and k in the order 0, h, 1, h + 1, … (h half a head).
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Byte-level BPE, with text split as GPT-2 splits it."""
    stored, config = (
        json.loads((folder / name).read_text()) for name in ("tokenizer.json", "config.json")
    )
    ids, special = stored["model"]["vocab"], {token["content"] for token in stored["added_tokens"]}
    words = sorted(ids, key=ids.get)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([control if word in special else normal for word in words])
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    kind = (sys.argv[2:] or ["f32"])[0]
    if len(sys.argv) not in (2, 3) or kind not in KINDS:
        sys.exit(__doc__)
    for path in write_family(Path(sys.argv[1]), KINDS[kind]):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
