"""The commands as functions, for a notebook.

    from draftbench import notebook
    run = notebook.read("results/runs/prod")
    notebook.recommend(run).choice
    notebook.candidates(run).sort_values("speedup_predicted")

A function with a command's name returns the records that the command prints as JSON. Only `sweep`
needs a model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from draftbench.acceptance.summary import AcceptanceReport, acceptance_report
from draftbench.errors import UsageError
from draftbench.gate.compare import Comparison, compare_runs
from draftbench.planner import recommend as planner
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommendation import Recommendation
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run
from draftbench.safe_files import is_other_work

if TYPE_CHECKING:
    import pandas as pd

Flag = str | int | float | bool | Path | Sequence[str | Path]


def read(folder: str | Path) -> Run:
    """The run of a run folder.

    Raises:
        RunFolderError: not a run folder, or one that was changed by something else.
    """
    return read_run(RunFolder(Path(folder)))


def sweep(out: str | Path, **flags: Flag) -> Run:
    """`draftbench sweep` with its flags as keywords: `max_new_tokens=64` is `--max-new-tokens 64`,
    and a list repeats a flag.

    Raises:
        DraftbenchError: as in the command; what was measured is kept.
    """
    from draftbench.cli import app
    from draftbench.cli.invocation import called_with

    words = ["sweep", "--out", str(out), "--output", os.devnull]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            values = [value] if isinstance(value, (str, int, float, Path)) else value
            words += [word for part in values for word in (f"--{flag}", str(part))]
    called_with(words)
    app(args=words, standalone_mode=False)
    return read(out)


def recommend(
    run: Run, *, min_speedup: float = 1.0, concurrency: Sequence[int] = ()
) -> Recommendation:
    """Whether to speculate, and how."""
    options = DecisionOptions(min_speedup=min_speedup, concurrency=tuple(concurrency))
    return planner.recommend(run, options)


def acceptance(run: Run, *, k: Sequence[int] = (), width: float = 0.02) -> AcceptanceReport:
    """Acceptance by every definition, of all candidates (default: at the run's own k's)."""
    ks = tuple(k) or run.manifest.question.ks
    return acceptance_report(run, run.candidates, ks, width)


def compare(a: Run, b: Run) -> Comparison:
    """How two runs differ, paired by request."""
    return compare_runs((str(a.path), str(b.path)), a, b)


def report(run: Run, html: str | Path) -> None:
    """Write the page that explains the run."""
    from draftbench.report.page import page

    if is_other_work(Path(html)):
        raise UsageError(f"`{html}` is not a page of draftbench's", hint="name another file")
    text = page(str(run.path), run, recommend(run))
    try:
        Path(html).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{html}`: {error.strerror}", hint="check it") from error


def candidates(run: Run) -> pd.DataFrame:
    """A row for each candidate and draft length, with every figure that `recommend` knows and the
    ends of its interval, `NAME_low` and `NAME_high`. Unknown figures are NaN. `stop` is the rule
    that may end a round before k tokens, in words; it is missing at a fixed k.
    """
    import pandas as pd

    rows = []
    for each in recommend(run).evaluations:
        row: dict[str, Any] = {}
        for name, value in msgspec.to_builtins(each).items():
            if name == "stop":
                row[name] = str(each.stop) if each.stop else None
            elif isinstance(value, dict) and "value" in value:
                row[name] = value["value"]
                row |= {f"{name}_{end}": value[end] for end in ("low", "high")}
            elif isinstance(value, dict):
                row |= {f"{name}_{part}": of_part for part, of_part in value.items()}
            else:
                row[name] = value
        rows.append(row)
    return pd.DataFrame(rows)


def observations(run: Run) -> dict[str, pd.DataFrame]:
    """The raw records, a frame for each kind."""
    import pandas as pd

    def as_list(numbers: Any) -> Any:
        unread = isinstance(numbers, msgspec.Raw)
        return msgspec.json.decode(numbers) if unread else list(numbers)

    kinds = ("trajectories", "replays", "decodes", "costs", "facts", "failures")
    records = ((kind, getattr(run, kind)) for kind in kinds)
    return {k: pd.DataFrame(msgspec.to_builtins(rows, enc_hook=as_list)) for k, rows in records}
