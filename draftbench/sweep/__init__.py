"""What a user asked → a run folder. `prepare` needs no weights, `run` measures what is not measured
yet.
"""

from draftbench.sweep.engine_prepare import prepare_serving
from draftbench.sweep.grid import run
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.preparation import Prepared, prepare_models

__all__ = ["Prepared", "SweepOptions", "Watcher", "prepare", "run"]


def prepare(options: SweepOptions, command: str, watcher: Watcher) -> Prepared:
    """Read traffic and check what is asked for, on the built-in decoder or on a serving engine.

    Raises:
        DraftbenchError: nothing could be measured, or the input cannot be used.
    """
    how = prepare_models if options.serving is None else prepare_serving
    return how(options, command, watcher)
