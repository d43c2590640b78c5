"""What a server counts is read from its Prometheus page, and nothing else is taken for a count."""

import pytest

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
    return SERVERS[engine](None, "m").counted_on(page).total


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


def page_of(**replicas):
    """A page of vLLM with rounds, drafted and accepted tokens, and those of each position."""
    lines = []
    for name, (rounds, drafted, accepted, *positions) in replicas.items():
        said = {"drafts": rounds, "draft_tokens": drafted, "accepted_tokens": accepted}
        for what, count in said.items():
            if count is not None:
                line = f'vllm:spec_decode_num_{what}_total{{engine="{name}"}} {count}'
                lines.append(line)
        for at, count in enumerate(positions):
            labels = f'engine="{name}",position="{at}"'
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels}}} {count}")
    return SERVERS["vllm"](None, "m").counted_on("\n".join(lines) + "\n")


def test_counters_are_subtracted_one_by_one():
    before, after = page_of(a=(10, 40, 20, 9, 7, 4)), page_of(a=(13, 52, 26, 12, 9, 4, 1))
    expected = RoundCounts(rounds=3, drafted=12, accepted=6, by_position=(3, 2, 0, 1))
    assert after.since(before) == expected


def test_a_counter_that_fell_is_unknown_since_the_server_restarted():
    before, after = page_of(a=(10, 40, 2, 9, 7)), page_of(a=(3, 52, 2, 3, 8))
    assert after.since(before) == RoundCounts(drafted=12, accepted=0)


def test_a_replica_that_restarts_is_not_hidden_by_the_others_counts():
    """In sum 18 rounds more; by replica one counted 20, and the other began anew."""
    before, after = page_of(a=(10, 40, 20), b=(5, 20, 10)), page_of(a=(30, 120, 60), b=(3, 12, 6))
    assert after.since(before) == RoundCounts()


def test_a_replica_that_comes_counts_from_nothing_and_one_that_goes_is_unknown():
    one, two = page_of(a=(10, 40, 20)), page_of(a=(12, 48, 24), b=(3, 12, 6))
    assert two.since(one) == RoundCounts(rounds=5, drafted=20, accepted=10)
    assert one.since(two) == RoundCounts()


def test_positions_that_a_server_names_from_its_first_draft_on_began_at_nothing():
    before, after = page_of(a=(0, 0, 0)), page_of(a=(2, 8, 5, 2, 2, 1))
    assert after.since(before).by_position == (2, 2, 1)
    assert after.since(page_of()).by_position is None


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
