"""What a sweep says while it works: one live line on a terminal, plain lines elsewhere, always on
stderr.

Nothing is drawn by a thread: the line is redrawn between two measurements, never beside a timed
region.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_DRAWS = 0.2


class TerminalWatcher:
    """Shows stages and notes; a context manager, so that the line goes away on every way out."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.live = console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self.live,
        )
        self._task: TaskID | None = None
        self._drawn = 0.0
        self._stage, self._begun, self._units = "", 0.0, 0

    def __enter__(self) -> TerminalWatcher:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish()
        self._progress.stop()

    def stage(self, what: str, total: int) -> None:
        """A stage of `total` units begins."""
        self._finish()
        if total == 0:
            return
        self._stage, self._begun, self._units = what, time.monotonic(), total
        if self.live:
            self._task = self._progress.add_task(what, total=total)
            self._progress.refresh()

    def advance(self) -> None:
        """One unit is done."""
        if self._task is not None:
            self._progress.advance(self._task)
            if time.monotonic() - self._drawn > SECONDS_BETWEEN_DRAWS:
                self._drawn = time.monotonic()
                self._progress.refresh()

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self._finish()
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _finish(self) -> None:
        """Close the running stage with its time."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if self._stage and not self.quiet:
            seconds = time.monotonic() - self._begun
            self.console.print(
                f"{self._stage} ({self._units}): {seconds:.1f} s", markup=False, highlight=False
            )
        self._stage = ""
