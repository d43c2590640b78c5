"""The options of a sweep, each declared once with what it needs; and who follows its progress."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.every import ENGINES, SERVERS, STARTED, engine_called, listed
from draftbench.errors import UsageError
from draftbench.flags import (
    LARGEST_CARD,
    draft_lengths,
    flag,
    flag_name,
    flags_of,
    in_measure,
    in_models,
    in_safety,
    in_traffic,
    level_name,
    level_names,
    number_range,
    numbers,
    one_of,
)
from draftbench.hub import Trust
from draftbench.memory import LEVELS
from draftbench.records import SELF, Candidate, DraftingMode, NGramSizes, Observation
from draftbench.run_folder.manifest import STOPS
from draftbench.traffic import TrafficQuery

T = TypeVar("T")
# How many requests a server answers at once with --arrivals, unless its engine answers more.
DEFAULT_CONCURRENCY = 16


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster and, once it was asked, its workers: how many, what each needs of a node, and
    the node of the one that times.
    """

    address: str | None  # None: the current one, or one that is started on this machine
    workers: int = 0
    needs: Mapping[str, float] = field(default_factory=dict)
    timing_node: str | None = None

    def __str__(self) -> str:
        return self.address or "ray"


@dataclass(frozen=True)
class Need:
    """What an option makes no sense without; `hint` is for a user who gives it anyway."""

    what: str
    hint: str
    met: Callable[[ServingOptions], bool]


BUILT_IN = Need("the built-in decoder", "leave it out", lambda serving: not serving.named)
SERVED = Need(
    "a serving engine",
    "name one with --engine, or a running one with --server",
    lambda serving: serving.named,
)
START = Need(
    "an engine that draftbench starts",
    "give --engine without --server: a running server is measured as it was started",
    lambda serving: serving.engine is not None and serving.server is None,
)
SERVER = Need(
    "--server",
    "--server is the one with speculation; --engine starts both servers itself",
    lambda serving: serving.server is not None,
)
LOGGED = Need("--arrivals log", "leave it out", lambda serving: serving.arrivals == "log")

in_built_in = partial(
    flag, panel="Built-in decoder only (without --engine and --server)", needs=BUILT_IN
)
_WITH_DTYPE = listed([ENGINES[key].name for key in STARTED if STARTED[key].takes_dtype], "and")
in_serving = partial(flag, panel="Serving engine (with --engine or --server)", needs=SERVED)


def _engine(text: str) -> str:
    engine = engine_called(text)
    one_of("--engine", engine, SERVERS)
    return engine


def _arrivals(text: str) -> str:
    kind, colon, rate = text.partition(":")
    if text in ("closed", "log"):
        return text
    try:
        valid = kind == "poisson" and 0 < float(rate) < math.inf
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"--arrivals cannot be `{text}`",
            hint="closed, log, or poisson:RATE with requests a second, e.g. poisson:2.5",
        )
    return f"{kind}{colon}{float(rate):g}"


def _lookup(text: str) -> NGramSizes:
    shortest, longest = number_range("--ngram", text, text)
    return NGramSizes(longest, shortest)


def _stops(text: str) -> tuple[str, ...]:
    named = {part.strip() for part in text.split(",")}
    for each in named:
        one_of("--stop", each, STOPS)
    return tuple(each for each in STOPS if each in named)


def workers_named(text: str) -> int | RayCluster:
    """`4`, `ray` or `ray://HOST:PORT`."""
    if text == "ray":
        return RayCluster(None)
    if re.fullmatch(r"ray://.+:\d+", text):
        return RayCluster(text)
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise UsageError(
        f"--workers {text}: expected a number from 1, ray or ray://HOST:PORT",
        hint="for example --workers 4",
    )


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"--temperature {text}: expected a number from 0", hint="0 is greedy")
    return value


@dataclass(frozen=True)
class ServingOptions:
    """The serving engine to measure on instead of the built-in decoder: the sweep starts it, or the
    user's servers are already running.
    """

    engine: str | None = in_serving(  # None: ask the server
        None,
        f"Start this engine and measure on it: {', '.join(STARTED)}.",
        "NAME",
        parse=_engine,
        autocompletion=lambda incomplete: list(SERVERS),
    )
    server: str | None = in_serving(
        None, "Measure on a running server, with its speculation if it has any.", "URL"
    )
    baseline: str | None = in_serving(
        None,
        "The same model without speculation, on another server: what --server is compared with.",
        "URL",
        ("--baseline-server",),
        needs=SERVER,
    )
    args: str = in_serving(
        "",
        "More flags to start the engine with, as one string.",
        "ARGS",
        ("--engine-args",),
        needs=START,
        show_default=False,
    )
    command: str | None = in_serving(
        None,
        "The command that starts the engine. {args} stands for the flags that draftbench adds; "
        "{model}, {host} and {port} work too.",
        "COMMAND",
        ("--engine-command",),
        needs=START,
    )
    stop_command: str | None = in_serving(
        None,
        "The command that stops what --engine-command started elsewhere.",
        "COMMAND",
        ("--engine-stop-command",),
        needs=START,
    )
    ready_timeout: float = in_serving(
        900.0, "How long to wait for a started server to answer.", "SECONDS", needs=START, min=1
    )
    tokenizer: str | None = in_serving(
        None, "The folder or id of the target's tokenizer (default: --target).", "MODEL"
    )
    arrivals: str = in_serving(
        "closed",
        "When requests are sent: closed keeps --concurrency of them in flight, log keeps the "
        "log's times, poisson:RATE sends RATE a second on average.",
        "HOW",
        parse=_arrivals,
    )
    time_scale: float = in_serving(
        1.0,
        "Replay the log this many times faster (--arrivals log).",
        "FACTOR",
        needs=LOGGED,
        min=1e-6,
    )
    restarts: int = in_serving(
        1,
        "Start each server this many times, since speed differs from start to start.",
        needs=START,
        min=1,
    )
    side_by_side: bool = in_serving(
        False,
        "Keep a server without a draft up beside each one that drafts and ask the two in turn, "
        "request by request, so that what slows the machine slows both; both must fit in memory.",
        needs=START,
        hint="give --engine; a --server and its --baseline-server are asked in turn anyway",
    )
    max_concurrency: int | None = None  # requests run at once with --arrivals; None: the default
    dtype: str | None = None  # assumed for the user's server if it does not report one

    @property
    def named(self) -> bool:
        """Whether there is an engine to measure on."""
        return self.engine is not None or self.server is not None

    def resolved(self, concurrency: tuple[int, ...] | None, dtype: str | None) -> ServingOptions:
        """The options with what --concurrency and --dtype mean for an engine. With --arrivals,
        --concurrency is the most requests that a started server runs at once. A started engine
        that takes --dtype computes in it, as the replay here does; a running server is assumed to,
        if it does not report its type.

        Raises:
            UsageError: --arrivals with several concurrencies, or with one for a running server.
        """
        max_concurrency, args = None, self.args
        if concurrency is not None and self.arrivals != "closed":
            if self.server is not None:
                raise UsageError(
                    "--concurrency with --arrivals on a server that is running",
                    hint="leave it out: how many requests are in flight follows from their "
                    "arrivals, and how many the server answers at once was set when it started",
                )
            if len(concurrency) > 1:
                raise UsageError(
                    "--concurrency with --arrivals takes one number: how many requests the server "
                    "answers at once",
                    hint="the arrivals set the load; measure another one, e.g. poisson:8, in "
                    "another --out",
                )
            (max_concurrency,) = concurrency
        stated = "--dtype" in args.replace("=", " ").split()
        start = STARTED.get(self.engine or "")
        if dtype and self.server is None and start and start.takes_dtype and not stated:
            args = f"{args} --dtype {dtype}".strip()
        return replace(
            self, args=args, max_concurrency=max_concurrency, dtype=dtype if self.server else None
        )


@dataclass(frozen=True)
class SweepOptions:
    """The options of one sweep. `target` is empty if the server reports its model."""

    target: str
    drafts: tuple[str, ...]
    traffic: TrafficQuery
    quants: tuple[str, ...] = flag(
        ("none",),
        f"The quantization levels of the drafts: {', '.join(LEVELS)}.",
        "LEVEL,…",
        ("--quant",),
        parse=partial(level_names, "--quant"),
        many=True,
    )
    ks: tuple[int, ...] = flag(
        "1-8", "The draft lengths, e.g. 1-8 or 2,4,8.", "K,…", ("--k",), parse=draft_lengths
    )

    responses: str = in_traffic(
        "target",
        "Where responses come from: target generates them; log takes the logged answers, which are "
        "scored first (built-in decoder only).",
        "SOURCE",
        among=("target", "log"),
        needs=BUILT_IN,
        hint="the server writes the responses",
    )
    samples: int = in_traffic(1, "Responses per request.", min=1)
    max_new_tokens: int | None = in_traffic(
        None, "The longest response in tokens (default: each request's limit).", min=2
    )
    show_prompt: bool = in_traffic(
        False, "Show how the first request's prompt ends, as the target reads it."
    )
    temperature: float | None = in_traffic(
        None, "Replace the temperature of every request; 0 is greedy.", "X", parse=_temperature
    )

    dtype: str | None = in_models(
        None,
        f"The type of unquantized weights: bfloat16 or float32; {_WITH_DTYPE} is also started with "
        "it.",
        "TYPE",
        autocompletion=lambda incomplete: ["bfloat16", "float32"],
    )
    device: str | None = in_models(
        None,
        "Where models run: cpu, cuda, cuda:1, or auto, which spreads them over all GPUs (default: "
        "a GPU if there is one).",
        "DEVICE",
    )
    threads: int | None = in_models(
        None, "The number of CPU threads (default: OMP_NUM_THREADS, else one per core).", min=1
    )

    measure: str = in_measure(
        "best",
        "What to decode for real after replay: the best k, all k's, or none; replay also skips "
        "timing (acceptance only).",
        "HOW",
        among=("best", "all", "none", "replay"),
    )
    until: str = in_built_in(
        "all",
        "When to end: all the requests are measured, or the answer is settled: with 95% "
        "probability the others would not change it.",
        "WHEN",
        among=("all", "settled"),
        hint="an engine answers all the requests that --sample names",
    )
    measure_requests: int = in_measure(
        30, "Decode this many of the requests for real; the others are only replayed.", min=1
    )
    mode: DraftingMode = in_measure(
        "greedy",
        "How drafts propose: greedy takes the likeliest token; sampled draws with each request's "
        "settings, sampled-temperature-only with its temperature alone.",
        "MODE",
        among=tuple(DraftingMode),
        parse=DraftingMode,
    )
    stop: tuple[str, ...] = in_measure(
        "none,confidence",
        "What may end a round before k tokens: none, or the draft's confidence, by the best rule "
        "that the built-in decoder or llama.cpp follows (greedy drafting).",
        "WHEN,…",
        parse=_stops,
    )
    controls: bool = in_measure(
        True, "Leave out prompt lookup and the target as its own draft.", show_default=False
    )
    lookup: NGramSizes = in_measure(
        "2-4", "The n-gram lengths that prompt lookup tries.", "N-N", ("--ngram",), parse=_lookup
    )

    processes: int = in_built_in(
        1,
        "How many processes time and decode each candidate; restarts can differ by a few percent.",
        hint="leave it out: --restarts starts the servers of --engine several times",
        min=1,
    )
    target_quant: str = in_built_in(
        "none",
        "The quantization level of the target.",
        "LEVEL",
        hint="leave it out, and serve the quantized checkpoint, or name the engine's own flag in "
        "--engine-args",
        parse=partial(level_name, "--target-quant"),
    )
    simulate_quant: bool = in_built_in(
        False,
        "Measure acceptance, but no speed, at levels without a fast kernel here.",
        hint="what is not served is replayed anyway",
    )
    one_layout: bool = in_built_in(
        False, "Keep one copy of the weights on a CPU: less memory, slower multi-token passes."
    )
    lossless: bool = in_built_in(
        False,
        "Exit 1 if speculation changes what the target writes.",
        hint="whether texts stay the same is measured anyway",
    )
    workers: int | RayCluster | None = in_built_in(
        None,
        "Share responses and replays among this many processes, each of which loads the target, or "
        "among a Ray cluster: ray (the current one, or a local one), ray://HOST:PORT. A crash "
        "costs one task. Only one of them times steps (default: this process).",
        "N",
        hint="an engine runs in separate processes anyway",
        parse=workers_named,
    )
    cards: tuple[int, ...] | None = in_built_in(
        None,
        "One worker on each of these GPUs, e.g. 0-7.",
        "N,…",
        hint="an engine takes its GPUs by --engine-args",
        parse=partial(numbers, "--cards", LARGEST_CARD, smallest=0),
    )

    candidate_timeout: float | None = in_safety(
        None, "How long one candidate, or one start of an engine, may take.", "SECONDS", min=1
    )
    concurrency: tuple[int, ...] = (1,)  # the loads, by --concurrency
    trust: Trust = field(default_factory=Trust)
    serving: ServingOptions | None = None

    @property
    def max_concurrency(self) -> int:
        """The most requests that a server answers at once, as far as known before it starts."""
        if self.serving is None or self.serving.arrivals == "closed":
            return max(self.concurrency)
        return self.serving.max_concurrency or DEFAULT_CONCURRENCY

    @property
    def worker_count(self) -> int:
        """How many workers share the sweep."""
        if isinstance(self.workers, RayCluster):
            return self.workers.workers
        return len(self.cards or ()) or self.workers or 1

    @property
    def cluster(self) -> RayCluster | None:
        """The cluster on which the workers run."""
        return self.workers if isinstance(self.workers, RayCluster) else None

    @property
    def elsewhere(self) -> bool:
        """Whether the workers run in processes of their own."""
        return bool(self.cards or self.workers) or self.processes > 1

    @property
    def stops(self) -> bool:
        """Whether drafts may also stop where they are unsure, by a rule that what runs the target
        follows.
        """
        followed = self.serving is None or any(
            rule.engine == self.serving.engine for rule in STOP_RULES.values() if rule.engine
        )
        greedy = self.mode is DraftingMode.GREEDY
        return "confidence" in self.stop and greedy and followed

    @property
    def most_ks(self) -> int:
        """The most k's at which a candidate is decoded: all, or the best predicted one and one more
        if it is worth its time.
        """
        lengths = len(self.ks) + self.stops
        return {"best": min(2, lengths), "all": len(self.ks)}.get(self.measure, 0)

    @property
    def expected_ks(self) -> int:
        """At how many k's a candidate is expected to be decoded, before it is replayed."""
        return self.most_ks if self.measure == "all" else min(1, self.most_ks)

    def times(self, candidate: Candidate) -> bool:
        """Whether a candidate's steps are timed (`most_ks` says whether it is decoded). The target
        as its own draft, which costs as much as the target, is timed only if it was asked for.
        """
        if self.measure == "replay":
            return False
        return self.measure == "all" or candidate.draft != SELF or SELF in self.drafts

    @property
    def repeats(self) -> int:
        """How often all candidates are measured, each time in another process or after another
        start of every server.
        """
        return self.serving.restarts if self.serving else self.processes


def check_options(options: SweepOptions, serving: ServingOptions) -> None:
    """Refuse options that make no sense together.

    Args:
        serving: the options given for an engine, even if none is named.

    Raises:
        UsageError: an option lacks what it needs, or a model is missing.
    """
    for group in (options, serving):
        for each in flags_of(group):
            value, need = getattr(group, each.name), each.metadata["needs"]
            if need and value != each.default and not need.met(serving):
                shown = f" {value}" if each.metadata["among"] else ""
                raise UsageError(
                    f"{flag_name(each)}{shown} needs {need.what}",
                    hint=each.metadata["hint"] or need.hint,
                )
    for name, given, hint in (
        ("--target", options.target, "the model you serve: its folder, .gguf file or hub id"),
        (
            "--drafts",
            options.drafts,
            "a smaller model of the target's family, or `ngram` (no model)",
        ),
    ):
        if not given and serving.server is None:
            raise UsageError(f"missing option {name}", hint=hint)
    if serving.engine is not None and serving.server is None and serving.engine not in STARTED:
        raise UsageError(
            f"draftbench cannot start `{serving.engine}`",
            hint=f"give its address with --server, or one of {', '.join(STARTED)}",
        )
    if options.until == "settled" and options.measure == "replay":
        raise UsageError(
            "--until settled with --measure replay, which times nothing and so answers nothing",
            hint="leave --measure out: the best k's are decoded, on the first requests",
        )
    if serving.side_by_side and serving.arrivals != "closed":
        raise UsageError(
            "--side-by-side with --arrivals: requests that come at their own times take no turns",
            hint="leave one of the two out; --restarts 3 shows how much starts differ",
        )
    # One k states how many tokens a server drafts that does not report it.
    several = len(options.ks) > 1 and options.ks != SweepOptions.ks
    if serving.server is not None and not options.drafts and several:
        raise UsageError(
            "--k makes no sense with a server that is running",
            hint="a running server has its own k; --k is for the drafts that --drafts replays",
        )


def in_turn(things: Iterable[T], repeat: int) -> list[T]:
    """Things in the order of a repeat: every second one goes backwards, so that a drift of the
    machine affects all of them alike.
    """
    return list(things)[:: -1 if repeat % 2 else 1]


class Watcher(Protocol):
    """Follows the progress of a sweep; it draws nothing while something is timed."""

    def stage(
        self, what: str, total: int, candidate: Candidate | None = None, longer: float = 1.0
    ) -> None:
        """A stage of at least `total` units begins, of a candidate or (None) of the target; it
        takes `longer` than planned by this factor.
        """
        ...

    def advance(self, units: int = 1) -> None:
        """This many units of the stage were just done."""
        ...

    def recorded(self, records: Sequence[Observation]) -> None:
        """Observations were just written to the run folder; nothing is timed meanwhile."""
        ...

    def note(self, text: str, *, always: bool = False) -> None:
        """Something worth a line; `always`: even if only the result is wanted."""
        ...
