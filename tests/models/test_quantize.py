"""Levels, and what is counted of a built model; sizes by hand.

The workshop's Llama: hidden 64, intermediate 128, 2 layers, 4 heads and 2 key heads of 16, 300
words. Per layer q 64·64, k and v 32·64 each, o 64·64, gate, up and down 128·64 each:

    linear weights of a layer   4096 + 2·2048 + 4096 + 3·8192 = 36 864
    outputs of a layer's four products   128 + 64 + 256 + 64 = 512
    norms                       2·64 a layer and 64 at the end = 320
    embedding (and head)        300·64 = 19 200
"""

import gc
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, MambaConfig

from draftbench.decoder import linear
from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.linear import multiplies_bfloat16, multiplies_integers
from draftbench.errors import ModelError
from draftbench.memory import INT4_GROUP, LEVELS
from draftbench.models import quantize
from draftbench.models.quantize import Build, build_runner, check_level, level_table
from draftbench.models.source import ModelSource

LINEAR, OUTPUTS, NORMS, EMBEDDING = 2 * 36_864, 2 * 512, 320, 19_200
BFLOAT16, FLOAT32 = 2, 4


def built(source, level, dtype=torch.bfloat16, *, simulate=False):
    return build_runner(source, Build(dtype, level, "cpu", simulate), "draft")[1]


def test_the_table_says_what_each_level_is_on_a_device():
    rows = {row.level: row for row in level_table("cpu")}
    assert list(rows) == list(LEVELS)
    assert {name: row.bytes_per_weight for name, row in rows.items()} == {
        "none": None,
        "fp8": 1.0,
        "int8": 1.0,
        "int4": 0.625,  # half a byte, and 2 + 2 bytes for every 32
    }
    assert [name for name, row in rows.items() if row.kernel is None] == ["fp8"]
    on_cuda = {row.level: row.kernel for row in level_table("cuda:1")}
    assert [level for level, kernel in on_cuda.items() if kernel is None] == ["fp8", "int8"]
    assert all("the output head included" in row.layers for row in rows.values())


def test_a_level_without_a_kernel_is_refused_unless_simulated():
    for level, device, kind in (("fp8", "cpu", "cpu"), ("int8", "cuda:1", "cuda")):
        where = rf"`{level}` has no fast kernel on this device \({kind}\)"
        with pytest.raises(ModelError, match=where) as caught:
            check_level(level, device, simulate=False)
        assert "--simulate-quant" in caught.value.hint
        assert check_level(level, device, simulate=True) is False
    assert check_level("int4", "cuda:1", simulate=False) is True
    assert check_level("int4", "cpu", simulate=True) is True


def test_an_unknown_level_lists_the_known_ones():
    with pytest.raises(ModelError, match="unknown quantization `int5`") as caught:
        check_level("int5", "cpu", simulate=False)
    assert "none, fp8, int8, int4" in caught.value.hint


def test_unquantized_weights_are_counted_by_their_type(workshop):
    facts = built(workshop.weighted("untied"), "none")
    parameters = LINEAR + NORMS + 2 * EMBEDDING
    assert (facts.parameters, facts.quantized_share) == (parameters, 0.0)
    assert facts.weight_bytes == BFLOAT16 * parameters
    in_float = built(workshop.weighted("float"), "none", torch.float32)
    assert in_float.weight_bytes == 4 * parameters


@pytest.mark.skipif(sys.platform != "linux", reason="mapped files are listed by Linux alone")
def test_a_checkpoint_is_not_kept_in_memory_beside_the_packed_weights(workshop, monkeypatch):
    """In float32, which every CPU packs; small matrices too."""
    monkeypatch.setattr(linear, "BLOCKS_FROM", 0)
    source = workshop.weighted("target", stored=torch.float32)
    runner, _ = build_runner(source, Build(torch.float32, "none", "cpu"), "draft")
    gc.collect()
    assert runner.vocab_size == 300
    assert source.spec not in Path("/proc/self/maps").read_text()


def test_stacked_experts_are_not_copied_out_of_the_file():
    """They are most of a model: in memory twice they may not fit."""
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 2), "experts": nn.Module()})
    model["experts"].up = nn.Parameter(torch.zeros(8, 4, 2))
    before = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    quantize._leave_the_file(model)
    moved = {name for name, weight in model.named_parameters() if weight.data_ptr() != before[name]}
    assert moved == {"embedding.weight"}


def test_int8_is_a_byte_a_weight_and_a_scale_an_output(workshop):
    facts = built(workshop.weighted("model"), "int8")
    scale = FLOAT32 if multiplies_integers() else BFLOAT16
    head = EMBEDDING + scale * 300
    rest = BFLOAT16 * (NORMS + EMBEDDING)
    assert facts.quantized_share == 1.0
    assert facts.weight_bytes == LINEAR + scale * OUTPUTS + head + rest


def test_int4_is_half_a_byte_a_weight_and_a_pair_of_scales_a_group(workshop):
    """The head's 300 outputs do not divide into the kernel's blocks of 16 and stay bfloat16."""
    facts = built(workshop.weighted("model"), "int4")
    scales = 2 * BFLOAT16 * LINEAR // INT4_GROUP
    rest = BFLOAT16 * (NORMS + 2 * EMBEDDING)
    assert facts.weight_bytes == LINEAR // 2 + scales + rest
    assert facts.quantized_share == LINEAR / (LINEAR + EMBEDDING)
    assert f"int4 covers {LINEAR / (LINEAR + EMBEDDING):.0%} of the linear weights" in facts.caveats
    assert any(
        re.search("keeps (bfloat16|float32) ones, not counted", caveat) for caveat in facts.caveats
    )


def test_a_tied_head_counts_once(workshop):
    """In float32 the head shares the embedding's memory."""
    facts = built(workshop.weighted("tied", tie_word_embeddings=True), "none", torch.float32)
    assert facts.parameters == LINEAR + NORMS + EMBEDDING
    assert facts.weight_bytes == 4 * (LINEAR + NORMS + EMBEDDING)


def test_a_simulated_level_keeps_its_size_and_says_that_it_has_no_kernel(workshop):
    facts = built(workshop.weighted("model"), "fp8", simulate=True)
    assert facts.has_kernel is False
    assert facts.quantized_share == 1.0
    assert facts.weight_bytes == BFLOAT16 * (LINEAR + NORMS + 2 * EMBEDDING)
    assert built(workshop.weighted("other"), "int8", simulate=True).has_kernel is True


def test_int4_that_fits_no_layer_fails(workshop):
    # 48 and 112 are no multiples of the group of 32.
    odd = workshop.weighted("odd", hidden_size=48, intermediate_size=112)
    with pytest.raises(ModelError, match="`int4` touched no layer of `odd`") as caught:
        built(odd, "int4")
    assert "another level" in caught.value.hint
    assert built(odd, "int8").quantized_share == 1.0


def test_a_quantized_level_needs_bfloat16_on_cuda(workshop):
    with pytest.raises(ModelError, match="`int4` needs bfloat16") as caught:
        build_runner(workshop.weighted("model"), Build(torch.float32, "int4", "cuda"), None)
    assert "--dtype bfloat16" in caught.value.hint


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("level", ["int8", "int4"])
def test_a_float32_model_may_have_a_quantized_draft(workshop, level, tied):
    """Where the CPU does not multiply bfloat16 float32 is the default: drafts are quantized too. A
    head that is tied to the embedding is made from it, and leaves it as it was.
    """
    source = workshop.weighted("model", tie_word_embeddings=tied)
    runner, facts = build_runner(source, Build(torch.float32, level, "cpu"), "draft")
    assert facts.runner == "draftbench (float32, cpu)"
    assert facts.has_kernel
    tokens = torch.arange(1, 25)
    whole = runner.forward(tokens, runner.new_cache(24), every=True)
    cache = runner.new_cache(24)
    pieces = [runner.forward(part, cache, every=True) for part in tokens.split([1, 2, 3, 9, 9])]
    assert whole.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(whole, torch.cat(pieces), dim=-1)
    assert cosine.min() > 0.999


def test_a_type_that_another_would_beat_is_named(workshop):
    said = built(workshop.weighted("model"), "none").caveats
    slow = any("does not multiply bfloat16" in caveat for caveat in said)
    assert slow is not multiplies_bfloat16()
    assert built(workshop.weighted("model"), "none", torch.float32).caveats == ()
    build = Build(torch.float32, "none", "cpu")
    (doubled,) = build_runner(workshop.weighted("model"), build, None)[1].caveats
    assert "plain decoding reads twice the bytes" in doubled
    for level in ("int8", "int4"):
        quantized = build_runner(
            workshop.weighted("model"), Build(torch.float32, level, "cpu"), None
        )
        assert not any("twice the bytes" in caveat for caveat in quantized[1].caveats)
    whole = workshop.weighted("whole", stored=torch.float32)
    assert build_runner(whole, build, None)[1].caveats == ()


def test_the_size_of_the_cache_is_that_of_keys_and_values_of_all_layers(workshop):
    # 2 (keys, values) · 2 layers · 2 heads · 16 · 2 bytes.
    assert built(workshop.weighted("model"), "none").kv_bytes_per_token == 256


def test_a_recurrent_model_is_refused_by_name(workshop, tmp_path):
    path = workshop.tokenizer("mamba")
    config = MambaConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2, eos_token_id=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    with pytest.raises(ModelError, match=r"`mamba` cannot speculate here: .*linear_attention"):
        built(ModelSource(str(path)), "none", torch.float32)


def test_a_runner_that_disagrees_is_replaced_by_the_general_one(workshop, monkeypatch):
    source = workshop.weighted("model")
    monkeypatch.setattr(
        quantize.LlamaRunner, "forward", lambda self, ids, *_, every: torch.ones(len(ids), 300)
    )
    runner, facts = build_runner(source, Build(torch.float32, "none", "cpu"), None)
    assert isinstance(runner, TransformersRunner)
    assert "draftbench's runner gives other logits" in facts.caveats[0]


def test_weights_in_two_layouts_count_once_and_the_copy_apart(workshop, monkeypatch):
    """Packed from 0 bytes on, where nothing is small; a tied head's rows are the embedding's."""
    monkeypatch.setattr(linear, "BLOCKS_FROM", 0)
    source = workshop.weighted("tied", tie_word_embeddings=True)
    both, one = (
        build_runner(source, Build(torch.float32, "none", "cpu", two_layouts=two), "draft")[1]
        for two in (True, False)
    )
    assert both.weight_bytes == one.weight_bytes == FLOAT32 * (LINEAR + NORMS + EMBEDDING)
    assert both.second_layout_bytes == FLOAT32 * (LINEAR + EMBEDDING)
    assert one.second_layout_bytes == 0
    assert both.runner == "draftbench (float32, cpu, two layouts)"
    assert one.runner == "draftbench (float32, cpu)"
    assert quantize.ONE_LAYOUT in one.caveats
    assert quantize.ONE_LAYOUT not in both.caveats


def test_no_room_for_a_second_layout_leaves_one_and_says_so(workshop, monkeypatch):
    monkeypatch.setattr(linear, "BLOCKS_FROM", 0)
    monkeypatch.setattr(quantize, "memory_left", lambda: 3 * FLOAT32 * (LINEAR + EMBEDDING) - 1)
    facts = built(workshop.weighted("model"), "none", torch.float32)
    assert facts.second_layout_bytes == 0
    assert quantize.ONE_LAYOUT in facts.caveats
