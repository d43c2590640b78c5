"""draftbench picks the draft model for speculative decoding and proves the pick.

In a notebook, `draftbench.notebook` has the commands as functions; see docs/python.md.
"""

__version__ = "0.1.0"
