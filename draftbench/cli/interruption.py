"""Control-C and SIGTERM → an error that says what is kept and how to go on.

Control-C comes as Python's own KeyboardInterrupt. SIGTERM, which schedulers and containers send
before they kill, would end a process without a word: here it unwinds in the same way, and the exit
code says which of the two it was.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

from draftbench.errors import InterruptedRunError, TerminatedRunError


class TerminatedError(BaseException):
    """SIGTERM. No Exception: what a candidate may fail of must not catch it."""


def catch_sigterm() -> None:
    """Raise on SIGTERM; a second one ends the process at once."""
    signal.signal(signal.SIGTERM, _unwind)


def _unwind(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise TerminatedError


@contextlib.contextmanager
def kept_in(out: Path) -> Iterator[None]:
    """What stops a run that writes to `out` is raised again in words.

    Raises:
        InterruptedRunError: by Control-C.
        TerminatedRunError: by SIGTERM.
    """
    from draftbench.store.folder import MANIFEST

    try:
        yield
    except (KeyboardInterrupt, TerminatedError) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        if (out / MANIFEST).exists():
            again = f"the same command with `--out {shlex.quote(str(out))}` goes on"
            hint = f"what is done is kept in `{out}`; {again}"
        else:
            hint = "nothing was measured yet; give the same command again"
        if stopped:
            raise InterruptedRunError("interrupted", hint=hint) from error
        raise TerminatedRunError("ended by SIGTERM", hint=hint) from error
