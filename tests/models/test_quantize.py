"""Levels, and what is counted of a built model; sizes by hand.

The workshop's Llama: hidden 64, intermediate 128, 2 layers, 4 heads and 2 key heads of 16, 300
words. Per layer q 64·64, k and v 32·64 each, o 64·64, gate, up and down 128·64 each:

    linear weights of a layer   4096 + 2·2048 + 4096 + 3·8192 = 36 864
    outputs of a layer's four products   128 + 64 + 256 + 64 = 512
    norms                       2·64 a layer and 64 at the end = 320
    embedding (and head)        300·64 = 19 200
"""

import gc
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, MambaConfig

from draftbench.decoder import linear, quantized_linear
from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.linear import multiplies_bfloat16
from draftbench.drafts.mtp.draft import build_mtp
from draftbench.errors import ModelError
from draftbench.memory import INT4_GROUP, LEVELS
from draftbench.models import quantize
from draftbench.models.quantize import Build, build_runner, check_level, level_table
from draftbench.models.source import ModelSource

LINEAR, OUTPUTS, NORMS, EMBEDDING = 2 * 36_864, 2 * 512, 320, 19_200
BFLOAT16, FLOAT32 = 2, 4


@pytest.fixture
def card(monkeypatch):
    """A GPU of this compute capability; 9.0, with Triton, if nothing else is said."""

    def here(capability=(9, 0), triton=True):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(quantized_linear, "has_triton", lambda device: triton)

    here()
    return here


def built(source, level, dtype=torch.bfloat16, draft="draft", **options):
    return build_runner(source, Build(dtype, level, "cpu", **options), draft)[1]


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
    assert all("the output head included" in row.layers for row in rows.values())


@pytest.mark.parametrize(
    ("capability", "triton", "slow"),
    [
        ((9, 0), True, {}),
        ((9, 0), False, dict.fromkeys(("fp8", "int8"), "needs Triton, which is not installed")),
        ((8, 9), True, {}),
        ((8, 6), True, {"fp8": "needs compute capability 8.9, and this GPU has 8.6"}),
        (
            (7, 5),
            True,
            {
                "fp8": "needs compute capability 8.9, and this GPU has 7.5",
                "int8": "needs compute capability 8.0, and this GPU has 7.5",
                "int4": "needs compute capability 8.0, and this GPU has 7.5",
            },
        ),
    ],
)
def test_a_gpu_offers_the_levels_whose_kernels_it_can_run_and_refuses_others_before_weights_load(
    workshop, card, monkeypatch, capability, triton, slow
):
    card(capability, triton)
    monkeypatch.delattr(ModelSource, "load")
    rows, source = level_table("cuda:1"), workshop.source("model")
    assert [row.level for row in rows if row.kernel is None] == list(slow)
    assert all(" a weight" in row.moves and "(" in row.moves for row in rows if row.level != "none")
    for level, why in slow.items():
        with pytest.raises(ModelError, match="has no fast kernel on this device") as caught:
            build_runner(source, Build(torch.bfloat16, level, "cuda:1"), None)
        assert why in caught.value.message
        assert check_level(level, "cuda:1", simulate=True) is False


@pytest.mark.parametrize("draft", ["draft", "mtp"])
def test_a_level_on_a_gpu_is_refused_in_another_type_than_its_kernels(
    workshop, card, monkeypatch, draft
):
    """Known fault: a target's own layers were quantized in any type."""
    monkeypatch.delattr(ModelSource, "load")
    monkeypatch.delattr(ModelSource, "load_mtp")
    target = [object.__new__(TransformersRunner)] * (draft == "mtp")
    build = build_mtp if target else build_runner
    with pytest.raises(ModelError, match="`int8` needs bfloat16 activations on cuda:1"):
        build(workshop.source("model"), Build(torch.float32, "int8", "cuda:1"), draft, *target)


@pytest.mark.parametrize("simulate", [False, True])
def test_nothing_is_quantized_over_several_gpus(card, monkeypatch, simulate):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match="`int4` needs one GPU") as caught:
        check_level("int4", "auto", simulate=simulate)
    assert "--device cuda:0" in caught.value.hint
    assert check_level("none", "auto", simulate=simulate)


@pytest.mark.parametrize(
    ("level", "room", "where"),
    [
        ("int4", 1_000_000, "cuda:1"),  # two bytes for each of 112 448 weights
        ("int4", 200_000, "cpu"),
        # Nothing gets smaller: whether it fits shows when it loads.
        ("none", 200_000, "cuda:1"),
    ],
)
def test_weights_that_a_gpu_has_no_room_for_are_quantized_on_their_way_there(
    workshop, card, monkeypatch, level, room, where
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (room, room))

    def load(source, dtype, device):
        raise LookupError(device)

    monkeypatch.setattr(quantize, "make_ready", lambda device: None)
    monkeypatch.setattr(ModelSource, "load", load)
    build = Build(torch.bfloat16, level, "cuda:1", simulate=True)
    with pytest.raises(LookupError, match=rf"^{where}$"):
        build_runner(workshop.weighted("large"), build, None)


@pytest.mark.parametrize(
    ("level", "device", "words", "hint"),
    [
        ("fp8", "cpu", r"`fp8` has no fast kernel on this device \(cpu\)", "--simulate-quant"),
        ("int5", "cpu", "unknown quantization `int5`", "none, fp8, int8, int4"),
        ("int4", "cuda", "`int4` needs bfloat16", "--dtype bfloat16"),
    ],
)
def test_a_level_that_cannot_be_had_is_refused(workshop, card, level, device, words, hint):
    with pytest.raises(ModelError, match=words) as caught:
        build_runner(workshop.source("model"), Build(torch.float32, level, device), None)
    assert hint in caught.value.hint


AS_LOADED = BFLOAT16 * (LINEAR + NORMS + 2 * EMBEDDING)
# What a checkpoint holds in 16 bits stays so; norms are widened.
WIDENED = BFLOAT16 * (LINEAR + 2 * EMBEDDING) + FLOAT32 * NORMS
# A byte a weight and a scale an output.
IN_INT8 = LINEAR + EMBEDDING + BFLOAT16 * (OUTPUTS + 300) + BFLOAT16 * (NORMS + EMBEDDING)
# Half a byte a weight, a pair of scales a group; the head's 300 outputs do not divide into the
# kernel's blocks of 16 and stay bfloat16.
IN_INT4 = LINEAR // 2 + 2 * BFLOAT16 * LINEAR // INT4_GROUP + BFLOAT16 * (NORMS + 2 * EMBEDDING)


@pytest.mark.parametrize(
    ("level", "dtype", "tied", "weights", "share"),
    [
        ("none", torch.bfloat16, False, AS_LOADED, 0),
        ("none", torch.float32, False, WIDENED, 0),
        # A tied head is kept once more, in panels.
        ("none", torch.float32, True, WIDENED, 0),
        ("int8", torch.bfloat16, False, IN_INT8, 1),
        ("int4", torch.bfloat16, False, IN_INT4, LINEAR / (LINEAR + EMBEDDING)),
        ("fp8", torch.bfloat16, False, AS_LOADED, 1),  # simulated, which keeps the size
    ],
)
def test_weights_are_counted_by_their_types(workshop, level, dtype, tied, weights, share):
    source = workshop.weighted("model", tie_word_embeddings=tied)
    facts = built(source, level, dtype, simulate=True)
    assert facts.parameters == LINEAR + NORMS + EMBEDDING * (1 if tied else 2)
    assert (facts.weight_bytes, facts.quantized_share) == (weights, share)
    assert facts.has_kernel is (level != "fp8")
    # 2 (keys, values) · 2 layers · 2 heads · 16 · the bytes of an entry.
    assert facts.kv_bytes_per_token == 128 * dtype.itemsize
    # A second copy for passes over many tokens, where this CPU multiplies bfloat16.
    second = BFLOAT16 * (LINEAR + EMBEDDING) * multiplies_bfloat16()
    if level == "int4":
        assert f"int4 covers {share:.0%} of the linear weights" in facts.caveats
        second += (BFLOAT16 - BFLOAT16 * multiplies_bfloat16()) * LINEAR
    twice = level in ("int4", "none") and dtype == torch.bfloat16
    assert facts.second_layout_bytes == (second if twice else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="mapped files are listed by Linux alone")
def test_a_checkpoint_is_not_kept_in_memory_beside_the_packed_weights(workshop, monkeypatch):
    """In float32, which every CPU packs; small matrices too."""
    monkeypatch.setattr(linear, "PACKED_FROM", 0)
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
    quantize._copy_from_file(model)
    moved = {name for name, weight in model.named_parameters() if weight.data_ptr() != before[name]}
    assert moved == {"embedding.weight"}


def test_int4_that_fits_no_layer_fails(workshop):
    # 48 and 112 are no multiples of the group of 32.
    odd = workshop.weighted("odd", hidden_size=48, intermediate_size=112)
    with pytest.raises(ModelError, match="`int4` touched no layer of `odd`") as caught:
        built(odd, "int4")
    assert "another level" in caught.value.hint
    assert built(odd, "int8").quantized_share == 1.0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("level", ["int8", "int4"])
def test_a_float32_model_may_have_a_quantized_draft(workshop, level, tied):
    """Where the CPU does not multiply bfloat16 float32 is the default: drafts are quantized too. A
    head that is tied to the embedding is made from it, and leaves it as it was.
    """
    source = workshop.weighted("model", tie_word_embeddings=tied)
    runner, facts = build_runner(source, Build(torch.float32, level, "cpu"), "draft")
    # Matrices as small as these; int4's kernel cannot take a head of 300 outputs.
    how = {"int8": "int8 weight-only", "int4": "16 bits in panels, int4 up to"}[level]
    assert facts.runner.startswith(f"draftbench (float32, cpu, {how}")
    assert facts.has_kernel
    tokens = torch.arange(1, 25)
    whole = runner.forward(tokens, runner.new_cache(24), every=True)
    cache = runner.new_cache(24)
    pieces = [runner.forward(part, cache, every=True) for part in tokens.split([1, 2, 3, 9, 9])]
    assert whole.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(whole, torch.cat(pieces), dim=-1)
    assert cosine.min() > 0.999


def test_a_type_that_another_would_beat_is_named(workshop, monkeypatch):
    """Where weights in 16 bits cannot be multiplied in float32."""
    narrow = workshop.weighted("narrow")
    assert built(narrow, "none", torch.float32, None).caveats == ()
    monkeypatch.setattr(linear, "narrow_type", lambda weight: None)
    for dtype in (torch.bfloat16, torch.float32):
        assert built(narrow, "none", dtype).caveats == ()
    (doubled,) = built(narrow, "none", torch.float32, None).caveats
    assert "plain decoding reads twice the bytes" in doubled
    for level in ("int8", "int4"):
        caveats = built(narrow, level, torch.float32, None).caveats
        assert not any("twice the bytes" in caveat for caveat in caveats)
    wide = workshop.weighted("wide", stored=torch.float32)
    assert built(wide, "none", torch.float32, None).caveats == ()


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
    """Twice from 0 bytes on, where nothing is large; a tied head's rows are the embedding's."""
    monkeypatch.setattr(linear, "PACKED_FROM", 0)
    monkeypatch.setattr(linear, "ROWS_FROM", 0)
    source = workshop.weighted("tied", stored=torch.float32, tie_word_embeddings=True)
    both, one = (built(source, "none", torch.float32, two_layouts=two) for two in (True, False))
    assert both.weight_bytes == one.weight_bytes == FLOAT32 * (LINEAR + NORMS + EMBEDDING)
    assert both.second_layout_bytes == FLOAT32 * (LINEAR + EMBEDDING)
    assert one.second_layout_bytes == 0
    assert both.runner == "draftbench (float32, cpu, two layouts)"
    assert one.runner == "draftbench (float32, cpu)"
    assert quantize.ONE_LAYOUT in one.caveats
    assert quantize.ONE_LAYOUT not in both.caveats


def test_a_checkpoint_of_16_bits_takes_two_bytes_a_weight_in_float32(workshop):
    """The embedding too, and a tied head once more, packed; norms stay as they are."""
    source = workshop.weighted("tied", tie_word_embeddings=True)
    runner, facts = build_runner(source, Build(torch.float32, "none", "cpu"), None)
    assert facts.weight_bytes == 2 * (LINEAR + EMBEDDING + EMBEDDING) + FLOAT32 * NORMS
    assert facts.second_layout_bytes == 0
    assert facts.runner == "draftbench (float32, cpu, 16 bits in panels)"
    assert facts.caveats == ()
    model = source.load(torch.float32, "cpu")
    tokens = torch.arange(1, 25)
    got = runner.forward(tokens, runner.new_cache(24), every=True)
    torch.testing.assert_close(got, model(tokens[None]).logits[0], rtol=1e-4, atol=1e-5)


def test_no_room_for_a_second_layout_leaves_one_and_says_so(workshop, monkeypatch):
    monkeypatch.setattr(linear, "PACKED_FROM", 0)
    monkeypatch.setattr(linear, "ROWS_FROM", 0)
    monkeypatch.setattr(quantize, "memory_left", lambda: 3 * FLOAT32 * (LINEAR + EMBEDDING) - 1)
    facts = built(workshop.weighted("model", stored=torch.float32), "none", torch.float32)
    assert facts.second_layout_bytes == 0
    assert quantize.ONE_LAYOUT in facts.caveats
