"""The gate as CI runs it: every exit code, the files that CI reads, and a run that it makes
itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from draftbench.run_folder.key import request_key

ROOT = Path(__file__).parents[2]


def edited(file: Path, change) -> Path:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return file


def once_better(baseline):
    """Every request took a third fewer rounds."""
    for request in baseline["requests"]:
        request["rounds"] /= 1.5
        request["passes"] /= 1.5


def once_shaken(baseline):
    """Every second request took a fifth more rounds, the others fewer by as much."""
    for number, request in enumerate(baseline["requests"]):
        factor = 1.2 if number % 2 else 1 / 1.2
        request["rounds"] *= factor
        request["passes"] *= factor


def twice_the_same(baseline):
    baseline["requests"].append(baseline["requests"][0])


def absurdly_long(baseline):
    baseline["question"]["k"] = 2_000_000_000


def other_mode(baseline):
    baseline["question"]["mode"] = "sampled"


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda _: None, 0, "PASS: draft against the baseline draft\n"),
        (once_better, 1, "FAIL: draft against the baseline draft\n"),
        (twice_the_same, 2, "error: `"),
        (absurdly_long, 2, "error: `"),
        (once_shaken, 3, "INCONCLUSIVE: draft against the baseline draft\n"),
        (other_mode, 4, "error: the baseline cannot be compared: --mode was sampled"),
    ],
)
def test_every_exit_code_leaves_the_process(swept, pinned, change, code, said):
    words = ["gate", "--baseline", str(edited(pinned, change)), str(swept[0])]
    done = subprocess.run(
        [sys.executable, "-m", "draftbench", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DRAFTBENCH_KEY": "the key of the tests"},
    )
    assert done.returncode == code
    assert (done.stderr if code in (2, 4) else done.stdout).startswith(said)


@pytest.mark.parametrize(
    ("change", "flags", "code"),
    [
        (once_better, ["--exit-zero"], 0),
        (once_shaken, ["--exit-zero"], 0),
        (once_shaken, ["--inconclusive", "pass"], 0),
        (once_shaken, ["--inconclusive", "fail"], 1),
        (once_better, ["--inconclusive", "pass"], 1),
        (lambda _: None, ["--inconclusive", "fail"], 0),
        (other_mode, ["--exit-zero"], 4),
    ],
)
def test_flags_change_the_exit_code_of_what_they_name(command, swept, pinned, change, flags, code):
    assert command("gate", "--baseline", edited(pinned, change), swept[0], *flags).code == code


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Flags for every file that CI reads, and the job summary that GitHub names."""
    summary = tmp_path / "summary.md"
    summary.write_text("# what was there before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    return ["--junit", tmp_path / "gate.xml", "--annotations", "github"]


def outcomes(file: Path) -> dict[str, str]:
    suite = ElementTree.parse(file).getroot()[0]
    return {name: suite.get(name, "") for name in ("tests", "failures", "errors", "skipped")}


def test_a_failure_is_shown_wherever_ci_looks(command, swept, pinned, places, tmp_path):
    edited(pinned, once_better)
    outcome = command("gate", "--baseline", pinned, swept[0], *places, "--format", "json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["verdict"] == "fail"
    assert outcome.err.startswith("::error title=draftbench gate%3A acceptance regression::")
    assert int(outcomes(tmp_path / "gate.xml")["failures"]) >= 2
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# what was there before\n### ❌ draftbench gate: fail")
    assert "so the draft is what changed" in summary


def test_a_pass_leaves_empty_reports(command, swept, pinned, places, tmp_path):
    outcome = command("gate", "--baseline", pinned, swept[0], *places)
    assert (outcome.code, outcome.err) == (0, "")
    found = outcomes(tmp_path / "gate.xml")
    assert (found["failures"], found["errors"], found["skipped"]) == ("0", "0", "0")
    assert "✅ draftbench gate: pass" in (tmp_path / "summary.md").read_text()


def test_a_refusal_is_shown_there_too(command, swept, pinned, places, tmp_path):
    edited(pinned, other_mode)
    outcome = command("gate", "--baseline", pinned, swept[0], *places)
    assert (outcome.code, outcome.out) == (4, "")
    assert outcome.err.startswith("::error title=draftbench gate%3A incomparable::")
    assert outcomes(tmp_path / "gate.xml")["errors"] == "1"
    assert "incomparable" in (tmp_path / "summary.md").read_text()


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


def test_every_verdict_is_appended_to_the_history(command, swept, pinned, tmp_path):
    for _ in range(2):
        command("gate", "--baseline", pinned, swept[0], "--history", tmp_path / "h.jsonl")
    lines = (tmp_path / "h.jsonl").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["pass", "pass"]


@pytest.fixture
def measured(embedded, pinned, tmp_path, monkeypatch):
    """measured(target, traffic, *more): the words of a gate that measures by itself."""
    monkeypatch.setenv("DRAFTBENCH_KEY", "the key of the tests")

    def words(*more, target=embedded / "target", traffic="suite:completion", draft="draft"):
        asked = ["gate", "--baseline", pinned, "--target", target, "--draft", embedded / draft]
        return [*asked, "--traffic", traffic, "--threads", 1, "--out", tmp_path / "run", *more]

    return words


def test_the_gate_measures_what_it_needs_on_the_baselines_own_requests(command, measured, tmp_path):
    outcome = command(*measured("--format", "json"))
    assert outcome.code == 0
    result = json.loads(outcome.out)
    assert (result["verdict"], result["requests"], result["k"]) == ("pass", 6, 2)
    # The same pair again: nothing differs by a digit.
    assert {check["difference"]["value"] for check in result["checks"]} == {0.0}
    assert "6 of the baseline's 6 requests" in outcome.err
    assert not (tmp_path / "run" / "observations" / "decode.jsonl").exists()
    # The suite has more requests than the baseline: the run is whole without them.
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["traffic"]
    assert kept["requests"] == 6
    assert kept["dropped"] == {"not in the baseline": kept["rows"] - 6}
    assert "not finished" not in command("recommend", tmp_path / "run").out


@pytest.mark.parametrize(
    ("recorded", "cores", "said"),
    [
        (1, 2, "CPU threads: 1, as in the baseline; --threads sets another number"),
        (4, 2, "CPU threads: 2, all there are; the baseline ran on 4"),
    ],
)
def test_the_gate_measures_on_the_threads_of_the_baseline_as_far_as_there_are_cores(
    command, pinned, measured, tmp_path, monkeypatch, recorded, cores, said
):
    edited(pinned, lambda baseline: baseline.update(threads=recorded))
    monkeypatch.setattr("draftbench.run_folder.manifest.cores_here", lambda: cores)
    words = measured()
    at = words.index("--threads")
    outcome = command(*words[:at], *words[at + 2 :])
    assert f"{said}\n" in outcome.err
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["environment"]["threads"] == min(recorded, cores)


def test_the_gate_says_that_the_machine_is_busy_as_a_sweep_does(command, measured, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert "the machine is busy (load " in command(*measured()).err


def test_traffic_in_named_fields_is_read_as_the_sweep_read_it(
    command, embedded, tmp_path, monkeypatch
):
    """`said` is no usual place of a prompt: both the sweep and the gate are told."""
    log = tmp_path / "log.jsonl"
    prompts = ["import os\n\n\ndef main():\n", "class Stack:\n    def "]
    log.write_text("".join(json.dumps({"said": text}) + "\n" for text in prompts))
    effort = ["--max-new-tokens", 8, "--threads", 1, "--measure", "replay", "--no-controls"]
    words = ["--target", embedded / "target", "--traffic", log, "--prompt-field", "said"]
    run, file = tmp_path / "run", tmp_path / "baseline.json"
    assert command("sweep", *words, "--drafts", embedded / "draft", *effort, "--out", run).code == 0
    assert command("gate", "--save", file, run, "--candidate", "draft", "--k", 2).code == 0
    judged = ["gate", "--baseline", file, *words, "--draft", embedded / "draft", "--threads", 1]
    outcome = command(*judged, "--out", tmp_path / "again", "--format", "json")
    assert json.loads(outcome.out)["requests"] == 2
    assert "2 of the baseline's 2 requests" in outcome.err


def test_a_limit_on_times_has_them_measured(command, measured, tmp_path):
    outcome = command(*measured("--max-drop", "speedup:90%", "--format", "json"))
    assert outcome.code in (0, 1, 3)
    metrics = {check["metric"] for check in json.loads(outcome.out)["checks"]}
    assert "speedup" in metrics
    assert (tmp_path / "run" / "observations" / "decode.jsonl").exists()


@pytest.mark.parametrize(
    ("more", "traffic", "said"),
    [
        (["--temperature", 0.9], "suite:completion", "sampling of 6 of 6 requests differs"),
        ([], "suite:stories", "other traffic: only 0 of the baseline's 6"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_model_is_loaded(
    command, measured, tmp_path, more, traffic, said
):
    outcome = command(*measured(*more, traffic=traffic))
    assert (outcome.code, outcome.out) == (4, "")
    assert said in outcome.err
    assert not (tmp_path / "run").exists()


def test_another_key_is_refused_before_a_model_is_loaded(command, measured, monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_KEY", "another key of the tests")
    outcome = command(*measured())
    assert outcome.code == 4
    assert "key of the hashes was" in outcome.err
    assert "DRAFTBENCH_KEY" in outcome.err


def test_a_baseline_under_a_users_key_says_how_it_pairs_elsewhere(
    command, swept, monkeypatch, tmp_path
):
    kept = ROOT / "results/reference/qwen2.5-coder"
    key = request_key()
    monkeypatch.delenv("DRAFTBENCH_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "draftbench/key"
    file.parent.mkdir()
    file.write_text(key.hex())
    ours = command("gate", swept[0], "--save", tmp_path / "a", "--candidate", "draft", "--k", 1)
    assert f"as in CI, set DRAFTBENCH_KEY to `hex:` and the content of {file}" in ours.err
    theirs = command("gate", kept, "--save", tmp_path / "b")
    assert (theirs.code, "DRAFTBENCH_KEY" in theirs.err) == (0, False)


def test_a_load_without_times_is_saved_with_those_of_another_and_says_so(command, tmp_path):
    run, file = ROOT / "results/reference/qwen2.5-coder", tmp_path / "baseline.json"
    saved = command("gate", run, "--save", file, "--concurrency", 7)
    assert saved.code == 0
    assert "times in this baseline are at concurrency 1, not 7\n" in saved.err
    assert json.loads(file.read_text()).get("concurrency", 1) == 1


def test_a_run_without_the_baselines_draft_answers_another_question(command):
    kept = ROOT / "results"
    baseline, run = kept / "baselines/qwen2.5-coder.json", kept / "reference/tinyllama-gsm8k"
    outcome = command("gate", "--baseline", baseline, run)
    assert (outcome.code, outcome.out) == (4, "")
    assert "error: the baseline is of `qwen0.5:int4`, which this run did not measure" in outcome.err
    assert "hint: its candidates are stories15M" in outcome.err


def test_a_draft_that_cannot_draft_is_an_error_with_its_reason(command, measured):
    outcome = command(*measured(draft="foreign"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "cannot draft for" in outcome.err


WAYS = {
    "old": "--old RUN --new RUN",
    "save": "--save FILE RUN",
    "judge": "--baseline FILE RUN",
    "measure": "--baseline FILE --target MODEL --draft MODEL --traffic SOURCE",
}


@pytest.mark.parametrize(
    ("words", "way", "missing"),
    [
        ("", "old", "--new, --old"),
        ("RUN", "old", "--new, --old"),
        ("--old A", "old", "--new"),
        ("--save b", "save", "RUN"),
        ("--baseline b", "judge", "RUN"),
        ("--baseline b --target t --draft d", "measure", "--traffic"),
    ],
)
def test_flags_that_are_missing_are_named(failing, words, way, missing):
    said = failing(2, "gate", *words.split())
    assert said.startswith(f"error: missing: {missing}\nhint: `draftbench gate {WAYS[way]}`;")


@pytest.mark.parametrize(
    ("words", "way", "flag", "others"),
    [
        ("--save b RUN --baseline c", "save", "--save", "--baseline"),
        # Known fault: they were ignored without a word.
        ("--save b RUN --junit j --max-drop x", "save", "--save", "--junit, --max-drop"),
        ("--save b RUN --format json -o o", "save", "--save", "--format, --output"),
        ("--save b RUN --draft d --traffic t", "save", "--save", "--draft, --traffic"),
        ("--save b RUN --history h", "save", "--save", "--history"),
        ("--old A --new B RUN", "old", "--old", "RUN"),
        ("--old A --baseline b RUN", "judge", "--baseline", "--old"),
        ("--baseline b RUN --k 2", "judge", "--baseline", "--k"),
        ("--baseline b RUN --min-speedup 1", "judge", "--baseline", "--min-speedup"),
        ("--baseline b RUN --quant int4", "measure", "--quant", "RUN"),
        ("--baseline b --target t --draft d --traffic x RUN", "measure", "--target", "RUN"),
        ("--baseline b --target t --candidate d", "measure", "--target", "--candidate"),
    ],
)
def test_flags_that_clash_are_named(failing, words, way, flag, others):
    said = failing(2, "gate", *words.split())
    assert said.startswith(
        f"error: {flag} cannot be combined with {others}\nhint: `draftbench gate {WAYS[way]}`;"
    )


@pytest.mark.parametrize("copied", [False, True])
def test_the_run_that_a_baseline_was_made_from_is_inconclusive_also_in_a_copy(
    command, swept, tmp_path, copied
):
    file, run = tmp_path / "own.json", swept[0]
    named = ["--candidate", "draft", "--k", 2]
    assert command("gate", "--save", file, run, *named).code == 0
    if copied:
        run = shutil.copytree(run, tmp_path / "copy")
    outcome = command("gate", "--baseline", file, run)
    assert outcome.code == 3
    above, _ = outcome.out.split("All requests")
    assert "this is the run that the baseline was made from; nothing new" in above


def test_a_baseline_of_a_provisional_answer_says_so(command, tmp_path):
    run = ROOT / "results" / "reference" / "tinyllama-gsm8k"
    said = " ".join(command("gate", "--save", tmp_path / "base.json", run).err.split())
    assert "is provisional: only 10 requests; only 6 requests were decoded" in said
