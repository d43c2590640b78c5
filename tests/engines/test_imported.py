"""One recorded run, read from what each tool keeps of it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from draftbench.cli import main
from draftbench.engines.imported import read_figures

# Six requests at k = 3: accepted tokens of every round. 12 rounds, 18 accepted: 2.5 tokens each.
RUN = [[3, 0], [2, 1], [3, 3], [0, 1], [1, 1], [2, 1]]
K, ROUNDS, ACCEPTED = 3, 12, 18
# Rounds that accepted at least 1, 2 and 3 tokens.
SURVIVED = [10, 5, 3]


def tokens(request: list[int]) -> int:
    """The first one, then of each round what it accepted and one of the target's."""
    return 1 + sum(accepted + 1 for accepted in request)


def vllm(request: list[int]) -> dict:
    """What vLLM tells of one request."""
    counts = Counter(request)
    return {
        "mean_acceptance_length": 1 + sum(request) / len(request),
        "draft_acceptance_rate": sum(request) / (K * len(request)),
        "acceptance_histogram": [counts[j] for j in range(K + 1)],
        "num_spec_steps": len(request),
        "num_accepted_draft_tokens": sum(request),
        "num_draft_tokens": K * len(request),
        "num_spec_tokens": K,
    }


def aiperf(request: list[int]) -> dict:
    histogram = {str(j): n for j, n in Counter(request).items()}
    own = vllm(request) | {"acceptance_histogram": histogram, "completion_tokens": tokens(request)}
    return {"metadata": {}, "metrics": {}, "spec_decode_acceptance": {"engine": "vllm", **own}}


def answer(request: list[int]) -> dict:
    return {
        "metrics": {"speculative_decoding": vllm(request)},
        "usage": {"completion_tokens": tokens(request)},
    }


def guidellm(request: list[int]) -> dict:
    return {
        "response_metrics": {"speculative_decoding": vllm(request)},
        "output_metrics": {"text_tokens": tokens(request)},
    }


BENCH = {
    "completed": 6,
    "spec_decode_num_drafts": ROUNDS,
    "spec_decode_draft_tokens": K * ROUNDS,
    "spec_decode_accepted_tokens": ACCEPTED,
    "spec_decode_acceptance_rate": 50.0,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_per_position_acceptance_rates": [n / ROUNDS for n in SURVIVED],
}


def scrape(rounds: int, accepted: int, survived: list[int], engine: str = "vllm") -> str:
    lines = [
        f'{engine}:spec_decode_num_drafts_total{{model_name="m"}} {rounds}.0',
        f'{engine}:spec_decode_num_draft_tokens_total{{model_name="m"}} {K * rounds}.0',
        f'{engine}:spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}.0',
        *(
            f"{engine}:spec_decode_num_accepted_tokens_per_pos_total"
            f'{{model_name="m",position="{at}"}} {n}.0'
            for at, n in enumerate(survived)
        ),
    ]
    return "# HELP a scrape\n" + "\n".join(lines) + "\n"


@pytest.fixture
def write(tmp_path):
    def write_rows(name: str, rows: list | str):
        path = tmp_path / name
        path.write_text(
            rows if isinstance(rows, str) else "\n".join(json.dumps(row) for row in rows)
        )
        return path

    return write_rows


def records(kind: str, write) -> list:
    if kind == "scrapes":
        before = scrape(5, 7, [4, 2, 1])
        after = scrape(5 + ROUNDS, 7 + ACCEPTED, [4 + 10, 2 + 5, 1 + 3])
        return [write("before.txt", before), write("after.txt", after)]
    rows = {
        "bench": [BENCH],
        "aiperf": [aiperf(request) for request in RUN],
        "answers": [answer(request) for request in RUN],
        "guidellm": [{"benchmarks": [{"requests": {"successful": [guidellm(r) for r in RUN]}}]}],
    }
    return [write(f"{kind}.json", rows[kind])]


@pytest.mark.parametrize("kind", ["scrapes", "bench", "aiperf", "answers", "guidellm"])
def test_every_record_of_one_run_gives_the_same_figures(kind, write):
    found = read_figures(records(kind, write))
    values = {each.name: each.value for each in found.figures}
    assert (found.rounds, found.drafted, found.accepted, found.k) == (12, 36, 18, 3)
    assert values["mean accepted length"] == pytest.approx(2.5)
    assert values["accepted / drafted"] == pytest.approx(0.5)
    survived = [values[f"survival of position {at}"] for at in (1, 2, 3)]
    assert survived == pytest.approx([10 / 12, 5 / 12, 3 / 12])
    # At k = 2 the first two positions count: 1 + 10/12 + 5/12.
    assert found.smaller_k == pytest.approx({"1": 1 + 10 / 12, "2": 2.25})


def test_requests_give_intervals_and_sums_none(write):
    rows = read_figures(records("aiperf", write)).figures[0]
    sums = read_figures(records("bench", write)).figures[0]
    assert rows.low < rows.value < rows.high
    assert (sums.low, sums.high) == (None, None)


def test_steps_without_a_proposal_count_among_the_tokens_per_round(write):
    """3 tokens of a round and two of plain steps follow the first: 5 in 3 passes."""
    row = answer([2]) | {"usage": {"completion_tokens": 6}}
    found = read_figures([write("a.jsonl", [row, row])])
    values = {each.name: each.value for each in found.figures}
    assert values["tokens per round"] == pytest.approx(5 / 3)
    assert values["mean accepted length"] == pytest.approx(3.0)


def test_sglang_is_read_by_its_counts_and_not_by_its_length(write):
    """10 tokens in 4 passes that accepted 5: SGLang's length is 2.5, the mean accepted 2.25."""
    meta = {"completion_tokens": 10, "spec_verify_ct": 4, "spec_num_correct_drafts": 5,
            "spec_num_proposed_drafts": 12, "spec_accept_length": 2.5,
            "spec_correct_drafts_histogram": [1, 2, 0, 1]}  # fmt: skip
    found = read_figures([write("s.jsonl", [{"text": "", "meta_info": meta}] * 2)])
    values = {each.name: each.value for each in found.figures}
    assert values["mean accepted length"] == pytest.approx(1 + 5 / 4)
    assert values["tokens per round"] == pytest.approx(9 / 4)
    assert values["survival of position 1"] == pytest.approx(3 / 4)


def test_llama_servers_rounds_are_its_tokens_less_the_first_and_the_accepted(write):
    timings = {"predicted_n": 48, "draft_n": 64, "draft_n_accepted": 31}
    found = read_figures([write("l.jsonl", [{"content": "", "timings": timings}])])
    values = {each.name: each.value for each in found.figures}
    assert found.rounds == 16
    assert values["mean accepted length"] == pytest.approx(1 + 31 / 16)
    assert found.k is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "holds no counts of speculation"),
        ("not json", "is not JSON"),
        ('{"spec_decode_acceptance": {"num_spec_steps": "x", "num_accepted_draft_tokens": 1, '
         '"acceptance_histogram": []}}', "not as it writes them"),
        ('{"spec_decode_acceptance": {"num_spec_steps": 1, "num_accepted_draft_tokens": 1, '
         '"acceptance_histogram": {"1000000000": 1}}}', "a round accepted 1000000000 tokens"),
        ("[" * 100_000, "is not JSON"),
        ("# HELP nothing\n", "count no speculation"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_record_is_refused(write, capsys, content, words):
    assert main(["import", str(write("x.json", content))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "hint: " in err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"timings": {"predicted_n": 1000, "draft_n": 800, "draft_n_accepted": 900}},
         "900 tokens accepted of 800 drafted"),
        ({"timings": {"predicted_n": 48, "draft_n": -4, "draft_n_accepted": -9}}, ">= 0"),
        (BENCH | {"spec_decode_num_drafts": -12}, ">= 0"),
        (BENCH | {"spec_decode_num_drafts": "x"}, "not as it writes them"),
        (BENCH | {"spec_decode_per_position_acceptance_rates": [1.5]}, "more rounds than reached"),
        (BENCH | {"spec_decode_per_position_acceptance_rates": [0.5, 0.7]}, "more rounds than"),
        (BENCH | {"spec_decode_per_position_acceptance_rates": [0.5]},
         "18 tokens accepted in 12 rounds of at most 1"),
    ],
)  # fmt: skip
def test_counts_that_cannot_be_are_refused(write, capsys, row, words):
    code = main(["import", str(write("x.json", [row]))])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert words in err
    assert "hint: " in err
    assert "internal" not in err


def test_a_restart_between_two_scrapes_is_said(write, capsys):
    files = [write("a", scrape(9, 9, [5])), write("b", scrape(3, 2, [1]))]
    assert main(["import", *map(str, files)]) == 2
    assert "without a restart between" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["scrapes", "bench", "aiperf", "answers", "guidellm"])
def test_the_table_fits_a_screen_and_defines_a_figure_once(kind, write, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "88")
    assert main(["import", *map(str, records(kind, write))]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 88] == []
    assert out.count("rounds that accepted their first i draft tokens") == 1


def test_the_table_names_what_the_tool_calls_each_figure(write, capsys):
    assert main(["import", *map(str, records("bench", write))]) == 0
    out = capsys.readouterr().out
    assert "vllm bench serve: 12 rounds" in out
    assert "spec_decode_acceptance_length" in out
    assert "2.500" in out
    assert "no interval" in out
