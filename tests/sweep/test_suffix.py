"""Sweeps of suffix decoding, with and without the memory of earlier responses."""

import pytest
from sweep.conftest import rows_as_replayed

from draftbench.records import Candidate

SUFFIX, ALONE = Candidate(draft="suffix"), Candidate(draft="suffix-alone")


@pytest.mark.parametrize("concurrency", [(1,), (3,)])
def test_every_decoded_round_of_suffix_decoding_is_the_one_that_its_replay_says(small, concurrency):
    how = {"ks": (1, 3, 8), "dtype": "float32", "requests": 6, "max_new_tokens": 32}
    drafts = "suffix", "suffix-alone"
    run = small.found(*drafts, **how, measure_requests=6, concurrency=concurrency)
    rows = rows_as_replayed(run)
    assert {(row.candidate, row.k) for row in rows} == {
        (candidate, k) for candidate in (SUFFIX, ALONE) for k in (1, 3, 8)
    }
    assert sum(sum(row.accepted) for row in rows) > 0
