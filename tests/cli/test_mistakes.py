"""What a user can get wrong, besides what errors.json has: the exit code, a message, a hint,
and never a word on stdout.
"""

import shutil
from pathlib import Path

import pytest
from scenes import FEW

pytestmark = pytest.mark.usefixtures("no_weights")


@pytest.fixture
def sweep(failing, embedded, tmp_path):
    """A sweep that is right except for what the test adds; a flag given twice counts as last."""

    def run(*words, target=embedded / "target", drafts=("ngram",), traffic=FEW):
        given = [word for draft in drafts for word in ("--drafts", draft)]
        fixed = ["--target", target, "--traffic", traffic, "--out", tmp_path / "run"]
        said = failing(2, "sweep", *fixed, *given, *words)
        assert not (tmp_path / "run").exists()
        return said

    return run


def test_no_arguments_are_a_call_for_help(command):
    outcome = command()
    assert (outcome.code, outcome.err) == (0, "")
    assert "recommend" in outcome.out


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["zzzz"], "`draftbench` has no command `zzzz`", "`draftbench -h` lists all commands"),
        (["runs", "lst"], "`draftbench runs` has no command `lst`", "did you mean `list`?"),
        (
            ["recommend", "RUN", "--al"],
            "`draftbench recommend` has no flag `--al`",
            "did you mean `--all`? `draftbench recommend -h` lists all flags",
        ),
        # More alike by letters is `--ready-timeout`, which begins otherwise.
        (["sweep", "--cell-timeout", "9"], "`draftbench", "did you mean `--candidate-timeout`?"),
        # What other tools call it; more alike by letters is `--measure-requests`.
        (["sweep", "--max-requests", "5"], "`draftbench sweep` has no", "did you mean `--sample`?"),
        (["sweep", "--num-speculative-tokens", "5"], "`draftbench", "did you mean `--k`?"),
        (["recommend", "--model", "a"], "`draftbench", "`draftbench recommend -h` lists all"),
        (["check", "-z"], "`draftbench check` has no flag `-z`", "`draftbench check -h` lists all"),
        (["sweep", "--k"], "option `--k` requires", "`draftbench sweep -h` lists all flags"),
    ],
)
def test_an_unknown_word_is_named_with_the_one_that_was_probably_meant(failing, words, error, hint):
    assert f"error: {error}" in (said := failing(2, *words))
    assert f"\nhint: {hint}" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"out": ""}, "error: --out is empty\nhint: a variable of the shell may be unset"),
        ({"out": "file"}, "error: `file` is a file, and --out names a folder\nhint: take an empty"),
        # Known fault: it was found out after the traffic was read and the models were opened.
        ({"out": "/proc/run"}, "error: cannot write to `/proc/run`: No such file or directory"),
        ({"target": "./no"}, "error: no model at `./no`\nhint: give a directory with config.json"),
        ({"drafts": ("ngram", "./no")}, "error: no model at `./no`\nhint: give a directory"),
        (
            {"target": "./fle.gguf"},
            "error: no model at `./fle.gguf`\nhint: did you mean `./file.gguf`? give",
        ),
        (
            {"drafts": ("eagle3:./fle.gguf",)},
            "error: no head at `eagle3:./fle.gguf`\nhint: did you mean `./file.gguf`? give",
        ),
        (
            {"drafts": ("eagle3:./no",)},
            "error: no head at `eagle3:./no`\nhint: give the folder of the head, which holds",
        ),
    ],
)
def test_where_no_run_can_be_and_models_that_are_not_there_are_refused_before_traffic_is_read(
    sweep, tmp_path, monkeypatch, wrong, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "file.gguf").touch()
    out = ["--out", wrong.pop("out")] if "out" in wrong else []
    assert sweep(*out, traffic="none.jsonl", **wrong).startswith(said)


def test_a_dry_run_has_no_csv(sweep):
    assert "--format of a --dry-run cannot be `csv`" in sweep("--dry-run", "--format", "csv")


ANSWERS = [
    "recommend RUN",
    "acceptance RUN",
    "report RUN --html page.html",
    "compare RUN RUN",
    "export RUN --engine vllm",
    "gate --save good.json RUN",
    "gate --baseline PINNED RUN",
]


def test_no_error_moves_the_cursor(failing):
    assert "no run folder at `no\ufffd[2J`" in failing(2, "recommend", "no\x1b[2J")


@pytest.mark.parametrize("words", [*ANSWERS[:-1], "runs redact RUN"])
def test_a_run_that_is_not_there(failing, words):
    said = failing(2, *words.replace("RUN", "results/runs/none").split())
    assert "error: no run folder at `results/runs/none`" in said
    assert "hint: `draftbench runs list" in said


@pytest.mark.parametrize(
    ("flag", "value", "meant"),
    [
        ("--device", "cuda", "device `cuda`"),
        ("--device", "cuda:x", "device `cuda:x`"),
        ("--quant", "fp8", "--simulate-quant"),
        ("--target-quant", "in8", "did you mean `int8`?"),
        ("--target-quant", "none,int4", "--target-quant cannot be `none,int4`"),
        ("--measure", "al", "did you mean `all`?"),
        ("--responses", "loged", "did you mean `log`?"),
        ("--format", "jsn", "did you mean `json`?"),
        ("--ngram", "4-2", "for example --ngram 2-4"),
        ("-o", "/", "cannot write to `/`"),
    ],
)
def test_values_that_a_flag_of_the_sweep_does_not_know(sweep, monkeypatch, flag, value, meant):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert meant in sweep(flag, value)


RUN = str(Path(__file__).parents[1] / "run_folder" / "samples" / "alone")
GATE = ["gate", "--baseline", "missing.json", RUN]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["recommend", RUN, "--objective", "latncy"], "did you mean `latency`?"),
        ([*GATE, "--inconclusive", "pas"], "did you mean `pass`?"),
        ([*GATE, "--annotations", "githb"], "did you mean `github`?"),
        ([*GATE, "--junit", "/no/such/folder/x"], "cannot write"),
    ],
)
def test_what_was_probably_meant(failing, words, meant):
    assert meant in failing(2, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["recommend", RUN],
        ["acceptance", RUN],
        ["compare", RUN, RUN],
        ["gate", "--baseline", RUN, RUN],
        ["runs", "list", "."],
        ["traffic"],
        ["suggest", "--target", "org/x"],
        ["check", "--target", "t", "--drafts", "d"],
        ["estimate", "--alpha", "0.7", "--draft-cost", "0.1"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_knows_its_formats_and_where_it_can_write(failing, words):
    assert "--format cannot be `jsn`\nhint: did you mean `json`?" in failing(
        2, *words, "--format", "jsn"
    )
    assert "cannot write to `/no/such/x`" in failing(2, *words, "-o", "/no/such/x")


@pytest.mark.parametrize("words", ANSWERS)
def test_no_command_answers_from_a_run_whose_files_were_cut(
    failing, swept, pinned, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(swept[0], "run")
    path = Path("run/observations/costpoint.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    said = failing(2, *words.replace("RUN", "run").replace("PINNED", str(pinned)).split())
    assert "error: `run/observations/costpoint.jsonl` holds " in said
    assert " records that the sweep wrote" in said
