"""For every command that prints, a full stdout is a user's error and a closed pipe is none."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftbench.cli import main

pytestmark = pytest.mark.slow

FULL = Path("/dev/full")
SAMPLES = Path(__file__).parents[1] / "run_folder" / "samples"
RUN = str(SAMPLES / "together")
COMMANDS = [
    ["--version"],
    ["--help"],
    ["gate", "--help"],
    ["traffic"],
    ["recommend", RUN],
    ["acceptance", RUN, "--format", "json"],
    ["runs", "list", str(SAMPLES)],
    ["runs", "prune", str(SAMPLES), "--keep", "0"],
    ["sweep", "--target", "t", "--drafts", "d", "--traffic", "suite:code", "--print-config"],
]


def run(words, stdout, stderr=subprocess.PIPE):
    command = [sys.executable, "-m", "draftbench", *words]
    # The default: what is printed waits in a buffer.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, check=False, env=env)


@contextlib.contextmanager
def unread_pipe():
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        yield closed


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_full_stdout_is_an_error_with_exit_code_2(words):
    with FULL.open("w") as full:
        done = run(words, full)
    assert done.returncode == 2
    assert "error: cannot write to `stdout`: No space left on device\n" in done.stderr
    assert "\nhint: free some space" in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_closed_stdout_does_not_change_the_exit_code(words):
    with unread_pipe() as closed:
        done = run(words, closed)
    assert (done.returncode, done.stderr.replace("`--yes` deletes them\n", "")) == (0, "")


def test_a_gate_has_its_exit_code_where_nobody_reads_and_no_verdict_where_stderr_is_closed(
    tmp_path,
):
    """Two requests settle nothing: exit code 3."""
    base = str(tmp_path / "base.json")
    assert main(["gate", "--save", base, RUN, "--candidate", "draft", "--k", "2"]) == 0
    words = ["gate", "--baseline", base, RUN, "--candidate", "ngram", "--annotations", "github"]
    with unread_pipe() as closed:
        assert run(words, closed).returncode == 3
        assert run(words, subprocess.DEVNULL, closed).returncode == 2


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
def test_a_full_stderr_leaves_the_exit_code(tmp_path):
    with FULL.open("w") as full:
        assert run(["recommend", str(tmp_path)], subprocess.DEVNULL, full).returncode == 2
