"""Block drafters: a few layers that draft all of a round's tokens in one pass, from the target's
states.

    shape     what a checkpoint's config.json says, in the formats of speculators and of the authors
    layers    the layers, and the attention of blocks
    choice    how a block's tokens follow from its logits: one by one, or each by the one before
    head      the whole drafter: what it keeps of the text, and what it drafts
    draft     a checkpoint: its checks and its loading; its rounds, its replay and its timed passes
    gguf_file the same tensors from a .gguf file

DFlash (Chen et al. 2026) takes each token of a block for itself. DFlash 2 adds convolutions within
the block and a selector, which follows the best candidates from token to token. DSpark adds to the
logits a bias by the token before, and tells how sure it is of each token.
"""

from dataclasses import replace

from draftbench.drafts.kind import DraftKind

DFLASH = DraftKind(
    "dflash",
    "a head",
    written="dflash:",
    called="dflash",
    replayed=True,
    built_in=True,
    reads_states=True,
)
DSPARK = replace(DFLASH, method="dspark", written="dspark:", called="dspark")
