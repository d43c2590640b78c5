"""`draftbench export` on run folders made by hand."""

from __future__ import annotations

import json

import pytest

from draftbench.cli import main
from draftbench.models.engine_rules import ENGINES


@pytest.fixture
def command(capsys):
    """Run a command line: its exit code, stdout and stderr."""

    def run(*words):
        code = main(["export", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def failed(outcome, code):
    """Nothing on stdout, a message and a hint on stderr."""
    assert outcome[:2] == (code, "")
    lines = [line for line in outcome[2].splitlines() if line]
    assert [line.split(":")[0] for line in lines[-2:]] == ["error", "hint"]
    return "\n".join(lines)


def test_stdout_is_the_configuration_alone_and_notes_go_to_stderr(command, make_run):
    code, out, err = command(make_run(), "--engine", "vllm")
    assert code == 0
    assert json.loads(out) == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 2,
        "draft_sample_method": "greedy",
    }
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert "org/target" in err


def test_the_engines_own_names_take_the_place_of_the_runs(command, make_run, tmp_path):
    names = ["--target", "T", "--draft", "D", "-o", tmp_path / "spec.json"]
    code, out, err = command(make_run(), "--engine", "vllm", *names)
    assert (code, out) == (0, "")
    assert json.loads((tmp_path / "spec.json").read_text())["model"] == "D"
    assert "vllm serve T " in err


@pytest.mark.parametrize(
    "drafts", [("a/small", "b/small"), (".",), ("./link",)], ids=["two fit", "dot", "symlink"]
)
def test_a_draft_whose_path_the_run_does_not_record_must_be_given(command, make_run, drafts):
    """Known fault: its short name was exported, which no engine can load."""
    run = make_run(drafts=drafts)
    message = failed(command(run, "--engine", "vllm"), 2)
    assert "does not record the path of the draft `small`" in message
    assert "--draft" in message
    assert json.loads(command(run, "--engine", "vllm", "--draft", "./x")[1])["model"] == "./x"


@pytest.mark.parametrize(
    ("given", "specs", "exported", "revision", "note"),
    [
        ("./link", {"small": "./link"}, "./link", None, "`./link` is a path on the measuring"),
        ("org/small@abc", None, "org/small", "abc", ""),
        ("/models@home/small", None, "/models@home/small", None, ""),
    ],
    ids=["link", "revision", "at sign in a path"],
)
def test_a_draft_is_exported_as_it_was_given_with_its_revision_apart(
    command, make_run, given, specs, exported, revision, note
):
    _, out, err = command(make_run(drafts=(given,), specs=specs), "--engine", "vllm")
    found = json.loads(out)
    assert (found["model"], found.get("revision")) == (exported, revision)
    assert note in err


def test_vocabularies_are_those_of_the_runs_models(command, make_run):
    run = make_run(sizes=(100, 90))
    assert json.loads(command(run, "--engine", "vllm")[1])["use_heterogeneous_vocab"] is True


def test_a_load_that_was_not_timed_adds_no_draft_length(command, make_run):
    code, out, err = command(make_run(), "--engine", "vllm", "--concurrency", "1,8")
    assert (code, "per_batch_size" in out) == (0, False)
    assert "note: from 8 concurrent requests on the run is undecided: k = 2 is kept" in err


# Three tokens in a pass are free alone, and thrice as dear beside seven other requests: with a
# draft that is always right 8 tokens take 3 rounds of 0.12 s at k = 2 and 4 of 0.11 s at k = 1, and
# then 3 of 0.32 s and 4 of 0.11 s.
ENGINE = """
engine: vLLM 0.26
batches:
  1: {target_step_s: 0.1, verify: {2: 0.1, 3: 0.1}, drafts: {small: {step_s: 0.01}}}
  8: {target_step_s: 0.1, verify: {2: 0.1, 3: 0.3}, drafts: {small: {step_s: 0.01}}}
"""


def test_with_an_engines_costs_it_is_what_recommend_says_with_them(command, make_run, tmp_path):
    (tmp_path / "vllm.yaml").write_text(ENGINE)
    words = ["--costs", tmp_path / "vllm.yaml", "--concurrency", "1,8"]
    code, out, err = command(make_run(), "--engine", "vllm", *words)
    assert code == 0
    # Passes of eight rows over three tokens each take .2 s more than those over two: from 16 tokens
    # on, which six rows reach at k = 2.
    assert json.loads(out)["num_speculative_tokens_per_batch_size"] == [[1, 5, 2], [6, 8, 1]]
    assert "note: costs are those of vLLM 0.26" in err


def test_another_runs_costs_are_taken_too(command, make_run):
    code, out, _ = command(run := make_run(), "--engine", "vllm", "--costs", run)
    assert (code, json.loads(out)["num_speculative_tokens"]) == (0, 2)


def test_acceptance_by_position_is_that_of_the_run_and_said_to_be_for_timing(command, make_run):
    # A draft that is right in half of all rounds: 1/2 and 1/4, but for the ends of responses.
    code, out, err = command(make_run(accept=0.5), "--engine", "vllm", "--synthetic", "--force")
    found = json.loads(out)
    rates = found["synthetic_acceptance_rates"]
    assert (code, len(rates)) == (0, found["num_speculative_tokens"])
    assert rates[0] == pytest.approx(0.5, abs=0.1)
    assert "note: for timing only" in err


@pytest.mark.parametrize("engine", ENGINES)
def test_the_versions_of_its_rules_are_printed_without_a_run(capsys, engine):
    assert main(["export", "--engine", engine, "--about"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    title, head, *rows = printed.out.splitlines()
    assert title == f"What is known of {ENGINES[engine].name}"
    assert head.split() == ["rule", "read", "in", "run", "with"]
    assert len(rows) == len(ENGINES[engine].sources) + 1


def test_a_run_that_does_not_recommend_it_exits_1(command, make_run):
    run = make_run(accept=0.0, step=0.5)
    said = failed(command(run, "--engine", "vllm"), 1)
    assert "do not speculate" in said
    assert "--force" in said
    code, out, err = command(run, "--engine", "vllm", "--force")
    assert (code, json.loads(out)["model"]) == (0, "org/small")
    assert "note: not recommended: the run's answer is `do not speculate`" in err
    _, out, _ = command(run, "--engine", "llamacpp", "--force")
    assert out.startswith("# not recommended: the run's answer is `do not speculate`")


def test_another_candidate_is_exported_at_its_best_k_and_called_not_recommended(command, make_run):
    run = make_run(drafts=("org/small", "org/tiny"), others=[("tiny", 0.3)])
    assert json.loads(command(run, "--engine", "vllm")[1])["model"] == "org/small"
    code, out, err = command(run, "--engine", "vllm", "--candidate", "tiny")
    assert (code, json.loads(out)["model"]) == (0, "org/tiny")
    assert "note: not recommended: the run recommends small at k = 2; exported because of" in err
    recommended = command(run, "--engine", "vllm", "--candidate", "small")
    assert recommended == command(run, "--engine", "vllm")
    assert "did you mean `tiny`?" in failed(
        command(run, "--engine", "vllm", "--candidate", "tinny"), 2
    )


def test_what_is_exported_and_saved_keeps_the_limits_given_to_recommend(command, make_run, capsys):
    """Known fault: they knew no limits, and one run had several recommended drafts."""
    run = make_run(drafts=("org/small", "org/tiny"), others=[("tiny", 0.3)], weights=10**9)
    limits = ("--max-memory", "500MB")
    assert main(["recommend", str(run), *limits, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"]["draft"] == "tiny"
    assert json.loads(command(run, "--engine", "vllm")[1])["model"] == "org/small"
    code, out, err = command(run, "--engine", "vllm", *limits)
    assert (code, json.loads(out)["model"]) == (0, "org/tiny")
    assert "not recommended" not in err
    saved = run.parent / "baseline.json"
    assert main(["gate", "--save", str(saved), str(run), *limits]) == 0
    assert json.loads(saved.read_text())["candidate"] == "tiny"


def test_an_unreached_speed_up_exits_1(command, make_run):
    failed(command(make_run(), "--engine", "vllm", "--min-speedup", "9"), 1)


def test_no_known_speed_exits_1_even_when_forced(command, make_run):
    run = make_run(timed=False)
    assert "no candidate's speed is known" in failed(command(run, "--engine", "vllm"), 1)
    failed(command(run, "--engine", "vllm", "--force"), 1)


def test_what_no_candidate_keeps_is_said_to_be_a_limit(command, make_run):
    """Known fault: it said that no speed was known."""
    err = failed(command(make_run(weights=10**9), "--engine", "vllm", "--max-memory", "1MB"), 1)
    assert "nothing to export: no candidate of known speed keeps the limits" in err


def test_the_target_as_its_own_draft_is_never_exported(command, make_run):
    run = make_run(draft="self", drafts=("self",))
    failed(command(run, "--engine", "vllm", "--force"), 1)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--engine", "tgi"], "TGI serves no draft model"),
        (["--engine", "vlm"], "did you mean `vllm`?"),
        (["--engine", "lmdeploy"], "unknown engine `lmdeploy`"),
        (["--engine", "vllm", "--engine-version", "0.12"], "use vLLM 0.15 or newer"),
        (["--engine", "vllm", "--concurrency", "0"], "the smallest value is 1"),
        (["--engine", "vllm", "--costs", "none.yaml"], "cannot read `none.yaml`"),
        (["--engine", "llamacpp", "--engine-version", "7"], "before-rename or after-rename"),
        (["--engine", "vllm", "--draft", "a\x1b[31m"], "cannot be written into a command"),
        (["--engine", "sglang", "--draft=--trust-remote-code"], "cannot be written into a command"),
        (["--engine", "vllm", "-o", "/no/such/folder/x"], "cannot write"),
        ([], "--engine"),
    ],
)
def test_what_cannot_be_exported_exits_2(command, make_run, words, meant):
    assert meant in failed(command(make_run(), *words), 2)


def test_without_a_run_there_is_nothing_to_export(capsys):
    code = main(["export", "--engine", "vllm"])
    printed = capsys.readouterr()
    assert "error: a run folder is missing" in failed((code, printed.out, printed.err), 2)


def test_a_folder_that_is_no_run_exits_2(command, tmp_path):
    assert "is not a run folder" in failed(command(tmp_path, "--engine", "vllm"), 2)
