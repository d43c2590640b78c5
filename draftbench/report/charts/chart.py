"""One chart: a drawing, how it is read, and the table of everything that it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftbench.acceptance.intervals import Estimate
from draftbench.errors import UsageError
from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts.plot import SERIES, Plot

# Text, or a figure; None is unknown.
Cell = str | Estimate | None


@dataclass(frozen=True)
class Table:
    """Rows under their headings; the first `words` columns are text. `chosen` is the row of the
    recommended configuration.
    """

    head: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    chosen: int | None = None


@dataclass(frozen=True)
class Chart:
    """A drawing with its title and caption; `name` is that of its file. `folded` says whether the
    table is long, and shown only when it is asked for.
    """

    name: str
    title: str
    caption: str
    plot: Plot
    table: Table
    folded: bool = True

    def save(self, folder: Path) -> None:
        """Write `NAME.svg` and `NAME.png`.

        Raises:
            UsageError: the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.plot.save(folder / self.name, self.title)
        except OSError as error:
            raise UsageError(
                f"cannot write charts to `{folder}`: {error.strerror}",
                hint="take another folder for --plots",
            ) from error


def first_drawn(count: int) -> str:
    """What a caption adds where there are more candidates than colours: the table has them all."""
    return "" if count <= SERIES else f" Drawn are the first {SERIES} of {count} candidates."


def series_of(answer: Recommendation) -> dict[str, int]:
    """The colour of each candidate by its name: the same in every chart, the first the leader's."""
    return {str(each.candidate): at % SERIES for at, each in enumerate(answer.by_candidate)}
