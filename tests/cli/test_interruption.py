"""What stops a command says so in words: what is kept, how to go on, and by which signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftbench.cli.interruption import TerminatedError, catch_sigterm
from draftbench.report.progress import TerminalWatcher

PATIENCE = 120


def sweep_words(embedded, folder):
    words = ["sweep", "--target", embedded / "target", "--drafts", embedded / "draft"]
    words += ["--traffic", "suite:completion", "--max-new-tokens", 48, "--threads", 1]
    return [*map(str, words), "--out", str(folder)]


def ended_by(number, words, when):
    """Start a command, send the signal when its condition holds: exit code, stdout, stderr."""
    child = subprocess.Popen(
        [sys.executable, "-m", "draftbench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    deadline = time.monotonic() + PATIENCE
    while not when() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENCE)
    return child.returncode, out, err


@pytest.mark.parametrize(
    ("number", "code", "what"),
    [(signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_sweep_that_is_ended_says_what_is_kept_and_how_to_go_on(
    embedded, tmp_path, number, code, what
):
    folder = tmp_path / "run"
    kept = folder / "observations" / "trajectory.jsonl"
    words = sweep_words(embedded, folder)
    found, out, err = ended_by(number, words, kept.exists)
    assert (found, out) == (code, "")
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line]
    assert lines[-2] == f"error: {what}"
    again = f"the same command with `--out {folder}` goes on"
    assert lines[-1] == f"hint: what is done is kept in `{folder}`; {again}"
    assert json.loads(kept.read_text().splitlines()[0])


def test_a_sweep_that_is_ended_before_it_measures_says_so(failing, embedded, tmp_path, monkeypatch):
    def ended(self, text):
        raise TerminatedError

    monkeypatch.setattr(TerminalWatcher, "note", ended)
    said = failing(143, *sweep_words(embedded, tmp_path / "run"))
    assert said == (
        "error: ended by SIGTERM\nhint: nothing was measured yet; give the same command again"
    )


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (TerminatedError, 143)])
def test_any_other_command_that_is_ended_says_so(failing, monkeypatch, swept, stop, code):
    def read(folder):
        raise stop

    monkeypatch.setattr("draftbench.store.observed.read_run", read)
    assert "nothing is lost; give the same command again" in failing(code, "recommend", swept[0])


def test_a_second_sigterm_ends_the_process_at_once():
    before = signal.getsignal(signal.SIGTERM)
    try:
        catch_sigterm()
        with pytest.raises(TerminatedError):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_folder_with_a_blank_can_be_copied_into_the_shell(
    failing, embedded, tmp_path, monkeypatch
):
    folder = tmp_path / "my run"
    stage = TerminalWatcher.stage

    def ended(self, what, total):
        if Path(folder / "run.json").exists():
            raise KeyboardInterrupt
        stage(self, what, total)

    monkeypatch.setattr(TerminalWatcher, "stage", ended)
    assert f"--out '{folder}'" in failing(130, *sweep_words(embedded, folder))
