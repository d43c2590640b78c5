"""Whatever stands in run.json, every command works with it or refuses it in words."""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftbench.cli import main
from draftbench.errors import RunFolderError
from draftbench.run_folder.folder import RunFolder

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parents[1] / "run_folder" / "samples" / "together"
WHOLE = json.loads((SAMPLE / "run.json").read_text())
SLOW = 10.0
# As JSON text, since not all of it has a value in Python.
VALUES = {
    **{text: text for text in ("null", "true", "0", "-1", "1", "2.5", "1e308", "-1e308", "1e-320")},
    **{text: text for text in ("NaN", "Infinity", "-Infinity", "1e999", '""', "{}", "[]", "[[]]")},
    **{text: text for text in ("9223372036854775808", "18446744073709551616", "[0]", "[1, 1]")},
    **{text: text for text in ('["x"]', '{"x": 1}', '{"x": "y"}', "[1e308]", '"../../x"')},
    "a number of 400 digits": "9" * 400,
    "a number of 5000 digits": "9" * 5000,
    "control characters": json.dumps("\x00\x1b[2J\x1b]0;x\x07\u202e\x9b"),
    "control characters in a key": json.dumps({"\x1b[2J": "\x1b[2J"}),
    "half a character": '"\\ud800"',
    "markup": json.dumps("[red]<script>alert(1)</script>|`x`\n## y"),
    "a long text": json.dumps("x" * 100_000),
    "a long text of many lines": json.dumps("x \n" * 30_000),
    "a long list": json.dumps(list(range(1, 30_000))),
    "a long list of texts": json.dumps([f"d{n}" for n in range(3000)]),
    "nested": "[" * 500 + "]" * 500,
    "nested without end": "[" * 100_000 + "]" * 100_000,
    "nested objects": '{"a":' * 500 + "1" + "}" * 500,
}


def paths(value: object, at: tuple = ()) -> list[tuple]:
    """The places of all values, the whole first."""
    inner: list = []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inner = [path for key, held in items for path in paths(held, (*at, key))]
    return [at, *inner]


PLACES = paths(WHOLE)


def changed(*changes: tuple[tuple, str]) -> str:
    """The manifest as JSON with raw values in some places; what an earlier change removed stays."""
    whole, marks = {"manifest": copy.deepcopy(WHOLE)}, {}
    for number, (path, value) in enumerate(changes):
        held, key = whole, "manifest"
        for step in path:
            if not isinstance(held[key], dict | list):
                break
            held, key = held[key], step
        mark = f"<<{number}>>"
        held[key] = mark
        marks[json.dumps(mark)] = value
    text = json.dumps(whole["manifest"])
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run folder to spoil, and a baseline made before."""
    place = tmp_path_factory.mktemp("manifest")
    shutil.copytree(SAMPLE, place / "runs" / "run")
    save = ["gate", "--save", str(place / "base.json"), str(place / "runs" / "run")]
    assert main([*save, "--candidate", "draft", "--k", "2"]) == 0
    return place


def spoil(place, text):
    (place / "runs" / "run" / "run.json").write_text(text)


def readable(place):
    """Whether the run can be read; if not, the error says what to do."""
    try:
        RunFolder(place / "runs" / "run")
    except RunFolderError as error:
        return not error.hint  # without one it is not refused in words
    return True


def test_every_field_is_spoilt():
    assert {"schema_version", "command", "key_id"} <= {path[-1] for path in PLACES if path}
    assert ("question", "ks", 0) in PLACES
    assert ("environment", "load") in PLACES
    assert json.loads(changed((("traffic", "rows"), "-1")))["traffic"]["rows"] == -1


@pytest.mark.parametrize("value", VALUES)
def test_a_value_in_any_field_is_read_or_refused_in_words(place, value):
    for path in PLACES:
        spoil(place, changed((path, VALUES[value])))
        began = time.process_time()
        readable(place)
        assert time.process_time() - began < 1, path


@pytest.mark.parametrize("value", ['"x"', "2", "[2]", '["x"]', '{"x": 2}'])
def test_a_manifest_that_is_read_with_a_changed_field_is_answered_from(place, capsys, value):
    for path in PLACES:
        spoil(place, changed((path, value)))
        if readable(place):
            for command in ("recommend", "acceptance"):
                assert main([command, str(place / "runs" / "run")]) == 0, (path, command)
        capsys.readouterr()


@settings(
    max_examples=40, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from([*VALUES])), max_size=3))
def test_every_command_works_with_a_manifest_or_refuses_it(place, capsys, changes):
    spoil(place, changed(*((path, VALUES[value]) for path, value in changes)))
    good, run = readable(place), str(place / "runs" / "run")
    for words in (
        ["recommend", run],
        ["recommend", run, "--format", "json"],
        ["acceptance", run],
        ["compare", run, run],
        ["export", run, "--engine", "vllm", "--anyway"],
        ["gate", "--save", str(place / "new.json"), run, "--candidate", "draft", "--k", "2"],
        ["gate", "--baseline", str(place / "base.json"), run],
    ):
        began = time.process_time()
        code, output = main(words), capsys.readouterr()
        assert time.process_time() - began < SLOW, words
        answers = (0,) if words[0] in ("recommend", "acceptance") else (0, 1, 2, 3, 4)
        assert code in (answers if good else (2,)), (words, output.err)
        if code in (2, 4):
            assert "error: " in output.err, words
            assert "hint: " in output.err, words
        assert "\x1b" not in output.out + output.err, words
    assert main(["runs", "list", str(place / "runs")]) == 0
    assert "run" in capsys.readouterr().out
