"""Turns the exception that ended a candidate into the reason that the run folder records.

A library's message may quote private text, so only known phrases from it are recorded: sizes,
shapes, a file's name. For other exceptions the type and the place are recorded.
"""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path

import torch

from draftbench.drafts.kinds import parts_of
from draftbench.errors import DraftbenchError, EngineError, ModelError, RunFolderError
from draftbench.records import Candidate, Failure
from draftbench.run_folder.manifest import portable

MOST_CHARACTERS = 300
_KNOWN = re.compile(
    r"size mismatch for [\w.]+"
    r"|mat1 and mat2 shapes cannot be multiplied \([\dx]+ and [\dx]+\)"
    r"|The (?:expanded )?size of (?:the )?tensor (?:\w )?\(\d+\) must match the (?:existing )?size "
    r"(?:of tensor \w )?\(\d+\) at non-singleton dimension \d+"
    r"|Sizes of tensors must match except in dimension \d+"
    r"|shape '\[[-\d, ]*\]' is invalid for input of size \d+"
    r"|Error while deserializing header: (?:\w+ )?\w+"
    r"|(?i:tried to allocate [\d.]+ ?[KMGT]?i?B(?:ytes)?)"
    r"|Failed to find C compiler|no kernel image is available for execution on the device"
    r"|CUDA driver version is insufficient for CUDA runtime version"
    r"|the provided PTX was compiled with an unsupported toolchain"
)
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


def failure(candidate: Candidate | None, error: Exception, stage: str = "measure") -> Failure:
    """The record of a candidate that could not be measured."""
    reason, hint = reason_of(error)
    return Failure(candidate=candidate, stage=stage, reason=portable(reason), hint=portable(hint))


def timed_out(limit: float | None) -> ModelError:
    """The error for a candidate that took longer than the user allows."""
    seconds = "second" if limit == 1 else "seconds"
    return ModelError(
        f"it took longer than the {limit:g} {seconds} of --candidate-timeout",
        hint="what it measured is kept; the same command with a longer --candidate-timeout resumes",
    )


def parts_missing(candidate: Candidate) -> ModelError:
    """The error for a draft with a part that could not be replayed."""
    return ModelError(
        f"prompt lookup and `{parts_of(candidate)[-1]}` were not both replayed",
        hint="see which of them failed; the same command tries again",
    )


def changed_model(draft: str | None) -> RunFolderError:
    """The error for files of the target (None) or a draft that changed since they were measured."""
    who = "the target" if draft is None else f"the draft `{draft}`"
    return RunFolderError(
        f"{who} changed since this run measured it",
        hint="bring the old files back, or measure the new ones with another --out",
    )


def known_error(what: str, error: Exception) -> DraftbenchError:
    """An exception as an error for the user that says why `what` could not be used."""
    if isinstance(error, DraftbenchError):
        return error
    reason, hint = reason_of(error)
    return ModelError(f"{what}: {reason}", hint=hint)


def reason_of(error: Exception) -> tuple[str, str]:
    """The reason to record, and a hint."""
    words = _repeatable(error)
    no_memory = any(sign in str(error).lower() for sign in _OUT_OF_MEMORY)
    if no_memory or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        reason = f"out of memory: {words}" if words else "out of memory"
        return reason, "a smaller draft or quantization may fit"
    if isinstance(error, DraftbenchError):
        message = error.safe_message if isinstance(error, EngineError) else error.message
        return message, error.hint
    if words:
        return words, "the same command tries this candidate again"
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" in {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
    return (
        f"the model's code failed ({type(error).__name__}{place})",
        "this architecture may not work here; if it should, please report it",
    )


def _repeatable(error: Exception) -> str:
    """The part of a message that may be recorded; empty if none may."""
    words = ""
    if isinstance(error, DraftbenchError):
        words = error.message.splitlines()[0]
    elif isinstance(error, OSError) and error.errno is not None:
        words = os.strerror(error.errno)
        if isinstance(error.filename, str):
            words += f": {Path(error.filename).name}"
    elif isinstance(error, (RuntimeError, OSError)) and (found := _KNOWN.search(str(error))):
        words = found.group()
    return words[:MOST_CHARACTERS]
