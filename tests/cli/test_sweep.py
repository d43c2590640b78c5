"""What `sweep` says before anything is loaded."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from scenes import MANIFEST, manifest, with_fields

from draftbench.cli.sweep import _settled, describe
from draftbench.planner.caveats import LOAD
from draftbench.records import Request
from draftbench.run_folder.manifest import portable
from draftbench.traffic.summary import BadRows, FirstRequest, TrafficSummary, request_figures


def told(load):
    traffic = TrafficSummary(
        source="prod.csv",
        layout=("columns separated by tabs",),
        rows=9,
        requests=2,
        merged=1,
        several=0,
        forms={"prompt": 5, "messages": 3},
        unread={"passage": 3, "id": 9},
        left_out={"too long": 4},
        bad_rows=(BadRows(reason="not JSON", first="prod.csv:7", rows=2, hint="fix it"),),
        assumed={"0": 1},
        constrained=1,
        figures=request_figures([Request(id="a", source="prod.csv:1", prompt="a")]),
        first=FirstRequest(roles=("system", "user"), end="the end\n"),
    )
    manifest = SimpleNamespace(environment=SimpleNamespace(load=load))
    failure = SimpleNamespace(candidate="foreign", reason="its vocabulary differs " * 8)
    notes: list[str] = []
    prepared = SimpleNamespace(
        manifest=manifest,
        traffic=traffic,
        failures=[failure],
        caveats={"mtp": ("slow",)},
    )
    describe(prepared, SimpleNamespace(note=notes.append))
    return notes


@pytest.mark.parametrize(("load", "said"), [(None, 0), (LOAD, 0), (1.25, 1)])
def test_a_busy_machine_is_said_before_the_sweep(load, said):
    assert sum("busy (load 1.2 per core)" in note for note in told(load)) == said


def test_what_was_left_out_refused_or_doubtful_is_said():
    assert told(None) == [
        "2 requests from 9 rows; formats: messages (3), prompt (5)",
        "1 row repeated: such a request counts as often",
        "the file is read as columns separated by tabs",
        "ignored fields: passage, id",
        "4 left out: too long",
        "bad row prod.csv:7: not JSON (2 such rows)",
        "1 row without a temperature: 0 is assumed, greedy (--temperature sets another)",
        "1 of 2 requests with structured output, which only an engine applies: the built-in\n"
        "  decoder leaves them out; beside an engine draft models are replayed without it, so α\n"
        "  holds only for the other 50%",
        "first request: roles system, user; ends with 'the end\\n'",
        "refused foreign: "
        + " ".join(["its vocabulary differs"] * 3)
        + "\n  "
        + " ".join(["its vocabulary differs"] * 3)
        + " its vocabulary\n  differs its vocabulary "
        "differs",
        "note on mtp: slow",
    ]


@pytest.mark.parametrize("written", [["draft,ngram"], ["draft", "ngram"], ["draft, ngram,draft"]])
def test_drafts_go_behind_one_flag_with_commas_or_each_behind_its_own(
    command, embedded, tmp_path, monkeypatch, written
):
    monkeypatch.chdir(embedded)
    assert planned_candidates(command, tmp_path, written) == ["draft", "ngram"]


def test_a_path_that_holds_a_comma_is_one_draft(command, embedded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(embedded / "draft", "small,greedy")
    shutil.copytree(embedded / "target", "target")
    written = ["small,greedy", "ngram"]
    assert planned_candidates(command, tmp_path, written) == written


def planned_candidates(command, folder, written):
    words = [word for text in written for word in ("--drafts", text)]
    words += ["--target", "target", "--traffic", "suite:completion", "--sample", 2]
    words += ["--no-controls", "--dry-run", "--format", "json", "--out", folder / "run"]
    outcome = command("sweep", *words)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["candidates"]


@pytest.mark.parametrize("stored", ["target", "draft"])
def test_a_draft_that_is_stored_quantized_is_a_candidate_at_that_level(
    command, embedded, tmp_path, stored
):
    shutil.copytree(embedded / stored, tmp_path / stored)
    gptq = {"quant_method": "gptq", "bits": 4}
    with_fields(tmp_path / stored / "config.json", quantization_config=gptq)
    models = {"target": embedded / "target", "draft": embedded / "draft"}
    models[stored] = tmp_path / stored
    words = ["--target", models["target"], "--drafts", models["draft"], "--no-controls"]
    words += ["--target-quant", "gptq-int4"] if stored == "target" else []
    words += ["--traffic", "suite:completion", "--sample", 2, "--dry-run", "--format", "json"]
    outcome = command("sweep", *words, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    plan = json.loads(outcome.out)
    assert plan["candidates"] == ["draft:gptq-int4" if stored == "draft" else "draft"]


@pytest.mark.parametrize(
    ("quant", "candidates"), [("none,fp8", ["draft"]), ("fp8,int4", ["draft:int4"]), ("fp8", None)]
)
def test_a_level_without_a_kernel_here_is_refused_and_the_others_are_measured(
    command, embedded, tmp_path, quant, candidates
):
    """On a CPU, which multiplies no fp8."""
    words = ["--target", embedded / "target", "--drafts", embedded / "draft", "--no-controls"]
    words += ["--traffic", "suite:completion", "--sample", 2, "--dry-run", "--format", "json"]
    outcome = command("sweep", *words, "--quant", quant, "--out", tmp_path / "run")
    reason = "quantization `fp8` has no fast kernel on this device (cpu)"
    if candidates is None:
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count(f"error: {reason}\nhint: ") == 1
    else:
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["candidates"] == candidates
        assert f"refused draft:fp8: {reason}\n" in outcome.err


@pytest.mark.parametrize("engine", [(), ("--engine", "vllm")])
@pytest.mark.parametrize(
    ("draft", "quant", "noted"),
    [("target", "none", 1), ("target", "none,int4", 0), ("draft", "none", 0)],
)
def test_a_draft_that_reads_as_much_as_the_target_is_noted_before_the_sweep(
    command, embedded, tmp_path, no_weights, draft, quant, noted, engine
):
    """Known fault: `check` alone said so."""
    words = ["sweep", "--target", embedded / "target", "--drafts", embedded / draft, *engine]
    words += ["--traffic", "suite:completion", "--quant", quant, "--out", tmp_path / "run"]
    outcome = command(*words, "--dry-run")
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.err.split())
    assert said.count(f"note on {draft}: the draft reads ") == noted
    assert said.count("a draft step will hardly take less time") == noted


def test_verbose_says_a_line_for_every_response(command, embedded, tmp_path):
    words = ["--target", embedded / "draft", "--drafts", "ngram", "--no-controls", "--sample", 8]
    words += ["--traffic", "suite:completion", "--max-new-tokens", 24, "--k", 2, "--threads", 1]
    outcome = command(
        "sweep", *words, "--measure", "none", "--verbose", "--out", tmp_path / "run", "-o", "-"
    )
    assert ": 16 of 16" in outcome.err  # each is written and then scored
    assert "τ" in outcome.err


def test_quiet_still_names_the_device(command, embedded, tmp_path):
    words = ["--target", embedded / "draft", "--drafts", "ngram", "--no-controls", "--sample", 2]
    words += ["--traffic", "suite:completion", "--threads", 1, "--device", "cpu", "--dry-run"]
    outcome = command("sweep", *words, "--quiet", "--out", tmp_path / "run")
    (device,) = outcome.err.splitlines()
    assert device.startswith("device: cpu, 1 thread")


def test_the_run_keeps_the_command_as_it_was_given(command, embedded, tmp_path):
    words = ["sweep", "--target", embedded / "draft", "--drafts", "ngram", "--no-controls"]
    words += ["--traffic", "suite:completion", "--sample", 2, "--max-new-tokens", 4, "--k", 1]
    words = list(map(str, [*words, "--measure", "replay", "--out", tmp_path / "run"]))
    assert command(*words).code == 0
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["command"]
    assert kept == portable(shlex.join(["draftbench", *words]))


def test_values_that_cannot_be_are_refused_before_the_seconds_of_importing_torch():
    words = ["sweep", "--target", "t", "--drafts", "d", "--traffic", "suite:code"]
    program = (
        "import sys; from draftbench.cli import main\n"
        "for flag in ('--k', '--quant', '--format', '-o'):\n"
        f"    print(main([*{words!r}, flag, '/x/y']))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["2"] * 4)
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"] * 4


def test_a_model_that_is_not_there_is_refused_before_the_seconds_of_importing_torch(embedded):
    target = str(embedded / "target")
    commands = (
        ["sweep", "--target", "./none", "--drafts", "ngram", "--traffic", "suite:code"],
        ["check", "--target", "./none", "--drafts", target],
        ["check", "--target", target, "--drafts", "ngram,./none"],
    )
    program = (
        "import sys; from draftbench.cli import main\n"
        f"for words in {commands!r}: print(main(words))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["2"] * 3)
    assert done.stderr.count("error: no model at `./none`\n") == 3


@pytest.mark.parametrize(("target", "draft"), [("bert", "draft"), ("target", "bert")])
@pytest.mark.parametrize("runner", [[], ["--engine", "vllm"]])
def test_an_encoder_is_refused_before_anything_is_loaded(
    failing, embedded, encoder, tmp_path, target, draft, runner
):
    place = {"bert": encoder}
    target, draft = (place.get(name, embedded / name) for name in (target, draft))
    words = ["--target", target, "--drafts", draft, "--traffic", "suite:completion"]
    message = failing(2, "sweep", *words, *runner, "--out", tmp_path / "run")
    assert message.startswith("error: `bert` (BertForMaskedLM) is an encoder, which does not write")
    assert "hint: target and draft must be causal language models" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("requests", "ended", "after", "decision", "until", "said"),
    [
        (300, 64, None, "speculate", "settled", "after 64 of 300 requests; the others were left"),
        (300, None, 128, "speculate", "all", "after 128 of 300 requests; --until settled leaves"),
        (300, 64, None, "inconclusive", "settled", "would not settle it; they were left out"),
        (300, None, 64, "inconclusive", "all", "settle it; --until settled leaves them out"),
        (300, None, None, "inconclusive", "settled", "all 300 requests were measured: no fewer"),
        (64, None, None, "speculate", "settled", "--until settled first looks after 64"),
        (300, None, None, "speculate", "all", None),
    ],
)
def test_a_sweep_says_how_many_requests_settled_its_answer(
    requests, ended, after, decision, until, said, monkeypatch
):
    monkeypatch.setattr("draftbench.planner.what_to_measure.settled_after", lambda run: after)
    made = manifest(requests=requests, effort=replace(MANIFEST.effort, settled_after=ended))
    run, answer = SimpleNamespace(manifest=made), SimpleNamespace(decision=decision)
    found = _settled(run, answer, SimpleNamespace(until=until))
    assert found is None if said is None else said in found
