"""What a running server accepts, judged against a baseline of the same server."""

from __future__ import annotations

import json

import pytest
from engines.scripted_server import ScriptedServer

TRAFFIC = ["--traffic", "suite:completion", "--sample", 12, "--temperature", 0]
TRAFFIC += ["--max-new-tokens", 24]


def save(command, tmp_path, *more, accepts=(3, 2)):
    """A baseline of a server that accepts 3, 2, 3, 2, … of 4 tokens."""
    with ScriptedServer("vllm", k=4, accepts=accepts) as server:
        run = tmp_path / "run"
        words = ["--server", server.url, *TRAFFIC, "--out", run]
        outcome = command("sweep", *words, *more)
        assert outcome.code == 0, outcome.err
    file = tmp_path / "baseline.json"
    assert command("gate", "--save", file, run, "--candidate", "draft", "--k", 4).code == 0
    return file


@pytest.fixture
def saved(command, tmp_path):
    return save(command, tmp_path)


@pytest.fixture
def both(command, tmp_path):
    """The same, from a server with speculation and one without."""
    with ScriptedServer("vllm") as plain:
        return save(command, tmp_path, "--baseline-server", plain.url)


def otherwise(prompt, limit):
    """Counting down."""
    return [(prompt[-1] - n) % 1000 for n in range(limit)]


def gated(command, saved, tmp_path, server, *more, limits=()):
    """The server is measured, then judged."""
    run = tmp_path / "new"
    command("sweep", "--server", server.url, *TRAFFIC, "--out", run, *more)
    return command("gate", "--baseline", saved, run, *limits)


def test_rounds_are_the_servers_own(saved):
    """23 tokens after the first in rounds of 4 and 3: 4 + 3 + 4 + 3 + 4 + 3 and 2 of a seventh."""
    baseline = json.loads(saved.read_text())
    assert {request["rounds"] for request in baseline["requests"]} == {7.0}
    assert baseline["survival"][:2] == [1.0, 1.0]


def test_alpha_is_of_the_tokens_that_were_tried(saved):
    """3 of 4 and 2 of 3 tried, three times, and the last round's 2, which end the response."""
    baseline = json.loads(saved.read_text())
    assert baseline["alpha_definition"] == "acceptance rate (tried tokens)"
    assert {(r["alpha_sum"], r["positions"]) for r in baseline["requests"]} == {(17.0, 23.0)}


def test_alpha_is_judged_by_position_and_where_it_fell_is_said(command, saved, tmp_path):
    """17 of 23 tried tokens before; now .5 of 1.5 in a round, of which half accept one."""
    with ScriptedServer("vllm", k=4, accepts=(1, 0)) as server:
        outcome = gated(command, saved, tmp_path, server, limits=("--max-drop", "alpha:0.05"))
    assert outcome.code == 1, outcome.err
    assert "alpha 0.739 0.348" in " ".join(outcome.out.split())
    assert "largest drop by draft position: position 2 of 4" in " ".join(outcome.out.split())


def test_a_server_that_tells_sums_alone_is_judged_without_positions(command, tmp_path):
    """llama-server with several requests in flight."""
    both = ScriptedServer("llama.cpp"), ScriptedServer("llama.cpp", k=4, accepts=(3, 2))
    with both[0] as plain, both[1] as server:
        run = tmp_path / "run"
        pair = ["--baseline-server", plain.url, "--concurrency", 2]
        words = ["--server", server.url, *TRAFFIC, "--out", run]
        assert command("sweep", *words, *pair).code == 0
        file = tmp_path / "two.json"
        chosen = ["--candidate", "draft-simple", "--k", 4]
        assert command("gate", "--save", file, run, *chosen).code == 0
        outcome = gated(command, file, tmp_path, server, *pair)
    baseline = json.loads(file.read_text())
    assert (baseline["alpha_definition"], baseline["survival"]) == (None, [])
    assert outcome.code == 0, outcome.err
    assert "no alpha: the server did not say at which positions" in " ".join(outcome.out.split())


@pytest.mark.parametrize(("accepts", "code", "verdict"), [((3, 2), 0, "PASS"), ((1, 0), 1, "FAIL")])
def test_the_verdict_is_on_what_the_server_accepts(
    command, saved, tmp_path, accepts, code, verdict
):
    with ScriptedServer("vllm", k=4, accepts=accepts) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert outcome.code == code, outcome.err
    assert verdict in outcome.out


def test_what_a_server_alone_drafts_with_need_not_be_named(command, saved, tmp_path):
    file = tmp_path / "unnamed.json"
    outcome = command("gate", "--save", file, tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert json.loads(file.read_text()) == json.loads(saved.read_text())


def test_another_k_is_another_question(command, saved, tmp_path):
    with ScriptedServer("vllm", k=2, accepts=(1,)) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert (outcome.code, outcome.out) == (4, "")
    assert "--k was 4, is 2" in outcome.err


def test_a_server_that_writes_other_texts_than_without_speculation_does_not_pass(
    command, both, tmp_path
):
    """The scripted server gives no log-probabilities."""
    with (
        ScriptedServer("vllm") as plain,
        ScriptedServer("vllm", k=4, accepts=(3, 2), write=otherwise) as server,
    ):
        outcome = gated(command, both, tmp_path, server, "--baseline-server", plain.url)
    assert outcome.code == 3, outcome.err
    text = " ".join(outcome.out.split())
    assert "12 of 12 answers with speculation differ from those without it, for causes" in text
    assert "without speculation 0 of 12 when it was asked twice, 0 in the baseline" in text


@pytest.mark.parametrize(("write", "code", "differ"), [(None, 0, 0), (otherwise, 3, 12)])
def test_a_server_alone_is_held_against_what_the_baseline_wrote_without_speculation(
    command, both, tmp_path, write, code, differ
):
    how = {} if write is None else {"write": write}
    with ScriptedServer("vllm", k=4, accepts=(3, 2), **how) as server:
        outcome = gated(command, both, tmp_path, server)
    assert outcome.code == code, outcome.err
    text = " ".join(outcome.out.split())
    assert f"{differ} of 12 answers with speculation differ from the baseline's" in text


def test_where_no_text_can_be_judged_it_is_said_once(command, saved, tmp_path):
    with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert " ".join(outcome.out.split()).count("changes what is written was not judged") == 1


def test_another_load_than_the_baselines_is_refused_by_name(command, tmp_path):
    with ScriptedServer("vllm") as plain:
        four = save(command, tmp_path, "--baseline-server", plain.url, "--concurrency", 4)
        assert json.loads(four.read_text())["question"]["concurrency"] == 4
        with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
            words = ["--baseline-server", plain.url, "--concurrency", 4]
            limits = ("--max-drop", "speedup:5%")
            outcome = gated(command, four, tmp_path, server, *words, limits=limits)
        assert "did not measure" not in outcome.err
        assert "\nspeedup " in outcome.out
    assert "concurrency" not in outcome.err
    document = json.loads(four.read_text())
    document["question"]["concurrency"] = 2
    four.write_text(json.dumps(document))
    outcome = command("gate", "--baseline", four, tmp_path / "run")
    assert (outcome.code, outcome.out) == (4, "")
    assert "concurrency was 2, is 4" in outcome.err


@pytest.mark.parametrize(
    ("words", "load"), [([], 1), (["--concurrency", 4], 4), (["--candidate", "draft", "--k", 4], 1)]
)
def test_rounds_are_those_at_the_load_that_the_saved_k_is_the_best_for(
    command, failing, tmp_path, words, load
):
    """Known fault: with --concurrency 4 k was that of 4 in flight, the rounds those of 1."""
    with ScriptedServer("vllm") as plain:
        file = save(command, tmp_path, "--baseline-server", plain.url, "--concurrency", "1,4")
    assert command("gate", "--save", file, tmp_path / "run", *words).code == 0
    assert json.loads(file.read_text())["question"]["concurrency"] == load
    named = ["--candidate", "draft", "--k", 4, "--concurrency", 2]
    said = failing(2, "gate", "--save", file, tmp_path / "run", *named)
    assert "draft at k = 4 was not measured at concurrency 2" in said
    assert "it was at 1, 4" in said


def test_what_only_one_side_knows_did_not_change(command, saved, tmp_path):
    document = json.loads(saved.read_text())
    document["tested"] |= {"draft fingerprint": "abc", "engine version": "0.1"}
    saved.write_text(json.dumps(document))
    with ScriptedServer("vllm", k=4, accepts=(1, 0)) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert "fingerprint" not in outcome.out
    assert "changed since the baseline: engine version" in outcome.out


@pytest.fixture
def costs(tmp_path):
    """A costs(draft's step) file in which a target step and every pass take .1 s."""

    def write(step):
        file = tmp_path / "costs.yaml"
        passes = f"{{target_step_s: 0.1, verify: {{2: 0.1, 5: 0.1}}, drafts: {{draft: {step}}}}}"
        file.write_text(f"engine: elsewhere 1.0\nconcurrency: {{1: {passes}}}")
        return file

    return write


def test_costs_of_elsewhere_choose_the_k_of_a_baseline_with_a_caveat(command, tmp_path, costs):
    """Where drafting costs nothing and all is accepted, the largest k is the best."""
    save(command, tmp_path, accepts=(4,))
    file = tmp_path / "new.json"
    cheap = costs("{step_s: 0.000001}")
    outcome = command("gate", "--save", file, tmp_path / "run", "--costs", cheap)
    assert outcome.code == 0, outcome.err
    assert json.loads(file.read_text())["question"]["k"] == 4
    said = " ".join(outcome.err.split())
    assert "note: costs are those of elsewhere 1.0" in said
    assert "this run's own timings are ignored" in said
    named = ("--candidate", "draft", "--k", 4)
    outcome = command("gate", "--save", file, tmp_path / "run", *named, "--costs", cheap)
    assert "costs are those of" not in outcome.err


def test_a_k_that_the_server_did_not_draft_with_cannot_be_saved_and_is_named(
    failing, saved, tmp_path, costs
):
    """Three tokens of each round are accepted, of which each takes .09 s: k = 1 is the best."""
    dear = costs("{step_s: 0.09}")
    said = failing(2, "gate", "--save", tmp_path / "new.json", tmp_path / "run", "--costs", dear)
    assert "cannot be judged: draft was served with k = 4 alone" in said
    assert "--k 4" in said
    assert not (tmp_path / "new.json").exists()


def test_every_answer_on_a_servers_run_names_whose_costs_it_goes_by(
    command, saved, tmp_path, costs
):
    cheap, run, page = costs("{step_s: 0.000001}"), tmp_path / "run", tmp_path / "page.html"
    outcome = command("recommend", run, "--costs", cheap, "--format", "json")
    answer = json.loads(outcome.out)
    assert answer["costs_from"] == "elsewhere 1.0"
    assert answer["decision"] == "speculate"
    assert "borrowed-costs" in {caveat["kind"] for caveat in answer["caveats"]}
    shown = " ".join(command("recommend", run, "--costs", cheap).out.split())
    assert "with costs of elsewhere 1.0" in shown
    assert command("report", run, "--costs", cheap, "--html", page).code == 0
    assert "costs are those of elsewhere 1.0" in page.read_text()
    words = ("--engine", "vllm", "--draft", "org/draft", "--target", "org/target")
    outcome = command("export", run, *words, "--costs", cheap)
    assert outcome.code == 0, outcome.err
    assert "note: costs are those of elsewhere 1.0" in " ".join(outcome.err.split())


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize(
    ("faults", "code", "verdict", "said"),
    [
        (range(9, 21, 2), 1, "FAIL", "6 of 12 requests were not answered: HTTP 503; 0 in the"),
        ((13,), 3, "INCONCLUSIVE", "1 of 12 requests was not answered: HTTP 503; 0 in the"),
    ],
)
def test_requests_that_a_server_did_not_answer_are_judged_and_said_everywhere(
    command, tmp_path, pair, faults, code, verdict, said
):
    """Known fault: they were "missing", or "other traffic", and the gate passed."""
    out, page = tmp_path / "new", tmp_path / "page.html"
    with ScriptedServer("vllm") as plain:
        more = ["--baseline-server", plain.url] if pair else []
        saved = save(command, tmp_path, *more)
        busy = dict.fromkeys(faults, "busy")
        with ScriptedServer("vllm", k=4, accepts=(3, 2), faults=busy) as server:
            outcome = gated(command, saved, tmp_path, server, *more)
    assert outcome.code == code, outcome.err
    assert outcome.out.startswith(verdict)
    assert said in " ".join(outcome.out.split())
    short = f"draft: {said.partition(';')[0]}"
    for words in ((out,), (out, "--all"), (out, "--format", "markdown")):
        assert short in " ".join(command("recommend", *words).out.split())
    assert short in " ".join(command("compare", tmp_path / "run", out).out.split())
    assert command("report", out, "--html", page).code == 0
    assert short in page.read_text()


def test_a_target_that_is_served_in_another_number_type_is_refused(command, tmp_path):
    class Stated(ScriptedServer):
        ftype = "Q8_0"

        def told(self, path, body):
            said = super().told(path, body)
            return said | {"model_ftype": self.ftype} if path == "/props" else said

    run, file = tmp_path / "run", tmp_path / "baseline.json"
    with Stated("llama.cpp", k=4, accepts=(3, 2)) as server:
        words = ["--server", server.url, *TRAFFIC, "--out", run]
        assert command("sweep", *words).code == 0
        saving = ["--save", file, run, "--candidate", "draft-simple", "--k", 4]
        assert command("gate", *saving).code == 0
        server.ftype = "Q4_K - Medium"
        outcome = gated(command, file, tmp_path, server)
    assert (outcome.code, outcome.out) == (4, "")
    assert "target ftype was Q8_0, is Q4_K - Medium" in outcome.err
