"""`sweep` on a serving engine, as a user calls it: flags that contradict each other, faults and
their exit codes, and one whole run on servers of this process.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest
from embedded_gguf import write
from engines.scripted_server import ScriptedServer
from gguf import GGMLQuantizationType
from sweep.engine import FakeEngine, FakeServer, fake_drive

from draftbench.engines.connect import ADAPTERS
from draftbench.models.engine_rules import STARTED
from draftbench.records import Candidate, RoundCounts
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run
from draftbench.sweep import engine_ask, engine_check, engine_prepare

TRAFFIC = ["--traffic", "suite:completion", "--sample", 2, "--max-new-tokens", 10]
ENGINE = ["--engine", "vllm"]
SERVER = ["--server", "http://spec"]
START = "needs an engine that draftbench starts"


@pytest.mark.parametrize(
    ("words", "complaint", "hint"),
    [
        (["--restarts", 2], f"--restarts {START}", "give --engine"),
        (["--ready-timeout", 9], f"--ready-timeout {START}", "give --engine"),
        ([*SERVER, "--ready-timeout", 9], f"--ready-timeout {START}", "without --server"),
        ([*SERVER, *ENGINE, "--restarts", 2], f"--restarts {START}", "without --server"),
        ([*SERVER, "--processes", 2], "--processes needs the built-in", "leave it out"),
        ([*SERVER, "--target-quant", "int8"], "--target-quant needs the built-in", "leave it out"),
        ([*ENGINE, "--arrivals", "poisson"], "--arrivals cannot be `poisson`", "poisson:2.5"),
        (["--time-scale", 2], "--time-scale needs --arrivals log", "leave it out"),
        (["--engine", "tensorrt-llm"], "--engine cannot be `tensorrt-llm`", "llama.cpp, openai"),
        ([*ENGINE, "--processes", 2], "--processes needs the built-in", "--restarts"),
        ([*ENGINE, "--one-layout"], "--one-layout needs the built-in", "leave it out"),
        ([*ENGINE, "--until", "settled"], "--until settled needs the built-in", "all the requests"),
        ([*ENGINE, "--audit"], "--audit needs the built-in decoder", "measured anyway"),
        ([*ENGINE, "--simulate-quant"], "--simulate-quant needs the built-in", "replayed anyway"),
    ],
)
def test_flags_that_make_no_sense_are_refused_with_a_hint(failing, words, complaint, hint):
    """Those that docs/errors.md does not show, which is tested as a whole."""
    told = failing(2, "sweep", "--target", "t", "--drafts", "d", *TRAFFIC, *words)
    assert complaint in told
    assert hint in f"{told}\n"


@pytest.mark.parametrize("missing", ["--target", "--drafts"])
def test_an_engine_that_is_started_needs_its_models(failing, missing):
    words = {"--target": "t", "--drafts": "d"}
    del words[missing]
    given = [word for pair in words.items() for word in pair]
    error, hint = failing(2, "sweep", *ENGINE, *given, *TRAFFIC).splitlines()
    assert error == f"error: missing option {missing}"
    assert missing not in hint


def test_the_target_cannot_draft_for_itself(failing, embedded):
    words = ["--target", embedded / "target", "--drafts", "self"]
    assert "built-in decoder" in failing(2, "sweep", *ENGINE, *words, *TRAFFIC)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--target", "gone.gguf", "--drafts", "ngram"], "--target: no model at `gone.gguf`"),
        (
            ["--target", "gone.gguf", "--drafts", "ngram", "--engine", "llama.cpp"],
            "hint: give a .gguf file",  # and no folder
        ),
        (["--target", "{target}", "--drafts", "gone.gguf"], "--drafts: no model at `gone.gguf`"),
        (["--target", "{target}", "--drafts", "ngram,eagle3:./head"], "no head at `eagle3:./head`"),
    ],
)
def test_models_that_are_not_there_are_named_before_a_server_starts(
    failing, engine, embedded, words, complaint
):
    words = [word.format(target=embedded / "target") for word in words]
    told = failing(2, "sweep", *ENGINE, *words, "--tokenizer", embedded / "target", *TRAFFIC)
    assert complaint in told
    assert engine.starts == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--drafts", "ngram", "--arrivals", "log"], "do not say when they came"),
        (["--drafts", "ngram,suffix", "--engine", "sglang"], "not known to draft by `suffix`"),
    ],
)
def test_what_no_server_could_answer_is_refused_before_one_starts(
    failing, engine, embedded, words, complaint
):
    told = failing(2, "sweep", *ENGINE, "--target", embedded / "target", *words, *TRAFFIC)
    assert complaint in told
    assert engine.starts == []


@pytest.mark.parametrize(
    "how", ["docker run image {args}", "sudo docker run image {args}", "./in-a-container.sh {args}"]
)
def test_files_of_a_users_command_need_not_be_here_and_are_said_not_to_be(
    command, engine, embedded, tmp_path, how
):
    words = ["--target", "/models/t", "--tokenizer", embedded / "target", "--drafts", "ngram"]
    words += ["--engine-command", how, "--k", 2, "--out", tmp_path / "run"]
    outcome = command("sweep", *ENGINE, *words, *TRAFFIC)
    assert outcome.code == 0, outcome.err
    assert {start.target for start in engine.starts} == {"/models/t"}
    assert "no model at `/models/t` here" in outcome.err


def test_what_is_replayed_has_to_be_here_whatever_starts_the_server(failing, engine, embedded):
    words = ["--target", "/models/t", "--tokenizer", embedded / "target", "--drafts", "./gone"]
    words += ["--engine-command", "docker run image {args}"]
    assert "--drafts: no model at `./gone`" in failing(2, "sweep", *ENGINE, *words, *TRAFFIC)
    assert engine.starts == []


@pytest.mark.parametrize("target", ["{embedded}/target", "./nowhere"])
def test_llama_cpp_serves_files(failing, embedded, target):
    words = ["--target", target.format(embedded=embedded), "--drafts", "ngram"]
    told = failing(2, "sweep", *words, "--engine", "LLAMA-cpp", *TRAFFIC)  # however written
    assert "llama.cpp serves .gguf files" in told
    assert "give the target's .gguf file" in told


def test_half_a_target_is_said_to_be_cut_off(failing, embedded, tmp_path):
    whole, half = tmp_path / "whole.gguf", tmp_path / "half.gguf"
    write(whole, embedded / "draft", GGMLQuantizationType.F32)
    half.write_bytes(whole.read_bytes()[:2_000_000])
    words = ["--target", half, "--drafts", "ngram", "--engine", "llama.cpp"]
    told = failing(2, "sweep", *words, *TRAFFIC)
    assert "half.gguf`: it is cut off: " in told
    assert "download the checkpoint again" in told


def test_a_context_that_nobody_tells_is_in_the_targets_configuration(
    failing, engine, embedded, tmp_path
):
    """The hint leads to a sweep that starts."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded / "target" / name, tmp_path / name)
    words = ["--target", embedded / "target", "--drafts", "ngram", *TRAFFIC, *ENGINE]
    told = failing(2, "sweep", *words, "--tokenizer", tmp_path)
    assert "give --tokenizer a folder of the target that holds config.json too" in told


def test_replays_alone_can_be_of_a_mode_in_which_the_engine_does_not_draft(command, embedded):
    models = ["--target", embedded / "target", "--drafts", embedded / "draft"]
    words = [*models, "--engine", "sglang", "--mode", "sampled", "--dry-run", *TRAFFIC]
    refused = command("sweep", *words)
    assert "sglang is not measured in --mode sampled" in refused.err
    assert command("sweep", *words, "--measure", "replay").code == 0


@pytest.fixture
def serving(monkeypatch):
    """serving(spec, plain) puts servers of this process at the two addresses."""

    def put(spec, plain=None):
        servers = {"http://spec": spec, "http://plain": plain}
        monkeypatch.setattr(engine_prepare, "connect", lambda url, engine, **_: servers[url])
        for module in (engine_check, engine_ask):
            monkeypatch.setattr(module, "drive", fake_drive)

    return put


@pytest.mark.parametrize(
    ("spec", "plain", "complaint"),
    [
        (FakeServer(k=4), FakeServer(version="2.0"), "version 1.0 and 2.0"),
        (FakeServer(k=4), FakeServer(model="other"), "model served and other"),
        (FakeServer(k=4), FakeServer(k=2), "without speculation$"),
        (FakeServer(), FakeServer(k=2), "or exchange the two addresses$"),
        (FakeServer(), FakeServer(), "does not draft"),
    ],
)
def test_servers_that_are_no_pair(failing, serving, embedded, spec, plain, complaint):
    serving(spec, plain)
    words = ["--baseline-server", "http://plain", "--tokenizer", embedded / "target"]
    assert re.search(complaint, failing(2, "sweep", *SERVER, *words, *TRAFFIC))


def test_a_server_set_to_draft_that_drafts_nothing(failing, serving, embedded):
    class Silent(FakeServer):
        def counters(self):
            return RoundCounts(rounds=0, drafted=0, accepted=0)

    serving(Silent(method="draft-simple"))
    words = ["--tokenizer", embedded / "target"]
    assert "set to draft (draft-simple) and drafts nothing" in failing(
        2, "sweep", *SERVER, *words, *TRAFFIC
    )


def test_another_tokenizer_than_the_servers(failing, serving, embedded):
    class Telling(FakeServer):
        def tokenize(self, text):
            return [1, 2, 3]

    serving(Telling(k=4))
    words = ["--tokenizer", embedded / "target"]
    assert "is not the server's" in failing(2, "sweep", *SERVER, *words, *TRAFFIC)


def test_a_server_whose_model_has_another_name_is_said_to_be_taken_for_the_target(
    command, serving, embedded, tmp_path
):
    words = ["--target", embedded / "target", "--drafts", "ngram", *TRAFFIC, "--temperature", 0]
    said = "the server calls its model other: it is taken to be target"
    for model, expected in (("org/other", True), ("org/target", False)):
        serving(FakeServer(model=model))
        outcome = command("sweep", *SERVER, *words, "--out", tmp_path / model.replace("/", "-"))
        assert outcome.code == 0, outcome.err
        assert (said in outcome.err) is expected


def test_a_folder_with_a_tokenizer_and_no_more_is_enough_for_prompt_lookup(
    command, failing, serving, embedded, tmp_path
):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded / "target" / name, tmp_path / name)
    serving(FakeServer(k=4))
    words = [*SERVER, "--tokenizer", tmp_path, "--out", tmp_path / "run", *TRAFFIC]
    outcome = command("sweep", *words, "--drafts", "ngram", "--temperature", 0)
    assert outcome.code == 0, outcome.err
    told = failing(2, "sweep", *words, "--drafts", embedded / "draft")
    assert "cannot be replayed: the served model is not named" in told


def lookup(embedded):
    """A sweep of prompt lookup at k = 2 on an engine."""
    return [*("--target", embedded / "target", "--drafts", "ngram"), *TRAFFIC, *ENGINE, "--k", 2]


@pytest.fixture
def engine(monkeypatch):
    """vLLM in this process."""
    fake = FakeEngine()
    monkeypatch.setattr(engine_ask, "started", fake.started)
    monkeypatch.setattr(engine_ask, "connect", fake.connect)
    monkeypatch.setattr(engine_ask, "drive", fake_drive)
    return fake


def test_a_whole_sweep_on_an_engine_ends_in_a_recommendation(command, engine, embedded, tmp_path):
    words = ["--target", embedded / "target", "--drafts", embedded / "draft", *TRAFFIC]
    words += [*ENGINE, "--k", "2,4", "--concurrency", "1,2", "--engine-args", "--dtype float32"]
    outcome = command("sweep", *words, "--out", tmp_path / "run", "--format", "json")
    assert outcome.code == 0, outcome.err
    assert {start.args for start in engine.starts} == {"--dtype float32"}
    assert {start.concurrency for start in engine.starts} == {2}
    answer = json.loads(outcome.out)
    assert [level["concurrency"] for level in answer["by_concurrency"]] == [1, 2]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["question"]["engine"] == "vllm"


def test_a_server_that_dies_leaves_exit_code_1_and_the_command_to_resume(
    command, engine, embedded, tmp_path
):
    engine.make = lambda start, n: FakeServer(lives=3 if start.speculation else 10**6)
    words = lookup(embedded)
    outcome = command("sweep", *words, "--sample", 6, "--out", tmp_path / "run")
    assert outcome.code == 1
    assert "stopped answering" in outcome.err
    assert "resume with: draftbench sweep" in outcome.err


def test_a_plain_server_that_dies_at_the_end_is_named_and_asked_again(
    command, engine, embedded, tmp_path
):
    """The third server is the plain one that closes the repeat."""
    engine.make = lambda start, n: FakeServer(lives=lives[n - 1])
    lives = [10**6, 10**6, 3]
    words = lookup(embedded)
    words += ["--sample", 6, "--out", tmp_path / "run"]
    outcome = command("sweep", *words)
    assert outcome.code == 1, outcome.err
    said = joined(outcome.err)
    assert "not completely measured: the server without a draft; finished work is kept" in said
    assert "resume with: draftbench sweep" in said
    lives += [10**6]
    outcome = command("sweep", *words)
    assert outcome.code == 0, outcome.err
    assert len(engine.starts) == 4


def test_a_server_that_is_down_leaves_what_was_measured_and_the_command_to_resume(
    command, tmp_path
):
    """Before anything is measured there is nothing to resume; the hint then says so by silence."""
    out = tmp_path / "run"
    with ScriptedServer("vllm", k=4, accepts=(2,)) as server:
        words = ["sweep", "--server", server.url, *TRAFFIC, "--out", out]
        server.faults = {0: "garbage"}
        failed = command(*words)
        assert (failed.code, failed.out, out.exists()) == (2, "", False)
        assert "a first request to" in failed.err
        assert "resume with" not in failed.err
        server.faults = {}
        assert command(*words).code == 0
        kept = (out / "observations" / "served.jsonl").read_bytes()
        server.faults = dict.fromkeys(range(99), "garbage")
        probed = command(*words)
    gone = command(*words)
    for outcome, why in ((probed, "a first request to"), (gone, "cannot reach")):
        assert (outcome.code, outcome.out) == (2, "")
        said = joined(outcome.err)
        assert why in said
        assert f"finished work is kept in `{out}`; resume with: draftbench sweep --server" in said
        assert (out / "observations" / "served.jsonl").read_bytes() == kept


@pytest.mark.parametrize(
    ("drafts", "more", "starts"),
    [
        # At k = 1 … 8: plain three times, each draft at two k's at least, at all of them at most.
        (("draft", "distilled", "ngram"), (), (3 + 3 * 2, 3 + 3 * 8)),
        # Between plain servers three times.
        (("ngram",), ("--restarts", 3), (4 + 3 * 2, 4 + 3 * 8)),
        (("ngram",), ("--measure", "replay"), (1, 1)),
    ],
)
def test_a_dry_run_counts_starts_at_least_and_at_most(
    command, engine, embedded, monkeypatch, drafts, more, starts
):
    monkeypatch.chdir(embedded)
    words = ["--target", "target", "--drafts", ",".join(drafts), *TRAFFIC, *ENGINE, *more]
    outcome = command("sweep", *words, "--dry-run", "--format", "json")
    assert outcome.code == 0, outcome.err
    plan = json.loads(outcome.out)
    assert (plan["least_starts"], plan["most_starts"]) == starts
    assert engine.starts == []


def test_a_dry_run_at_the_logs_times_takes_as_long_as_the_log(command, engine, embedded, tmp_path):
    """An hour of it, twice as fast, three times."""
    log = tmp_path / "log.jsonl"
    rows = ({"prompt": f"one two {at}", "timestamp": at} for at in (0, 60, 3600))
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--target", embedded / "target", "--drafts", "ngram", *ENGINE, "--k", 2]
    words += ["--traffic", log, "--max-new-tokens", 4, "--arrivals", "log", "--time-scale", 2]
    outcome = command("sweep", *words, "--dry-run", "--format", "json")
    assert "of its load" not in outcome.err
    plan = json.loads(outcome.out)
    assert 3 * 1800 + 3 * 30 < plan["least_seconds"] < 3 * 1800 + 3 * 30 + 10
    assert plan["least_starts"] == 3
    said = command("sweep", *words, "--sample", 2, "--dry-run").err
    assert "2 requests are sent for the log's 3 rows: 67% of its load" in said


@pytest.mark.parametrize(("baseline", "visits"), [(False, 1), (True, 2)])
def test_a_dry_run_on_servers_that_run_takes_what_arrivals_take_at_least(
    command, serving, embedded, tmp_path, baseline, visits
):
    """Ten minutes of a log, sent as logged once to each server."""
    log = tmp_path / "log.jsonl"
    rows = ({"prompt": f"one two {at}", "timestamp": at} for at in (0, 60, 600))
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    serving(FakeServer(k=4), FakeServer())
    words = ["--tokenizer", embedded / "target", "--traffic", log, "--max-new-tokens", 4]
    words += ["--arrivals", "log", "--dry-run", *(["--baseline-server", "http://plain"] * baseline)]
    plan = json.loads(command("sweep", *SERVER, *words, "--format", "json").out)
    assert (plan["least_seconds"], plan["most_seconds"]) == (visits * 600, None)
    assert plan["least_starts"] == 0
    shown = " ".join(command("sweep", *SERVER, *words).out.split())
    assert "the time that the arrivals take" in shown
    assert "servers 0 started" in shown


def test_a_dry_run_of_replay_alone_waits_for_no_arrivals(command, engine, embedded):
    words = lookup(embedded)
    words += ["--arrivals", "poisson:0.001", "--measure", "replay", "--dry-run", "--format", "json"]
    plan = json.loads(command("sweep", *words).out)
    assert plan["least_starts"] == 1
    assert plan["least_seconds"] < 60


@pytest.mark.parametrize(
    ("more", "limit", "room", "shown"),
    [
        ((), None, 16, "arrivals poisson:6, as many as the engine takes answered at once"),
        (("--concurrency", 3), 3, 3, "arrivals poisson:6, 3 answered at once"),
    ],
)
def test_servers_have_room_for_requests_that_arrive_together(
    command, engine, embedded, tmp_path, more, limit, room, shown
):
    """And a dry run counts the plain server, the drafting one, and the plain one at the end."""
    words = [*lookup(embedded), "--arrivals", "poisson:6", *more]
    plan = json.loads(command("sweep", *words, "--dry-run", "--format", "json").out)
    assert plan["least_starts"] == 3
    assert plan["manifest"]["question"]["max_concurrency"] == limit
    assert shown in " ".join(command("sweep", *words, "--dry-run").out.split())
    outcome = command("sweep", *words, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    starts = {(start.max_concurrency, start.concurrency) for start in engine.starts}
    assert starts == {(limit, room)}
    assert read_run(RunFolder(tmp_path / "run")).manifest.question.concurrency == (1,)


@pytest.mark.parametrize(
    ("asked", "bytes_each"),
    [
        ([], 2),
        pytest.param(["--engine-args=--dtype float32"], 4, marks=pytest.mark.slow),
        pytest.param(["--dtype", "float32"], 4, marks=pytest.mark.slow),
        (["--dtype", "float32", "--engine-args=--dtype bfloat16"], 2),
    ],
)
def test_a_dry_run_counts_the_bytes_that_the_engine_will_hold(
    command, engine, embedded, tmp_path, asked, bytes_each
):
    """Over what prompt lookup takes, the weights of the draft and its cache for the longest
    request, as the run says afterwards. The embedded draft has 1,508,096 weights stored in 16 bits;
    its cache takes a layer's keys and values of 2 heads with 64 numbers each.
    """
    words = ["--target", embedded / "target", *TRAFFIC, *ENGINE, "--k", 2, *asked]
    words += ["--format", "json", "--drafts"]
    draft, lookup = (
        json.loads(command("sweep", *words, each, "--dry-run").out)["memory"]
        for each in (embedded / "distilled", "ngram")
    )
    out = tmp_path / "run"
    assert command("sweep", *words, embedded / "distilled", "--out", out).code == 0
    run = read_run(RunFolder(out))
    facts = run.facts_of(Candidate(draft="distilled"))
    assert facts.weight_bytes == bytes_each * 1_508_096
    assert facts.kv_bytes_per_token == 2 * 2 * 64 * bytes_each
    longest = max(t.prompt_tokens + t.limit for t in run.trajectories)
    assert draft - lookup == facts.weight_bytes + longest * facts.kv_bytes_per_token


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
def test_two_servers_over_http(command, tmp_path, kind):
    """The scripted servers count upwards; the one that drafts accepts 2 of 4 tokens a round."""
    with (
        ScriptedServer(kind, k=4, accepts=(2,), pace=0.001) as spec,
        ScriptedServer(kind, pace=0.001) as plain,
    ):
        words = ["--server", spec.url, "--baseline-server", plain.url, *TRAFFIC]
        words += ["--drafts", "ngram"]  # prompts by the server's own tokenizer
        out = tmp_path / "run"
        outcome = command("sweep", *words, "--concurrency", "1,2", "--out", out, "-o", "-")
    assert outcome.code == 0, outcome.err
    run = read_run(RunFolder(out))
    assert {(facts.engine, facts.k, facts.started) for facts in run.engines} == {
        (kind, 0, False),
        (kind, 4, False),
    }
    drafting = [row for row in run.served if row.k == 4]
    assert {row.concurrency for row in drafting} == {1, 2}
    assert [row.first_difference for row in drafting] == [None] * 4
    # 10 tokens: one from the prompt, then three rounds of 2 accepted and one more.
    assert {row.counts.accepted for row in drafting} == {6}
    assert {t.output_tokens for t in run.trajectories} == {10}


def test_a_server_alone_has_acceptance_and_a_hint_how_to_measure_its_speed(command, tmp_path):
    """It accepts 2 of 4 tokens a round: of three tried two are accepted, in every round."""
    out = tmp_path / "run"
    with ScriptedServer("vllm", k=4, accepts=(2,)) as server:
        outcome = command("sweep", "--server", server.url, *TRAFFIC, "--out", out, "-o", "-")
    assert outcome.code == 0, outcome.err
    shown = command("recommend", out).out
    assert "Next: the same sweep with --baseline-server URL" in shown
    report = json.loads(command("acceptance", out, "--format", "json").out)["candidates"][0]
    assert (report["requests"], report["counted"], report["alpha"]["pooled"]) == (2, True, None)
    # 9 tokens after the first are three rounds of two accepted tokens and one more.
    lengths = {each["symbol"]: each["per_request"] for each in report["at_each_k"]}
    assert set(lengths) == {"accepted/drafted", "tok/round", "τ", "τ-1", "1+Σ Πh"}
    table = command("acceptance", out).out
    assert "on 2 requests" in table
    assert "not from replay, but from rounds counted" in joined(table)


@pytest.fixture
def black_boxes(embedded):
    """With speculation and without, of which neither says; the first is twice as fast."""
    with (
        ScriptedServer("openai", k=4, accepts=(2,), pace=0.003, counts=False) as spec,
        ScriptedServer("openai", pace=0.002, counts=False) as plain,
    ):
        words = ["--server", spec.url, "--baseline-server", plain.url]
        yield ["sweep", *words, "--tokenizer", embedded / "target", *TRAFFIC, "--sample", 6]


def test_a_server_that_reports_no_drafting_has_a_speed_and_no_acceptance(
    command, failing, black_boxes, tmp_path
):
    out = tmp_path / "run"
    outcome = command(*black_boxes, "--k", 4, "--out", out)
    assert outcome.code == 0, outcome.err
    answer = json.loads(command("recommend", out, "--format", "json").out)
    (found,) = answer["evaluations"]
    assert found["speedup_measured"]["value"] > 1.2
    unknown = ("tokens_per_round", "mean_accepted_length", "alpha", "mean_accepted_length_measured")
    assert [found[name] for name in unknown] == [None] * 4
    kinds = [caveat["kind"] for caveat in answer["caveats"]]
    assert "untold-rounds" in kinds
    assert not {"suspected-fault", "impossible"} & set(kinds)
    assert "the server does not report its drafting" in joined(command("acceptance", out).out)
    assert "reports nothing about its drafting" in failing(2, "gate", "--save", tmp_path / "b", out)


def test_of_a_black_box_the_user_says_how_much_it_drafts(failing, black_boxes, tmp_path):
    told = failing(2, *black_boxes, "--out", tmp_path / "run")
    assert "does not say whether it drafts" in told
    assert "with --k N" in told


def joined(text):
    """Without the backslashes and breaks of long commands and sentences."""
    return " ".join(text.replace("\\\n", " ").split())


def test_where_no_speed_is_known_no_k_is_named(command, tmp_path, embedded):
    """llama.cpp looks up two tokens or more: at k = 1 prompt lookup is not even possible."""
    with ScriptedServer("llama.cpp") as server:
        words = ["--server", server.url, *TRAFFIC, "--drafts", "ngram", "--k", "1-3"]
        outcome = command("sweep", *words, "--out", tmp_path / "run", "-o", "-")
    assert outcome.code == 0, outcome.err
    assert [line.split() for line in outcome.out.splitlines() if " ngram " in line] == [
        ["ngram", "–", "0", "kB"]
    ]
    shown = command("recommend", tmp_path / "run", "--all").out
    assert "ngram: its speed is unknown: replayed, but no server" in joined(shown)
    assert "drafts 2 tokens or more" not in shown


def test_the_command_line_offers_to_start_what_can_be_started():
    assert {name for name, each in ADAPTERS.items() if each.command} == {*STARTED}
