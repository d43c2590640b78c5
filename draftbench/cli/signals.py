"""Control-C, SIGTERM, a full disk and closed streams: each has its own exit code, and says what is
saved and how to resume.

Control-C arrives as Python's KeyboardInterrupt. SIGTERM, which schedulers and containers send
before they kill, would end a process silently; here it raises an exception too. A reader that
closes stdout does not change the exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from draftbench.cli.invocation import command, resume_command
from draftbench.errors import EngineError, InterruptedRunError, RunFolderError, TerminatedRunError

_STDOUT, _STDERR = 1, 2


class TerminatedError(BaseException):
    """SIGTERM. Not an Exception: code that survives a failing candidate must not catch it."""


def catch_sigterm() -> None:
    """Raise TerminatedError on SIGTERM; a second one ends the process at once."""
    signal.signal(signal.SIGTERM, _unwind)


def release_sigterm() -> None:
    """Let SIGTERM end the process at once again: everything is written, and while Python shuts down
    nothing could catch an exception.
    """
    if signal.getsignal(signal.SIGTERM) is _unwind:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unwind(*_: object) -> None:
    release_sigterm()
    raise TerminatedError


@contextlib.contextmanager
def resumable(begun: Path) -> Iterator[None]:
    """Turn whatever stops a command into an error with the command that resumes it; a folder can be
    resumed once it holds the file `begun`.

    Raises:
        InterruptedRunError: by Control-C.
        TerminatedRunError: by SIGTERM.
        RunFolderError: what was measured cannot be written.
        EngineError: a server that does not answer, with the command only where there is a run.
    """
    out = begun.parent
    try:
        yield
    except (KeyboardInterrupt, TerminatedError) as error:
        release_sigterm()
        kept = begun.exists()
        hint = how_to_resume(out) if kept else "nothing was measured yet; run the command again"
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedRunError("interrupted", hint=hint) from error
        raise TerminatedRunError("ended by SIGTERM", hint=hint) from error
    except EngineError as error:
        if error.unanswered and begun.exists():
            error.hint = f"{error.hint}; {how_to_resume(out)}"
        raise
    except RunFolderError as error:
        # A run's record has the program's plain name.
        error.hint = error.hint.replace("resumed by: draftbench ", f"resumed by: {command()} ")
        # The system refused to write, but not because another process holds the lock.
        refused = isinstance(error.__cause__, OSError)
        locked = isinstance(error.__cause__, BlockingIOError)
        if not refused or locked or not begun.exists():
            raise
        raise RunFolderError(error.message, hint=f"{error.hint}; {how_to_resume(out)}") from error


def how_to_resume(out: Path) -> str:
    """Where the finished work is, and the command that resumes it."""
    return f"finished work is kept in `{out}`; resume with: {resume_command(out)}"


def drop_unwritten() -> None:
    """Drop what could not be written to stdout and stderr: Python would try again while it shuts
    down, and then exit with 120.
    """
    for number, stream in ((_STDOUT, sys.stdout), (_STDERR, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
