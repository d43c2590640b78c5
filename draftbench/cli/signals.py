"""Control-C, SIGTERM, a full disk → an error that says what is kept and the command that goes on.

Control-C comes as Python's own KeyboardInterrupt. SIGTERM, which schedulers and containers send
before they kill, would end a process without a word: here it unwinds in the same way, and the exit
code says which of the two it was.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from draftbench.cli.invocation import again_in
from draftbench.errors import InterruptedRunError, RunFolderError, TerminatedRunError


class TerminatedError(BaseException):
    """SIGTERM. No Exception: what a candidate may fail of must not catch it."""


def catch_sigterm() -> None:
    """Raise on SIGTERM; a second one ends the process at once."""
    signal.signal(signal.SIGTERM, _unwind)


def release_sigterm() -> None:
    """Let SIGTERM end the process again as it does any other: nothing is left to be kept, and while
    Python shuts down an exception has nowhere to go.
    """
    if signal.getsignal(signal.SIGTERM) is _unwind:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unwind(*_: object) -> None:
    release_sigterm()
    raise TerminatedError


@contextlib.contextmanager
def kept_in(out: Path) -> Iterator[None]:
    """What stops a run that writes to `out` is raised again in words.

    Raises:
        InterruptedRunError: by Control-C.
        TerminatedRunError: by SIGTERM.
        RunFolderError: what was measured cannot be written.
    """
    from draftbench.run_folder.folder import MANIFEST

    try:
        yield
    except (KeyboardInterrupt, TerminatedError) as error:
        release_sigterm()
        begun = (out / MANIFEST).exists()
        hint = kept(out) if begun else "nothing was measured yet; give the same command again"
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedRunError("interrupted", hint=hint) from error
        raise TerminatedRunError("ended by SIGTERM", hint=hint) from error
    except RunFolderError as error:
        # What the system refused, but for a lock that another process holds.
        refused = isinstance(error.__cause__, OSError)
        locked = isinstance(error.__cause__, BlockingIOError)
        if not refused or locked or not (out / MANIFEST).exists():
            raise
        raise RunFolderError(error.message, hint=f"{error.hint}; {kept(out)}") from error


def kept(out: Path, without: str | None = None) -> str:
    """What is there of a run that stopped, and the command that goes on, less one flag."""
    return f"what is done is kept in `{out}`; go on with: {again_in(out, without)}"
