"""`gate --server`: what a running server accepts, against a baseline of the same server."""

from __future__ import annotations

import json

import pytest
from engines.scripted_server import ScriptedServer

TRAFFIC = ["--traffic", "suite:completion", "--sample", 12]


@pytest.fixture
def saved(command, tmp_path):
    """A baseline of a server that accepts 3, 2, 3, 2, … of 4 tokens."""
    with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
        run = tmp_path / "run"
        outcome = command(
            "sweep", "--server", server.url, *TRAFFIC, "--max-new-tokens", 24, "--out", run
        )
        assert outcome.code == 0, outcome.err
    file = tmp_path / "baseline.json"
    assert command("gate", "--save", file, run, "--candidate", "draft", "--k", 4).code == 0
    return file


def gated(command, saved, tmp_path, server, *more):
    words = ["--server", server.url, *TRAFFIC, "--out", tmp_path / "new", *more]
    return command("gate", "--baseline", saved, *words)


def test_rounds_are_the_servers_own(saved):
    """23 tokens after the first in rounds of 4 and 3: 4 + 3 + 4 + 3 + 4 + 3 and 2 of a seventh."""
    baseline = json.loads(saved.read_text())
    assert {request["rounds"] for request in baseline["requests"]} == {7.0}
    assert baseline["alpha_definition"] is None
    assert baseline["survival"][:2] == [1.0, 1.0]


@pytest.mark.parametrize(("accepts", "code", "verdict"), [((3, 2), 0, "PASS"), ((1, 0), 1, "FAIL")])
def test_the_verdict_is_on_what_the_server_accepts(
    command, saved, tmp_path, accepts, code, verdict
):
    with ScriptedServer("vllm", k=4, accepts=accepts) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert outcome.code == code, outcome.err
    assert verdict in outcome.out


def test_the_draft_is_called_what_the_baseline_calls_it(command, saved, tmp_path):
    document = json.loads(saved.read_text())
    document["candidate"] = document["tested"]["draft"] = "small"
    saved.write_text(json.dumps(document))
    with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("PASS: small")


def test_another_k_is_another_question(command, saved, tmp_path):
    with ScriptedServer("vllm", k=2, accepts=(1,)) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert (outcome.code, outcome.out) == (4, "")
    assert "k was 4, the server drafts 2" in outcome.err


def test_a_server_that_does_not_draft_cannot_be_judged(command, saved, tmp_path):
    with ScriptedServer("vllm") as server:
        outcome = gated(command, saved, tmp_path, server)
    assert (outcome.code, outcome.out) == (2, "")
    assert "the server does not draft" in outcome.err


def test_a_server_and_a_draft_are_not_both_measured(command, saved, tmp_path):
    with ScriptedServer("vllm", k=4) as server:
        outcome = gated(command, saved, tmp_path, server, "--draft", "d")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--server cannot be combined with --draft" in outcome.err
