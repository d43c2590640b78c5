"""`draftbench export` on run folders made by hand."""

import json
import subprocess

import pytest

from draftbench.engines.every import ENGINES

VLLM = ("--engine", "vllm")


@pytest.fixture
def export(command):
    """What is exported for vLLM, as JSON, and what stands on stderr."""

    def export(run, *words):
        outcome = command("export", run, *VLLM, *words)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out), outcome.err

    return export


def test_stdout_is_the_configuration_alone_and_notes_go_to_stderr(export, make_run):
    found, err = export(make_run())
    assert found == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 2,
        "draft_sample_method": "greedy",
    }
    assert err.splitlines() == [
        "serve: vllm serve org/target --speculative-config \\",
        """    \'{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 2, """
        """"draft_sample_method": "greedy"}\'""",
        "note: the speed-up was measured in draftbench, and vLLM may gain less or nothing:",
        "  measure it there: `draftbench sweep --engine vllm`",
        "note: send temperature 0 with every request, as measured; otherwise vLLM samples by the",
        "  checkpoint's generation_config.json",
        "note: vLLM's default runner (0.31 to 0.33) runs a draft model without CUDA graphs: a",
        "  small draft costs more there",
    ]


def test_the_engines_own_names_take_the_place_of_the_runs(command, make_run, tmp_path):
    names = ["--target", "T", "--draft", "D", "-o", tmp_path / "spec.json"]
    outcome = command("export", make_run(), *VLLM, *names)
    assert (outcome.code, outcome.out) == (0, "")
    assert json.loads((tmp_path / "spec.json").read_text())["model"] == "D"


def test_how_to_serve_is_broken_at_88_columns_and_can_be_pasted(command, make_run, tmp_path):
    """Known fault: it was one line of any length."""
    name, path = "/srv/" + 50 * "m", tmp_path / "two words" / "a 'spec' of mine.json"
    path.parent.mkdir()
    outcome = command("export", make_run(), *VLLM, "--target", name, "-o", path)
    lines = outcome.err.partition("serve: ")[2].splitlines()
    last = next(at for at, line in enumerate(lines) if not line.endswith(" \\"))
    pasted = "\n".join(lines[: last + 1])
    assert last > 0
    assert max(map(len, [f"serve: {lines[0]}", *lines[1:last]])) <= 88
    script = f"vllm() {{ printf '%s\\0' \"$@\"; }}; {pasted}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\0")[:-1] == [
        "serve", name, "--speculative-config", path.read_text().rstrip("\n"),
    ]  # fmt: skip


def test_the_most_urgent_things_to_do_are_printed_and_every_note_with_all(
    command, make_run, monkeypatch
):
    """A draft from a folder that is not recommended, at two loads, to be converted for llama.cpp:
    five to do.
    """
    monkeypatch.setattr("draftbench.cli.export.SHOWN", 3)
    run = make_run(accept=0.0, step=0.5, drafts=("./small",), specs={"small": "./small"})
    words = ("export", run, "--engine", "llamacpp", "--anyway", "--concurrency", "1,8")
    few, every = command(*words), command(*words, "--all")
    assert few.out == every.out
    shown, listed = (
        [x for x in o.err.splitlines() if x.startswith("note: ")] for o in (few, every)
    )
    assert (len(shown), shown) == (3, listed[:3])
    assert len(listed) == 5
    assert few.err.endswith("… 2 more notes: --all\n")
    assert "more note" not in every.err


def test_a_draft_whose_path_the_run_does_not_record_must_be_given(export, failing, make_run):
    """Known fault: its short name was exported, which no engine can load."""
    run = make_run(specs={})
    message = failing(2, "export", run, *VLLM)
    assert "does not record what --drafts called `small`" in message
    assert "--draft" in message
    assert export(run, "--draft", "./x")[0]["model"] == "./x"


@pytest.mark.parametrize(
    ("given", "exported", "revision"),
    [
        ("./link", "./link", None),
        ("org/small@abc", "org/small", "abc"),
        ("/models@home/small", "/models@home/small", None),
    ],
)
def test_a_draft_is_exported_as_it_was_given_with_its_revision_apart(
    export, make_run, given, exported, revision
):
    found, _ = export(make_run(drafts=(given,), specs={"small": given}))
    assert (found["model"], found.get("revision")) == (exported, revision)


def test_vocabularies_are_those_of_the_runs_models(export, make_run):
    assert export(make_run(sizes=(100, 90)))[0]["use_heterogeneous_vocab"] is True


def test_a_load_that_was_not_timed_adds_no_draft_length(export, make_run):
    found, err = export(make_run(), "--concurrency", "1,8", "--all")
    assert "num_speculative_tokens_per_batch_size" not in found
    assert "note: the run is inconclusive at 8 concurrent requests: k = 2 is kept" in err


# Three tokens in a pass are free alone, and thrice as dear beside seven other requests: with a
# draft that is always right 8 tokens take 3 rounds of 0.12 s at k = 2 and 4 of 0.11 s at k = 1, and
# then 3 of 0.32 s and 4 of 0.11 s.
ENGINE = """
engine: vLLM 0.26
concurrency:
  1: {target_step_s: 0.1, verify: {2: 0.1, 3: 0.1}, drafts: {small: {step_s: 0.01}}}
  8: {target_step_s: 0.1, verify: {2: 0.1, 3: 0.3}, drafts: {small: {step_s: 0.01}}}
"""


def test_with_an_engines_costs_it_is_what_recommend_says_with_them(export, make_run, tmp_path):
    (tmp_path / "vllm.yaml").write_text(ENGINE)
    found, err = export(
        make_run(), "--costs", tmp_path / "vllm.yaml", "--concurrency", "1,8", "--all"
    )
    # Passes of eight rows over three tokens each take .2 s more than those over two: from 16 tokens
    # on, which six rows reach at k = 2.
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 5, 2], [6, 8, 1]]
    assert "note: costs come from vLLM 0.26" in err


def test_acceptance_by_position_is_that_of_the_run_and_said_to_be_for_timing(export, make_run):
    # A draft that is right in half of all rounds: 1/2 and 1/4, but for the ends of responses.
    found, err = export(make_run(accept=0.5), "--synthetic", "--anyway")
    rates = found["synthetic_acceptance_rates"]
    assert len(rates) == found["num_speculative_tokens"]
    assert rates[0] == pytest.approx(0.5, abs=0.1)
    assert "note: for timing only" in err


@pytest.mark.parametrize("engine", ENGINES)
def test_the_versions_of_its_rules_are_printed_without_a_run(command, engine):
    outcome = command("export", "--engine", engine, "--about")
    assert (outcome.code, outcome.err) == (0, "")
    title, head, *rows = outcome.out.splitlines()
    assert title == f"What is known of {ENGINES[engine].name}"
    assert head.split() == ["rule", "read", "in", "run", "with"]
    sources = ENGINES[engine].sources
    named = [row for row in rows[:-1] if not row.startswith(" ")]  # without continued lines
    assert all(row.startswith(each.rule) for row, each in zip(named, sources, strict=True))


def test_a_run_that_does_not_recommend_it_exits_1(command, export, failing, make_run):
    run = make_run(accept=0.0, step=0.5)
    said = failing(1, "export", run, *VLLM)
    assert "do not speculate" in said
    assert "--anyway" in said
    found, err = export(run, "--anyway")
    assert found["model"] == "org/small"
    assert "note: not recommended: the run's answer is `do not speculate`" in err
    for_llama = command("export", run, "--engine", "llamacpp", "--anyway").out
    assert for_llama.startswith("# not recommended: the run's answer is `do not speculate`")


def test_another_candidate_is_exported_at_its_best_k_and_called_not_recommended(
    export, failing, make_run
):
    run = make_run(drafts=("org/small", "org/tiny"), others=[("tiny", 0.3)])
    recommended = export(run)
    assert recommended[0]["model"] == "org/small"
    found, err = export(run, "--candidate", "tiny")
    assert found["model"] == "org/tiny"
    assert "note: not recommended: the run recommends small at k = 2; exported because of" in err
    assert export(run, "--candidate", "small") == recommended
    wrong = failing(2, "export", run, *VLLM, "--candidate", "tinny")
    assert "did you mean `tiny`?" in wrong


def test_what_is_exported_and_saved_keeps_the_limits_given_to_recommend(command, export, make_run):
    """Known fault: they knew no limits, and one run had several recommended drafts."""
    run = make_run(drafts=("org/small", "org/tiny"), others=[("tiny", 0.3)], weights=10**9)
    limits = ("--max-memory", "500MB")
    answer = json.loads(command("recommend", run, *limits, "--format", "json").out)
    assert answer["choice"]["draft"] == "tiny"
    assert export(run)[0]["model"] == "org/small"
    found, err = export(run, *limits)
    assert found["model"] == "org/tiny"
    assert "not recommended" not in err
    saved = run.parent / "baseline.json"
    assert command("gate", "--save", saved, run, *limits).code == 0
    assert json.loads(saved.read_text())["candidate"] == "tiny"


@pytest.mark.parametrize(
    ("made", "words", "meant"),
    [
        ({}, ["--min-speedup", "9"], "so there is nothing to export"),
        ({"timed": False}, [], "no candidate's speed is known"),
        ({"timed": False}, ["--anyway"], "no candidate's speed is known"),
        # Known fault: it said that no speed was known.
        (
            {"weights": 10**9},
            ["--max-memory", "1MB"],
            "nothing to export: none of the timed candidates keeps the limits",
        ),
        # The target as its own draft is never exported.
        ({"draft": "self", "drafts": ("self",)}, ["--anyway"], "nothing to export"),
    ],
)
def test_where_nothing_can_be_recommended_nothing_is_exported(
    failing, make_run, made, words, meant
):
    assert meant in failing(1, "export", make_run(**made), *VLLM, *words)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--engine", "vlm"], "did you mean `vllm`?"),
        (["--engine", "lmdeploy"], "unknown engine `lmdeploy`"),
        ([*VLLM, "--engine-version", "0.12"], "use vLLM 0.26 or newer"),
        (["--engine", "llamacpp", "--engine-version", "7"], "of llama.cpp a build, b11368"),
        ([*VLLM, "--draft", "a\x1b[31m"], "cannot be written into a command"),
        (["--engine", "sglang", "--draft=--trust-remote-code"], "cannot be written into a command"),
        ([*VLLM, "-o", "/no/such/folder/x"], "cannot write"),
        ([], "--engine"),
    ],
)
def test_what_cannot_be_exported_exits_2(failing, make_run, words, meant):
    assert meant in failing(2, "export", make_run(), *words)


def test_without_a_run_there_is_nothing_to_export(failing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a checkout has runs once somebody tried the tour
    assert "error: no run is named, and `results/runs` has none" in failing(2, "export", *VLLM)
