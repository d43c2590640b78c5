"""Sizes and verdicts from configurations, against the models themselves."""

import random
import time

import pytest
import torch

from draftbench.errors import ModelError
from draftbench.models import prequantized
from draftbench.models.check import check_models, memory_here
from draftbench.models.check_result import Overlap
from draftbench.models.compatibility import pair_facts
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource

WORDS = ["<unk>", "<end>", *(f"w{i}" for i in range(298))]
PLENTY = 10**12


def look(target, *drafts, memory=PLENTY, traffic=None):
    return check_models(target, drafts, memory, traffic)


def test_sizes_are_those_of_the_loaded_model(embedded):
    source = ModelSource(str(embedded / "target"))
    sheet = look(source, source).target
    loaded = source.load(torch.bfloat16, "cpu")
    assert sheet.parameters == sum(p.numel() for p in loaded.parameters())
    assert sheet.weight_bytes["none"] == 2 * sheet.parameters
    config = loaded.config
    head = config.hidden_size // config.num_attention_heads
    one_layer = 2 * 2 * config.num_key_value_heads * head
    assert sheet.kv_bytes_per_token == config.num_hidden_layers * one_layer


def test_int8_takes_the_bytes_that_the_built_model_takes(workshop):
    source = workshop.weighted("model", tie_word_embeddings=False, dtype="bfloat16")
    _, facts = build_runner(source, Build(torch.bfloat16, "int8", "cpu"), None)
    # Outputs: q 64, k and v 32, o 64, gate and up 128, down 64 in each of two layers; head 300. The
    # kernel of a CPU that does not multiply bytes keeps its scales in 16 bits, others in 32.
    outputs = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64) + 300
    counted = look(source, source).target.weight_bytes["int8"]
    assert counted - facts.weight_bytes in (0, 2 * outputs)


def test_int4_counts_half_a_byte_and_four_bytes_per_group(workshop):
    # Per layer: q 64×64, k and v 32×64, o 64×64, three of 128×64; two norms of 64. Head 64×300 is
    # tied; 300 is no multiple of 16, so that it stays. Embedding 300×64, one norm at the end.
    source = workshop.source("model", tie_word_embeddings=True)
    linears = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    rest = 300 * 64 + 300 * 64 + 5 * 64
    found = look(source, source).target.weight_bytes
    assert found["none"] == 4 * (linears + rest)
    assert found["int4"] == linears // 2 + 4 * linears // 32 + 4 * rest


def test_room_is_what_the_weights_leave_for_both_caches(workshop):
    source = workshop.source("model")
    sheet = look(source, source).target
    weights = 2 * sheet.weight_bytes["none"]
    per_token = 2 * sheet.kv_bytes_per_token
    memory = weights + 10 * per_token + 1
    rooms = {r.level: r for r in look(source, source, memory=memory).pairs[0].rooms}
    assert (rooms["none"].weight_bytes, rooms["none"].tokens) == (weights, 10)
    assert rooms["int8"].tokens > 10
    full = look(source, source, memory=weights - 1).pairs[0]
    assert {r.level: r for r in full.rooms}["none"].tokens is None
    assert full.obstacles == ()


def test_weights_that_fit_at_no_level_cannot_work(workshop):
    source = workshop.source("model")
    assert "do not fit" in look(source, source, memory=1000).pairs[0].obstacles[0]


def test_overlap_is_weighed_by_the_traffic(workshop):
    other = [*WORDS]
    other[5], other[6] = "w4", "w3"  # ids 5 and 6 swapped
    target, draft = workshop.source("target"), workshop.source("draft", other)
    facts = pair_facts(target, draft, {5: 1.0, 7: 3.0})
    assert facts.vocabulary.traffic == Overlap(same_id=0.75, same_text=1.0)
    assert facts.vocabulary.all_tokens == Overlap(same_id=298 / 300, same_text=1.0)
    assert facts.vocabulary.first_regular_difference.id == 5


def test_a_templates_difference_is_a_unified_diff(workshop):
    one = workshop.source("one", chat_template="a\nb\nc")
    other = workshop.source("other", chat_template="a\nx\nc")
    shown = look(one, other).pairs[0].facts.template_difference
    assert shown == ("--- target", "+++ draft", "@@ -1,3 +1,3 @@", " a", "-b", "+x", " c")


@pytest.mark.slow
def test_the_difference_of_endless_templates_ends(workshop):
    """Lines that are rare enough to be looked for, and everywhere."""
    chance = random.Random(0)
    long = ["\n".join(f"line {chance.randrange(200)}" for _ in range(40_000)) for _ in range(2)]
    one, other = (workshop.source(f"m{n}", chat_template=text) for n, text in enumerate(long))
    began = time.monotonic()
    shown = look(one, other).pairs[0].facts.template_difference
    assert time.monotonic() - began < 20
    assert shown[-1] == "(not compared after line 1000)"
    assert len(shown) < 3000


def test_the_first_lines_say_what_cannot_work(embedded):
    target, foreign = (ModelSource(str(embedded / name)) for name in ("target", "foreign"))
    (pair,) = look(target, foreign).pairs
    assert "their vocabularies differ" in pair.obstacles[0]


def test_a_draft_as_large_as_the_target_is_a_caveat(workshop):
    source = workshop.source("model")
    assert "not smaller" in look(source, source).pairs[0].caveats[-1]


def test_a_format_without_its_package_cannot_be_measured(workshop, monkeypatch):
    monkeypatch.setattr(prequantized, "find_spec", lambda name: None)
    source = workshop.source("model")
    source.config.quantization_config = {"quant_method": "awq", "bits": 4}
    found = look(workshop.source("target"), source).pairs[0].obstacles
    assert found == ("`model` is stored as awq-int4: pip install gptqmodel",)


def test_a_stored_checkpoint_takes_what_its_files_take_at_every_level(workshop):
    source = workshop.weighted("model")
    source.config.quantization_config = {"quant_method": "torchao", "quant_type": "int8"}
    (pair,) = look(workshop.source("target"), source).pairs
    size = (prequantized.Path(source.spec) / "model.safetensors").stat().st_size
    assert set(pair.draft.weight_bytes.values()) == {size}
    assert [room.level for room in pair.rooms] == ["torchao-int8"]
    assert "model is stored as torchao-int8: measured as it is" in pair.caveats


def test_what_is_no_language_model_is_refused(workshop):
    from transformers import ViTConfig

    source = workshop.source("model")
    ViTConfig().save_pretrained(source.spec)
    with pytest.raises(ModelError, match="cannot be built as a language model"):
        look(ModelSource(source.spec), source)


def test_a_recurrent_draft_is_refused_and_keeps_no_cache(workshop):
    from transformers import MambaConfig

    target, source = workshop.source("target"), workshop.source("model")
    small = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    MambaConfig(**small).save_pretrained(source.spec)
    (pair,) = look(target, ModelSource(source.spec)).pairs
    assert pair.draft.kv_bytes_per_token == 0
    assert "cannot be rewound" in pair.obstacles[0]
    assert pair.caveats[0].startswith("another family")
    assert look(ModelSource(source.spec), ModelSource(source.spec)).pairs[0].rooms == ()


def test_this_machine_has_memory():
    assert memory_here() > 10**8
