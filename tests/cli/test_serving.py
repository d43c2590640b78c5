"""`sweep` on a serving engine, as a user calls it: flags that contradict each other, faults and
their exit codes, and one whole run on servers of this process.
"""

import json
import re
import shlex
import shutil
from dataclasses import replace as dataclass_replace

import hand
import pytest
from embedded_gguf import write
from engines.scripted_server import QUOTES, ScriptedServer
from gguf import GGMLQuantizationType
from msgspec.structs import replace
from scenes import EMBEDDED, FEW
from sweep.engine import FakeEngine, FakeServer, fake_drive

from draftbench.engines.every import ENGINES
from draftbench.models.source import ModelSource
from draftbench.planner.recommendation import NextSweep
from draftbench.records import Candidate
from draftbench.report.answer import next_sweep
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run
from draftbench.run_folder.served import counts_contradict
from draftbench.sweep import engine_ask, engine_check, engine_prepare, estimates

TRAFFIC = ["--traffic", FEW, "--sample", 2, "--max-new-tokens", 10]
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
        (["--side-by-side"], f"--side-by-side {START}", "give --engine"),
        ([*SERVER, "--side-by-side"], f"--side-by-side {START}", "asked in turn anyway"),
        (
            [*ENGINE, "--side-by-side", "--arrivals", "poisson:2"],
            "--side-by-side with --arrivals",
            "leave one of the two out",
        ),
        ([*ENGINE, "--one-layout"], "--one-layout needs the built-in", "leave it out"),
        ([*ENGINE, "--until", "settled"], "--until settled needs the built-in", "all the requests"),
        ([*ENGINE, "--lossless"], "--lossless needs the built-in decoder", "measured anyway"),
        ([*ENGINE, "--simulate-quant"], "--simulate-quant needs the built-in", "replayed anyway"),
    ],
)
def test_flags_that_make_no_sense_are_refused_with_a_hint(failing, words, complaint, hint):
    """Besides those of errors.json."""
    told = failing(2, "sweep", "--target", "t", "--drafts", "d", *TRAFFIC, *words)
    assert complaint in told
    assert hint in f"{told}\n"


@pytest.fixture
def engine(monkeypatch):
    """vLLM in this process."""
    fake = FakeEngine()
    monkeypatch.setattr(engine_ask, "started", fake.started)
    monkeypatch.setattr(engine_ask, "connect", fake.connect)
    monkeypatch.setattr(engine_ask, "drive", fake_drive)
    return fake


DOCKER = "docker run image {args}"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--target t", "error: missing option --drafts"),
        ("--drafts d", "error: missing option --target"),
        ("--target {target} --drafts ngram,eagle3:./head", "no head at `eagle3:./head`"),
        # What is replayed has to be here, whatever starts the server.
        (
            "--target /t --tokenizer {target} --drafts ./gone --engine-command '{docker}'",
            "--drafts: no model at `./gone`",
        ),
        # An engine is known however its name is written.
        ("--target {target} --drafts ngram --engine llama-cpp", "llama.cpp serves .gguf files"),
        ("--target {target} --drafts ngram --engine LLAMA.CPP", "give the target's .gguf file"),
        ("--target gone.gguf --drafts ngram --engine llamacpp", "hint: give a .gguf file"),
        ("--target {half} --drafts ngram --engine llama.cpp", "half.gguf`: it is cut off: "),
        # The hint leads to a sweep that starts.
        (
            "--target {target} --drafts ngram --tokenizer {tokenizer}",
            "give --tokenizer a folder of the target that holds config.json too",
        ),
    ],
)
def test_what_no_server_could_answer_is_refused_before_one_starts(
    failing, engine, tmp_path, words, complaint
):
    """Besides those of errors.json."""
    write(tmp_path / "whole.gguf", EMBEDDED / "draft", GGMLQuantizationType.F32)
    (tmp_path / "half.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:2_000_000])
    places = {"target": EMBEDDED / "target", "half": tmp_path / "half.gguf"}
    places |= {"tokenizer": tokenizer(tmp_path), "docker": DOCKER}
    assert complaint in failing(2, "sweep", *ENGINE, *shlex.split(words.format(**places)), *TRAFFIC)
    assert engine.starts == []


def test_an_engine_that_serves_converted_files_as_another_does_is_called_by_its_own_name(
    failing, engine, monkeypatch
):
    alike = dataclass_replace(ENGINES["llama.cpp"], name="Other")
    monkeypatch.setitem(ENGINES, "llama.cpp", alike)
    words = ["--target", EMBEDDED / "target", "--drafts", "ngram", "--engine", "llama.cpp"]
    assert "error: Other serves .gguf files" in failing(2, "sweep", *words, *TRAFFIC)


def tokenizer(folder):
    """A folder with the tokenizer of the embedded target and no more."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / "target" / name, folder / name)
    return folder


@pytest.mark.parametrize("how", [DOCKER, "sudo docker run image {args}", "./container.sh {args}"])
def test_files_of_a_users_command_need_not_be_here_and_are_said_not_to_be(
    command, engine, embedded, tmp_path, how
):
    words = ["--target", "/models/t", "--tokenizer", embedded / "target", "--drafts", "ngram"]
    words += ["--engine-command", how, "--k", 2, "--out", tmp_path / "run"]
    outcome = command("sweep", *ENGINE, *words, *TRAFFIC)
    assert outcome.code == 0, outcome.err
    assert {start.target for start in engine.starts} == {"/models/t"}
    assert "no model at `/models/t` here" in outcome.err


def test_replays_alone_can_be_of_a_mode_in_which_the_engine_does_not_draft(command, embedded):
    models = ["--target", embedded / "target", "--drafts", embedded / "draft"]
    words = [*models, "--engine", "sglang", "--mode", "sampled", "--dry-run", *TRAFFIC]
    refused = command("sweep", *words)
    assert "sglang is not measured in --mode sampled" in refused.err
    assert command("sweep", *words, "--measure", "replay").code == 0


@pytest.fixture
def running(monkeypatch):
    """running(speculative, plain): what answers at the two addresses."""

    def connected(spec, plain=None):
        servers = {"http://spec": spec, "http://plain": plain}
        monkeypatch.setattr(engine_prepare, "connect", lambda url, engine, **_: servers[url])
        for module in (engine_check, engine_ask):
            monkeypatch.setattr(module, "drive", fake_drive)
        return [*SERVER, *(["--baseline-server", "http://plain"] if plain else [])]

    return connected


@pytest.fixture
def words(embedded, tmp_path):
    """A sweep of prompt lookup at one k on vLLM."""
    models = ["--target", embedded / "target", "--drafts", "ngram"]
    return ["sweep", *models, *TRAFFIC, *ENGINE, "--k", 2, "--out", tmp_path / "run"]


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


def test_a_server_that_dies_leaves_exit_code_1_and_the_command_to_resume(command, engine, words):
    """A drafting one, and then the third: the plain one that closes the repeat."""
    engine.make = lambda start, n: FakeServer(lives=3 if start.speculation else 10**6)
    outcome = command(*words, "--sample", 6)
    assert outcome.code == 1
    assert "stopped answering" in outcome.err
    assert "resume with: draftbench sweep" in outcome.err

    engine.starts.clear()
    engine.make = lambda start, n: FakeServer(lives=lives[n - 1])
    lives = [10**6, 10**6, 3]
    words[-1] = f"{words[-1]}-2"
    outcome = command(*words, "--sample", 6)
    assert outcome.code == 1, outcome.err
    said = joined(outcome.err)
    assert "not completely measured: the server without a draft; finished work is kept" in said
    assert "resume with: draftbench sweep" in said
    lives += [10**6]
    outcome = command(*words, "--sample", 6)
    assert outcome.code == 0, outcome.err
    assert len(engine.starts) == 4


def test_a_server_that_is_down_leaves_what_was_measured_and_the_command_to_resume(
    command, tmp_path
):
    """Before anything is measured there is nothing to resume; the hint then says so by silence."""
    out = tmp_path / "run"
    with ScriptedServer("vllm", k=4, accepts=(2,)) as server:
        words = ["sweep", "--server", server.url, *TRAFFIC, "--out", out]
        server.faults = dict.fromkeys(range(99), "garbage")
        failed = command(*words)
        assert (failed.code, failed.out, out.exists()) == (2, "", False)
        assert "a first request to" in failed.err
        assert "resume with" not in failed.err
        server.faults = {}
        assert command(*words).code == 0
        kept = (out / "observations" / "served.jsonl").read_bytes()
        server.faults = dict.fromkeys(range(999), "garbage")
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
        # The one that writes the responses, then two at each k.
        (("draft", "ngram"), ("--side-by-side",), (1 + 2 * 2 * 2, 1 + 2 * 2 * 8)),
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


def test_two_servers_side_by_side_have_to_fit_in_memory(
    command, failing, engine, embedded, monkeypatch
):
    """The second server holds the target's weights and its cache once more."""
    monkeypatch.chdir(embedded)
    words = ["sweep", "--target", "target", "--drafts", "draft", *TRAFFIC, *ENGINE, "--dry-run"]

    def memory(*more):
        return json.loads(command(*words, *more, "--format", "json").out)["memory"]

    alone, both = memory(), memory("--side-by-side")
    target = (embedded / "target" / "model.safetensors").stat().st_size
    assert target < both - alone < 1.5 * target
    for free in (both, both - 1):
        monkeypatch.setattr(estimates, "memory_free", lambda device, free=free: free)
        if free == both:
            assert command(*words, "--side-by-side").code == 0
    told = failing(2, *words, "--side-by-side")
    assert "draft and a server without a draft take" in told
    assert "hint: leave it out" in told
    # A command may start them on another machine.
    assert command(*words, "--side-by-side", "--engine-command", DOCKER).code == 0
    assert command(*words).code == 0


@pytest.mark.parametrize(
    ("more", "slots", "room", "shown"),
    [
        ([], None, 16, "arrivals poisson:6, as many as the engine takes answered at once"),
        (["--concurrency", 3], 3, 3, "arrivals poisson:6, 3 answered at once"),
    ],
)
def test_at_times_of_arrival_servers_are_started_once_with_room_for_what_comes_together(
    command, engine, words, more, slots, room, shown
):
    """The plain server, the drafting one, and the plain one at the end."""
    words = [*words, "--arrivals", "poisson:6", *more]
    plan = json.loads(command(*words, "--dry-run", "--format", "json").out)
    assert plan["least_starts"] == 3
    assert plan["manifest"]["question"]["max_concurrency"] == slots
    assert shown in " ".join(command(*words, "--dry-run").out.split())
    outcome = command(*words)
    assert outcome.code == 0, outcome.err
    assert {(start.max_concurrency, start.concurrency) for start in engine.starts} == {
        (slots, room)
    }
    run = read_run(RunFolder(words[words.index("--out") + 1]))
    assert run.manifest.question.concurrency == (1,)
    # Replay alone waits for no arrivals.
    words[words.index("poisson:6")] = "poisson:0.001"
    words = [*words, "--measure", "replay", "--dry-run", "--format", "json"]
    plan = json.loads(command(*words, "--out", "new").out)
    assert plan["least_starts"] == 1
    assert plan["least_seconds"] < 60


@pytest.fixture
def logged(tmp_path):
    """A log of three requests in as many seconds as its last."""
    log = tmp_path / "log.jsonl"

    def words(seconds):
        rows = ({"prompt": f"one two {at}", "timestamp": at} for at in (0, 60, seconds))
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return ["--traffic", log, "--max-new-tokens", 4, "--arrivals", "log", "--dry-run"]

    return words


def test_a_dry_run_at_the_logs_times_takes_as_long_as_the_log(command, engine, words, logged):
    """An hour of it, twice as fast, three times."""
    words = [*words, "--sample", 3, *logged(3600), "--time-scale", 2]
    outcome = command(*words, "--format", "json")
    assert "of its load" not in outcome.err
    plan = json.loads(outcome.out)
    assert 3 * 1800 + 3 * 30 < plan["least_seconds"] < 3 * 1800 + 3 * 30 + 10
    assert plan["least_starts"] == 3
    said = command(*words, "--sample", 2).err
    assert "2 requests are sent for the log's 3 rows: 67% of its load" in said


@pytest.mark.parametrize(("plain", "visits"), [(None, 1), (FakeServer(), 2)])
def test_a_dry_run_on_servers_that_run_takes_what_arrivals_take_at_least(
    command, running, embedded, logged, plain, visits
):
    """Ten minutes of a log, sent as logged once to each server."""
    words = ["sweep", *running(FakeServer(k=4), plain), "--tokenizer", embedded / "target"]
    words += logged(600)
    plan = json.loads(command(*words, "--format", "json").out)
    assert (plan["least_seconds"], plan["most_seconds"]) == (visits * 600, None)
    assert plan["least_starts"] == 0
    shown = " ".join(command(*words).out.split())
    assert "the time that the arrivals take" in shown
    assert "servers 0 started" in shown


@pytest.mark.parametrize(
    ("asked", "bytes_each"),
    [
        ([], 2),
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


def slower(server, answer, n):
    """At half the speed."""
    return dataclass_replace(answer, arrivals=[2 * at for at in answer.arrivals])


@pytest.mark.parametrize("words", ["--k 4", "--k 2 --drafts ngram", "--k 1-8 --drafts ngram"])
def test_the_decision_on_a_running_server_is_on_the_k_that_it_drafts(
    command, running, embedded, tmp_path, words
):
    """It takes twice as long. At k = 1 it would take less, which --all says and nothing else."""
    servers = running(FakeServer(k=4, change=slower), FakeServer())
    words = [*shlex.split(words), "--tokenizer", embedded / "target", *TRAFFIC, "--sample", 8]
    out, saved = tmp_path / "run", tmp_path / "baseline.json"
    outcome = command("sweep", *servers, *words, "--out", out, "-o", "-")
    assert outcome.code == 0, outcome.err
    assert re.search(r"draft-model +4 +0\.50", outcome.out)
    answer = json.loads(command("recommend", out, "--format", "json").out)
    assert (answer["decision"], answer["leader"]["k"]) == ("do_not_speculate", 4)
    of_server = [each for each in answer["evaluations"] if each["draft"] == "draft-model"]
    assert [each["k"] for each in of_server if each["best"]] == [4]
    others = {each["k"]: each for each in of_server if each["k"] < 4}
    assert others.keys() == {k for k in RunFolder(out).manifest.question.ks if k < 4}
    for k, each in others.items():
        assert each["not_run"]
        assert each["speedup_expected"]["value"] > 0.55
        assert f"start one with k = {k}" in each["reason"]
    assert ("no server ran" in command("recommend", out, "--all").out) == bool(others)
    assert command("gate", "--save", saved, out).code == 0
    assert json.loads(saved.read_text())["question"]["k"] == 4
    exported = command("export", out, "--engine", "vllm", "--anyway", "--draft", "org/draft").out
    assert re.search(r'"num_speculative_tokens": ?4\b', exported)


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


def test_a_server_that_reports_no_drafting_has_a_speed_and_no_acceptance(
    command, failing, embedded, tmp_path
):
    """With speculation and without, of which neither says; the first is twice as fast."""
    out = tmp_path / "run"
    with (
        ScriptedServer("openai", k=4, accepts=(2,), pace=0.003, counts=False) as spec,
        ScriptedServer("openai", pace=0.002, counts=False) as plain,
    ):
        words = ["--server", spec.url, "--baseline-server", plain.url, *TRAFFIC, "--sample", 6]
        words += ["--tokenizer", embedded / "target", "--k", 4, "--out", out]
        outcome = command("sweep", *words)
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


def from_outside(server, baseline, embedded, log, out):
    """A sweep of two servers of no known kind."""
    words = ["--server", server.url, "--baseline-server", baseline.url, "--k", 2]
    words += ["--tokenizer", embedded / "target", "--traffic", log, "--max-new-tokens", 12]
    return ["sweep", *words, "--out", out]


def marked(tmp_path, requests):
    log = tmp_path / "prod.jsonl"
    prompts = (f'zebra-quartz {n} lives at\n"12 Elm Street"' for n in range(requests))
    log.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return log


def test_prompts_that_servers_quote_are_printed_and_recorded_nowhere_but_in_the_private_part(
    command, embedded, tmp_path
):
    """In every shape, in the probe, in the warm-up and in answers, with and without a draft."""
    out, log = tmp_path / "run", marked(tmp_path, 12)
    prompt = ModelSource(str(embedded / "target")).tokenizer('zebra-quartz 0 lives at\n"12')
    ids = ", ".join(map(str, prompt["input_ids"][1:6]))
    faults = dict(enumerate(QUOTES, start=3)) | {0: "plain"}
    with (
        ScriptedServer("openai", faults=faults) as server,
        ScriptedServer("openai", faults=faults) as plain,
    ):
        swept = command(*from_outside(server, plain, embedded, log, out))
        assert swept.code == 1, swept.err  # some requests were not answered
        server.faults = plain.faults = dict.fromkeys(range(999), "422")
        again = command(*from_outside(server, plain, embedded, log, out))
        assert again.code == 2
    page = ("report", out, "--html", out / "page.html")
    told = [command(*words) for words in (("recommend", out, "--all"), ("compare", out, out), page)]
    assert {each.code for each in told} == {0}
    shared = [path for path in out.rglob("*") if path.is_file() and "private" not in path.parts]
    seen = [text for each in (swept, again, *told) for text in (each.out, each.err)]
    seen += [path.read_text() for path in shared]
    for text in seen:
        assert not re.search(rf"zebra|Elm Street|u007a|{ids}", joined(text))
    said = out / "private" / "servers" / "said.log"
    assert "/v1/completions answers 422: (" in joined(swept.err)
    assert f"kept in {said}" in joined(swept.err)
    kept = said.read_text()
    assert kept.count("zebra-quartz") >= len(QUOTES)
    assert ids in kept  # the probe is sent as token ids
    assert command("runs", "redact", out).code == 0
    assert not said.exists()
    with ScriptedServer("openai", faults=dict.fromkeys(range(99), "422")) as server:
        redacted = command(*from_outside(server, server, embedded, log, out))
    assert "not shown, since they may quote a prompt" in joined(redacted.err)
    assert not (out / "private").exists()


@pytest.mark.parametrize(("times", "more"), [(0.25, 0), (1, 5)])
def test_a_server_that_miscounts_its_tokens_is_told_and_its_texts_are_counted(
    command, embedded, tmp_path, times, more
):
    out, log = tmp_path / "run", marked(tmp_path, 6)
    with (
        ScriptedServer("openai") as server,
        ScriptedServer("openai", states=lambda n: int(n * times) + more) as plain,
    ):
        swept = command(*from_outside(server, plain, embedded, log, out))
    assert swept.code == 0, swept.err
    run = read_run(RunFolder(out))
    by_text = {(row.digest, row.output_tokens) for row in run.served}
    assert len(by_text) == len({digest for digest, _ in by_text})
    assert counts_contradict(run.served) is None
    assert "without a draft: the server counts " in swept.err


def test_the_command_that_resumes_a_run_can_be_pasted_and_hides_values(
    command, engine, embedded, tmp_path
):
    """Those that start a server may be secret; the private part has them, until it is deleted."""
    out, log = tmp_path / "a run", marked(tmp_path, 6)
    models = ["--target", embedded / "target", "--drafts", "ngram", "--k", 2]
    words = ["sweep", *models, "--traffic", log, "--max-new-tokens", 10, *ENGINE]
    words += ["--engine-args", "--api-key hidden-value"]
    engine.make = lambda start, n: FakeServer(lives=3 if start.speculation else 10**6)
    swept = command(*words, "--out", out)
    assert swept.code == 1, swept.err
    kept = out / "private" / "sweep.yaml"
    assert kept.parent.stat().st_mode & 0o777 == 0o700

    engine.make = lambda start, n: None
    other = command(*words, "--temperature", 0.5, "--out", out)
    pasted = re.search(r"this run is resumed by: draftbench (.*)", joined(other.err))[1]
    assert shlex.split(pasted) == ["sweep", str(kept), "--out", str(out)]
    assert "hidden-value" not in pasted
    resumed = command(*shlex.split(pasted))
    assert resumed.code == 0, resumed.err
    assert "resuming: " in resumed.err
    assert engine.starts[-1].args == "--api-key hidden-value"
    run = read_run(RunFolder(out))
    resumes = NextSweep(flags={}, resumes=True)
    following = replace(hand.answer(hand.perfect()), settled_by="resuming", next_sweep=resumes)
    assert next_sweep(following, run.manifest, str(out)) == shlex.join(shlex.split(pasted))
    kept.unlink()
    assert next_sweep(following, run.manifest, str(out)) is None
