"""draftbench picks the draft model for speculative decoding and proves the pick."""

__version__ = "0.1.0"
