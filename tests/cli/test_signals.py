"""What stops a command says so in words: what is kept, how to go on, and by which signal."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from scenes import FEW

from draftbench.cli.progress import TerminalWatcher
from draftbench.cli.signals import TerminatedError, catch_sigterm, resumable
from draftbench.drafts.model import draft as model_draft
from draftbench.drafts.model.draft import ModelDraft
from draftbench.errors import InterruptedRunError, ModelError
from draftbench.measure.candidate import LoadedCandidate
from draftbench.records import Replay
from draftbench.run_folder.append_log import cannot_write
from draftbench.run_folder.folder import MANIFEST, RunWriter
from draftbench.sweep.failures import timed_out

PATIENCE = 120


SMALL = ["--sample", 2, "--max-new-tokens", 8, "--k", 1, "--measure", "replay", "--no-controls"]


@pytest.fixture
def small_words(embedded, tmp_path):
    """A sweep of a draft and prompt lookup that takes a second; its folder is named last, with a
    blank in its name.
    """
    words = ["sweep", "--target", embedded / "target", "--drafts", embedded / "draft"]
    words += ["--drafts", "ngram", "--traffic", FEW, "--threads", 1, *SMALL]
    return list(map(str, [*words, "--out", tmp_path / "my run"]))


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "what"),
    [(signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_sweep_that_is_ended_says_what_is_kept_and_how_to_go_on(
    small_words, tmp_path, number, code, what
):
    kept = tmp_path / "my run" / "observations" / "trajectory.jsonl"
    words = [*small_words, "--max-new-tokens", "48", "--sample", "42"]
    found, out, err = ended_by(number, words, lambda: kept.exists() and kept.stat().st_size)
    assert (found, out) == (code, "")
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line]
    assert lines[-2] == f"error: {what}"
    kept_there, _, again = lines[-1].partition("; resume with: ")
    assert kept_there == f"hint: finished work is kept in `{tmp_path / 'my run'}`"
    assert again.endswith(f" -m draftbench {shlex.join(words)}")
    assert json.loads(kept.read_text().splitlines()[0])


def test_a_sweep_that_is_ended_before_it_measures_says_so(failing, small_words, monkeypatch):
    def ended(self, text, **how):
        raise TerminatedError

    monkeypatch.setattr(TerminalWatcher, "note", ended)
    said = failing(143, *small_words)
    assert said == (
        "error: ended by SIGTERM\nhint: nothing was measured yet; run the command again"
    )


def test_an_interrupted_sweep_says_how_to_go_on_and_goes_on(
    command, failing, small_words, monkeypatch, tmp_path
):
    """Stopped when the replay begins: the responses are kept and not written again."""
    kept = tmp_path / "my run" / "observations" / "trajectory.jsonl"
    stage = TerminalWatcher.stage

    def interrupted(self, what, total, candidate=None):
        if "replay" in what:
            raise KeyboardInterrupt
        stage(self, what, total, candidate)

    with monkeypatch.context() as patch:
        patch.setattr(TerminalWatcher, "stage", interrupted)
        said = failing(130, *small_words)
    assert said.splitlines() == ["error: interrupted", f"hint: {goes_on(small_words)}"]
    before = kept.read_text()
    assert before.count('"kind":"trajectory"') == 2
    assert command(*small_words).code == 0
    assert kept.read_text() == before
    assert kept.with_name("lookupreplay.jsonl").exists()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (TerminatedError, 143)])
def test_any_other_command_that_is_ended_says_so(failing, monkeypatch, swept, stop, code):
    def read(folder):
        raise stop

    monkeypatch.setattr("draftbench.run_folder.run.read_run", read)
    assert "nothing is lost; run the command again" in failing(code, "recommend", swept[0])


@pytest.fixture
def sigterm():
    """SIGTERM raises an exception, as in the program."""
    before = signal.getsignal(signal.SIGTERM)
    catch_sigterm()
    yield lambda: signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_after_sigterm_or_control_c_sigterm_ends_the_process_at_once(sigterm, tmp_path):
    with pytest.raises(TerminatedError):
        os.kill(os.getpid(), signal.SIGTERM)
    assert sigterm() is signal.SIG_DFL
    catch_sigterm()
    with pytest.raises(InterruptedRunError), resumable(tmp_path / MANIFEST):
        raise KeyboardInterrupt
    assert sigterm() is signal.SIG_DFL


WHILE_IT_LOADS = """
import os, signal, sys
from draftbench.__main__ import entry

class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupt())
sys.argv = ["draftbench", "--version"]
entry()
"""


AT_SHUTDOWN = """
import atexit, os, signal, sys
from draftbench.cli import entry

atexit.register(os.kill, os.getpid(), signal.SIGTERM)
sys.argv = ["draftbench", {word!r}]
entry()
"""


def test_a_sigterm_while_python_shuts_down_ends_it_without_a_word():
    for word in ("--version", "--no-such-flag"):
        program = AT_SHUTDOWN.format(word=word)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == -signal.SIGTERM
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


IN_NUMPY = """
import sys
from draftbench.cli import main

class Interrupt:
    def find_spec(self, name, *_):
        if name == "numpy.linalg":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(main(["recommend", {run!r}]))
"""


def test_control_c_while_something_is_loaded_is_no_traceback_and_no_verdict(swept):
    for program in (WHILE_IT_LOADS, IN_NUMPY.format(run=str(swept[0]))):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (130, "")
        assert done.stderr.startswith("error: interrupted\nhint: ")
        assert "Traceback" not in done.stderr


def goes_on(words):
    """Where the work is kept, and the command that resumes it."""
    again = shlex.join(["draftbench", *words])
    return f"finished work is kept in `{words[-1]}`; resume with: {again}"


def late(*_):
    raise timed_out(1.0)


def said_of(outcome):
    """The lines on stderr; long commands are continued."""
    return [line for line in outcome.err.replace(" \\\n       ", "").splitlines() if line]


def test_a_candidate_over_its_time_leaves_the_command_that_goes_on(
    command, small_words, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(ModelDraft, "replay", late)
        outcome = command(*small_words)
    assert outcome.code == 1
    assert said_of(outcome)[-3:-1] == [
        f"not completely measured: draft; {goes_on(small_words)}",
        f"next: draftbench recommend '{small_words[-1]}' --all",
    ]
    outcome = command(*small_words)
    assert (outcome.code, "not completely measured" in outcome.err) == (0, False)


def test_where_no_candidate_is_left_it_goes_on_and_where_time_was_limited_more_is_advised(
    command, small_words, monkeypatch
):
    monkeypatch.setattr(LoadedCandidate, "replay", late)
    outcome = command(*small_words)
    assert (outcome.code, outcome.out) == (2, "")
    late_draft = "draft: it took longer than the 1 second of --candidate-timeout"
    assert said_of(outcome)[-3:-1] == [
        f"not completely measured: draft, ngram; {goes_on(small_words)}",
        f"error: no candidate was measured in this run ({late_draft})",
    ]
    words = ["sweep", "--candidate-timeout", "100", *small_words[1:-1], f"{small_words[-1]}-2"]
    longer = "what took too long needs a longer --candidate-timeout"
    said = f"not completely measured: draft, ngram; {longer}; {goes_on(words)}"
    assert said in said_of(command(*words))


def test_what_cannot_be_loaded_is_not_said_to_go_on(command, small_words, monkeypatch):
    build = model_draft.build_runner

    def without_drafts(source, asked, draft):
        if draft is not None:
            raise ModelError("touched no layer", hint="another level")
        return build(source, asked, draft)

    monkeypatch.setattr(model_draft, "build_runner", without_drafts)
    outcome = command(*small_words)
    assert outcome.code == 1
    assert "draft failed: touched no layer" in outcome.err
    assert "resume with" not in outcome.err


def test_a_full_disk_leaves_the_command_that_goes_on(failing, small_words, monkeypatch):
    append = RunWriter.append

    def full(self, records):
        records = list(records)
        if any(isinstance(record, Replay) for record in records):
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise cannot_write(self.path, error) from error
        append(self, records)

    monkeypatch.setattr(RunWriter, "append", full)
    said = failing(2, *small_words)
    room = "hint: free some space; "
    assert said.splitlines()[1] == room + goes_on(small_words)
