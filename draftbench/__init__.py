"""draftbench picks the draft model for speculative decoding and proves the pick.

For a notebook, `draftbench.Run(folder)` has the commands' answers; see docs/python.md.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Run`, when it is asked for: the command line starts without it, and what is below it in the
    order of imports does not depend on it.
    """
    if name == "Run":
        return import_module("draftbench.notebook").OpenedRun
    raise AttributeError(f"module `draftbench` has no attribute `{name}`")
