"""The kinds of draft that only serving engines run: nothing of them is replayed or loaded here."""

from draftbench.drafts.kind import DraftKind

# What an engine is passed stands in a file.
RAW = DraftKind(
    "raw",
    "an engine's own way",
    written="spec:",
    unchecked="only the engine knows whether it can draft this way, and only a sweep on it "
    "measures that",
)
