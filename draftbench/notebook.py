"""Run folders for a notebook: the commands of the command line under their own names.

    import draftbench
    run = draftbench.Run("results/runs/prod")
    run.recommend().choice
    run.candidates().sort_values("speedup_predicted")

A method returns the records that the command prints as JSON. Needs no model, but for `sweep`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench import frames
from draftbench.errors import UsageError
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

if TYPE_CHECKING:
    import pandas as pd

    from draftbench.acceptance.summary import AcceptanceReport
    from draftbench.gate.compare import Comparison
    from draftbench.planner.recommendation import Recommendation

Flag = str | int | float | bool | Path | Sequence[str | Path]


class OpenedRun:
    """A run folder that a sweep made, with the commands as methods; notebooks know it as
    `draftbench.Run`.

    Raises:
        RunFolderError: not a run folder, or one that was changed by something else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._folder = RunFolder(self.path)

    def __repr__(self) -> str:
        return f"draftbench.Run({str(self.path)!r})"

    @classmethod
    def sweep(cls, out: str | Path, **flags: Flag) -> OpenedRun:
        """`draftbench sweep`, its flags as keywords: `max_new_tokens=64` is `--max-new-tokens 64`,
        a list repeats a flag.

        Raises:
            DraftbenchError: as the command, which keeps what is done.
        """
        from draftbench.cli import app
        from draftbench.cli.invocation import called_with

        words = ["sweep", "--out", str(out), "--output", os.devnull]
        for name, value in flags.items():
            words += _words(f"--{name.replace('_', '-')}", value)
        called_with(words)
        app(args=words, standalone_mode=False)
        return cls(out)

    @cached_property
    def observed(self) -> Run:
        """Every record of the run."""
        return read_run(self._folder)

    def recommend(
        self, *, min_speedup: float = 1.0, concurrency: Sequence[int] = ()
    ) -> Recommendation:
        """Whether to speculate, and how."""
        from draftbench.planner.options import DecisionOptions
        from draftbench.planner.recommend import recommend

        options = DecisionOptions(min_speedup=min_speedup, concurrency=tuple(concurrency))
        return recommend(self.observed, options)

    def acceptance(self, *, k: Sequence[int] = (), width: float = 0.02) -> AcceptanceReport:
        """Acceptance by every definition, of all candidates (default: at the run's own k's)."""
        from draftbench.acceptance.summary import acceptance_report

        ks = tuple(k) or self.observed.manifest.question.ks
        return acceptance_report(self.observed, self.observed.candidates, ks, width)

    def compare(self, other: OpenedRun) -> Comparison:
        """How another run differs from this one, paired by request."""
        from draftbench.gate.compare import compare_runs

        return compare_runs((str(self.path), str(other.path)), self.observed, other.observed)

    def report(self, html: str | Path) -> Path:
        """Write the page that explains the run."""
        from draftbench.report.page import page

        path, answer = Path(html), self.recommend()
        text = page(str(self.path), self.observed, answer)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write `{path}`: {error.strerror}", hint="check it") from error
        return path

    def candidates(self) -> pd.DataFrame:
        """A row per candidate and k with every figure, intervals as `NAME_low` and `NAME_high`."""
        return frames.candidates(self.path)

    def observations(self) -> dict[str, pd.DataFrame]:
        """The raw records by kind, a row each."""
        return frames.observations(self.path)


def _words(flag: str, value: Flag) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, (str, int, float, Path)):
        return [flag, str(value)]
    return [word for part in value for word in (flag, str(part))]
