"""Every error that a user can cause, each with a hint that says how to mend it.

DraftbenchError (70)
├── UsageError (2)            a flag, a file or a value that cannot be used
│   ├── TrafficError          a traffic file, suite or data set
│   ├── ModelError            a model that cannot be loaded, quantized or run
│   │   └── PairError         a draft that cannot draft for this target
│   └── RunFolderError        a run folder or a baseline file
├── AuditError (1)            an output that differs from the target's
├── IncomparableError (4)     a baseline that measured something else
└── InterruptedRunError (130) stopped by Control-C; finished work is kept
    └── TerminatedRunError (143) stopped by SIGTERM

The command line prints `error: MESSAGE` and `hint: HINT` and exits with the code of the class.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DraftbenchError(Exception):
    """A failure with a message and a hint for the user, and an exit code."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DraftbenchError):
    """Input that cannot be used as it is."""

    exit_code = 2


class TrafficError(UsageError):
    """A traffic source that cannot be read or holds rows that cannot be replayed."""


class ModelError(UsageError):
    """A model that cannot be loaded, quantized or run here."""


class PairError(ModelError):
    """A draft that cannot propose tokens to this target."""


class RunFolderError(UsageError):
    """A run folder or baseline file that cannot be read, written or continued."""


class AuditError(DraftbenchError):
    """Speculation changed the target's output, or its distribution."""

    exit_code = 1


class IncomparableError(DraftbenchError):
    """Two measurements of different questions."""

    exit_code = 4


class InterruptedRunError(DraftbenchError):
    """The user stopped the run; the observations made so far are kept."""

    exit_code = 130


class TerminatedRunError(InterruptedRunError):
    """A scheduler or another process asked the run to end: 128 and the signal's number."""

    exit_code = 143


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, alike: float = 0.6) -> str:
    """A hint with the known name that is most like a misspelt one, or the other hint."""
    near = difflib.get_close_matches(name, list(known), 1, alike)
    return f"did you mean `{near[0]}`?" if near else otherwise
