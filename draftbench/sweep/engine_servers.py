"""The servers that a sweep on an engine asks: which, in which order, and at which loads."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from draftbench.drafts.kinds import kind_of
from draftbench.drafts.speculation import Speculation
from draftbench.drafts.stopping import THRESHOLDS
from draftbench.engines.engine import ServerStart
from draftbench.engines.every import ENGINES
from draftbench.engines.server import Server, ServerFacts
from draftbench.engines.start import server_threads
from draftbench.errors import TrafficError
from draftbench.measure.replay import ServedTarget
from draftbench.measure.trajectories import PromptSample
from draftbench.records import Candidate, DraftingMode, DraftLength, Key, StopRule
from draftbench.sweep.options import ServingOptions, SweepOptions, in_turn

# How many candidates come between two starts of the server without a draft.
CANDIDATES_BETWEEN = 2
# Seconds since 1970 in the year 5138; as many milliseconds are 1973.
_TOO_LARGE = 1e11


class ServerConfig(NamedTuple):
    """A server by how it drafts: without a draft (None, 0), or with a candidate at k tokens a
    round, which a rule may `stop` short of. `repeat` counts the starts from 0.
    """

    candidate: Candidate | None
    k: int
    repeat: int = 0
    stop: StopRule | None = None

    @property
    def length(self) -> DraftLength:
        return DraftLength(self.k, self.stop)

    @property
    def drafting(self) -> str:
        """Its draft length and, from the second start on, which one it is: `k = 3, start 2`."""
        name = "without a draft" if self.candidate is None else str(self.length)
        return f"{name}, start {self.repeat + 1}" if self.repeat else name

    def __str__(self) -> str:
        return self.drafting if self.candidate is None else f"{self.candidate}: {self.drafting}"


class Load(NamedTuple):
    """How requests are sent: this many in flight, or (None) at their times of arrival."""

    concurrency: int | None

    def __str__(self) -> str:
        if self.concurrency is None:
            return "at their times of arrival"
        return "one by one" if self.concurrency == 1 else f"{self.concurrency} in flight"


ALONE = Load(1)


@dataclass(frozen=True)
class Servers:
    """The servers of a sweep on an engine: its `speculations` by the name of each draft, the
    `levels` at which it serves candidates, and prompts outside the sample for the `warm_up`. A
    user's `given` server and `baseline` are already running; `drafting` is the configuration of the
    given one, None if it does not draft.
    """

    engine: str
    options: SweepOptions
    serving: ServingOptions
    target: ServedTarget
    speculations: dict[str, Speculation]
    levels: dict[Candidate, str]
    warm_up: tuple[Sequence[int], ...]
    context_length: int | None = None  # to start servers with
    given: Server | None = None
    facts: ServerFacts | None = None
    baseline: Server | None = None
    drafting: ServerConfig | None = None
    ids: int = sys.maxsize  # every token id of the target is below

    @property
    def writer(self) -> ServerConfig:
        """The server that writes the responses: one without a draft, if there is one."""
        if self.drafting is not None and self.baseline is None:
            return self.drafting
        return ServerConfig(None, 0)

    @property
    def side_by_side(self) -> bool:
        """Whether a server without a draft is up beside each one that drafts."""
        return self.baseline is not None or self.serving.side_by_side

    def session(self, config: ServerConfig) -> list[ServerConfig]:
        """The servers that are up together and take turns, of which `config` drafts. The one beside
        it has a `repeat` that no other has.
        """
        if not self.side_by_side:
            return [config]
        number = config.repeat
        if self.given is None:
            assert config.candidate is not None
            threshold = config.stop.threshold if config.stop else None
            number += (None, *THRESHOLDS).index(threshold) * self.options.repeats
            number = number * len(self.levels) + list(self.levels).index(config.candidate)
            number = number * len(self.options.ks) + self.options.ks.index(config.k)
        return [ServerConfig(None, 0, number + 1), config]

    @property
    def dtype(self) -> str:
        """The type that servers compute in, as the user names it; empty: the checkpoint's."""
        words = self.serving.args.replace("=", " ").split()
        if "--dtype" in words[:-1]:
            return words[words.index("--dtype") + 1]
        return self.serving.dtype or ""

    def mode(self, config: ServerConfig) -> DraftingMode:
        """How the draft proposes; as --mode says if only the user's server has the draft."""
        if config.candidate is None or kind_of(config.candidate.draft).from_text:
            return DraftingMode.GREEDY
        speculation = self.speculations.get(config.candidate.draft)
        return speculation.mode if speculation is not None else self.options.mode

    def start(self, config: ServerConfig) -> ServerStart:
        """How to start a server."""
        speculation = None
        if config.candidate is not None:
            speculation = replace(
                self.speculations[config.candidate.draft],
                k=config.k,
                stop=config.stop,
                quant=self.levels[config.candidate],
            )
        return ServerStart(
            engine=self.engine,
            target=self.options.target,
            speculation=speculation,
            args=self.serving.args,
            command=self.serving.command,
            stop_command=self.serving.stop_command,
            concurrency=self.options.max_concurrency,
            max_concurrency=self.serving.max_concurrency,
            context_length=self.context_length,
            threads=self.threads,
            ready_timeout=self.serving.ready_timeout,
        )

    @property
    def threads(self) -> int | None:
        """The threads of every started server; None: the engine's default."""
        return self.options.threads or server_threads()

    def minimum_k(self, candidate: Candidate) -> int:
        """The smallest k at which the engine can draft with a candidate."""
        engine, shortest = ENGINES.get(self.engine), self.options.lookup.shortest
        return 1 if engine is None else engine.minimum_k(candidate.draft, shortest)

    def loads(self, config: ServerConfig) -> list[Load]:
        """The loads at which a server is asked, in order; the writer is first asked one by one."""
        closed = self.serving.arrivals == "closed"
        loads = [Load(many) for many in self.options.concurrency] if closed else [Load(None)]
        if config != self.writer:
            return loads
        if self.side_by_side or self.options.measure == "replay":
            return [ALONE]
        return [ALONE, *(load for load in loads if load != ALONE)]

    def plain_starts(self, repeat: int) -> list[ServerConfig]:
        """The servers without a draft that one repeat starts: one after every second candidate and
        one at the end. Every server that drafts runs between two of these, which show how the
        machine changed; each is compared with the mean of all of them. None where one runs beside
        each.
        """
        if self.given is not None or self.side_by_side or self.options.measure == "replay":
            return []
        count = max(1, math.ceil(len(self.levels) / CANDIDATES_BETWEEN))
        return [ServerConfig(None, 0, repeat * count + at + 1) for at in range(count)]

    def plain_until(self, candidate: Candidate, repeat: int) -> list[ServerConfig]:
        """The starts without a draft that are due once this candidate is done."""
        plain = self.plain_starts(repeat)[:-1]  # the last one follows all candidates
        done = in_turn(self.levels, repeat).index(candidate) + 1
        return plain[: done // CANDIDATES_BETWEEN]


def arrival_times(
    samples: Sequence[PromptSample], serving: ServingOptions, seed: int
) -> dict[Key, float]:
    """Seconds from the first request until each is sent.

    Raises:
        TrafficError: the log does not say when its requests came.
    """
    kind, _, rate = serving.arrivals.partition(":")
    keys = [(prompt.request.id, sample) for prompt, sample in samples]
    if kind == "poisson":
        clock, times = 0.0, {}
        gaps = random.Random(seed)
        for key in sorted(keys):
            times[key] = clock
            clock += gaps.expovariate(float(rate))
        return times
    seconds = [_seconds(prompt.request.timestamp) for prompt, _ in samples]
    moments = [moment for moment in seconds if moment is not None]
    if len(moments) < len(seconds):
        missing = f"{len(seconds) - len(moments)} of {len(seconds)}" if moments else "the"
        raise TrafficError(
            f"--arrivals log: {missing} requests do not say when they came",
            hint="`timestamp` is a date like 2026-01-31T12:00:00Z, or seconds or milliseconds "
            "since 1970; a sweep can take --arrivals poisson:RATE",
        )
    begin, scale = min(moments), serving.time_scale
    return {key: (moment - begin) / scale for key, moment in zip(keys, moments, strict=True)}


def _seconds(timestamp: str | None) -> float | None:
    """Seconds since 1970 or another moment; None if this is not a time. Digits alone are a number,
    never a date; one too large for seconds counts milliseconds, microseconds or nanoseconds.
    """
    if timestamp is None:
        return None
    try:
        number = float(timestamp)
    except ValueError:
        pass
    else:
        for _ in range(3):
            number /= 1000 if abs(number) >= _TOO_LARGE else 1
        return number if abs(number) < _TOO_LARGE else None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
