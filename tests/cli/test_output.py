"""Results reach their file whole or not at all; how files are replaced is tested with
`safe_files`, what becomes of a full or closed stdout with the hostile input.
"""

import errno
import os
import shutil
from pathlib import Path

import pytest

from draftbench.cli.output import bold, write_result
from draftbench.errors import UsageError


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space or name another file; nothing measured is lost"),
        (errno.EACCES, "name another file; nothing measured is lost"),
    ],
)
def test_a_write_that_fails_is_the_users_to_mend_and_leaves_the_old_result(
    tmp_path, monkeypatch, number, hint
):
    path = tmp_path / "result.json"
    path.write_text("old\n")

    def refused(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refused)
    with pytest.raises(UsageError, match=rf"cannot write to .* {os.strerror(number)}") as caught:
        write_result("new", path)
    assert caught.value.hint == hint
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


RUN = Path(__file__).parents[2] / "results/reference/tinyllama-stories-40"


@pytest.mark.parametrize(
    "words",
    [
        ("report", RUN, "--html", "FILE"),
        ("report", RUN, "--plots", "FOLDER"),
        ("gate", "--save", "FILE", RUN),
        ("gate", "--baseline", RUN, RUN, "--junit", "FILE"),
    ],
    ids=lambda words: " ".join(map(str, words[:1] + words[-2:])),
)
def test_a_file_that_draftbench_did_not_write_is_replaced_by_force_alone(command, tmp_path, words):
    file = tmp_path / "speedup-by-k.svg"
    file.write_text("# A page of mine that names draftbench\n")
    named = [{"FILE": file, "FOLDER": tmp_path}.get(word, word) for word in words]
    refused = command(*named)
    assert (refused.code, refused.out) == (2, "")
    assert "exists, and draftbench cannot tell that it wrote it" in refused.err
    assert "--force" in refused.err
    assert file.read_text().startswith("# A page of mine")
    assert command(*named, "--force").code != 2
    assert not file.read_text().startswith("# A page of mine")
    assert command(*named).code != 2  # draftbench wrote it


@pytest.mark.parametrize("part", ["run.json", "observations/replay.jsonl", "private/texts.jsonl"])
def test_nothing_replaces_a_part_of_a_run(failing, tmp_path, part):
    run = shutil.copytree(RUN, tmp_path / "run")
    (run / "private").mkdir()
    for words in (("traffic", "-o"), ("gate", run, "--force", "--save")):
        said = failing(2, *words, run / part)
        assert f"cannot write to `{run / part}`: it is a part of a run" in said


def test_a_result_may_lie_beside_the_parts_of_a_run_and_replaces_the_old_one(command, tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    result = tmp_path / "run" / "answer.txt"
    result.write_text("a much longer old result" * 999)
    outcome = command("recommend", tmp_path / "run", "-o", result)
    assert (outcome.code, outcome.out) == (0, "")
    assert result.read_text() == command("recommend", tmp_path / "run").out


@pytest.mark.parametrize(
    ("terminal", "variables", "heavy"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_bold_is_for_terminals_that_may_show_it(monkeypatch, terminal, variables, heavy):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert bold("Usage") == ("\x1b[1mUsage\x1b[0m" if heavy else "Usage")
    for verdict, colour in (("Speculate: a", 32), ("FAIL: a", 31), ("INCONCLUSIVE: a", 33)):
        assert bold(verdict) == (f"\x1b[{colour}m\x1b[1m{verdict}\x1b[0m" if heavy else verdict)


def test_of_a_table_alone_the_first_line_is_bold(command, monkeypatch, tmp_path):
    monkeypatch.setattr("draftbench.cli.output.bold", lambda text: f"<b>{text}</b>")
    first, second, *_ = command("traffic").out.split("\n")
    assert (first[:3], first[-4:], "<b>" in second) == ("<b>", "</b>", False)
    assert "<b>" not in command("traffic", "--format", "json").out
    command("traffic", "-o", tmp_path / "table.txt")
    assert "<b>" not in (tmp_path / "table.txt").read_text()
