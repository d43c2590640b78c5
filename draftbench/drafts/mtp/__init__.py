"""Multi-token prediction: the layers that a target carries to draft for itself.

    families   which models carry them or another draft, and which engines use these
    own_draft  what is said of that, with each engine's option
    head       the layers, and how they draft along a text
    draft      whether they can be run here, and how they are loaded

What heads of all kinds share is in `drafts/heads`.
"""

from draftbench.drafts.kind import DraftKind

KIND = DraftKind(
    "mtp",
    "a head",
    written="mtp",
    called="mtp|nextn|eagle(?!3)",
    built_in=True,
    reads_states=True,
    stackable=True,
)
