"""Rooflines of published shapes: weights as their makers count them, times by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftbench.errors import DraftbenchError
from draftbench.planner.cards import CARDS, Card, card_named
from draftbench.planner.roofline import (
    Load,
    Shape,
    pairings,
    practice,
    read_shape,
    roofline,
    step_seconds,
)

# The sizes in config.json of meta-llama's Llama-3.1-70B, Llama-3.1-8B and Llama-3.2-1B.
CONFIGS = Path(__file__).parent / "configs"
LLAMA = {"70b": "llama-3.1-70b", "8b": "llama-3.1-8b", "1b": "llama-3.2-1b"}
PARAMETERS = {"70b": 70_553_706_496, "8b": 8_030_261_248, "1b": 1_235_814_400}


@pytest.fixture
def shape(tmp_path: Path):
    """A published shape, with changes to its config.json."""

    def read(name: str, **changes: object) -> Shape:
        sizes = json.loads((CONFIGS / LLAMA[name] / "config.json").read_text())
        config = {key: v for key, v in (sizes | changes).items() if v is not None}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read_shape(tmp_path)

    return read


@pytest.mark.parametrize("name", LLAMA)
def test_weights_are_counted_as_published(shape, name: str) -> None:
    assert shape(name).parameters == PARAMETERS[name]
    assert shape(name).weight_bytes(16) == 2 * PARAMETERS[name]


def test_a_cache_holds_keys_and_values_of_every_layer(shape) -> None:
    assert shape("70b").cache_bytes_per_token == 2 * 80 * 8 * 128 * 2


def test_quantizing_leaves_embedding_and_head_at_16_bits(shape) -> None:
    ends = 2 * 128256 * 8192
    blocks = PARAMETERS["70b"] - ends
    assert shape("70b").weight_bytes(8) == blocks + 2 * ends
    assert shape("70b").weight_bytes(4) == blocks * 4.25 / 8 + 2 * ends


def test_a_step_of_one_sequence_takes_its_bytes_over_bandwidth(shape) -> None:
    # All weights but the embedding's table, of which one row is read, and no cache to speak of.
    read = 2 * (PARAMETERS["70b"] - 128256 * 8192) + 327_680
    seconds = step_seconds(shape("70b"), 16, CARDS["h100"], Load(1, 1))
    assert seconds == pytest.approx(read / 3.35e12)


def test_a_wide_pass_takes_its_operations_over_peak(shape) -> None:
    weights = 2 * (PARAMETERS["70b"] - 128256 * 8192)
    attention = 4 * 80 * 64 * 128
    seconds = step_seconds(shape("70b"), 16, CARDS["h100"], Load(512, 1), 8)
    assert seconds == pytest.approx(512 * 8 * (weights + attention) / 989.5e12)


@pytest.mark.parametrize("card", ["h100", "a100-80", "h200"])
@pytest.mark.parametrize(
    ("draft", "estimate", "reported"),
    [("1b", 0.018, (0.05, 0.05)), ("8b", 0.109, (0.12, 0.15))],
)
def test_practice_lies_above_the_roofline(shape, card, draft, estimate, reported) -> None:
    # The gap is 2.8 times at 1B, 1.1 to 1.4 times at 8B, and is not tuned away.
    found = roofline(shape("70b"), shape(draft), CARDS[card], Load(), (4,))
    assert (found.found[0].target_bits, found.found[0].draft_bits) == (16, 16)
    assert found.found[0].draft_cost_ratio == pytest.approx(estimate, abs=0.0006)
    assert found.practice is not None
    assert (found.practice.low, found.practice.high) == reported
    assert found.found[0].draft_cost_ratio < found.practice.low


def test_nothing_is_reported_of_a_pair_of_other_proportions(shape) -> None:
    assert practice(shape("8b"), shape("1b")) is None


@pytest.mark.parametrize(
    ("card", "share", "draft", "fitting"),
    [
        # At 8 bits 72.65 GB: 68.35 of blocks, 4.2 of embeddings; at 4 bits 40.5. A draft of 1B is
        # 2.47, 1.50 or 1.04 GB, one of 8B 16.06, 9.08 or 5.81 GB.
        ("h100", 1.0, "1b", {(8, 16), (8, 8), (8, 4), (4, 16), (4, 8), (4, 4)}),
        ("h100", 1.0, "8b", {(8, 4), (4, 16), (4, 8), (4, 4)}),
        ("h100", 0.92, "1b", {(4, 16), (4, 8), (4, 4)}),
        ("h200", 0.92, "8b", {(8, 16), (8, 8), (8, 4), (4, 16), (4, 8), (4, 4)}),
        ("l4", 1.0, "1b", set()),
    ],
)
def test_what_fits_a_card_together(shape, card, share, draft, fitting) -> None:
    load = Load(memory_share=share)
    found = pairings(shape("70b"), shape(draft), CARDS[card], load, (4,))
    assert {(pair.target_bits, pair.draft_bits) for pair in found if pair.fits} == fitting


def test_the_draft_takes_room_from_the_targets_cache(shape) -> None:
    load = Load(batch=16, context=8192)
    pair = next(
        p
        for p in pairings(shape("70b"), shape("1b"), CARDS["h200"], load, (4,))
        if (p.target_bits, p.draft_bits) == (8, 16)
    )
    # 0.92 · 141 GB less 68_452_352_000 + 4_202_692_608 of the target is 57.06 GB; its cache takes
    # 327_680 bytes a token, its logits 513_024 a position; the draft 2_471_628_800 and 32_768.
    free = 0.92 * 141e9 - 68_452_352_000 - 2 * 2 * 128256 * 8192
    assert pair.memory.sequences_alone == int(free // (8192 * 327_680 + 513_024)) == 21
    free -= 2_471_628_800
    assert pair.memory.sequences == int(free // (8192 * 360_448 + 5 * 513_024)) == 18
    assert pair.memory.max_model_len == int((free / 16 - 5 * 513_024) // 360_448)


def test_verifying_costs_nothing_until_operations_decide(shape) -> None:
    def ratios(batch: int) -> dict[int, float | None]:
        models = shape("8b"), shape("1b")
        return pairings(*models, CARDS["l40s"], Load(batch, 1), (1, 7))[0].verify_ratio

    assert ratios(1) == {1: 1.0, 7: 1.0}
    # 362.05e12 / 864e9 is 419 operations a byte, so 1024 sequences are bound by them from one on.
    assert ratios(1024) == {1: pytest.approx(2), 7: pytest.approx(8)}


def test_a_card_with_an_unverified_number_gives_memory_but_no_times(shape) -> None:
    card = Card("announced", 80e9, 8e12, None, "a slide, 2026")
    found = pairings(shape("8b"), shape("1b"), card, Load(), (4,))[0]
    assert found.fits
    assert found.target_step_seconds is found.draft_cost_ratio is found.verify_ratio[4] is None


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"hidden_size": None}, "no `hidden_size`"),
        ({"num_hidden_layers": None}, "no `num_hidden_layers`"),
        ({"tie_word_embeddings": None}, "no `tie_word_embeddings`"),
        ({"vocab_size": "many"}, "`vocab_size`"),
        ({"vocab_size": True}, "`vocab_size`"),
        ({"num_attention_heads": 0}, "`num_attention_heads`"),
        ({"num_local_experts": 8}, "`num_local_experts`"),
        ({"kv_lora_rank": 512}, "`kv_lora_rank`"),
        ({"max_position_embeddings": "long"}, "`max_position_embeddings`"),
    ],
)
def test_a_shape_that_is_not_known_is_refused_by_the_key(shape, changes, meant) -> None:
    with pytest.raises(DraftbenchError, match=meant) as caught:
        shape("8b", **changes)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(DraftbenchError, match=r"config\.json"):
        read_shape(file)


def test_heads_without_groups_have_keys_and_values_of_their_own(shape) -> None:
    assert shape("8b", num_key_value_heads=None).kv_heads == 32


def test_every_card_names_its_source_with_a_year() -> None:
    assert all(any(str(year) in c.source for year in range(2020, 2027)) for c in CARDS.values())


def test_a_card_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(DraftbenchError) as caught:
        card_named("h10")
    assert "did you mean `h100`?" in caught.value.hint
