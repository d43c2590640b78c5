"""Progress of a sweep on stderr: a live view on a terminal; elsewhere notes, and a line every 20
seconds (with `--verbose` one for each unit of work).

No thread draws: the view is redrawn between two measurements, never beside a timed region.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from draftbench.acceptance.running import RunningFigures
from draftbench.records import Candidate, Observation
from draftbench.report.text import duration, printable, shown

_SECONDS_BETWEEN_DRAWS = 0.2
# Without a terminal: how long a sweep is silent at most, if its units take no longer.
_SECONDS_BETWEEN_LINES = 20.0
# Drawing may cost this share of the time, however many requests the running figures cover.
_SHARE_OF_TIME = 0.02

# This share of the plan counts as done on time before anything is: a sweep's first stage says
# little about the others.
_BELIEVED = 0.2

# A stage of a candidate or (None) of the target: how its words begin, and the planned seconds until
# it begins and that it takes.
PlannedStage = tuple[Candidate | None, str, float, float]


class TerminalWatcher:
    """Shows stages, running figures and notes; as a context manager it removes the live view."""

    def __init__(
        self, console: Console | None = None, *, quiet: bool = False, verbose: bool = False
    ) -> None:
        self._console, self._quiet = console or Console(stderr=True), quiet
        self._live = self._console.is_terminal and not quiet
        self._verbose = verbose and not quiet
        self._view = Live(
            console=self._console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._next_draw, self._next_line = 0.0, time.monotonic() + _SECONDS_BETWEEN_LINES
        self._stage, self._begun, self._units, self._done = "", 0.0, 0, 0
        self._candidates: tuple[str, ...] = ()
        self._figures: RunningFigures | None = None
        self._candidate = ""
        # Stages to come, the planned seconds of the one at work and of those before it, and when
        # the first began.
        self._to_come: list[PlannedStage] = []
        self._planned, self._planned_before, self._all_begun = 0.0, 0.0, 0.0
        self._believed, self._about = 0.0, "about"
        self._moved = 0.0  # when the last unit was done
        self._shown_before: list[str] = []

    def __enter__(self) -> TerminalWatcher:
        if self._live:
            self._view.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._finish_stage()
        if self._live:
            self._view.stop()

    def expect(
        self,
        candidates: Sequence[str],
        ks: Sequence[int],
        stages: Sequence[PlannedStage] = (),
        *,
        in_seconds: bool = True,
        at_most: bool = False,
    ) -> None:
        """Name the candidates and draft lengths of the sweep and, for its overall progress, the
        stages known so far; their planned times may be mere proportions, and some of them may never
        come (`at_most`).
        """
        self._about = "at most" if at_most else "about"
        self._candidates, self._figures = tuple(candidates), RunningFigures(ks)
        self._to_come, self._all_begun = list(stages), time.monotonic()
        self._believed = _BELIEVED * self._seconds_to_come() if in_seconds else 0.0

    def stage(
        self, what: str, total: int, candidate: Candidate | None = None, longer: float = 1.0
    ) -> None:
        """Begin a stage of at least `total` units, of a candidate or (None) of the target; it takes
        `longer` than planned by this factor.
        """
        self._finish_stage()
        if total == 0:
            return
        now, name = time.monotonic(), str(candidate or "")
        self._candidate, self._stage = name, f"{name}: {what}" if name else what
        for at, (of, words, start, seconds) in enumerate(self._to_come):
            if of == candidate and what.startswith(words):
                # Stages in between were done by an earlier run.
                self._planned, self._to_come = longer * seconds, self._to_come[at + 1 :]
                self._planned_before += start
                break
        self._begun, self._units, self._done = now, total, 0
        self._moved = now
        self._shown_before = self._known_figures()
        self._draw(at_once=True)

    def recorded(self, records: Sequence[Observation]) -> None:
        """Take in observations that were just written to the run folder."""
        if self._figures is not None:
            self._figures.add(records)

    def advance(self, units: int = 1) -> None:
        """Count units of the stage as done."""
        self._done += units
        self._moved = time.monotonic() if units else self._moved
        self._units = max(self._units, self._done)
        late = not self._quiet and time.monotonic() > self._next_line
        if self._stage and not self._live and ((self._verbose and units) or late):
            words = [f"{self._stage}: {self._done} of {self._units}", *self._known_figures()]
            words += [self._left()] if late else []
            self._print("   ".join(filter(None, words)))
        self._draw()

    def note(self, text: str, *, always: bool = False) -> None:
        """Print a line unless quiet, whether on a terminal or not."""
        if self._done >= self._units:
            self._finish_stage()
        if always or not self._quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def _draw(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not (self._live and (at_once or now > self._next_draw)):
            return
        view: RenderableType = Text("")
        if self._stage:
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_row(
                Text(printable(self._stage), no_wrap=True, overflow="ellipsis"),
                ProgressBar(total=self._units, completed=self._done, width=20),
                Text(f"{self._done}/{self._units}"),
            )
            left = self._left()
            if self._candidate in self._candidates:
                number = self._candidates.index(self._candidate) + 1
                of_all = f"candidate {number} of {len(self._candidates)}"
                left = f"{of_all}, {left}" if left else of_all
            lines = filter(None, [*self._known_figures(), left])
            view = Group(row, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
        self._view.update(view, refresh=True)
        after = time.monotonic()
        self._next_draw = after + max(_SECONDS_BETWEEN_DRAWS, (after - now) / _SHARE_OF_TIME)

    def _finish_stage(self) -> None:
        """Print the stage's time, how much of it was done, and its new figures."""
        if not self._stage:
            return
        seconds = time.monotonic() - self._begun
        self._planned_before, self._planned = self._planned_before + self._planned, 0.0
        done = "" if self._done >= self._units else f"stopped after {self._done} of "
        new = [part for part in self._known_figures() if part not in self._shown_before]
        line = "   ".join([f"{self._stage} ({done}{self._units}): {seconds:.1f} s", *new])
        self._stage = ""
        self._draw(at_once=True)
        if self._live or self._verbose:
            self._print(line)

    def _known_figures(self) -> list[str]:
        """α and τ of the candidate at work, and its tokens per second."""
        figures, candidate = self._figures, self._candidate
        if figures is None or not candidate:
            return []
        alpha, length = figures.alpha(candidate), figures.mean_accepted_length(candidate)
        acceptance = [f"α {shown(alpha)}"] if alpha else []
        acceptance += [f"τ {shown(length)} at k = {figures.k}"] if length else []
        rates = ", ".join(
            f"{rate:.3g} {f'at k = {k}' if k else 'without a draft'}"
            for k, rate in figures.tokens_per_second(candidate).items()
        )
        load = f" of each of {figures.concurrency} requests" if figures.concurrency > 1 else ""
        speed = f"tokens/s{load}: {rates}" if rates else ""
        return [line for line in ("   ".join(acceptance), speed) if line]

    def _left(self) -> str:
        """The time left: of the whole sweep by its plan, or else of the stage by its units; empty
        while nothing is known. It is judged whenever a unit is done, and counted down from then on.
        """
        share = self._done / self._units
        planned = (1 - share) * self._planned + self._seconds_to_come()
        done = self._believed + self._planned_before + share * self._planned
        if planned and done:
            # What is left takes as many times its plan as what is done took.
            seconds = planned * (self._believed + self._moved - self._all_begun) / done
            of = f"{self._about} {{}} left in all"
        elif 0 < share < 1 and not planned:
            seconds, of = (1 - share) / share * (self._moved - self._begun), "about {} left"
        else:
            return ""
        return of.format(duration(max(0.0, seconds - (time.monotonic() - self._moved))))

    def _seconds_to_come(self) -> float:
        return sum(start + seconds for _, _, start, seconds in self._to_come)
