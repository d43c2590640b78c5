"""Results reach their file whole or not at all, and a failure to write is told in words."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from draftbench.cli.output import write_result
from draftbench.errors import UsageError

FULL = Path("/dev/full")
FORMULA = ["estimate", "--alpha", "0.7", "--draft-cost", "0.1"]
ESTIMATE = [sys.executable, "-m", "draftbench", *FORMULA]


def test_a_result_takes_the_place_of_the_old_one_and_keeps_its_mode(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("a much longer old result\n")
    path.chmod(0o640)
    write_result("new", str(path))
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_result_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old\n")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_result("new", str(path))
    assert "free some space" in caught.value.hint
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "result")
    write_result("new", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "result").read_text() == "new\n"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    write_result("new", str(pipe))
    reader.join(5)
    assert found == ["new\n"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
def test_a_full_device_is_the_users_to_mend():
    with pytest.raises(UsageError, match="cannot write to `/dev/full`"):
        write_result("new", str(FULL))


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
def test_a_full_disk_behind_stdout_is_told_and_ends_in_2():
    with FULL.open("w") as full:
        done = subprocess.run(ESTIMATE, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "cannot write to `stdout`: No space left on device" in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 2


def test_a_reader_that_has_seen_enough_is_no_fault():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            ESTIMATE, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "error: " not in done.stderr
