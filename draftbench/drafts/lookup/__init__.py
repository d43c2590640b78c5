"""Prompt lookup: copies what followed the same tokens earlier, and needs no model.

index   finds the earlier occurrence
draft   its drafting, its replay and its timed work
"""

from draftbench.drafts.kind import DraftKind
from draftbench.memory import Footprint
from draftbench.records import ModelFacts


class _Lookup(DraftKind):
    def footprint(self, facts: ModelFacts | None) -> Footprint:
        return Footprint(0, 0)


KIND = _Lookup(
    "ngram",
    "prompt lookup",
    written="ngram",
    called="ngram",
    replayed=True,
    built_in=True,
    from_text=True,
    unchecked="it works with every target",
)
