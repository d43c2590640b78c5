"""Which match each engine's prompt lookup continues, and how far."""

import pytest

from draftbench.measure.lookup import lookup_index

TWICE = (1, 2, 3, 1, 2, 4, 5, 6, 1, 2)
LONGER = (0, 1, 2, 3, 7, 7, 7, 9, 2, 3, 8, 8, 8, 1, 2, 3)
CPU = "vllm on a CPU"


@pytest.mark.parametrize(
    ("engine", "sizes", "text", "k", "expected"),
    [
        # The built-in decoder takes the last match of the longest n-gram.
        (None, (2, 1), TWICE, 2, [4, 5]),
        (None, (3, 2), LONGER, 3, [7, 7, 7]),
        (None, (2, 2), (1, 2, 5, 5, 5, 1, 2), 2, [5, 5]),
        # vLLM fills up with the last token (`_ngram_finalize_kernel` of vLLM 0.32 in
        # v1/worker/gpu/spec_decode/ngram/speculator.py).
        ("vllm", (2, 1), TWICE, 2, [4, 5]),
        ("vllm", (2, 1), (7, 8, 9), 3, [9, 9, 9]),
        ("vllm", (1, 1), (5, 6, 5), 4, [6, 5, 5, 5]),
        # On a CPU it takes the first match, as it did in 14 of 16 answers of vLLM 0.32 round by
        # round; in the other two it counted past the end of the response.
        (CPU, (2, 1), TWICE, 2, [3, 1]),
        (CPU, (2, 1), (7, 8, 9), 3, []),
        # llama.cpp's own case, test_ngram_simple: n-grams of 2, at most 2 tokens.
        ("llama.cpp", (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, 2), 2, [7, 8]),
        ("llama.cpp", (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, 9), 2, []),
        # It looks for one length, the shortest, proposes nothing shorter than its n-gram, and finds
        # no match at the first token.
        ("llama.cpp", (3, 2), LONGER, 3, [8, 8, 8]),
        ("llama.cpp", (2, 2), (0, 1, 2, 5, 5, 5, 1, 2), 1, []),
        ("llama.cpp", (2, 2), (0, 3, 3, 3, 3), 4, []),
        # After the last match stands one token besides the newest one.
        ("llama.cpp", (2, 2), (0, 3, 3, 3, 1, 2, 4, 1, 2), 4, [4, 1]),
        ("llama.cpp", (2, 2), (1, 2, 5, 5, 5, 1, 2), 2, []),
    ],
)
def test_each_engine_s_lookup_continues_the_match_that_it_takes(engine, sizes, text, k, expected):
    index = lookup_index(engine, *sizes)
    index.extend(list(text))
    assert index.lookup(k) == expected
