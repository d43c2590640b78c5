"""Every error that a user can cause, each with a hint that says how to mend it. The command line
prints `error: MESSAGE` and `hint: HINT` and exits with the code of the class.
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


class RefusedError(TrafficError):
    """One request that a model's template or tokenizer refuses; `reason` does not name its row."""

    def __init__(self, message: str, *, reason: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class ModelError(UsageError):
    """A model that cannot be loaded, quantized or run here."""


class PairError(ModelError):
    """A draft that cannot propose tokens to this target."""


class EngineError(UsageError):
    """A serving engine that does not start, answer or do what was asked of it. `safe_message` is
    what may be recorded of the message: not what the engine said, which may quote a request.
    """

    # Whether the server is at fault, so that the same command may go through later.
    unanswered = False

    def __init__(self, message: str, *, hint: str, safe_message: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.safe_message = message if safe_message is None else safe_message


class RunFolderError(UsageError):
    """A run folder or baseline file that cannot be read, written or continued."""


class AuditError(DraftbenchError):
    """Speculation changed the target's output, or its distribution."""

    exit_code = 1


class IncomparableError(DraftbenchError):
    """Two measurements of different questions."""

    exit_code = 4


class InterruptedRunError(DraftbenchError):
    """The user stopped the run; what was measured so far is kept."""

    exit_code = 130


class TerminatedRunError(InterruptedRunError):
    """A scheduler or another process asked the run to end: 128 and the signal's number."""

    exit_code = 143


def closest(name: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """The known name that is most like a misspelt one, first among those that begin as it does;
    None if none is like it.
    """
    near = difflib.get_close_matches(name, list(known), 3, alike)
    begins = name.lstrip("-")[:1]
    return min(near, key=lambda each: not each.lstrip("-").startswith(begins), default=None)


def did_you_mean(name: str, known: Iterable[str], hint: str, *, alike: float = 0.6) -> str:
    """A hint, after the known name that is most like a misspelt one."""
    near = closest(name, known, alike)
    return f"did you mean `{near}`? {hint}" if near else hint
