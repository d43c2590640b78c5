"""Flags that commands share: one decision for all, values as text, and what TAB offers."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from draftbench import flags
from draftbench.errors import UsageError
from draftbench.planner.recommend import recommend
from draftbench.traffic.suites import suite_names

RUN = Path(__file__).parents[2] / "results" / "reference" / "qwen2.5-coder"
DECISION = {
    *("--min-speedup", "--concurrency", "--objective", "--price-per-hour"),
    *("--max-memory", "--max-p99-ratio", "--costs"),
}


def choice(command, name, words, tmp_path):
    """The candidate and k that a command arrives at; None: do not speculate."""
    if name == "recommend":
        answer = json.loads(command(name, RUN, *words, "--format", "json").out)
        picked = answer["choice"]
        return picked and (f"{picked['draft']}:{picked['quant']}", picked["k"])
    if name == "report":
        command(name, RUN, *words, "--html", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        found = re.search(r"<h1>Speculate[^<]*: (\S+), k\s=\s(\d+)</h1>", page)
        return found and (found[1], int(found[2]))
    if name == "gate":
        outcome = command("gate", "--save", tmp_path / "b.json", RUN, *words)
        assert outcome.code == 0, outcome.err
        baseline = json.loads((tmp_path / "b.json").read_text())
        return baseline["candidate"], baseline["question"]["k"]
    outcome = command("export", RUN, "--engine", "transformers", "--all", *words)
    if outcome.code == 1:
        assert "`draftbench recommend` says why" in outcome.err
        return None
    k = re.search(r"num_assistant_tokens = (\d+)\n", outcome.out)
    level = re.search(r"cannot quantize to (\w+) ", outcome.err)
    return f"qwen0.5:{level[1]}", int(k[1])


DECIDING = {
    "recommend": "cli.recommend.decide",
    "report": "cli.report.recommend",
    "export": "export.serve_plan.recommend",
    "gate": "gate.make_baseline.recommend",
}


@pytest.fixture(scope="module")
def asked(reference):
    """The answer of the kept run to each question, made once."""
    return cache(lambda options: recommend(reference, options))


@pytest.mark.parametrize("name", DECIDING)
def test_every_command_that_decides_has_the_same_flags_and_arrives_at_the_same(
    command, tmp_path, monkeypatch, asked, name
):
    """A run must not have one recommended draft here and another there."""
    shown = command(name, "--help").out
    assert [flag for flag in DECISION if flag not in shown] == []
    monkeypatch.setattr("draftbench.report.page.charts_of", lambda *_: {})  # the head is enough
    monkeypatch.setattr(f"draftbench.{DECIDING[name]}", lambda run, options: asked(options))
    for words, decided in (
        ([], ("qwen0.5:int4", 5)),
        (["--concurrency", "4"], ("qwen0.5:int8", 3)),
        (["--min-speedup", "9"], None),
        (["--max-memory", "1GB"], None),
    ):
        if name != "gate" or decided:  # a baseline of what ranks first is saved all the same
            assert choice(command, name, words, tmp_path) == decided


def test_numbers_are_taken_in_the_order_given_and_once():
    assert flags.numbers("--k", 64, "8,1-3, 2") == (8, 1, 2, 3)
    assert flags.numbers("--cards", 8, "0-3,6,2", smallest=0) == (0, 1, 2, 3, 6)
    assert flags.draft_lengths("8,1-3") == (1, 2, 3, 8)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["./t,./t/"], ("./t",)),
        (["./t/"], ("./t/",)),
        (["org/t, org/u,org/t"], ("org/t", "org/u")),
        (["small,greedy", "ngram"], ("small,greedy", "ngram")),  # a path that exists
    ],
)
def test_a_draft_is_named_once_with_the_slash_of_a_completed_path_or_without(
    tmp_path, monkeypatch, typed, names
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small,greedy").mkdir()
    assert flags.model_names(typed) == names


def test_levels_are_taken_with_blanks_repeated_and_once():
    assert flags.level_names("--quant", ["none, int8", "none"]) == ("none", "int8")
    assert flags.level_names("--quant", ["gptq-int4"]) == ("gptq-int4",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4-2", "--k 4-2: the start of a range must not exceed its end"),
        ("0", "--k 0: the smallest value is 1"),
        ("-1", "--k -1: the smallest value is 1"),
        ("1-65", "--k 1-65: the largest value is 64"),
        ("x", "--k x: expected a number or a range"),
        ("1,,4", "--k 1,,4: expected a number or a range"),
        ("3, 4-2", "--k 3, 4-2: the start of a range must not exceed its end"),
        ("", "--k : expected a number or a range"),
    ],
)
def test_numbers_that_cannot_be_are_refused_with_an_example(text, message):
    with pytest.raises(UsageError) as caught:
        flags.draft_lengths(text)
    assert caught.value.message == message
    assert "for example" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sample", "0"), "--sample 0: the smallest value is 1\nhint: for example --sample 1"),
        (("--sample", "1.5"), "--sample 1.5: expected a whole number\nhint: for example"),
        (("--time-scale", "nan"), "--time-scale nan: expected a number\nhint: for example"),
        (("--cards", "0-256"), "--cards 0-256: the largest value is 255\nhint: for example"),
        (("--cards", "-1"), "--cards -1: the smallest value is 0\nhint: for example"),
        (("--cards", "all"), "--cards all: expected a number or a range\nhint: for example"),
    ],
)
def test_a_number_is_refused_in_our_words_with_one_that_would_do(failing, words, said):
    assert f"error: {said}" in failing(2, "sweep", "--traffic", "suite:completion", *words)
    said = failing(2, "gate", "--save", "b.json", RUN, "--k", "99")
    assert "error: --k 99: the largest value is 64\n" in said


PROGRAM = (
    "import sys; sys.argv = ['draftbench']\n"
    "from draftbench.cli import entry\n"
    "try: entry()\n"
    "finally: assert not {'torch', 'transformers'} & set(sys.modules)\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sweep --traffic su", [f"suite:{name}" for name in sorted(suite_names())]),
        ("check --traffic samp", []),
        ("export RUN --engine v", ["vllm"]),
        ("recommend RUN --objective th", ["throughput"]),
        ("acc", ["acceptance"]),
    ],
)
def test_the_shell_completes_values_without_torch(typed, offered):
    words = ["draftbench", *typed.split()]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "_DRAFTBENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == offered
