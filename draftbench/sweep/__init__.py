"""Options → a run folder: `prepare` checks them without weights, `run` measures what is missing."""

from draftbench.sweep.engine_prepare import prepare_serving
from draftbench.sweep.grid import run
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.preparation import Prepared, prepare_models

__all__ = ["Prepared", "SweepOptions", "Watcher", "prepare", "run"]


def prepare(options: SweepOptions, command: str, watcher: Watcher) -> Prepared:
    """Read the traffic and check the options, for the built-in decoder or for a serving engine.

    Raises:
        DraftbenchError: nothing could be measured, or the input cannot be used.
    """
    how = prepare_models if options.serving is None else prepare_serving
    return how(options, command, watcher)
