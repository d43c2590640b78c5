"""Suffix trees: what most often followed the same tokens earlier, in this text or in the responses
before it; they need no model.

rule    how a tree is built, and what of it is proposed
tree    finds what followed, and how often
memory  the responses before each one
draft   its drafting, its replay and its timed work
"""

from functools import partial

from draftbench.drafts.kind import DraftKind
from draftbench.memory import Footprint
from draftbench.records import ModelFacts


class _Suffix(DraftKind):
    def footprint(self, facts: ModelFacts | None) -> Footprint:
        return Footprint(0, 0)


_kind = partial(
    _Suffix,
    called="suffix",
    replayed=True,
    built_in=True,
    from_text=True,
    unchecked="it works with every target; of the engines vLLM has it",
)
# As vLLM runs it, and with only its own prompt and response to draft from.
KIND = _kind("suffix", "suffix decoding", written="suffix", remembers=True)
ALONE = _kind("suffix-alone", "suffix decoding without memory", written="suffix-alone")
