"""stderr → a stderr that may be left unread: progress and notes change nothing of what a command
does, so a closed pipe behind them must not end it or give another exit code.
"""

from __future__ import annotations

import io
import os
import sys

_STDERR = 2


class _MayBeUnread(io.TextIOWrapper):
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            _to_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            _to_nowhere()


def survive_unread_stderr() -> None:
    """From here on what nobody reads of stderr goes nowhere."""
    old = sys.stderr
    if isinstance(old, io.TextIOWrapper):
        encoding, errors = old.encoding, old.errors
        sys.stderr = sys.__stderr__ = _MayBeUnread(  # type: ignore[misc]
            old.detach(), encoding=encoding, errors=errors, line_buffering=True
        )


def _to_nowhere() -> None:
    """For libraries and child processes too, which write to the file descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
