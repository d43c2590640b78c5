"""Which match each engine's prompt lookup continues, and how far."""

import pytest

from draftbench.measure.lookup import lookup_index


def proposed(engine, sizes, text, k):
    index = lookup_index(engine, *sizes)
    index.extend(list(text))
    return index.lookup(k)


TWICE = (1, 2, 3, 1, 2, 4, 5, 6, 1, 2)


def test_the_built_in_decoder_takes_the_last_match_of_the_longest_n_gram():
    assert proposed(None, (2, 1), TWICE, 2) == [4, 5]


def test_vllm_fills_up_with_the_last_token():
    """`_ngram_finalize_kernel` in v1/worker/gpu/spec_decode/ngram/speculator.py of vLLM 0.32."""
    assert proposed("vllm", (2, 1), TWICE, 2) == [4, 5]
    assert proposed("vllm", (2, 1), (7, 8, 9), 3) == [9, 9, 9]
    assert proposed("vllm", (1, 1), (5, 6, 5), 4) == [6, 5, 5, 5]


def test_vllm_on_a_cpu_takes_the_first_match():
    """As it did in 14 of 16 answers of vLLM 0.32 round by round; in the other two it counted past
    the end of the response.
    """
    assert proposed("vllm on a CPU", (2, 1), TWICE, 2) == [3, 1]
    assert proposed("vllm on a CPU", (2, 1), (7, 8, 9), 3) == []


@pytest.mark.parametrize(("newest", "expected"), [(2, [7, 8]), (9, [])])
def test_llama_cpp_s_own_case(newest, expected):
    """test_ngram_simple of llama.cpp: n-grams of 2, at most 2 tokens."""
    assert proposed("llama.cpp", (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, newest), 2) == expected


def test_llama_cpp_looks_for_one_length_the_shortest():
    text = (0, 1, 2, 3, 7, 7, 7, 9, 2, 3, 8, 8, 8, 1, 2, 3)
    assert proposed(None, (3, 2), text, 3) == [7, 7, 7]
    assert proposed("llama.cpp", (3, 2), text, 3) == [8, 8, 8]


def test_llama_cpp_proposes_nothing_shorter_than_its_n_gram():
    assert proposed("llama.cpp", (2, 2), (0, 1, 2, 5, 5, 5, 1, 2), 1) == []
    # After the last match stands one token besides the newest one.
    assert proposed("llama.cpp", (2, 2), (0, 3, 3, 3, 1, 2, 4, 1, 2), 4) == [4, 1]
    assert proposed("llama.cpp", (2, 2), (0, 3, 3, 3, 3), 4) == []


def test_llama_cpp_finds_no_match_at_the_first_token():
    assert proposed("llama.cpp", (2, 2), (1, 2, 5, 5, 5, 1, 2), 2) == []
    assert proposed(None, (2, 2), (1, 2, 5, 5, 5, 1, 2), 2) == [5, 5]
