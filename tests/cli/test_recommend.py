"""`draftbench recommend` over load, limits and costs from elsewhere, on the kept reference run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from scenes import with_fields

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
RUN, ONE_ROW = REFERENCE / "qwen2.5-coder", REFERENCE / "tinyllama-stories"
ENGINE = """
engine: an engine 1.0
concurrency:
  1:
    tokens_per_second: 10
    verify: {2: 0.11, 9: 0.2}
    drafts: {"qwen0.5:int4": {step_s: 0.01}}
  9:
    target_step_s: 0.2
    verify: {2: 0.4, 9: 1.8}
    drafts: {"qwen0.5:int4": {step_s: 0.05}}
"""


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text(ENGINE)
    return path


def test_the_answer_over_concurrencies_is_a_table_with_its_crossover(command, engine):
    outcome = command("recommend", RUN, "--costs", engine, "--all")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Speculate at concurrency 1: qwen0.5:int4, k = ")
    assert "By concurrency\n" in outcome.out
    assert "undecided from 5, no speculation from 7." in " ".join(outcome.out.split())
    assert "qwen0.5:int4 pays off up to about " in " ".join(outcome.out.split())
    shown = " ".join(outcome.out.split())
    assert "costs of an engine 1.0." in shown
    assert "from replay and the costs given" in shown
    assert "this run's own timings are ignored" in shown
    assert "corrected by" not in shown


def test_json_has_a_level_for_each_concurrency_asked(command, engine):
    words = ("--costs", engine, "--concurrency", "9,4,64", "--format", "json")
    found = json.loads(command("recommend", RUN, *words).out)
    assert [level["concurrency"] for level in found["levels"]] == [9, 4, 64]
    nine, four, far = found["levels"]
    assert (found["decision"], found["concurrency"]) == ("do_not_speculate", 9)
    assert (nine["k"], nine["tokens_per_second_plain"]) == (0, pytest.approx(45))
    assert four["costs"] == "interpolated between 1 and 9"
    assert (far["decision"], far["k"], far["speedup_expected"]) == (None, None, None)
    assert 1 < found["crossover"] < 9 or found["crossover"] == 0
    assert (found["runner"], found["latency"]) == ("an engine 1.0", None)


def test_markdown_has_the_same_sections(command, engine):
    out = command("recommend", RUN, "--costs", engine, "--format", "markdown", "--all").out
    assert "### By concurrency\n\n| concurrency | answer | speed-up × |" in out
    out = command("recommend", ONE_ROW, "--format", "markdown", "--all").out
    assert "By concurrency" not in out
    assert "### Latency, measured\n\n|  | speculation | values |" in out


def test_costs_of_another_run(command):
    outcome = command("recommend", RUN, "--costs", RUN, "--all")
    assert outcome.code == 0
    assert "predicted for 48 requests" in outcome.out
    assert "all speed-ups here are predictions" in " ".join(outcome.out.split())


def test_the_headline_names_where_costs_come_from(command, engine):
    out = " ".join(command("recommend", RUN, "--costs", engine).out.split())
    assert "predicted for 48 requests with costs of an engine 1.0 " in out
    out = " ".join(command("recommend", RUN, "--costs", RUN).out.split())
    assert "predicted for 48 requests with costs of draftbench lean (bfloat16, cpu) " in out


def test_costs_of_a_run_of_another_target(failing):
    said = failing(2, "recommend", RUN, "--costs", RUN.with_name("tinyllama-stories"))
    assert "another target" in said


def test_latency_counts_prefills_and_says_so(command):
    out = command("recommend", RUN, "--objective", "latency", "--all").out
    assert "Ranked by time per output token of a request, both prefills included." in out


def test_waits_are_shown(command):
    out = " ".join(command("recommend", RUN, "--all").out.split())
    assert "time to first token without" in out
    assert "Worse with speculation: gap between chunks, p99 374 instead of 261 ms;" in out


def test_tokens_per_dollar(command, engine):
    words = ("--costs", engine, "--objective", "cost", "--price-per-hour", "3.6")
    outcome = command("recommend", RUN, *words, "--all")
    assert "tokens/$" in outcome.out
    assert outcome.out.startswith("Do not speculate at concurrency 9")
    assert "45000" in outcome.out


def test_what_the_other_drafts_change_of_the_speed_up_is_said(command):
    out = " ".join(command("recommend", RUN, "--all").out.split())
    says = (
        "the prediction, corrected by measured times, then drawn 1% down towards the other drafts"
    )
    assert says in out
    (alone,) = [
        each["drawn_to_others"]
        for each in json.loads(command("recommend", RUN, "--format", "json").out)["evaluations"]
        if (each["draft"], each["k"]) == ("self", 1)
    ]
    assert alone == 0  # the control is no draft


def test_drafts_over_the_limits_are_named_on_the_first_screen(command):
    out = command("recommend", RUN, "--max-memory", "4.2GB").out
    assert "Over the limits that you set: qwen0.5:int8, qwen0.5." in out
    assert "Runner-up: ngram, k = 7" in out


@pytest.mark.parametrize("size", ["1GB", "1gb", "0.001 TB"])
def test_a_limit_that_nobody_keeps(command, size):
    out = " ".join(command("recommend", RUN, "--max-memory", size).out.split())
    first, _, limit = out.partition(" (")
    assert first == (
        "Do not speculate at concurrency 1 None of the timed candidates keeps the limits"
    )
    # The one that needs least: prompt lookup has no weights, so this is the target alone.
    assert limit.startswith("ngram at k = 1: it needs ")
    assert "over --max-memory (1 GB))." in limit


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--concurrency", "1,x"), "--concurrency x: expected a number or a range"),
        (("--concurrency", "0"), "--concurrency 0: the smallest value is 1"),
        (("--concurrency", ""), "expected a number or a range"),
        (("--objective", "latencies"), "did you mean `latency`?"),
        (("--objective", "cost"), "--price-per-hour"),
        (("--price-per-hour", "0"), "cannot be used"),
        (("--max-memory", "20"), "for example 24GB"),
        (("--max-memory", "-1GB"), "for example 24GB"),
        (("--max-p99-ratio", "-1"), "--max-p99-ratio"),
        (("--costs", "none.yaml"), "cannot read `none.yaml`"),
        (("--costs", "."), "run"),
    ],
)
def test_words_that_cannot_be_used(failing, tmp_path, monkeypatch, words, meant):
    monkeypatch.chdir(tmp_path)
    assert meant in failing(2, "recommend", RUN, *words)


def test_a_run_whose_sweep_did_not_end_says_so_first(command, tmp_path):
    copy = Path(shutil.copytree(ONE_ROW, tmp_path / "run"))
    assert "not finished" not in command("recommend", copy, "--all").out
    with_fields(copy / "run.json", under_way=[{"draft": "stories15M"}, {"draft": "ngram"}])
    found = " ".join(command("recommend", copy, "--all").out.split())
    assert (
        "this run is not finished (cut off at candidate 1 of 2, with 12 of 12 responses)" in found
    )
    answer = json.loads(command("recommend", copy, "--format", "json").out)
    assert answer["caveats"][0]["kind"] == "unfinished"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("300ms", "--slo 300ms: expected limits"),
        ("ttft=300", "--slo ttft=300: expected limits"),
        ("ttft=1s,ttft=2s", "--slo ttft=1s,ttft=2s: expected limits"),
        ("wait=3s", "--slo wait=3s: expected limits"),
        ("ttft=300ms", "the built-in decoder knows no queueing"),
    ],
)
def test_limits_that_are_none_or_have_no_engine_are_refused(command, limits, said):
    outcome = command("recommend", RUN, "--slo", limits)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_the_commands_that_come_next_ask_the_same_question(command, engine):
    words = ["--min-speedup", "2.5", f"--costs={engine}", "--objective", "latency"]
    outcome = command("recommend", RUN, *words)
    following = " ".join(outcome.out.partition("next:")[2].replace("\\\n", " ").split())
    asked = f"{RUN} --min-speedup 2.5 --costs={engine} --objective latency"
    assert f"recommend {asked} --all" in following
    assert f"report {asked} --html report.html" in following


@pytest.mark.parametrize("asked", ["inf", "1e9", "nan", "-1"])
def test_a_speed_up_that_no_draft_has_cannot_be_asked_for(command, asked):
    found = command("recommend", RUN, f"--min-speedup={asked}")
    assert (found.code, found.out, found.err.count("error:")) == (2, "", 1)
