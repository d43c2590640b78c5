"""Bytes of weights, caches and pairs on a device: sums by hand. Sizes as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.memory import (
    LEVELS,
    Footprint,
    Serving,
    format_size,
    kv_bytes_per_token,
    matrix_bytes,
    parse_size,
    plan_memory,
)

# 1000 bytes: 400 of the target and 2 a token, 100 of the draft and 1 a token; a vocabulary of 5
# entries of 4 bytes, so 20 bytes of logits a position.
TARGET, DRAFT = Footprint(400, 2), Footprint(100, 1)


def serving(**changes: Any) -> Serving:
    fields = {"device_bytes": 1000, "concurrency": 2, "context": 50, "k": 1, "vocabulary": 5}
    return Serving(**fields | changes)


def test_a_draft_costs_sequences_and_context() -> None:
    found = plan_memory(TARGET, DRAFT, serving(), None)
    # Alone 600 / (50 · 2 + 20) = 5 sequences; with the draft 500 / (50 · 3 + 2 · 20) = 2.6.
    assert (found.sequences_alone, found.sequences) == (5, 2)
    # Alone (600 / 2 - 20) / 2 tokens each, together (500 / 2 - 40) / 3.
    assert (found.max_model_len_alone, found.max_model_len) == (140, 70)
    assert found.bytes_needed == 400 + 100 + 2 * (50 * 3 + 40)
    assert found.target_fits
    assert found.fits


def test_no_context_is_longer_than_the_targets_own() -> None:
    found = plan_memory(TARGET, DRAFT, serving(), 100)
    assert (found.max_model_len_alone, found.max_model_len) == (100, 70)


@pytest.mark.parametrize(
    ("device", "fitting"),
    # The target at this load is 400 + 2 · 120, both are 500 + 2 · 190.
    [(639, (False, False)), (640, (True, False)), (879, (True, False)), (880, (True, True))],
)
def test_what_does_not_fit_is_said_to_the_byte(device: int, fitting: tuple[bool, bool]) -> None:
    found = plan_memory(TARGET, DRAFT, serving(device_bytes=device), None)
    assert (found.target_fits, found.fits) == fitting


def test_weights_that_do_not_fit_leave_no_context() -> None:
    found = plan_memory(TARGET, DRAFT, serving(device_bytes=300), None)
    assert (found.sequences, found.max_model_len, found.fits) == (0, 0, False)


def test_models_without_a_cache_are_limited_by_their_weights_alone() -> None:
    found = plan_memory(Footprint(400, 0), Footprint(100, 0), serving(), None)
    assert (found.sequences, found.max_model_len, found.fits) == (None, None, True)
    tight = plan_memory(Footprint(400, 0), Footprint(100, 0), serving(device_bytes=450), None)
    assert (tight.target_fits, tight.fits, tight.max_model_len) == (True, False, 0)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 200), st.integers(0, 8))
def test_a_planned_context_fits_and_one_token_more_does_not(
    device: int, concurrency: int, context: int, k: int
) -> None:
    asked = serving(device_bytes=device, concurrency=concurrency, context=context, k=k)
    longest = plan_memory(TARGET, DRAFT, asked, None).max_model_len
    assert longest is not None

    def needed(tokens: int) -> float:
        return 500 + concurrency * (tokens * 3 + (k + 1) * 20)

    assert needed(longest) <= device or longest == 0
    assert needed(longest + 1) > device


@pytest.mark.parametrize(
    ("level", "expected"),
    # 64 outputs of 96 inputs: 6144 weights. A scale of 4 bytes an output; 192 groups of 4 bytes.
    [("none", 12288), ("fp8", 6144 + 256), ("int8", 6144 + 256), ("int4", 3072 + 192 * 4)],
)
def test_a_matrix_takes_what_its_level_keeps(level: str, expected: int) -> None:
    assert matrix_bytes(level, 64, 96, 2) == expected


def test_the_levels_are_listed_once() -> None:
    assert list(LEVELS) == ["none", "fp8", "int8", "int4"]


def test_a_cache_holds_keys_and_values_of_every_layer() -> None:
    config = SimpleNamespace(num_attention_heads=8, hidden_size=64, num_hidden_layers=3)
    assert kv_bytes_per_token(config, 2) == 2 * 3 * 8 * 8 * 2
    config.num_key_value_heads, config.head_dim = 2, 16
    assert kv_bytes_per_token(config, 4) == 2 * 3 * 2 * 16 * 4
    assert kv_bytes_per_token(SimpleNamespace(hidden_size=64, num_hidden_layers=3), 2) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GB", 20 * 10**9),
        ("20gb", 20 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        (" 16GiB ", 2**34),
        ("1tb", 10**12),
        ("250 kB", 250_000),
        ("3MiB", 3 * 2**20),
    ],
)
def test_sizes_have_a_unit_in_any_case(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "20", "GB", "0GB", "-1GB", "1e3GB", "infGB", "nanGB", "٣GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: a number and a unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 kB"),
        (1500, "1.5 kB"),
        (999_900, "1 MB"),
        (24e9, "24 GB"),
        (999.9e6, "1 GB"),
        (1.5e12, "1.5 TB"),
    ],
)
def test_a_size_has_three_digits_and_the_largest_unit_it_fills(size: float, expected: str) -> None:
    assert format_size(size) == expected
