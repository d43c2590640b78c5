"""EAGLE-3 heads: one layer that drafts from the target's own states (Li et al. 2025).

    head       the layer, and how it drafts along a text
    draft      a checkpoint: its checks, for a target and for an engine, and its loading
    gguf_file  the same tensors from a .gguf file
    training   the layer in training

What heads of all kinds share is in `drafts/heads`.
"""

from draftbench.drafts.kind import DraftKind

KIND = DraftKind(
    "eagle3",
    "a head",
    written="eagle3:",
    called="eagle",  # SGLang calls a layer of the target EAGLE too
    replayed=True,
    built_in=True,
    reads_states=True,
    stackable=True,
    trainable=True,
)
