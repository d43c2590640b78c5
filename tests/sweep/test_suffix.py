"""Sweeps of suffix decoding, with and without the memory of earlier responses."""

import json

import pytest
from sweep.conftest import rows_as_replayed

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.records import Candidate
from draftbench.traffic import TrafficQuery

SUFFIX, ALONE = Candidate(draft="suffix"), Candidate(draft="suffix-alone")


@pytest.fixture
def agents(tmp_path):
    """A log in which each of three functions is asked for four times, in turn."""
    rows = [
        {"prompt": f"# session {turn}\ndef {name}(items):\n"}
        for turn in range(4)
        for name in ("count", "first", "merge")
    ]
    path = tmp_path / "agents.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return TrafficQuery(str(path), b"key")


def tokens_per_round(run, candidate, k):
    rounds = candidate_rounds(run, candidate).at(k)
    return rounds.tokens.sum() / rounds.target_passes.sum()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_every_decoded_round_of_suffix_decoding_is_the_one_that_its_replay_says(
    small, agents, concurrency
):
    """One by one and side by side, and of a part of the requests."""
    how = {"ks": (1, 3, 8), "dtype": "float32", "max_new_tokens": 24, "traffic": agents}
    how |= {"concurrency": (concurrency,), "measure_requests": 7}
    run = small.found("suffix", "suffix-alone", **how)
    rows = rows_as_replayed(run)
    decoded = {(row.candidate, row.k) for row in rows}
    assert decoded == {(candidate, k) for candidate in (SUFFIX, ALONE) for k in (1, 3, 8)}
    assert len({row.request for row in rows}) == 7
    assert any(record.blocks for record in run.replays)
    assert tokens_per_round(run, SUFFIX, 8) > 1.2 * tokens_per_round(run, ALONE, 8)


def test_a_server_that_remembers_is_started_anew_for_each_load_and_asked_in_the_logs_order(
    served, small, agents
):
    sweep = {"ks": (2,), "controls": False, "traffic": agents, "measure_requests": 5}
    sweep |= {"concurrency": (1, 4), "measure": "all", "max_new_tokens": 10}
    found = served("suffix", "suffix-alone", **sweep)
    assert found.engine.ks == [0, 2, 2, 2, 0]
    methods = [start.speculation.method for start in found.engine.starts if start.speculation]
    assert methods == ["suffix", "suffix", "suffix-alone"]
    once = [ask.key for ask in found.engine.servers[1].asked if ask.key[0]]
    assert once == [ask.key for ask in found.engine.servers[2].asked if ask.key[0]]
    in_log = [prompt.request.id for prompt in small.prepared("ngram", traffic=agents).prompts]
    assert [request for request, _ in once] == in_log
    assert len({ask.key for ask in found.engine.servers[3].asked if ask.key[0]}) == 5
    assert any("are asked all 12 requests, in the order of the log" in note for note in small.notes)


@pytest.mark.parametrize(("engine", "has_it"), [("vllm", True), ("sglang", False)])
def test_where_the_engine_has_it_suffix_decoding_is_a_control_without_a_server(
    served, engine, has_it
):
    found = served("ngram", ks=(2,), controls=True, serving={"engine": engine})
    assert (SUFFIX in {record.candidate for record in found.run.replays}) is has_it
    assert found.engine.ks == [0, 2, 0]
