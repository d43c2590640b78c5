"""Results reach their file whole or not at all; how files are replaced is tested with
`safe_files`, what becomes of a full or closed stdout with the hostile input.
"""

from __future__ import annotations

import errno
import os

import pytest

from draftbench.cli.output import write_result
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


def test_a_result_replaces_the_old_one(command, tmp_path):
    path = tmp_path / "suites.json"
    path.write_text("a much longer old result" * 999)
    outcome = command("suites", "--format", "json", "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    assert path.read_text() == command("suites", "--format", "json").out
