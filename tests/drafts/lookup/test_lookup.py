"""Prompt lookup: which earlier match it continues by each engine's rule, and its replay."""

import pytest

from draftbench.drafts.lookup.draft import replay_lookup
from draftbench.drafts.lookup.index import LookupIndex
from draftbench.engines.every import ENGINES
from draftbench.records import BUILT_IN_LOOKUP, Candidate


def test_prompt_lookup_is_recorded_per_start_of_a_round(make):
    """Prompt 1 2 3 4, response 1 2 3 9: after 1 the pair (4, 1) is new; after 1 2 follow 3 4 1 2 of
    which 3 is right; after 1 2 3 follows 4, which is wrong.
    """
    response = make.unscored((1, 2, 3, 9), prompt=(1, 2, 3, 4))
    record = replay_lookup(response, Candidate(draft="ngram"), LookupIndex(2, 2), 3)
    assert record.proposed == (0, 3, 3)
    assert record.matched == (0, 1, 0)
    assert record.window == 3


TWICE = (1, 2, 3, 1, 2, 4, 5, 6, 1, 2)
LONGER = (0, 1, 2, 3, 7, 7, 7, 9, 2, 3, 8, 8, 8, 1, 2, 3)
VLLM, CPU = (ENGINES["vllm"].lookup_in([{}], on_cpu=on_cpu) for on_cpu in (False, True))
LLAMA_CPP = ENGINES["llama.cpp"].lookup_in([{}], on_cpu=True)


@pytest.mark.parametrize(
    ("rule", "sizes", "text", "k", "expected"),
    [
        # The built-in decoder takes the last match of the longest n-gram.
        (BUILT_IN_LOOKUP, (2, 1), TWICE, 2, [4, 5]),
        (BUILT_IN_LOOKUP, (3, 2), LONGER, 3, [7, 7, 7]),
        (BUILT_IN_LOOKUP, (2, 2), (1, 2, 5, 5, 5, 1, 2), 2, [5, 5]),
        # vLLM fills up with the last token (`_ngram_finalize_kernel` of vLLM 0.32 in
        # v1/worker/gpu/spec_decode/ngram/speculator.py).
        (VLLM, (2, 1), TWICE, 2, [4, 5]),
        (VLLM, (2, 1), (7, 8, 9), 3, [9, 9, 9]),
        (VLLM, (1, 1), (5, 6, 5), 4, [6, 5, 5, 5]),
        # On a CPU it takes the first match, as it did in 14 of 16 answers of vLLM 0.32 round by
        # round; in the other two it counted past the end of the response.
        (CPU, (2, 1), TWICE, 2, [3, 1]),
        (CPU, (2, 1), (7, 8, 9), 3, []),
        # llama.cpp's own case, test_ngram_simple: n-grams of 2, at most 2 tokens.
        (LLAMA_CPP, (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, 2), 2, [7, 8]),
        (LLAMA_CPP, (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, 9), 2, []),
        # It looks for one length, the shortest, proposes nothing shorter than its n-gram, and finds
        # no match at the first token.
        (LLAMA_CPP, (3, 2), LONGER, 3, [8, 8, 8]),
        (LLAMA_CPP, (2, 2), (0, 1, 2, 5, 5, 5, 1, 2), 1, []),
        (LLAMA_CPP, (2, 2), (0, 3, 3, 3, 3), 4, []),
        # After the last match stands one token besides the newest one.
        (LLAMA_CPP, (2, 2), (0, 3, 3, 3, 1, 2, 4, 1, 2), 4, [4, 1]),
        (LLAMA_CPP, (2, 2), (1, 2, 5, 5, 5, 1, 2), 2, []),
    ],
)
def test_each_engine_s_lookup_continues_the_match_that_it_takes(rule, sizes, text, k, expected):
    index = LookupIndex(*sizes, rule)
    index.extend(list(text))
    assert index.lookup(k) == expected
