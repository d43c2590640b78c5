"""Every error that a user can cause, each with a hint on how to fix it. The command line prints
`error: MESSAGE` and `hint: HINT` and exits with the class's code.
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
    """A request that a model's template or tokenizer refuses; `reason` does not name its row."""

    def __init__(self, message: str, *, reason: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class ModelError(UsageError):
    """A model that cannot be loaded, quantized or run here."""


class PairError(ModelError):
    """A draft that cannot propose tokens to this target."""


class EngineError(UsageError):
    """A serving engine that does not start, does not answer, or does not do what it was asked to.
    `safe_message` is the part that may be recorded, without the engine's own words, which may quote
    a request.
    """

    # Whether the fault is the server's, so that the same command may succeed later.
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
    """Two measurements that answer different questions."""

    exit_code = 4


class InterruptedRunError(DraftbenchError):
    """The user stopped the run; what was measured so far is kept."""

    exit_code = 130


class TerminatedRunError(InterruptedRunError):
    """A scheduler or another process ended the run; exits with 128 plus the signal's number."""

    exit_code = 143


def closest(name: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """The known name closest to a misspelt one, preferably with the same beginning; None if no name
    is close.
    """
    near = difflib.get_close_matches(name, list(known), 3, alike)
    begins = name.lstrip("-")[:1]
    return min(near, key=lambda each: not each.lstrip("-").startswith(begins), default=None)


def did_you_mean(name: str, known: Iterable[str], hint: str, *, alike: float = 0.6) -> str:
    """A hint that begins with the known name closest to a misspelt one."""
    near = closest(name, known, alike)
    return f"did you mean `{near}`? {hint}" if near else hint
