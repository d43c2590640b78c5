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
from scenes import FEW, MANIFEST, manifest, query, with_fields

from draftbench.cli.sweep import _settled, describe
from draftbench.cli.traffic import traffic_lines
from draftbench.planner.caveat_kinds import LOAD_AVERAGE
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import portable
from draftbench.sweep import decoder_prepare
from draftbench.traffic import load as load_traffic


def told(load=None, until="all", sample=2):
    traffic = load_traffic(query("suite:completion", sample=2)).summary
    notes: list[str] = []
    prepared = SimpleNamespace(
        options=SimpleNamespace(until=until, traffic=SimpleNamespace(sample=sample)),
        prompt_tokens=[(1, 1)] * 64,
        manifest=SimpleNamespace(environment=SimpleNamespace(load=load)),
        traffic=traffic,
        failures=[SimpleNamespace(candidate="foreign", reason="its vocabulary differs")],
        caveats={"mtp": ("slow",)},
    )
    describe(prepared, SimpleNamespace(note=notes.append))
    return traffic_lines(traffic), notes


def test_what_was_read_refused_or_doubtful_is_said():
    traffic, notes = told()
    assert notes == [*traffic, "refused foreign: its vocabulary differs", "note on mtp: slow"]
    for load, said in ((LOAD_AVERAGE, 0), (1.25, 1)):
        assert sum("busy (load 1.2 per core)" in note for note in told(load)[1]) == said
    assert any("--sample 3 asks for more requests" in note for note in told(sample=3)[1])
    assert "--until settled changes nothing: the answer is first looked at after 64" in "\n".join(
        told(until="settled")[1]
    )


@pytest.fixture
def plan(command, tmp_path):
    """plan(words): a dry run with no controls, which must succeed."""

    def planned(*words, code=0):
        fixed = ["--traffic", FEW, "--sample", 2, "--no-controls", "--dry-run"]
        outcome = command("sweep", *fixed, "--format", "json", "--out", tmp_path / "run", *words)
        assert outcome.code == code, outcome.err
        return outcome

    return planned


@pytest.mark.parametrize("stored", ["target", "draft"])
def test_a_draft_that_is_stored_quantized_is_a_candidate_at_that_level(
    plan, embedded, tmp_path, stored
):
    shutil.copytree(embedded / stored, tmp_path / stored)
    gptq = {"quant_method": "gptq", "bits": 4}
    with_fields(tmp_path / stored / "config.json", quantization_config=gptq)
    models = {"target": embedded / "target", "draft": embedded / "draft"}
    models[stored] = tmp_path / stored
    words = ["--target", models["target"], "--drafts", models["draft"]]
    words += ["--target-quant", "gptq-int4"] if stored == "target" else []
    candidates = json.loads(plan(*words).out)["candidates"]
    assert candidates == ["draft:gptq-int4" if stored == "draft" else "draft"]


@pytest.mark.parametrize(
    ("quant", "candidates"), [("none,fp8", ["draft"]), ("fp8,int4", ["draft:int4"])]
)
def test_a_level_without_a_kernel_here_is_refused_and_the_others_are_measured(
    plan, embedded, quant, candidates
):
    """On a CPU, which multiplies no fp8."""
    words = ["--target", embedded / "target", "--drafts", embedded / "draft"]
    outcome = plan(*words, "--quant", quant)
    reason = "quantization `fp8` has no fast kernel on this device (cpu)"
    assert json.loads(outcome.out)["candidates"] == candidates
    assert f"refused draft:fp8: {reason}\n" in outcome.err


@pytest.mark.parametrize(
    ("draft", "quant", "engine", "noted"),
    [
        ("target", "none", [], 1),
        ("target", "none", ["--engine", "vllm"], 1),
        ("target", "none,int4", [], 0),
        ("draft", "none", [], 0),
    ],
)
def test_a_draft_that_reads_as_much_as_the_target_is_noted_before_the_sweep(
    plan, embedded, no_weights, draft, quant, engine, noted
):
    """Known fault: `check` alone said so."""
    words = ["--target", embedded / "target", "--drafts", embedded / draft, *engine]
    said = " ".join(plan(*words, "--quant", quant).err.split())
    assert said.count(f"note on {draft}: the draft reads ") == noted
    assert said.count("a draft step will hardly take less time") == noted


def test_verbose_says_a_line_for_every_response_and_the_run_keeps_the_command(
    command, embedded, tmp_path
):
    words = ["sweep", "--target", embedded / "draft", "--drafts", "ngram", "--no-controls"]
    words += ["--traffic", FEW, "--sample", 8, "--max-new-tokens", 24, "--k", 2]
    words += ["--threads", 1, "--measure", "none", "--verbose", "--out", tmp_path / "run"]
    outcome = command(*words)
    assert ": 16 of 16" in outcome.err  # each is written and then scored
    assert "τ" in outcome.err
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["command"]
    assert kept == portable(shlex.join(["draftbench", *map(str, words)]))


def test_quiet_still_names_the_device(command, embedded, tmp_path):
    words = ["--target", embedded / "draft", "--drafts", "ngram", "--no-controls", "--sample", 2]
    words += ["--traffic", FEW, "--threads", 1, "--device", "cpu", "--dry-run"]
    outcome = command("sweep", *words, "--quiet", "--out", tmp_path / "run")
    (device,) = outcome.err.splitlines()
    assert device.startswith("device: cpu, 1 thread")


def test_what_cannot_be_is_refused_before_the_seconds_of_importing_torch(embedded):
    target = str(embedded / "target")
    sweep = ["sweep", "--target", "t", "--drafts", "d", "--traffic", "suite:code"]
    commands = [
        *([*sweep, flag, "/x/y"] for flag in ("--k", "--quant", "--format", "-o")),
        ["sweep", "--target", "./none", "--drafts", "ngram", "--traffic", "suite:code"],
        ["check", "--target", "./none", "--drafts", target],
        ["check", "--target", target, "--drafts", "ngram,./none"],
    ]
    program = (
        "import sys; from draftbench.cli import main\n"
        f"for words in {commands!r}: print(main(words))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["2"] * 7)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"] * 7
    assert done.stderr.count("error: no model at `./none`\n") == 3


@pytest.mark.parametrize(
    ("target", "draft", "runner"), [("bert", "draft", []), ("target", "bert", ["--engine", "vllm"])]
)
def test_an_encoder_is_refused_before_anything_is_loaded(
    failing, embedded, encoder, tmp_path, target, draft, runner
):
    target, draft = ({"bert": encoder}.get(name, embedded / name) for name in (target, draft))
    words = ["--target", target, "--drafts", draft, "--traffic", FEW]
    message = failing(2, "sweep", *words, *runner, "--out", tmp_path / "run")
    assert message.startswith("error: `bert` (BertForMaskedLM) is an encoder, which does not write")
    assert "hint: target and draft must be causal language models" in message
    assert not (tmp_path / "run").exists()


LEFT, LEAVES = "the others were left out", "--until settled leaves the others out"
OPEN = "inconclusive after 64 of 300 requests; the others would not change that"


@pytest.mark.parametrize(
    ("ended", "after", "decision", "until", "said"),
    [
        (64, None, "speculate", "settled", f"settled after 64 of 300 requests; {LEFT}"),
        (None, 128, "speculate", "all", f"settled after 128 of 300 requests; {LEAVES}"),
        (64, None, "inconclusive", "settled", f"{OPEN}; {LEFT}"),
        (None, 64, "inconclusive", "all", f"{OPEN}; {LEAVES}"),
        (None, None, "inconclusive", "settled", "all 300 requests were measured: no fewer"),
        (None, None, "speculate", "all", None),
    ],
)
def test_a_sweep_says_how_many_requests_settled_its_answer(
    ended, after, decision, until, said, monkeypatch
):
    monkeypatch.setattr("draftbench.planner.what_to_measure.settled_after", lambda run: after)
    made = manifest(requests=300, effort=replace(MANIFEST.effort, settled_after=ended))
    run, answer = SimpleNamespace(manifest=made), SimpleNamespace(decision=decision)
    found = _settled(run, answer, SimpleNamespace(until=until))
    assert found is None if said is None else said in found


def test_a_busy_machine_is_given_one_thread_and_the_resumed_run_keeps_its_number(
    command, embedded, tmp_path, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(decoder_prepare, "set_threads", lambda threads: threads or 2)
    words = ["sweep", "--target", embedded / "draft", "--drafts", "ngram", "--no-controls"]
    words += ["--traffic", FEW, "--sample", 2, "--max-new-tokens", 8, "--k", 1]
    words += ["--device", "cpu", "--measure", "none", "--out", tmp_path / "run"]
    for busy, said in ((True, 1), (False, 0)):
        monkeypatch.setattr(
            decoder_prepare, "one_thread_is_faster", lambda threads, busy=busy: busy
        )
        outcome = command(*words)
        assert (outcome.code, outcome.err.count("the sweep uses one;")) == (0, said)
        assert RunFolder(tmp_path / "run").manifest.environment.threads == 1
