"""From the options to a run folder: `prepare` checks everything that needs no weights,
`measure_sweep` measures what the folder lacks. The options are read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftbench.sweep.options import SweepOptions, Watcher

if TYPE_CHECKING:
    from draftbench.sweep.prepared import Prepared

__all__ = ["SweepOptions", "Watcher", "prepare"]


def prepare(options: SweepOptions, command: str, watcher: Watcher) -> Prepared:
    """Read the traffic and check the options, for the built-in decoder or for a serving engine.

    Raises:
        DraftbenchError: nothing could be measured, or the input cannot be used.
    """
    from draftbench.sweep import preparation

    return preparation.prepare(options, command, watcher)
