"""Every error that can be provoked: nothing on stdout, its own exit code, a message with a hint,
and the words that the documentation prints.
"""

import importlib

import pytest
from scenes import ROOT

pytestmark = pytest.mark.slow

CODES = {"Control-C": 130, "SIGTERM": 143, "A baseline with other settings": 4}


@pytest.fixture(scope="module")
def table():
    """The script that makes the page, and what it found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        script = importlib.import_module("error_table")
        return script, list(script.provoke())


def test_every_error_leaves_stdout_empty_and_says_what_to_do(table):
    _, found = table
    assert len(found) > 80
    for outcome in found:
        assert (outcome.code, outcome.out) == (CODES.get(outcome.done, 2), ""), outcome
        assert outcome.error.startswith("error: "), outcome
        assert outcome.hint.startswith("hint: "), outcome


def test_the_documentation_prints_what_a_user_sees(table):
    script, found = table
    page = (ROOT / "docs" / "errors.md").read_text()
    # What the libraries say of a broken file may change with their version.
    ours = [outcome for outcome in found if outcome.done not in script.LIBRARIES]
    missing = [outcome.done for outcome in ours if script.row(outcome) not in page]
    assert missing == [], "run scripts/error_table.py"


def test_nothing_of_this_machine_is_in_the_documentation():
    page = (ROOT / "docs" / "errors.md").read_text()
    assert [word for word in ("/tmp", "/home", "/root", str(ROOT)) if word in page] == []
