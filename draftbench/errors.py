"""The exception tree: everything a user can cause, each with the words that help to mend it.

DraftbenchError (70)
├── UsageError (2)            a flag, a file or a value that cannot be used
│   ├── TrafficError          a traffic file, suite or data set
│   ├── ModelError            a model that cannot be loaded, quantized or run
│   │   └── PairError         a draft that cannot draft for this target
│   └── RunFolderError        a run folder or a baseline file
├── AuditError (1)            an output that is not the target's own
├── IncomparableError (4)     a baseline that answers another question
└── InterruptedRunError (130) stopped by Control-C; what is done is kept
    └── TerminatedRunError (143) stopped by SIGTERM

The command line prints `error: MESSAGE` and `hint: HINT` and leaves with the exit code of the
class.
"""

from __future__ import annotations


class DraftbenchError(Exception):
    """A failure with a message for the user, a hint how to go on and an exit code."""

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
    """Speculation changed the target's output, or the law that it is drawn from."""

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
