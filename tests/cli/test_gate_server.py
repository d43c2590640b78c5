"""`gate --server`: what a running server accepts, against a baseline of the same server."""

from __future__ import annotations

import json

import pytest
from engines.scripted_server import ScriptedServer, counting

from draftbench.models.source import ModelSource
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

TRAFFIC = ["--traffic", "suite:completion", "--sample", 12, "--temperature", 0]


def save(command, tmp_path, *more, accepts=(3, 2)):
    """A baseline of a server that accepts 3, 2, 3, 2, … of 4 tokens."""
    with ScriptedServer("vllm", k=4, accepts=accepts) as server:
        run = tmp_path / "run"
        words = ["--server", server.url, *TRAFFIC, "--max-new-tokens", 24, "--out", run]
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


def gated(command, saved, tmp_path, server, *more):
    words = ["--server", server.url, *TRAFFIC, "--out", tmp_path / "new", *more]
    return command("gate", "--baseline", saved, *words)


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
        outcome = gated(command, saved, tmp_path, server, "--max-drop", "alpha:0.05")
    assert outcome.code == 1, outcome.err
    assert "alpha 0.739 0.348" in " ".join(outcome.out.split())
    assert "largest drop by draft position: position 2 of 4" in " ".join(outcome.out.split())


def test_a_server_that_tells_sums_alone_is_judged_without_positions(command, tmp_path):
    """llama-server with several requests in flight."""
    both = ScriptedServer("llama.cpp"), ScriptedServer("llama.cpp", k=4, accepts=(3, 2))
    with both[0] as plain, both[1] as server:
        run = tmp_path / "run"
        pair = ["--baseline-server", plain.url, "--concurrency", 2]
        words = ["--server", server.url, *TRAFFIC, "--max-new-tokens", 24, "--out", run]
        assert command("sweep", *words, *pair).code == 0
        file = tmp_path / "two.json"
        chosen = ["--candidate", "draft-simple", "--k", 4]
        assert command("gate", "--save", file, run, *chosen).code == 0
        outcome = gated(command, file, tmp_path, server, "--baseline-server", plain.url)
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
    assert "does not draft, and no draft is given" in outcome.err


def test_of_several_models_of_a_server_the_target_is_named(command, embedded, tmp_path):
    """As the error says that asks for it."""
    target = str(embedded / "target")
    tokenizer = ModelSource(target).tokenizer

    class Several(ScriptedServer):
        def told(self, path, body):
            if path == "/tokenize":
                return {"tokens": tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
            said = super().told(path, body)
            return {"data": [{"id": "other"}, *said["data"]]} if path == "/v1/models" else said

    def write(prompt, limit):
        return [token % 400 for token in counting(prompt, limit)]

    file = tmp_path / "baseline.json"
    with Several("vllm", k=4, accepts=(3, 2), model=target, write=write) as server:
        words = ["--server", server.url, "--target", target, *TRAFFIC, "--max-new-tokens", 24]
        outcome = command("sweep", *words, "--out", tmp_path / "run")
        assert outcome.code == 0, outcome.err
        assert command("gate", "--save", file, tmp_path / "run").code == 0
        outcome = gated(command, file, tmp_path, server)
        assert outcome.code == 2
        assert f"name one of them with --target: `other`, `{target}`" in outcome.err
        outcome = gated(command, file, tmp_path, server, "--target", target)
    assert outcome.code == 0, outcome.err


def test_a_server_and_a_draft_are_not_both_measured(command, saved, tmp_path):
    with ScriptedServer("vllm", k=4) as server:
        outcome = gated(command, saved, tmp_path, server, "--draft", "d")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--server cannot be combined with --draft" in outcome.err


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


def test_the_baselines_load_is_measured_and_another_is_refused_by_name(command, tmp_path):
    with ScriptedServer("vllm") as plain:
        four = save(command, tmp_path, "--baseline-server", plain.url, "--concurrency", 4)
        assert json.loads(four.read_text())["question"]["concurrency"] == 4
        with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
            words = ["--baseline-server", plain.url, "--max-drop", "speedup:5%"]
            outcome = gated(command, four, tmp_path, server, *words)
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
    assert "draft at k = 4 was not measured with 2 requests in flight" in said
    assert "it was with 1, 4" in said


def test_times_need_a_server_without_speculation_before_anything_is_asked(command, saved, tmp_path):
    with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
        outcome = gated(command, saved, tmp_path, server, "--max-drop", "speedup:5%")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--baseline-server" in outcome.err
    assert server.bodies == []


def test_what_only_one_side_knows_did_not_change_and_threads_of_the_client_are_not_said(
    command, saved, tmp_path
):
    document = json.loads(saved.read_text())
    document["tested"] |= {"draft fingerprint": "abc", "engine version": "0.1"}
    saved.write_text(json.dumps(document))
    with ScriptedServer("vllm", k=4, accepts=(1, 0)) as server:
        outcome = gated(command, saved, tmp_path, server)
    assert "fingerprint" not in outcome.out
    assert "changed since the baseline: engine version" in outcome.out
    assert "CPU threads" not in outcome.err


@pytest.fixture
def costs(tmp_path):
    """A costs(draft's step) file in which a target step and every pass take .1 s."""

    def write(step):
        file = tmp_path / "costs.yaml"
        passes = f"{{target_step_s: 0.1, verify: {{2: 0.1, 5: 0.1}}, drafts: {{draft: {step}}}}}"
        file.write_text(f"engine: elsewhere 1.0\nbatches: {{1: {passes}}}")
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


def logged(tmp_path, requests=12, gap=0.4):
    """Requests, one every .4 s."""
    file = tmp_path / f"{requests} {gap}.jsonl"
    rows = [
        {"prompt": f"request {n}", "timestamp": 1_700_000_000 + gap * n, "max_tokens": 24}
        for n in range(requests)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_a_log_is_sent_as_fast_as_for_the_baseline(command, tmp_path):
    """4.4 s of a log, ten times as fast: .44 s from the first request to the last."""
    words = ["--traffic", logged(tmp_path), "--temperature", 0]
    with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
        run, file = tmp_path / "run", tmp_path / "baseline.json"
        load = ["--arrivals", "log", "--time-scale", 10]
        assert command("sweep", "--server", server.url, *words, *load, "--out", run).code == 0
        assert command("gate", "--save", file, run, "--candidate", "draft", "--k", 4).code == 0
        gate = ["gate", "--baseline", file, "--server", server.url, "--temperature", 0]
        faster = [*gate, "--traffic", logged(tmp_path, gap=0.3), "--out", tmp_path / "faster"]
        assert "came at other times than in" in " ".join(command(*faster).out.split())
        # The baseline's requests alone are sent, at its times.
        gate += ["--traffic", logged(tmp_path, requests=14)]
        outcome = command(*gate, "--out", tmp_path / "new")
        assert outcome.code == 0, outcome.err
        sent = [
            row.sent for row in read_run(RunFolder(tmp_path / "new")).served if row.load == "open"
        ]
        assert max(sent) - min(sent) == pytest.approx(0.44, abs=0.3)
        assert "at other times" not in " ".join(outcome.out.split())
    assert json.loads(file.read_text())["question"]["time_scale"] == 10


def test_a_server_that_answers_another_number_at_once_is_refused_before_it_is_measured(
    command, tmp_path
):
    run, file = tmp_path / "run", tmp_path / "baseline.json"
    with ScriptedServer("llama.cpp", k=4, accepts=(3, 2)) as server:
        words = ["--server", server.url, *TRAFFIC, "--max-new-tokens", 24, "--out", run]
        assert command("sweep", *words, "--arrivals", "poisson:50").code == 0
        saving = ["--save", file, run, "--candidate", "draft-simple", "--k", 4]
        assert command("gate", *saving).code == 0
        document = json.loads(file.read_text())
        assert document["question"]["slots"] == 2
        document["question"]["slots"] = 16
        file.write_text(json.dumps(document))
        outcome = gated(command, file, tmp_path, server)
    assert (outcome.code, outcome.out) == (4, "")
    assert "its server answered 16 requests at once, and this one answers 2" in outcome.err
    assert not (tmp_path / "new").exists()


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


def test_a_finished_run_is_not_judged_as_if_it_were_measured_now(command, saved, tmp_path):
    """Known fault: another server behind the same --out passed, and was not asked."""
    with ScriptedServer("vllm", k=4, accepts=(3, 2)) as server:
        assert gated(command, saved, tmp_path, server).code == 0
    with ScriptedServer("vllm", k=4, accepts=(0,)) as worse:
        outcome = gated(command, saved, tmp_path, worse)
    assert (outcome.code, outcome.out) == (2, "")
    assert "nothing new would be measured" in outcome.err


def test_a_target_that_is_served_in_another_number_type_is_refused_before_it_is_measured(
    command, tmp_path
):
    class Stated(ScriptedServer):
        ftype = "Q8_0"

        def told(self, path, body):
            said = super().told(path, body)
            return said | {"model_ftype": self.ftype} if path == "/props" else said

    run, file = tmp_path / "run", tmp_path / "baseline.json"
    with Stated("llama.cpp", k=4, accepts=(3, 2)) as server:
        words = ["--server", server.url, *TRAFFIC, "--max-new-tokens", 24, "--out", run]
        assert command("sweep", *words).code == 0
        saving = ["--save", file, run, "--candidate", "draft-simple", "--k", 4]
        assert command("gate", *saving).code == 0
        server.ftype = "Q4_K - Medium"
        outcome = gated(command, file, tmp_path, server)
    assert (outcome.code, outcome.out) == (4, "")
    assert "target ftype was Q8_0, is Q4_K - Medium" in outcome.err
    assert not (tmp_path / "new").exists()
