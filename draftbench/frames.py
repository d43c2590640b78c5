"""A run folder → pandas frames for a notebook: its raw observations, and its candidates with their
figures.

    from draftbench import frames
    frames.candidates("results/runs/prod").sort_values("speedup_predicted")

Column names are the records' and the JSON's own; a figure's interval stands beside it as `NAME_low`
and `NAME_high`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

if TYPE_CHECKING:
    import pandas as pd


def observations(run: str | Path) -> dict[str, pd.DataFrame]:
    """Raw records by kind: trajectories, replays, decodes, costs, facts, failures; a row each.

    Raises:
        RunFolderError: not a run folder, or one that was changed by something else.
    """
    import pandas as pd

    observed = read_run(RunFolder(Path(run)))
    kinds = ("trajectories", "replays", "decodes", "costs", "facts", "failures")
    return {kind: pd.DataFrame(msgspec.to_builtins(getattr(observed, kind))) for kind in kinds}


def candidates(run: str | Path) -> pd.DataFrame:
    """One row per candidate and k with every figure that `recommend` knows; unknown ones are NaN.

    Raises:
        RunFolderError: as for `observations`.
    """
    import pandas as pd

    answer = recommend(read_run(RunFolder(Path(run))))
    return pd.DataFrame([_flat(msgspec.to_builtins(cell)) for cell in answer.evaluations])


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in cell.items():
        if isinstance(value, dict):
            row |= {
                name: value["value"],
                f"{name}_low": value["low"],
                f"{name}_high": value["high"],
            }
        else:
            row[name] = value
    return row
