"""What is known of every kind of draft before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftbench.memory import Footprint
from draftbench.records import ModelFacts

Method = Literal[
    "draft-model",
    "ngram",
    "eagle3",
    "mtp",
    "stack",
    "suffix",
    "suffix-alone",
    "dflash",
    "dspark",
    "raw",
]


@dataclass(frozen=True)
class DraftKind:
    """A kind of draft: how it is written, and what can be done with it."""

    method: Method
    noun: str  # what it is called in a sentence
    written: str  # its prefix in `--drafts`, as `eagle3:`; empty: the entry is the model itself
    called: str = "(?!)"  # a pattern of what servers call it; this one: nothing
    # Whether it is a language model by itself: with a vocabulary, and levels that are made of it.
    is_model: bool = False
    replayed: bool = False  # whether it can be replayed over the answers of an engine
    built_in: bool = False  # whether the built-in decoder drafts with it
    samples: bool = False  # whether it can draw its tokens there, besides taking the best
    from_text: bool = False  # whether it drafts from the text alone, with no weights
    remembers: bool = False  # whether also from earlier responses, so that their order counts
    reads_states: bool = False  # whether it drafts from the target's states
    stackable: bool = False  # whether it may draft where prompt lookup finds nothing
    trainable: bool = False  # whether `train` can fit its weights
    unchecked: str = ""  # why there is nothing to check; empty where there is

    def parts(self, draft: str) -> tuple[str, ...]:
        """The drafts that one of this kind is put together from, by name; the last has its weights.
        They are measured too: what is known of that one holds for the whole.
        """
        return ()

    def footprint(self, facts: ModelFacts | None) -> Footprint | None:
        """The memory that it needs besides the target's, from what is known of its weights; None if
        nothing is.
        """
        return None if facts is None else Footprint(facts.weight_bytes, facts.kv_bytes_per_token)
