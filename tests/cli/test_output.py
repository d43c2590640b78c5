"""Results reach their file whole or not at all; how files are replaced is tested with
`safe_files`, what becomes of a full or closed stdout with the hostile input.
"""

from __future__ import annotations

import pytest

from draftbench.cli.output import write_result
from draftbench.errors import UsageError


def test_a_write_that_fails_is_the_users_to_mend_and_leaves_the_old_result(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old\n")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match=r"cannot write to .* No space left on device") as caught:
        write_result("new", path)
    assert "free some space" in caught.value.hint
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_replaces_the_old_one(command, tmp_path):
    path = tmp_path / "suites.json"
    path.write_text("a much longer old result" * 999)
    outcome = command("suites", "--format", "json", "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    assert path.read_text() == command("suites", "--format", "json").out
