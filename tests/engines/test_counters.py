"""What a server counts is read from its Prometheus page, and nothing else is taken for a count."""

import pytest

from draftbench.engines.client import AnswerError
from draftbench.engines.counters import Counters, read_counters

VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 37.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 3.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.795433239751997e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 160.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 11.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 7.0
vllm:generation_tokens_total{engine="0",model_name="m"} 61.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2e+03
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 48.0
"""


def test_counters_are_summed_over_replicas():
    assert read_counters(VLLM) == Counters(
        rounds=40, drafted=160, kept=20, by_position=(13, 7),
        generated=61, prompt_tokens=1200, cached_tokens=48,
    )  # fmt: skip


def test_a_server_that_does_not_speculate_counts_no_rounds():
    page = "llamacpp:tokens_predicted_total 5\nllamacpp:requests_processing 0\n"
    assert read_counters(page) == Counters(generated=5)


def test_sglang_counts_passes_of_the_target():
    page = 'sglang:spec_verify_calls_total{model_name="m"} 12.0\nsglang:cached_tokens_total 4.0\n'
    assert read_counters(page) == Counters(rounds=12, cached_tokens=4)


@pytest.mark.parametrize("page", ["", "<html></html>", "vllm:generation_tokens_total", "\x00" * 99])
def test_what_is_no_page_of_counters_counts_nothing(page):
    assert read_counters(page) == Counters()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "many"])
def test_a_counter_that_is_no_count_is_an_error(value):
    with pytest.raises(AnswerError, match="generation_tokens_total is no count"):
        read_counters(f"vllm:generation_tokens_total {value}\n")


def test_counters_are_subtracted_one_by_one():
    before = Counters(rounds=10, drafted=40, kept=20, by_position=(9, 7, 4), generated=31)
    after = Counters(rounds=13, drafted=52, kept=26, by_position=(12, 9, 4, 1), generated=40)
    expected = Counters(rounds=3, drafted=12, kept=6, by_position=(3, 2, 0, 1), generated=9)
    assert after.since(before) == expected


def test_a_counter_that_fell_is_unknown_since_the_server_restarted():
    before = Counters(rounds=10, by_position=(9, 7), generated=31)
    after = Counters(rounds=3, by_position=(3, 8), generated=40)
    assert after.since(before) == Counters(rounds=None, by_position=None, generated=9)


def test_positions_that_a_server_names_from_its_first_draft_on_began_at_nothing():
    before = Counters(rounds=0, drafted=0, kept=0)
    after = Counters(rounds=2, drafted=8, kept=5, by_position=(2, 2, 1))
    assert after.since(before).by_position == (2, 2, 1)
    assert after.since(Counters()).by_position is None
