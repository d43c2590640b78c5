"""Streams that nobody takes from → the exit code that a command has anyway. A closed pipe behind
stderr must not end it, since progress and notes change nothing of what it does; what a full disk
refused has been told where that was possible, and is not to be tried again.
"""

from __future__ import annotations

import io
import os
import sys

_STDOUT, _STDERR = 1, 2


class _MayBeUnread(io.TextIOWrapper):
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            _to_nowhere(_STDERR)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            _to_nowhere(_STDERR)


def survive_unread_stderr() -> None:
    """From here on what nobody reads of stderr goes nowhere."""
    old = sys.stderr
    if isinstance(old, io.TextIOWrapper):
        encoding, errors = old.encoding, old.errors
        sys.stderr = sys.__stderr__ = _MayBeUnread(  # type: ignore[misc]
            old.detach(), encoding=encoding, errors=errors, line_buffering=True
        )


def give_up_unwritten() -> None:
    """Forget what stdout and stderr did not take: Python would write it once more as it shuts down,
    complain, and leave with a code of its own.
    """
    for number, stream in ((_STDOUT, sys.stdout), (_STDERR, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            _to_nowhere(number)


def _to_nowhere(stream: int) -> None:
    """For libraries and child processes too, which write to the file descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)
