"""A run folder from a stranger, whose names try to write HTML, Markdown and terminal commands."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from draftbench.cli import main

RUN = Path(__file__).parents[1] / "run_folder" / "samples" / "together"
EVIL = "<img src=x onerror=alert(1)>|[a](b)`\x1b[2J\x9b31m\u202ex"
CLEAN = re.sub("[\x1b\x9b\u202e]", "\ufffd", EVIL)
CONTROLS = ("\x1b", "\x9b", "\u202e")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The kept run with evil names of draft, segment, failure, traffic and machine."""
    run = Path(shutil.copytree(RUN, tmp_path_factory.mktemp("evil") / "run"))
    evil = json.dumps(EVIL)
    for file in (run / "observations").iterdir():
        text = file.read_text()
        for old in ('"draft":"draft"', '"block":"draft"', '"draft":"other"'):
            text = text.replace(old, f"{old.partition(':')[0]}:{evil}")
        file.write_text(text.replace('"segment":null', f'"segment":{evil}'))
    head = json.loads((run / "run.json").read_text())
    head["question"]["drafts"] = [EVIL, "ngram"]
    head["question"]["target"] = head["question"]["traffic"] = EVIL
    head["environment"]["processor"] = head["command"] = EVIL
    (run / "run.json").write_text(json.dumps(head))
    return run


def printed(capsys, *words):
    capsys.readouterr()
    code = main([str(word) for word in words])
    output = capsys.readouterr()
    assert code in (0, 1, 2, 3), output.err
    return output.out + output.err


STYLES = ("table", "markdown", "csv", "json")
COMMANDS = [(name, "--format", style) for name in ("recommend", "acceptance") for style in STYLES]


@pytest.mark.parametrize("words", [*COMMANDS, ("export", "--engine", "vllm", "--anyway")])
def test_no_command_reaches_the_terminal(run, capsys, words):
    output = printed(capsys, *words, run)
    assert "img src=x" in output
    assert [raw for raw in CONTROLS if raw in output] == []


def test_markdown_takes_names_for_names(run, capsys):
    output = printed(capsys, "recommend", run, "--format", "markdown")
    output += printed(capsys, "compare", run, run, "--format", "markdown")
    assert "onerror" in output
    assert re.findall(r"(?<!\\)(<img|\[a\]|\|\[|`.)", output) == []


def test_a_page_holds_no_element_that_it_did_not_make(run, capsys, tmp_path):
    printed(capsys, "report", run, "--html", tmp_path / "page.html", "--plots", tmp_path / "plots")
    page = (tmp_path / "page.html").read_text()
    assert "onerror" in page
    assert [raw for raw in ("<img", *CONTROLS) if raw in page] == []
    for drawing in (tmp_path / "plots").glob("*.svg"):
        ElementTree.fromstring(drawing.read_text())
        assert "<img" not in drawing.read_text()


def test_files_for_ci_are_well_formed(run, capsys, tmp_path):
    printed(capsys, "gate", "--save", tmp_path / "b.json", run, "--candidate", CLEAN, "--k", "2")
    ci = ["--junit", tmp_path / "junit.xml", "--annotations", "github"]
    output = printed(capsys, "gate", "--baseline", tmp_path / "b.json", run, *ci)
    ElementTree.parse(tmp_path / "junit.xml")
    assert "\x1b" not in output
    assert len([line for line in output.splitlines() if line.startswith("::")]) <= 5
