"""What a server counts is read from its Prometheus page, and nothing else is taken for a count."""

import pytest

from draftbench.engines.drive import since
from draftbench.engines.every import SERVERS
from draftbench.engines.faults import AnswerError
from draftbench.records import RoundCounts

NAME = "vllm:spec_decode_num_draft_tokens_total"
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
"""


def counted(page, engine="vllm"):
    return SERVERS[engine](None, "m").counted_on(page)


def test_counters_are_summed_over_replicas():
    assert counted(VLLM) == RoundCounts(
        rounds=40, drafted=160, accepted=20, by_position=(13, 7), written=61
    )


def test_sglang_counts_passes_of_the_target():
    page = 'sglang:spec_verify_calls_total{model_name="m"} 12.0\nsglang:cached_tokens_total 4.0\n'
    assert counted(page, "sglang") == RoundCounts(rounds=12)


@pytest.mark.parametrize(
    "page", ["", "<html></html>", NAME, "llamacpp:prompt_tokens_total 5\n", "\x00" * 99]
)
def test_what_is_no_page_of_counters_counts_nothing(page):
    assert counted(page) == RoundCounts()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "many"])
def test_a_counter_that_is_no_count_is_an_error(value):
    with pytest.raises(AnswerError, match="draft_tokens_total is no count"):
        counted(f"{NAME} {value}\n")


def test_counters_are_subtracted_one_by_one():
    before = RoundCounts(rounds=10, drafted=40, accepted=20, by_position=(9, 7, 4))
    after = RoundCounts(rounds=13, drafted=52, accepted=26, by_position=(12, 9, 4, 1))
    expected = RoundCounts(rounds=3, drafted=12, accepted=6, by_position=(3, 2, 0, 1))
    assert since(before, after) == expected


def test_a_counter_that_fell_is_unknown_since_the_server_restarted():
    before = RoundCounts(rounds=10, drafted=40, by_position=(9, 7))
    after = RoundCounts(rounds=3, drafted=52, by_position=(3, 8))
    assert since(before, after) == RoundCounts(rounds=None, drafted=12, by_position=None)


def test_positions_that_a_server_names_from_its_first_draft_on_began_at_nothing():
    before = RoundCounts(rounds=0, drafted=0, accepted=0)
    after = RoundCounts(rounds=2, drafted=8, accepted=5, by_position=(2, 2, 1))
    assert since(before, after).by_position == (2, 2, 1)
    assert since(RoundCounts(), after).by_position is None


@pytest.mark.parametrize(
    ("engine", "page", "written"),
    [
        ("llama.cpp", "llamacpp:tokens_predicted_total 999999\n", 999_999),
        ("llama.cpp", "llamacpp:tokens_predicted_total 1.23457e+06\n", None),  # six of seven digits
        ("vllm", 'vllm:generation_tokens_total{model_name="m"} 1.234567e+06\n', 1_234_567),
    ],
)
def test_a_number_of_tokens_that_was_rounded_is_no_count(engine, page, written):
    assert counted(page, engine).written == written
