"""How a serving engine drafts: an entry of `--drafts`, with all that an engine needs for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from draftbench.drafts.kind import DraftKind, Method
from draftbench.drafts.kinds import DRAFT_KINDS, parsed
from draftbench.errors import UsageError
from draftbench.records import NGRAMS, DraftingMode, NGramSizes, StopRule, draft_of_stack
from draftbench.safe_files import UnreadableError, read_limited

_MOST_RAW_BYTES = 64 << 10
_RAW_HINT = (
    "spec:FILE.json holds vLLM's speculative configuration, or flags of llama.cpp or SGLang with "
    'their values; "{k}" stands for the draft length'
)


@dataclass(frozen=True)
class Speculation:
    """How a server drafts, and how many tokens per round."""

    method: Method
    model: str | None  # the draft's weights; None where it has none
    k: int
    lookup: NGramSizes = NGRAMS
    raw: dict[str, Any] | None = None  # the content of `spec:FILE.json`
    quant: str = "none"  # of a draft model, made while the engine loads it
    mode: DraftingMode = DraftingMode.GREEDY  # of a draft model
    # Whether a draft model has another vocabulary, so that the engine has to translate tokens.
    translated: bool = False
    stacked: bool = False  # whether it drafts only where prompt lookup finds nothing
    stop: StopRule | None = None  # ends a round's drafting early; None: every round drafts k tokens

    @property
    def kind(self) -> DraftKind:
        """The kind of draft, behind prompt lookup that of the one behind it."""
        return DRAFT_KINDS[self.method]


def speculation_of(
    draft: str,
    k: int,
    *,
    lookup: NGramSizes = NGRAMS,
    quant: str = "none",
    mode: DraftingMode = DraftingMode.GREEDY,
    stop: StopRule | None = None,
    held: str | None = None,
) -> Speculation:
    """How an entry of `--drafts` drafts; `held` is the content of its `spec:FILE.json` when it was
    read.

    Raises:
        UsageError: the model is missing, or the file is not a JSON object.
    """
    method, rest = parsed(draft)
    if method == "raw":
        try:
            text = read_limited(Path(rest), _MOST_RAW_BYTES) if held is None else held
            raw = msgspec.json.decode(text, type=dict[str, Any])
        except UnreadableError as error:
            raise UsageError(f"cannot read `{rest}`: {error}", hint=_RAW_HINT) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"`{rest}` is no JSON object", hint=_RAW_HINT) from error
        return Speculation("raw", None, k, raw=raw, stop=stop)
    stacked = draft_of_stack(draft) is not None
    how = Speculation(method, rest or None, k, lookup, stacked=stacked, stop=stop)
    return replace(how, quant=quant, mode=mode) if how.kind.is_model else how
