"""What a user asked → a run folder. `prepare` needs no weights, `run` measures what is not measured
yet.
"""

from draftbench.sweep.grid import run
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.preparation import Prepared, prepare

__all__ = ["Prepared", "SweepOptions", "Watcher", "prepare", "run"]
