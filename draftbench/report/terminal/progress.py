"""Progress of a sweep on stderr: a live view on a terminal, elsewhere only notes (and with
`--verbose` a line for each unit of work).

No thread draws: the view is redrawn between two measurements, never beside a timed region.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

import msgspec
import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from draftbench.acceptance.definitions import Sample, alpha, mean_accepted_length
from draftbench.acceptance.intervals import MIN_REQUESTS, RESAMPLES, estimate
from draftbench.acceptance.rounds import AnyReplay, expected_rounds, law_of
from draftbench.records import Decode, Key, LookupReplay, Observation, Replay, Trajectory
from draftbench.report.terminal.text import plain, shown

_SECONDS_BETWEEN_DRAWS = 0.2
# Drawing may cost this share of the time, however many requests the running figures cover.
_SHARE_OF_TIME = 0.02
_USUAL_K = 4
# Up to so many requests are resampled as often as by `acceptance`, so that one figure has one
# interval. More requests are resampled less: the interval moves by less than is shown.
_MANY_REQUESTS, _FEW_RESAMPLES = 1000, 200


class TerminalWatcher:
    """Shows stages, running figures and notes; a context manager, so that the view goes away on
    every way out.
    """

    def __init__(self, console: Console, *, quiet: bool, verbose: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._live = console.is_terminal and not quiet
        self._verbose = verbose and not quiet
        self._view = Live(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._next_draw = 0.0
        self._stage, self._begun, self._units, self._done = "", 0.0, 0, 0
        self._candidates: tuple[str, ...] = ()
        self._figures: RunningFigures | None = None
        self._candidate, self._candidate_begun = "", 0.0
        self._seconds_of: dict[str, float] = {}
        self._shown_before: list[str] = []

    def __enter__(self) -> TerminalWatcher:
        if self._live:
            self._view.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._finish_stage()
        if self._live:
            self._view.stop()

    def expect(self, candidates: Sequence[str], ks: Sequence[int]) -> None:
        """Name the candidates and draft lengths of the sweep, for its overall progress."""
        self._candidates, self._figures = tuple(candidates), RunningFigures(ks)

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of `total` units; one of a candidate is named `CANDIDATE: …`."""
        self._finish_stage()
        now = time.monotonic()
        matching = [each for each in self._candidates if name.startswith(f"{each}: ")]
        candidate = max(matching, key=len, default="")
        if candidate != self._candidate:
            if self._candidate:
                self._seconds_of[self._candidate] = now - self._candidate_begun
            self._candidate, self._candidate_begun = candidate, now
        if total == 0:
            return
        self._stage, self._begun, self._units, self._done = name, now, total, 0
        self._shown_before = self._known_figures()
        self._draw(at_once=True)

    def kept(self, records: Sequence[Observation]) -> None:
        """Take account of observations that were just written to the run folder."""
        if self._figures is not None:
            self._figures.add(records)

    def advance(self, units: int = 1) -> None:
        """Count units of the stage as done."""
        self._done += units
        if self._stage and self._verbose and not self._live:
            words = [f"{self._stage}: {self._done} of {self._units}", *self._known_figures()]
            self._print("   ".join(words))
        self._draw()

    def note(self, text: str, *, always: bool = False) -> None:
        """Print a line, on a terminal or not, unless quiet."""
        self._finish_stage()
        if always or not self._quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(plain(text), markup=False, highlight=False, soft_wrap=True)

    def _draw(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._live and (at_once or now > self._next_draw):
            self._view.update(self._drawing(), refresh=True)
            after = time.monotonic()
            self._next_draw = after + max(_SECONDS_BETWEEN_DRAWS, (after - now) / _SHARE_OF_TIME)

    def _finish_stage(self) -> None:
        """Print the stage's time, how much of it was done, and its new figures."""
        if not self._stage:
            return
        seconds = time.monotonic() - self._begun
        done = "" if self._done >= self._units else f"stopped after {self._done} of "
        new = [part for part in self._known_figures() if part not in self._shown_before]
        line = "   ".join([f"{self._stage} ({done}{self._units}): {seconds:.1f} s", *new])
        self._stage = ""
        self._draw(at_once=True)
        if self._live or self._verbose:
            self._print(line)

    def _known_figures(self) -> list[str]:
        """α, τ and tokens per second of the candidate at work."""
        return self._figures.words(self._candidate) if self._figures and self._candidate else []

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
            Text("" if left is None else f"{_duration(left)} left"),
        )
        lines = [*self._known_figures(), self._overall(left or 0.0)]
        return Group(
            row, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines if line)
        )

    def _overall(self, left: float) -> str:
        """Progress over all candidates. Those to come are taken to be as slow as the finished ones;
        before the first one is finished their time is unknown.
        """
        if not self._candidate:
            return ""
        number, count = self._candidates.index(self._candidate) + 1, len(self._candidates)
        words = f"candidate {number} of {count}"
        if self._seconds_of:
            mean = sum(self._seconds_of.values()) / len(self._seconds_of)
            spent = time.monotonic() - self._candidate_begun
            left = (count - number) * mean + max(left, mean - spent)
        elif number < count:
            return words
        return f"{words}, about {_duration(left)} left in all"


class RunningFigures:
    """α, τ and speed of each candidate on the requests done so far, as `acceptance` counts them.

    `k` is the draft length of the running τ: of those asked for the nearest to 4. Only what the
    figures need of each response is kept, so that a long sweep's memory and drawing do not grow
    with its tokens. A request whose samples were kept apart counts as two.
    """

    def __init__(self, ks: Sequence[int]) -> None:
        self.k = min(ks, key=lambda k: (abs(k - _USUAL_K), k))
        self._written: dict[Key, Trajectory] = {}
        self._rates: dict[str, list[Sample]] = {}
        self._lengths: dict[str, list[Sample]] = {}
        # By candidate and batch size: the last process, and tokens and seconds at each k.
        self._speeds: dict[tuple[str, int], tuple[str, dict[int, tuple[int, float]]]] = {}
        self._rows = 1

    def add(self, records: Iterable[Observation]) -> None:
        replayed: dict[str, list[tuple[Trajectory, AnyReplay]]] = {}
        for record in records:
            match record:
                case Trajectory():
                    bare = copy(record)  # a number for each token is not needed here
                    for name in ("margins", "argmax"):
                        msgspec.structs.force_setattr(bare, name, ())
                    self._written[record.key] = bare
                case Replay() | LookupReplay():
                    response = self._written.get(record.key)
                    if response is not None:
                        replayed.setdefault(str(record.candidate), []).append((response, record))
                case Decode():
                    self._add_decode(record)
        for name, pairs in replayed.items():
            rounds = expected_rounds([law_of(*pair) for pair in pairs], self.k)
            length = mean_accepted_length([trajectory for trajectory, _ in pairs], rounds)
            self._lengths.setdefault(name, []).append(length)
            rate = alpha(pairs)
            if rate is not None:
                self._rates.setdefault(name, []).append(rate)

    def _add_decode(self, row: Decode) -> None:
        # Of a batch only what its last process decoded is comparable.
        key, self._rows = (row.block, row.batch), row.batch
        process, sums = self._speeds.get(key, (row.process, {}))
        if row.batch > 1 and process != row.process:
            sums = {}
        tokens, seconds = sums.get(row.k, (0, 0.0))
        sums[row.k] = tokens + row.output_tokens - 1, seconds + row.decode_seconds
        self._speeds[key] = row.process, sums

    def words(self, candidate: str) -> list[str]:
        """α and τ at one k, and tokens per second of a candidate, as far as they are known: at the
        batch size that is being decoded, a row's share where there are several.
        """
        figures = (
            f"{symbol} {_figure(samples[candidate])}{at}"
            for symbol, samples, at in (
                ("α", self._rates, ""),
                ("τ", self._lengths, f" at k = {self.k}"),
            )
            if sum(len(sample.requests) for sample in samples.get(candidate, ())) >= MIN_REQUESTS
        )
        _, sums = self._speeds.get((candidate, self._rows), ("", {}))
        rates = [
            f"{tokens / seconds:.3g} {f'at k = {k}' if k else 'without a draft'}"
            for k, (tokens, seconds) in sorted(sums.items())
            if seconds > 0
        ]
        rows = "" if self._rows == 1 else f", each of {self._rows} rows"
        speed = f"tokens/s{rows}: {', '.join(rates)}" if rates else ""
        return [line for line in ("   ".join(figures), speed) if line]


def _figure(samples: Sequence[Sample]) -> str:
    """One figure from requests that were kept in several parts."""
    together = replace(
        samples[0],
        requests=tuple(request for sample in samples for request in sample.requests),
        weights=np.concatenate([sample.weights for sample in samples]),
        addends=np.concatenate([sample.addends for sample in samples]),
    )
    few = len(together.requests) <= _MANY_REQUESTS
    return shown(estimate(together, resamples=RESAMPLES if few else _FEW_RESAMPLES))


def _duration(seconds: float) -> str:
    """12 s, 3:05 min or 1:02 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
