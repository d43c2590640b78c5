"""The arms of a sweep on a serving engine: which servers it asks, in which order, and how requests
are sent to each.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import msgspec

from draftbench.engines.commands import ServerStart
from draftbench.engines.engine import Server, ServerFacts
from draftbench.engines.start import server_threads
from draftbench.errors import TrafficError
from draftbench.measure.replay import ServedTarget
from draftbench.measure.trajectories import PromptSample
from draftbench.models.drafting import Speculation, fewest_drafted, too_short
from draftbench.records import LOOKUP, Candidate, DraftingMode, Failure, Key, Sampling, Served
from draftbench.sweep.options import ServingOptions, SweepOptions


class Arm(NamedTuple):
    """A server by its drafting: without a draft (None, 0), or with a candidate at k tokens a round;
    k = 0 serves the draft alone. `repeat` counts its starts from 0.
    """

    candidate: Candidate | None
    k: int
    repeat: int = 0

    @property
    def drafting(self) -> str:
        """Its draft length and, from the second on, which start it is: `k = 3, start 2`."""
        served = f"k = {self.k}" if self.k else "the draft alone"
        name = "without a draft" if self.candidate is None else served
        return f"{name}, start {self.repeat + 1}" if self.repeat else name

    def __str__(self) -> str:
        return self.drafting if self.candidate is None else f"{self.candidate}: {self.drafting}"


class Load(NamedTuple):
    """How requests are sent: a number in flight, or (None) at their times of arrival."""

    concurrency: int | None

    @property
    def kind(self) -> str:
        return "open" if self.concurrency is None else "closed"

    def __str__(self) -> str:
        if self.concurrency is None:
            return "at their times of arrival"
        return "one by one" if self.concurrency == 1 else f"{self.concurrency} in flight"


ALONE = Load(1)
# Seconds since 1970 in the year 5138; as many milliseconds are 1973.
_TOO_LARGE = 1e11


# Candidates between two starts of the server without a draft.
CANDIDATES_BETWEEN = 2
# Servers under load take turns after this many requests for each in flight.
_TURN = 4
# Methods of drafting that can be replayed here.
REPLAYED = ("draft-model", "ngram")


@dataclass(frozen=True)
class Serving:
    """The engine of a sweep: its `drafters` by the name of each draft, the `levels` at which it
    serves candidates, and prompts outside the sample for the `warm_up`. A user's `server` and
    `baseline` are already running; `drafting` is the arm of `server`, None if it does not draft.
    """

    engine: str
    options: ServingOptions
    target: ServedTarget
    drafters: dict[str, Speculation]
    levels: dict[Candidate, str]
    warm_up: tuple[Sequence[int], ...]
    context_length: int | None = None  # to start servers with
    server: Server | None = None
    facts: ServerFacts | None = None
    baseline: Server | None = None
    drafting: Arm | None = None
    ids: int = sys.maxsize  # every token id of the target is below

    @property
    def writer(self) -> Arm:
        """The arm that writes the responses: without a draft if there is such a server."""
        if self.drafting is not None and self.baseline is None:
            return self.drafting
        return Arm(None, 0)

    @property
    def dtype(self) -> str:
        """The type of computation, as the user names it; empty: the checkpoint's."""
        words = self.options.args.replace("=", " ").split()
        if "--dtype" in words[:-1]:
            return words[words.index("--dtype") + 1]
        return self.options.dtype or ""

    def replays(self, candidate: Candidate) -> bool:
        """Whether the candidate can be replayed without the engine."""
        drafter = self.drafters.get(candidate.draft)  # none: only the user's server has it
        return drafter is not None and drafter.method in REPLAYED

    def mode(self, arm: Arm, options: SweepOptions) -> DraftingMode:
        """How the draft proposes; where only the user's server has it, as --mode says."""
        if arm.candidate is None or arm.candidate.draft == LOOKUP:
            return DraftingMode.GREEDY
        drafter = self.drafters.get(arm.candidate.draft)
        return drafter.mode if drafter is not None else options.mode

    def start(self, arm: Arm, options: SweepOptions) -> ServerStart:
        """How to start the server of an arm."""
        drafts = None
        if arm.candidate is not None:
            drafter = self.drafters[arm.candidate.draft]
            drafts = replace(drafter, k=arm.k, quant=self.levels[arm.candidate])
        return ServerStart(
            engine=self.engine,
            target=options.target,
            speculation=drafts,
            args=self.options.args,
            command=self.options.command,
            stop_command=self.options.stop_command,
            concurrency=options.max_concurrency,
            max_concurrency=self.options.max_concurrency,
            context_length=self.context_length,
            threads=threads_of_servers(options),
            ready_timeout=self.options.ready_timeout,
        )


def threads_of_servers(options: SweepOptions) -> int | None:
    """Threads of every started server; None: the engine's default."""
    return options.threads or server_threads()


def startable(serving: Serving, options: SweepOptions, candidate: Candidate) -> tuple[int, ...]:
    """The k's of the sweep at which the engine can draft with a candidate."""
    fewest = fewest_drafted(serving.engine, candidate.draft, options.lookup.shortest)
    return tuple(k for k in options.ks if k >= fewest)


def left_out(serving: Serving, options: SweepOptions, candidate: Candidate) -> Failure | None:
    """Why no server is started with a candidate, where all k's of the sweep are too small."""
    asked = options.measure not in ("none", "replay") and candidate in serving.levels
    if serving.server is not None or not asked or startable(serving, options, candidate):
        return None
    fewest = fewest_drafted(serving.engine, candidate.draft, options.lookup.shortest)
    return Failure(
        candidate=candidate,
        stage="start",
        reason=f"replayed only: {too_short(fewest)}",
        hint=f"ask for it with --k {fewest} or more",
    )


def interleaved(
    left: dict[Arm, list[PromptSample]], load: Load
) -> Iterator[tuple[Arm, list[PromptSample]]]:
    """Which arm is asked which requests next: a single arm all of them; several arms take turns
    with the same requests, one by one or as many as keep the load full.
    """
    if len(left) == 1 or load.concurrency is None:
        yield from ((arm, asked) for arm, asked in left.items() if asked)
        return
    size = 1 if load == ALONE else _TURN * load.concurrency
    rest = {arm: iter(asked) for arm, asked in left.items()}
    while parts := [(arm, part) for arm, it in rest.items() if (part := list(islice(it, size)))]:
        yield from parts


def plain_starts(serving: Serving, options: SweepOptions, turn: int) -> list[Arm]:
    """The starts of the server without a draft in a turn: after every second candidate and at its
    end. All others lie between two of these, which show how the machine changed, and all are
    compared with their mean, which should be surer than one of them.
    """
    if serving.server is not None or options.measure == "replay":
        return []
    count = max(1, math.ceil(len(serving.levels) / CANDIDATES_BETWEEN))
    return [Arm(None, 0, turn * count + at + 1) for at in range(count)]


def loads_of(serving: Serving, options: SweepOptions, arm: Arm) -> list[Load]:
    """The loads of an arm, in order; the writer of the responses is first asked one by one."""
    if serving.options.arrivals == "closed":
        asked = [Load(concurrency) for concurrency in options.concurrency]
    else:
        asked = [Load(None)]
    if arm == serving.writer:
        alone = serving.baseline is not None or options.measure == "replay"
        return [ALONE] if alone else [ALONE, *(load for load in asked if load != ALONE)]
    return asked


def sampling_of(asked: PromptSample) -> Sampling:
    """A request's sampling, with a seed derived for this response."""
    prompt, sample = asked
    sampling = prompt.request.sampling
    if sampling.temperature == 0:
        return sampling
    name = f"{prompt.request.id}/{sampling.seed}/{sample}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
    return msgspec.structs.replace(sampling, seed=seed)


def arrival_times(asked: Sequence[PromptSample], options: SweepOptions) -> dict[Key, float]:
    """Seconds from the start of a drive until each request is sent.

    Raises:
        TrafficError: the log does not say when its requests came.
    """
    assert options.serving is not None
    kind, _, rate = options.serving.arrivals.partition(":")
    keys = [(prompt.request.id, sample) for prompt, sample in asked]
    if kind == "poisson":
        clock, times = 0.0, {}
        gaps = random.Random(options.traffic.seed)
        for key in sorted(keys):
            times[key] = clock
            clock += gaps.expovariate(float(rate))
        return times
    seconds = [_seconds(prompt.request.timestamp) for prompt, _ in asked]
    moments = [moment for moment in seconds if moment is not None]
    if len(moments) < len(seconds):
        missing = f"{len(seconds) - len(moments)} of {len(seconds)}" if moments else "the"
        raise TrafficError(
            f"--arrivals log: {missing} requests do not say when they came",
            hint="`timestamp` is an ISO date, or seconds or milliseconds since 1970; a sweep can "
            "take --arrivals poisson:RATE",
        )
    begin, scale = min(moments), options.serving.time_scale
    return {key: (moment - begin) / scale for key, moment in zip(keys, moments, strict=True)}


def _seconds(timestamp: str | None) -> float | None:
    """Seconds since 1970 or another moment; None if it is no time. A number too large for seconds
    is one of milliseconds, microseconds or nanoseconds.
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


def arm_of(row: Served) -> tuple[Arm, Load]:
    """The arm that answered, and at which load."""
    load = Load(row.concurrency if row.load == "closed" else None)
    return Arm(row.candidate, row.k, row.repeat), load
