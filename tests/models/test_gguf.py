"""The embedded draft rewritten as a GGUF file → the same model, tokenizer and facts."""

import json

import gguf
import numpy as np
import pytest
import torch

from draftbench.errors import ModelError
from draftbench.models.compatibility import check_pair
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource, end_tokens

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def tensor_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs, transformers the two halves of a head: its converter
    stores the rows of q and k in the order 0, h, 1, h + 1, … (h half a head).
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_tokenizer(writer: gguf.GGUFWriter, folder) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([control if t == "<|endoftext|>" else normal for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(0)


def write(path, folder, kind=gguf.GGMLQuantizationType.F32):
    """The model of a directory as a GGUF file with its matrices of this kind."""
    source = ModelSource(str(folder))
    config = source.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("draft")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    write_tokenizer(writer, folder)
    for name, tensor in source.load(torch.float32, "cpu").state_dict().items():
        if name == "lm_head.weight":  # tied: it is the embedding
            continue
        weight = tensor.numpy()
        if "q_proj" in name:
            weight = interleaved(weight, config.num_attention_heads)
        elif "k_proj" in name:
            weight = interleaved(weight, config.num_key_value_heads)
        own = kind if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        stored = gguf.quants.quantize(np.ascontiguousarray(weight), own)
        writer.add_tensor(tensor_name(name), stored, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory, embedded):
    path = tmp_path_factory.mktemp("gguf") / "draft.F32.gguf"
    write(path, embedded / "draft")
    return path


def test_quantized_blocks_are_unpacked_and_have_no_cost_of_their_own(tmp_path, embedded):
    path = tmp_path / "draft.Q8_0.gguf"
    write(path, embedded / "draft", gguf.GGMLQuantizationType.Q8_0)
    build = Build(torch.float32, "none", "cpu")
    runner, facts = build_runner(ModelSource(str(path)), build, None)
    plain, exact = build_runner(ModelSource(str(embedded / "draft")), build, None)
    assert (facts.quant, facts.has_kernel) == ("gguf-q8_0", False)
    assert facts.caveats == (
        "stored as gguf-q8_0 and unpacked here: right acceptance, its own cost and size unknown",
    )
    assert (facts.parameters, facts.weight_bytes) == (exact.parameters, exact.weight_bytes)
    ids = torch.arange(5, 45)
    one, other = (r.forward(ids, r.new_cache(40), every=True).float() for r in (runner, plain))
    closeness = torch.nn.functional.cosine_similarity(one, other, dim=-1)
    assert 0.99 < closeness.min() < 1


def test_a_gguf_file_gives_the_directorys_logits(gguf_file, embedded):
    ids = torch.arange(5, 45)
    logits = []
    for spec in (gguf_file, embedded / "draft"):
        runner, facts = build_runner(
            ModelSource(str(spec)), Build(torch.float32, "none", "cpu"), "draft"
        )
        assert facts.runner.startswith("draftbench (float32, cpu")
        logits.append(runner.forward(ids, runner.new_cache(40), every=True))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


def test_a_gguf_file_gives_the_directorys_tokenizer(gguf_file, embedded):
    one, other = ModelSource(str(gguf_file)), ModelSource(str(embedded / "draft"))
    text = "def walk(top):\n    for name in os.listdir(top):\n        yield name  # é\n"
    assert one.tokenizer(text)["input_ids"] == other.tokenizer(text)["input_ids"]
    assert end_tokens(one) == end_tokens(other) == {0}
    target = ModelSource(str(embedded / "target"))
    assert check_pair(target, one) == check_pair(target, other)


def test_a_gguf_file_has_a_name_and_a_fingerprint(gguf_file, tmp_path):
    source = ModelSource(str(gguf_file))
    assert source.name == "draft.F32"
    raw = bytearray(gguf_file.read_bytes())
    raw[-1] ^= 1
    changed = tmp_path / "draft.F32.gguf"
    changed.write_bytes(raw)
    assert ModelSource(str(changed)).fingerprint() != source.fingerprint()


def test_a_damaged_gguf_file_is_refused(gguf_file, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:5000])
    with pytest.raises(ModelError, match="cannot load the configuration"):
        _ = ModelSource(str(broken)).config
