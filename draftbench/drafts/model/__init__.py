"""A draft model: a smaller model that continues the text token by token.

drafter     how it drafts in rounds
draft       its check, its loading, its replay and its timed passes
self_check  whether speculation leaves the target's distribution unchanged, by simulation
"""

from draftbench.drafts.kind import DraftKind

KIND = DraftKind(
    "draft-model",
    "a draft model",
    written="",
    called="^draft(.model|.simple)?$|standalone",
    is_model=True,
    replayed=True,
    built_in=True,
    samples=True,
    stackable=True,
    trainable=True,
)
