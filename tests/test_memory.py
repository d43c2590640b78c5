"""Bytes of weights, caches and pairs: sums by hand. Sizes as text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from draftbench.memory import (
    Footprint,
    bytes_to_serve,
    fits_level,
    format_size,
    kv_bytes_per_token,
    matrix_bytes,
    parse_size,
    training_bytes,
)


def test_a_pair_takes_its_weights_and_for_each_sequence_both_caches_and_the_logits() -> None:
    load = {"concurrency": 2, "context": 50, "k": 1, "vocabulary": 5}
    # Logits of two positions: 2 · 5 entries of 4 bytes.
    assert bytes_to_serve(Footprint(400, 2), Footprint(100, 1), **load) == 500 + 2 * (50 * 3 + 40)
    assert bytes_to_serve(Footprint(400, 0), Footprint(0, 0), **load) == 400 + 2 * 40


@pytest.mark.parametrize(
    ("level", "expected"),
    # 64 outputs of 96 inputs: 6144 weights. A scale of 4 bytes an output; 192 groups of 4 bytes.
    [("none", 12288), ("fp8", 6144 + 256), ("int8", 6144 + 256), ("int4", 3072 + 192 * 4)],
)
def test_a_matrix_takes_what_its_level_keeps(level: str, expected: int) -> None:
    assert matrix_bytes(level, 64, 96, 2) == expected


@pytest.mark.parametrize(
    ("outputs", "inputs", "fits"), [(64, 96, True), (64, 97, False), (65, 96, False)]
)
def test_int4_needs_whole_groups_of_inputs_and_whole_blocks_of_outputs(
    outputs: int, inputs: int, fits: bool
) -> None:
    assert fits_level("int4", outputs, inputs) is fits
    assert all(fits_level(level, outputs, inputs) for level in ("none", "fp8", "int8"))


def test_a_cache_holds_keys_and_values_of_every_layer() -> None:
    config = SimpleNamespace(num_attention_heads=8, hidden_size=64, num_hidden_layers=3)
    assert kv_bytes_per_token(config, 2) == 2 * 3 * 8 * 8 * 2
    config.num_key_value_heads, config.head_dim = 2, 16
    assert kv_bytes_per_token(config, 4) == 2 * 3 * 2 * 16 * 4
    assert kv_bytes_per_token(SimpleNamespace(hidden_size=64, num_hidden_layers=3), 2) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20gb", 20 * 10**9), ("1.5 TiB", 3 * 2**39), (" 16GiB ", 2**34), ("250 kB", 250_000)],
)
def test_sizes_have_a_unit_in_any_case(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "20", "GB", "0GB", "-1GB", "1e3GB", "infGB", "nanGB", "٣GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 kB"), (1500, "1.5 kB"), (999_900, "1 MB"), (24e9, "24 GB"), (1.5e12, "1.5 TB")],
)
def test_a_size_has_three_digits_and_the_largest_unit_it_fills(size: float, expected: str) -> None:
    assert format_size(size) == expected


def test_training_takes_weights_gradients_and_two_moments_and_what_the_backward_pass_reads():
    # Two layers of width 8 in 2 bytes over 10 tokens, and 100 logits three times in 4 bytes.
    states, of_row = training_bytes(1000, 1000, 2, 8, 100, 10, 2)
    assert states == 16_000
    assert of_row == 10 * (17 * 2 * 8 * 2 + 3 * 4 * 100)


def test_what_is_not_trained_takes_its_weights_alone():
    # 1100 weights, of which 100 have a gradient and two moments.
    assert training_bytes(1100, 100, 2, 8, 100, 10, 2)[0] == 4 * 1100 + 12 * 100
