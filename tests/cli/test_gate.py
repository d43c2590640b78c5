"""The gate as CI runs it: every exit code, and the files that CI reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scenes import ROOT, with_fields

from draftbench.run_folder.key import request_key


def edited(file: Path, change) -> Path:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return file


def with_rounds(baseline, factor_of):
    """Each request took so many times as many rounds for its tokens, as far as rounds of one to
    three tokens make these (k is 2).
    """
    for number, request in enumerate(baseline["requests"]):
        tokens = request["tokens"]
        rounds = min(max(request["passes"] * factor_of(number), tokens / 3), tokens)
        request |= {"rounds": rounds, "passes": rounds, "accepted": tokens - rounds}
    accepted, drafted = (
        sum(request[name] * request["weight"] for request in baseline["requests"])
        for name in ("accepted", "rounds")
    )
    baseline["survival"] = [accepted / drafted / 2] * 2


def once_better(baseline):
    """Every request took a third fewer rounds."""
    with_rounds(baseline, lambda _: 1 / 1.5)


def once_shaken(baseline):
    """Every second request took a fifth more rounds, the others fewer by as much."""
    with_rounds(baseline, lambda number: 1.2 if number % 2 else 1 / 1.2)


def twice_the_same(baseline):
    baseline["requests"].append(baseline["requests"][0])


def absurdly_long(baseline):
    baseline["question"]["k"] = 2_000_000_000


def other_mode(baseline):
    baseline["question"]["mode"] = "sampled"


SAME = "draft against the baseline draft\n"


@pytest.mark.parametrize(
    ("change", "flags", "code", "said"),
    [
        (lambda _: None, [], 0, f"PASS: {SAME}"),
        (once_better, [], 1, f"FAIL: {SAME}"),
        (twice_the_same, [], 2, "error: `"),
        (absurdly_long, [], 2, "error: `"),
        (once_shaken, [], 3, f"INCONCLUSIVE: {SAME}"),
        (other_mode, [], 4, "error: the baseline cannot be compared: --mode was sampled"),
        # Flags change the exit code of what they name.
        (once_better, ["--exit-zero"], 0, f"FAIL: {SAME}"),
        (once_shaken, ["--exit-zero"], 0, f"INCONCLUSIVE: {SAME}"),
        (once_shaken, ["--inconclusive", "pass"], 0, f"INCONCLUSIVE: {SAME}"),
        (once_shaken, ["--inconclusive", "fail"], 1, f"INCONCLUSIVE: {SAME}"),
        (once_better, ["--inconclusive", "pass"], 1, f"FAIL: {SAME}"),
        (lambda _: None, ["--inconclusive", "fail"], 0, f"PASS: {SAME}"),
        (other_mode, ["--exit-zero"], 4, "error: the baseline cannot be compared"),
    ],
)
def test_every_verdict_has_its_exit_code(command, swept, pinned, change, flags, code, said):
    outcome = command("gate", "--baseline", edited(pinned, change), swept[0], *flags)
    assert outcome.code == code
    refused = said.startswith("error")
    assert (outcome.err if refused else outcome.out).startswith(said)
    assert (outcome.out == "") is refused


def test_a_fail_names_the_command_that_says_why(command, swept, pinned):
    advice = f"`draftbench audit {swept[0]}` says why, if the engine or the draft changed\n"
    assert command("gate", "--baseline", pinned, swept[0]).err == ""
    assert command("gate", "--baseline", edited(pinned, once_better), swept[0]).err == advice


def test_the_exit_code_leaves_the_process(swept, pinned):
    words = ["gate", "--baseline", edited(pinned, once_shaken), swept[0]]
    done = subprocess.run([sys.executable, "-m", "draftbench", *words], capture_output=True)
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("change", "code", "annotated", "counts", "summary"),
    [
        (lambda _: None, 0, "", {"failures": 0, "errors": 0}, "### ✅ draftbench gate: pass"),
        (
            once_better,
            1,
            "::error title=draftbench gate%3A acceptance regression::",
            {"failures": 2, "errors": 0},
            "### ❌ draftbench gate: fail",
        ),
        (
            other_mode,
            4,
            "::error title=draftbench gate%3A incomparable::",
            {"failures": 0, "errors": 1},
            "### ⛔ draftbench gate: incomparable",
        ),
    ],
)
def test_a_verdict_and_a_refusal_are_shown_wherever_ci_looks(
    command, swept, pinned, tmp_path, monkeypatch, change, code, annotated, counts, summary
):
    written = tmp_path / "summary.md"
    written.write_text("# what was there before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(written))
    words = ["--junit", tmp_path / "gate.xml", "--annotations", "github", "--format", "json"]
    outcome = command("gate", "--baseline", edited(pinned, change), swept[0], *words)
    assert outcome.code == code
    assert (outcome.out == "") is (code == 4)
    assert outcome.err.startswith(annotated) if annotated else outcome.err == ""
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()[0]
    assert {name: int(suite.get(name, "")) for name in counts} == counts
    assert written.read_text().startswith(f"# what was there before\n{summary}")
    if code == 1:
        assert json.loads(outcome.out)["verdict"] == "fail"
        assert "so the draft is what changed" in written.read_text()


def test_a_summary_that_cannot_be_written_does_not_hide_the_verdict(
    command, swept, pinned, monkeypatch, tmp_path
):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    outcome = command("gate", "--baseline", edited(pinned, once_better), swept[0])
    assert outcome.code == 1
    assert "cannot write the summary" in outcome.err


def test_a_report_that_cannot_be_written_leaves_no_verdict(failing, swept, pinned, tmp_path):
    lost = tmp_path / "lost"
    lost.symlink_to(tmp_path / "none" / "file")
    words = ["gate", "--baseline", pinned, swept[0], "--junit", lost]
    assert f"cannot write to `{lost}`" in failing(2, *words)


KEPT = ROOT / "results/reference/qwen2.5-coder"


def test_a_baseline_under_a_users_key_says_how_it_pairs_elsewhere(
    command, swept, monkeypatch, tmp_path
):
    key = request_key()
    monkeypatch.delenv("DRAFTBENCH_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "draftbench/key"
    file.parent.mkdir()
    file.write_text(key.hex())
    ours = command("gate", swept[0], "--save", tmp_path / "a", "--candidate", "draft", "--k", 1)
    assert f"set DRAFTBENCH_KEY there to `hex:` followed by the content of {file}" in ours.err
    theirs = command("gate", KEPT, "--save", tmp_path / "b")
    assert (theirs.code, "DRAFTBENCH_KEY" in theirs.err) == (0, False)


def test_a_run_without_the_baselines_draft_names_those_that_replace_it(failing, swept, pinned):
    said = failing(4, "gate", "--baseline", with_fields(pinned, candidate="other"), swept[0])
    assert "the draft was other, which this run did not measure\n" in said
    assert "hint: measure it too (--drafts, --quant), or name the draft that replaces it" in said
    assert "this run has draft, ngram" in said


def test_without_a_run_the_newest_is_saved_and_judged_also_against_a_folder(
    command, swept, tmp_path, monkeypatch
):
    """The run that a baseline was made from, or a copy of it, measured nothing new."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(swept[0], "results/runs/one")
    assert command("gate", "--save", "b.json").code == 0
    for baseline in ("b.json", swept[0]):
        outcome = command("gate", "--baseline", baseline)
        assert outcome.code == 3
        assert (
            outcome.out
            == "INCONCLUSIVE: this is the run that the baseline was made from; gate a later one.\n"
        )
        assert "the newest run: results/runs/one\n" in outcome.err


@pytest.mark.parametrize("words", [(), ("RUN",), ("--candidate", "ngram")])
def test_without_a_way_the_two_are_named(failing, words):
    assert failing(2, "gate", *words).splitlines() == [
        "error: say what to do with the run: save it as a baseline, or judge it against one",
        "hint: `draftbench gate --save FILE RUN`, then `draftbench gate --baseline FILE RUN`",
    ]


@pytest.mark.parametrize(
    ("words", "way", "others"),
    [
        ("--save b RUN --baseline c", "save", "--baseline"),
        # Known fault: they were ignored without a word.
        ("--save b RUN --junit j --max-drop x", "save", "--junit, --max-drop"),
        ("--save b RUN --format json -o o", "save", "--format, --output"),
        ("--baseline b RUN --k 2", "baseline", "--k"),
        ("--baseline b RUN --min-speedup 1", "baseline", "--min-speedup"),
    ],
)
def test_flags_that_clash_are_named(failing, words, way, others):
    error, hint = failing(2, "gate", *words.split()).splitlines()
    assert error == f"error: --{way} cannot be combined with {others}"
    assert hint.startswith(f"hint: `draftbench gate --{way} FILE RUN`;")


def test_a_saved_baseline_says_of_what_it_is(command, failing, tmp_path):
    """Known fault: costs of no file were nothing amiss if candidate and k were named."""
    file, run = tmp_path / "base.json", KEPT.with_name("tinyllama-stories")
    named = ("--candidate", "stories15M", "--k", 3)
    saved = command("gate", run, "--save", file, *named, "--concurrency", 7)
    assert "note: times in this baseline are at concurrency 1, not 7\nsaved stories15M" in saved.err
    said = failing(2, "gate", run, "--save", file, *named, "--costs", "none.yaml")
    assert "none.yaml" in said
    # Where drafting costs nothing, the largest k is the best.
    costs = tmp_path / "costs.yaml"
    free = "drafts: {stories15M: {step_s: 0.000001}}"
    passes = f"{{target_step_s: 0.1, verify: {{2: 0.1, 9: 0.1}}, {free}}}"
    costs.write_text(f"engine: elsewhere 1.0\nconcurrency: {{1: {passes}}}")
    saved = command("gate", run, "--save", file, "--costs", costs)
    assert json.loads(file.read_text())["question"]["k"] == 4
    assert "note: costs come from elsewhere 1.0" in saved.err
    saved = command("gate", run, "--save", file, *named, "--costs", costs)
    assert "costs come from" not in saved.err
