"""What a user can get wrong, besides what docs/errors.md shows: the exit code, a message, a hint,
and never a word on stdout.
"""

import shutil
from pathlib import Path

import pytest
from scenes import stranger

pytestmark = pytest.mark.usefixtures("no_weights")


@pytest.fixture
def sweep(failing, embedded, tmp_path):
    """A sweep that is right except for what the test adds; a flag given twice counts as last."""

    def run(*words, target=embedded / "target", drafts=("ngram",), traffic="suite:completion"):
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
        (
            ["sweep", "--cell-timeout", "9"],
            "`draftbench sweep` has no flag `--cell-timeout`",
            "did you mean `--candidate-timeout`?",
        ),
        # What other tools call it; more alike by letters is `--measure-requests`.
        (["sweep", "--max-requests", "5"], "`draftbench sweep` has no", "did you mean `--sample`?"),
        (["sweep", "--num-speculative-tokens", "5"], "`draftbench", "did you mean `--k`?"),
        (["check", "--draft-model", "a"], "`draftbench check`", "did you mean `--drafts`?"),
        (["recommend", "--model", "a"], "`draftbench", "`draftbench recommend -h` lists all"),
        (["check", "-z"], "`draftbench check` has no flag `-z`", "`draftbench check -h` lists all"),
        (["sweep", "--k"], "option `--k` requires", "`draftbench sweep -h` lists all flags"),
    ],
)
def test_an_unknown_word_is_named_with_the_one_that_was_probably_meant(failing, words, error, hint):
    assert f"error: {error}" in (said := failing(2, *words))
    assert f"\nhint: {hint}" in said


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", "error: --out is empty\nhint: a variable of the shell may be unset"),
        ("file", "error: `file` is a file, and --out names a folder\nhint: take an empty or a new"),
        (".", "error: `.` exists and is not a run folder\nhint: take an empty or a new folder"),
    ],
)
def test_where_no_run_can_be_is_refused_before_traffic_is_read(
    sweep, tmp_path, monkeypatch, out, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert sweep("--out", out, traffic="none.jsonl").startswith(said)


@pytest.mark.parametrize(
    "models",
    [{"target": "./nowhere"}, {"drafts": ("./nowhere",)}, {"drafts": ("ngram", "./nowhere")}],
)
def test_a_model_that_is_not_there_is_refused_before_traffic_is_read(sweep, models):
    said = sweep(**models, traffic="none.jsonl")
    assert "error: no model at `./nowhere`\nhint: give a directory with config.json" in said
    assert "reading traffic" not in said


@pytest.mark.parametrize("engine", [(), ("--engine", "vllm")])
def test_a_head_that_is_not_there_is_refused_as_it_was_named(sweep, engine):
    said = sweep(*engine, drafts=("eagle3:./nowhere",), traffic="none.jsonl")
    assert "no head at `eagle3:./nowhere`\nhint: give the folder of the head, which holds" in said


def test_a_missing_traffic_file(sweep, tmp_path):
    said = sweep(traffic=tmp_path / "prod.jsonl")
    assert f"traffic file `{tmp_path}/prod.jsonl` not found" in said
    assert "suite:NAME" in said


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("prod", "prod.jsonl"),
        ("prd.jsonl", "prod.jsonl"),
        ("prod.json", "prod.jsonl"),
        ("old", "old.csv.gz"),
        ("code", "suite:code"),
        ("completon", "suite:completion"),
        ("suit:chat", "suite:chat"),
    ],
)
def test_traffic_without_its_extension_or_misspelt(sweep, tmp_path, monkeypatch, written, meant):
    for name in ("prod.jsonl", "old.csv.gz", "prod.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    said = sweep(traffic=written)
    assert f"traffic file `{written}` not found" in said
    assert f"did you mean `{meant}`?" in said


def test_a_bad_row_is_named_by_file_and_line(sweep, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "a"}\n{"prompt": \n')
    assert "log.jsonl:2" in sweep(traffic=log)


def test_a_chat_for_a_target_without_a_template(sweep):
    assert "has no chat template" in sweep(traffic="suite:chat")


def test_a_dry_run_has_no_csv(sweep):
    assert "--format of a --dry-run cannot be `csv`" in sweep("--dry-run", "--format", "csv")


def test_an_empty_name_among_drafts(sweep, failing, embedded):
    said = sweep(drafts=("ngram,",))
    assert "--drafts ngram,: a name between commas is empty" in said
    assert "--drafts ./a,./b" in said
    assert "is empty" in failing(2, "check", "--target", "x", "--drafts", ",")


def test_a_draft_that_has_not_half_of_the_traffics_tokens(sweep, tmp_path):
    said = sweep(drafts=(stranger(tmp_path),))
    assert "`stranger` cannot draft for `target`: it has only 0% of the traffic's tokens" in said


RUN_COMMANDS = [
    ["recommend"],
    ["acceptance"],
    ["report", "--html", "page.html"],
    ["export", "--engine", "vllm"],
    ["gate", "--save", "b.json"],
    ["compare", "x"],
    ["runs", "redact"],
]


@pytest.mark.parametrize("words", RUN_COMMANDS)
def test_a_run_that_is_not_there(failing, words):
    missing = "x" if words[0] == "compare" else "results/runs/none"
    said = failing(2, *words, "results/runs/none")
    assert f"error: no run folder at `{missing}`" in said
    assert "hint: `draftbench runs list" in said


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "tpu", "cuda:x"])
def test_a_device_that_is_not_here(sweep, device, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert f"device `{device}`" in sweep("--device", device)


@pytest.mark.parametrize(
    ("flag", "value", "meant"),
    [
        ("--quant", "none,int44", "did you mean `int4`?"),
        ("--quant", "fp8", "--simulate-quant"),
        ("--target-quant", "in8", "did you mean `int8`?"),
        ("--target-quant", "none,int4", "--target-quant cannot be `none,int4`"),
        ("--measure", "al", "did you mean `all`?"),
        ("--responses", "loged", "did you mean `log`?"),
        ("--k", "0", "for example --k 1-4"),
        ("--concurrency", "1,,4", "expected a number or a range"),
        ("--format", "jsn", "did you mean `json`?"),
        ("--ngram", "4-2", "for example --ngram 2-4"),
        ("-o", "/no/such/folder/table.txt", "cannot write to `/no/such/folder/table.txt`"),
        ("-o", "/", "cannot write to `/`"),
    ],
)
def test_values_that_a_flag_of_the_sweep_does_not_know(sweep, flag, value, meant):
    assert meant in sweep(flag, value)


RUN = str(Path(__file__).parents[1] / "run_folder" / "samples" / "alone")
GATE = ["gate", "--baseline", "missing.json", RUN]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["recommend", RUN, "--objective", "latncy"], "did you mean `latency`?"),
        ([*GATE, "--max-drop", "alpha:2"], "written alpha:2%"),
        ([*GATE, "--inconclusive", "pas"], "did you mean `pass`?"),
        ([*GATE, "--annotations", "githb"], "did you mean `github`?"),
        ([*GATE, "--junit", "/no/such/folder/x"], "cannot write"),
        (GATE, "cannot read the baseline `missing.json`"),
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
        ["gate", "--old", RUN, "--new", RUN],
        ["runs", "list", "."],
        ["suites"],
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


@pytest.mark.parametrize(
    "words",
    [
        ["recommend", "RUN"],
        ["acceptance", "RUN"],
        ["report", "RUN", "--html", "page.html"],
        ["compare", "RUN", "RUN"],
        ["export", "RUN", "--engine", "vllm"],
        ["gate", "--save", "good.json", "RUN"],
        ["gate", "--baseline", "PINNED", "RUN"],
    ],
    ids=" ".join,
)
def test_no_command_answers_from_a_run_whose_files_were_cut(
    failing, swept, pinned, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(swept[0], "run")
    path = Path("run/observations/costpoint.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    said = failing(2, *({"RUN": "run", "PINNED": pinned}.get(word, word) for word in words))
    assert "error: `run/observations/costpoint.jsonl` holds " in said
    assert " records that the sweep wrote" in said
