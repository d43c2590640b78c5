"""An exception that ended a candidate → the words that are kept of it.

What libraries say may quote what they were given, so only messages about memory, files and tensor
shapes are repeated, cut to one line; of any other exception only its kind and place are told.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from draftbench.errors import DraftbenchError, ModelError
from draftbench.records import Candidate, Failure
from draftbench.store.manifest import portable

MOST_CHARACTERS = 300
_AGAIN = "the same command tries this candidate again"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


def failure(candidate: Candidate, error: BaseException, stage: str = "measure") -> Failure:
    """The record of a candidate that could not be measured."""
    reason, hint = describe(error)
    return Failure(
        draft=candidate.draft,
        quant=candidate.quant,
        stage=stage,
        reason=portable(reason),
        hint=hint,
    )


def known_error(what: str, error: Exception) -> DraftbenchError:
    """The same as an error for the user; `what` could not be used."""
    if isinstance(error, DraftbenchError):
        return error
    reason, hint = describe(error)
    return ModelError(f"{what}: {reason}", hint=hint)


def describe(error: BaseException) -> tuple[str, str]:
    """Reason and hint."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0][:MOST_CHARACTERS]
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        sign in first.lower() for sign in _OUT_OF_MEMORY
    ):
        return f"out of memory: {first}", "a smaller draft or quantization may fit"
    if isinstance(error, DraftbenchError):
        return error.message, error.hint
    if isinstance(error, (RuntimeError, OSError)):
        return first, _AGAIN
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" in {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
    return (
        f"the model's code failed ({type(error).__name__}{place})",
        "this architecture may not work here; if it should, please report it",
    )
