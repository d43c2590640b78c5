"""Every error that a command line can provoke: nothing on stdout, its exit code, one error and one
hint in the words of errors.json. A text that is changed on purpose is changed there too; where a
library says what is wrong, only the exit code is kept.
"""

import json
import os
import re
from pathlib import Path

import pytest
from error_cases import CASES, EMBEDDED

pytestmark = pytest.mark.slow

KEPT = json.loads(Path(__file__).with_name("errors.json").read_text())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in; what a case does to the environment is undone."""
    before = dict(os.environ)
    os.environ["DRAFTBENCH_KEY"] = "the key of the error table"
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def portable(text, place):
    """Without this machine's paths, ports and random names."""
    text = re.sub(r"servers/\w+/[\w.-]+\.log", "servers/….log", text)
    for path in (str(place), str(EMBEDDED)):
        text = text.replace(f"{path}/", "").replace(path, ".")
    text = re.sub(r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:8000", text)
    return re.sub(r"\b[0-9a-f]{16}\b", "0123456789abcdef", text)


def test_every_kept_error_has_its_case():
    assert [name for name, _ in CASES] == list(KEPT)


@pytest.mark.parametrize(("name", "prepare"), CASES, ids=[name for name, _ in CASES])
def test_an_error_has_its_code_one_message_and_one_hint(command, place, name, prepare):
    outcome = command(*prepare())
    printed = portable(outcome.err, place).splitlines()
    error, hint = (
        [line.removeprefix(word) for line in printed if line.startswith(word)]
        for word in ("error: ", "hint: ")
    )
    assert (len(error), len(hint), outcome.out) == (1, 1, ""), outcome.err
    code, *words = KEPT[name]
    assert outcome.code == code
    assert not words or [*error, *hint] == words
