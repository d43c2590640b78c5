"""What can go wrong with a request to a server: the kinds of faults, and what each error says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

import msgspec

from draftbench.engines.secrets import known_phrases, shown
from draftbench.errors import EngineError

TOKEN_VARIABLE = "DRAFTBENCH_API_KEY"

T = TypeVar("T")


class Fault(StrEnum):
    """What can go wrong with a request."""

    UNREACHABLE = "unreachable"  # no connection, or it broke before the answer began
    REFUSED = "refused"  # an HTTP status that says no
    REDIRECTED = "redirected"  # sent to another address, which is never followed
    TIMEOUT = "timeout"
    CUT = "cut"  # the stream ended before the answer did
    GARBAGE = "garbage"  # not what such a server answers
    TOO_LARGE = "too large"
    OTHER_IDS = "other ids"  # the server read a different prompt
    FAILED = "failed"  # the server reports that it failed


class AnswerError(EngineError):
    """A request that was not answered as it should be. What the server `said` may quote a prompt:
    of that the message has what may be printed.
    """

    unanswered = True

    def __init__(
        self, fault: Fault, reason: str, *, hint: str, said: str = "", status: int | None = None
    ) -> None:
        token = os.environ.get(TOKEN_VARIABLE)  # which some quote
        message, recorded = shown(said, [token] if token else []), known_phrases(said)
        super().__init__(
            f"{reason}: {message}" if message else reason,
            hint=hint,
            safe_message=f"{reason}: {recorded}" if recorded else reason,
        )
        self.fault = fault
        self.status = status  # of HTTP, where that says no


@contextlib.contextmanager
def unless_refused() -> Iterator[None]:
    """Ignore a refusal: not every server has every route."""
    try:
        yield
    except AnswerError as error:
        if error.fault is not Fault.REFUSED:
            raise


def from_json(raw: bytes, type: type[T]) -> T:
    """A JSON document as a value of this type. Raises: AnswerError."""
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # Types and places, none of its values.
        raise garbage(f"the server answers something that no such server does: {error}") from error


def garbage(what: str) -> AnswerError:
    """An answer that no server of this kind gives."""
    hint = "see what runs at this address, and which version of it"
    return AnswerError(Fault.GARBAGE, what, hint=hint)


def other_ids() -> AnswerError:
    """A prompt that the server read differently."""
    return AnswerError(
        Fault.OTHER_IDS,
        "the server read other token ids than were sent",
        hint="the server's tokenizer must be the target's, and add nothing to a prompt of ids",
    )


def failure(message: object) -> AnswerError:
    """An error that a server reports within an answer."""
    return AnswerError(
        Fault.FAILED, "the server reports an error", hint="see the server's log", said=str(message)
    )
