"""What a sweep says while it works: one live view on a terminal, plain lines elsewhere, always on
stderr.

Nothing is drawn by a thread: the view is redrawn between two measurements, never beside a timed
region.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from draftbench.records import Observation
from draftbench.report.terminal.running import Running
from draftbench.report.terminal.text import duration, plain

SECONDS_BETWEEN_DRAWS = 0.2
# Without a terminal a stage that takes long says so often how far it is.
SECONDS_BETWEEN_LINES = 30.0
# Drawing may cost this share of the time, however many requests the running figures are of.
_SHARE_OF_TIME = 0.02


class TerminalWatcher:
    """Shows stages, running figures and notes; a context manager, so that the view goes away on
    every way out.
    """

    def __init__(self, console: Console, *, quiet: bool, verbose: bool = False) -> None:
        self.console, self.quiet, self.verbose = console, quiet, verbose
        self.live = console.is_terminal and not quiet
        self._view = Live(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._next_draw, self._next_line = 0.0, 0.0
        self._stage, self._begun, self._units, self._done = "", 0.0, 0, 0
        self._candidates: tuple[str, ...] = ()
        self._running: Running | None = None
        self._current, self._taken, self._since = "", dict[str, float](), 0.0
        self._tokens_before, self._known = 0, list[str]()

    def __enter__(self) -> TerminalWatcher:
        if self.live:
            self._view.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish()
        self._stop_clock()
        if self.live:
            self._view.stop()

    def expect(self, candidates: Sequence[str], ks: Sequence[int]) -> None:
        """What the whole sweep is: needed for overall progress and running figures."""
        self._candidates, self._running = tuple(candidates), Running(ks)

    def stage(self, what: str, total: int) -> None:
        """A stage of `total` units begins; one of a candidate is named `CANDIDATE: …`."""
        self._finish()
        self._enter(what)
        if total == 0:
            return
        self._stage, self._begun, self._units, self._done = what, time.monotonic(), total, 0
        self._next_line = self._begun + SECONDS_BETWEEN_LINES
        self._tokens_before = self._running.tokens if self._running else 0
        self._known = self._figures()
        self._draw(at_once=True)

    def kept(self, records: Sequence[Observation]) -> None:
        """Observations that were just written to the run folder."""
        if self._running is not None:
            self._running.add(records)

    def advance(self, units: int = 1) -> None:
        """So many units are done at once."""
        self._done += units
        if self._stage and not self.live and not self.quiet:
            self._tell()
        self._draw()

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self._finish()
        if not self.quiet:
            self._line(text)

    def _tell(self) -> None:
        """Where the stage stands, as a line: of every unit, or from time to time."""
        now = time.monotonic()
        if self.verbose:
            self._line("   ".join([f"  {self._done} of {self._units}", *self._figures()]))
        elif now >= self._next_line and self._done < self._units:
            left = duration((now - self._begun) / self._done * (self._units - self._done))
            self._line(f"{self._stage}: {self._done} of {self._units}, about {left} left")
            self._next_line = now + SECONDS_BETWEEN_LINES

    def _line(self, text: str) -> None:
        self.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)

    def _draw(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self.live and (at_once or now > self._next_draw):
            self._view.update(self._drawing(), refresh=True)
            after = time.monotonic()
            wait = max(SECONDS_BETWEEN_DRAWS, (after - now) / _SHARE_OF_TIME)
            self._next_draw = after + wait

    def _finish(self) -> None:
        """Close the running stage with its time, how much of it was done and what it found."""
        if not self._stage:
            return
        seconds = time.monotonic() - self._begun
        units = f"{self._units}"
        if self._done < self._units:
            units = f"stopped after {self._done} of {self._units}"
        found = [part for part in self._figures() if part not in self._known]
        closing = "   ".join([f"{self._stage} ({units}): {seconds:.1f} s", *found])
        self._stage = ""
        self._draw(at_once=True)
        if not self.quiet:
            self._line(closing)

    def _enter(self, what: str) -> None:
        """Follow which candidate is at work."""
        own = [name for name in self._candidates if what.startswith(f"{name}: ")]
        name = max(own, key=len, default="")
        if name != self._current:
            self._stop_clock()
            self._current, self._since = name, time.monotonic()

    def _stop_clock(self) -> None:
        if self._current:
            self._taken[self._current] = time.monotonic() - self._since
            self._current = ""

    def _figures(self) -> list[str]:
        """α, τ and tokens per second of the candidate at work; the target's speed before it."""
        if self._running is None:
            return []
        if self._current:
            return self._running.words(self._current)
        written = self._running.tokens - self._tokens_before
        seconds = time.monotonic() - self._begun
        return [f"{written / seconds:.3g} tokens/s"] if written and seconds > 0 else []

    def _drawing(self) -> RenderableType:
        if not self._stage:
            return Text("")
        seconds = time.monotonic() - self._begun
        left = seconds / self._done * (self._units - self._done) if self._done else None
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_row(
            Text(plain(self._stage), no_wrap=True, overflow="ellipsis"),
            ProgressBar(total=self._units, completed=self._done, width=20),
            Text(f"{self._done}/{self._units}"),
            Text("" if left is None else f"{duration(left)} left"),
        )
        lines = [*self._figures(), self._overall(left)]
        shown = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines if line)
        return Group(row, *shown)

    def _overall(self, left: float | None) -> str:
        """Where the sweep stands. The time left takes the candidates that are to come for as slow
        as those that are done; before the first one is done nothing is known of it.
        """
        if not self._current:
            return ""
        at, of = self._candidates.index(self._current) + 1, len(self._candidates)
        rest = self._rest(left or 0.0)
        time_left = "" if rest is None else f", about {duration(rest)} left in all"
        return f"candidate {at} of {of}{time_left}"

    def _rest(self, left: float) -> float | None:
        coming = len(self._candidates) - self._candidates.index(self._current) - 1
        if not self._taken:
            return None if coming else left
        mean = sum(self._taken.values()) / len(self._taken)
        here = time.monotonic() - self._since
        return coming * mean + max(left, mean - here)
