"""The kinds of draft that are loaded here: to draft, or to be replayed over an engine's answers."""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.drafts.block import draft as block
from draftbench.drafts.eagle3 import draft as eagle3
from draftbench.drafts.kind import Method
from draftbench.drafts.kinds import DRAFT_KINDS, parsed, parts_of
from draftbench.drafts.loading import HeadWeights, Loading, ServedWeights, Weights
from draftbench.drafts.lookup.draft import LookupDraft
from draftbench.drafts.model import draft as model
from draftbench.drafts.mtp import draft as mtp
from draftbench.drafts.stack.draft import StackDraft
from draftbench.drafts.suffix.draft import SuffixDraft
from draftbench.drafts.suffix.memory import Remembered
from draftbench.measure.candidate import LoadedDraft
from draftbench.models.source import ModelSource
from draftbench.records import BUILT_IN_LOOKUP, LookupRule, ModelFacts, NGramSizes

# What drafts from the text alone has no weights, and a stack those of its draft.
HEADS: dict[Method, HeadWeights] = {
    "eagle3": eagle3,
    "mtp": mtp,
    "dflash": block,
    "dspark": block,
}
WITH_WEIGHTS: dict[Method, Weights] = {"draft-model": model, **HEADS}
# Those of DRAFT_KINDS that are `replayed`.
SERVED: dict[Method, ServedWeights] = {
    "draft-model": model,
    "eagle3": eagle3,
    "dflash": block,
    "dspark": block,
}


def most_drafted(method: Method, source: ModelSource) -> int | None:
    """The most tokens that a draft can propose in a round, if it was trained for so many."""
    return block.most_drafted(source) if HEADS.get(method) is block else None


def load_from_text(
    method: Method,
    device: str,
    lookup: NGramSizes,
    rule: LookupRule = BUILT_IN_LOOKUP,
    log: Sequence[Remembered] = (),
) -> LoadedDraft:
    """A draft without weights.

    Args:
        rule: of prompt lookup.
        log: the responses in the order of their requests, if it remembers them.
    """
    if method == "ngram":
        return LookupDraft(lookup, device, rule)
    return SuffixDraft(device, log if DRAFT_KINDS[method].remembers else None)


def load(loading: Loading, lookup: NGramSizes) -> tuple[LoadedDraft, ModelFacts]:
    """Load a draft with weights or, with its part that has them, a stack.

    Raises:
        ModelError: it cannot be loaded or quantized.
    """
    method, _ = parsed(loading.candidate.draft)
    draft, facts = WITH_WEIGHTS[method].load(loading)
    if not parts_of(loading.candidate):
        return draft, facts
    return StackDraft(LookupDraft(lookup, loading.build.device), draft), facts
