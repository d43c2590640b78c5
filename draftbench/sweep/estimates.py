"""Estimates by arithmetic how long a prepared sweep will take, stage by stage, and its memory.

A pass reads its weights once and takes some time in every layer; each further token is multiplied
by the weights again, and takes a little more in every layer. A serving engine is assumed to read
its weights and prompts as fast, and every server takes time to start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch

from draftbench.decoder.linear import as_function, unquantized_linear
from draftbench.drafts.check import check_models
from draftbench.drafts.kinds import kind_drafting
from draftbench.engines.every import STARTED
from draftbench.errors import ModelError, UsageError
from draftbench.measure.decoding import WARM_TOKENS, repeats_of
from draftbench.measure.step_costs import LEAST_TURNS, PREFILL_TURNS
from draftbench.measure.timed_passes import CostGrid
from draftbench.measure.trajectories import GROUP, RESPONSE_ROWS, PromptSample
from draftbench.memory import format_size
from draftbench.models.check import engine_sheet, memory_free, memory_here
from draftbench.models.check_result import ModelSheet
from draftbench.models.quantize import layer_bytes
from draftbench.models.source import ModelSource
from draftbench.planner.what_to_measure import SHARE_OF_DECODING
from draftbench.records import SAMPLES_PER_VISIT, SELF, Candidate
from draftbench.run_folder.run import waves
from draftbench.sweep.engine_servers import ALONE, ServerConfig, Servers, arrival_times
from draftbench.sweep.options import in_turn
from draftbench.sweep.prepared import Prepared

# Until a process loads a model: libraries, tokenizers, traffic.
START_SECONDS = 5.0
# At how many contexts steps are timed, with one row and with several; how many prompts are timed;
# and how many tokens a draft's steps read.
_CONTEXTS, _CONTEXTS_OF_ROWS, _PROMPTS, _DRAFT_SIZES = 3, 2, 3, (1, 2)
# Tokens of the pass that measures how fast a CPU multiplies: as many as a prompt has.
_TIMED_ROWS = 256
# Small operations in a layer: what a step of a small model takes besides reading its weights.
_OPERATIONS = 40
# The share of a layer's time that a further token takes besides multiplying.
_TOKEN_IN_LAYER = 1 / 20
# How long each of these is timed: what else runs on the machine slows a sweep too.
_TIMED_SECONDS = 0.2
# The share of a response's tokens of which a draft is assumed to have another.
_WRONG = 1 / 4
# Passes of a visit, with the untimed one before it.
_VISIT, _PROMPT_VISIT = SAMPLES_PER_VISIT + 1, 2


class Stage(NamedTuple):
    """A stage to come: `what` is the beginning of its name in the watcher, and `start` the seconds
    of starting and loading before it.
    """

    candidate: Candidate | None
    what: str
    start: float
    seconds: float


@dataclass(frozen=True)
class DeviceSpeed:
    """What is assumed of a device."""

    reading: float  # bytes of weights that a pass reads in a second
    layer: float  # seconds of a layer
    token: float  # what multiplying by a further token takes, in readings of the weights
    in_layer: float  # what else a further token takes in a layer, in seconds
    loading: float  # weights loaded in a second


@cache
def speed_of(device: str, dtype: torch.dtype) -> DeviceSpeed:
    """The speed of a device. For a GPU it is assumed, that of a data-centre card, too slow for the
    best. A CPU is measured: how fast it reads more than its caches hold, multiplies by weights of
    the models' type, and starts small operations. How fast weights are loaded and laid out is
    assumed, as on two cores of a server.
    """
    if device != "cpu":
        return DeviceSpeed(1.5e12, 3e-5, 1 / 100, 3e-7, 5e8)
    numbers = torch.from_numpy(np.ones(1 << 25, np.float32))  # in pages of 2 MB, as weights are
    reading = numbers.nbytes / _timed(numbers.sum)
    linear = unquantized_linear(torch.ones(1024, 1024, dtype=dtype), None)
    multiply, rows = as_function(linear), torch.ones(_TIMED_ROWS, 1024)
    token = _timed(lambda: multiply(rows)) / _TIMED_ROWS * reading / layer_bytes(linear)
    vector, small = torch.ones(1, 64), torch.ones(64, 64)
    layer = _OPERATIONS * _timed(lambda: vector @ small)
    return DeviceSpeed(reading, layer, token, layer * _TOKEN_IN_LAYER, 1e8)


def _timed(work: Callable[[], object]) -> float:
    """Seconds of a piece of work on this machine, as busy as it is, after warming up once."""
    work()
    begun, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < _TIMED_SECONDS:
        work()
        done += 1
    return spent / done


def stages_to_come(prepared: Prepared) -> list[Stage]:
    """The stages of a sweep; none if its models cannot be counted. On an engine only their
    proportions mean anything.
    """
    try:
        target, drafts = sheets_of(prepared)
    except ModelError:
        return []
    speed = speed_of(prepared.manifest.question.device, prepared.build.dtype)
    if prepared.servers is None:
        assert target is not None
        return list(stages_of_decoder(prepared, target, drafts, speed))
    served = engine_model(target, speed) or Model(1.0)
    return list(stages_on_engine(prepared, prepared.servers, served))


def sheets_of(prepared: Prepared) -> tuple[ModelSheet | None, dict[str, ModelSheet]]:
    """The target and the draft models, by name, as counted from their configurations. The target is
    None if an engine serves one that cannot be counted here.

    Raises:
        ModelError: a model of the built-in decoder cannot be counted.
    """
    models = {n: s for n, s in prepared.drafts.items() if kind_drafting(n).is_model}
    if prepared.servers is None:
        sources, dtype = list(models.values()), prepared.build.dtype
        checked = check_models(prepared.target, sources, memory_here(), dtype=dtype)
        sheets = [pair.draft for pair in checked.pairs]
        return checked.target, dict(zip(models, sheets, strict=True))
    if prepared.options.target:
        with contextlib.suppress(ModelError):
            source = ModelSource(prepared.options.target, prepared.options.trust)
            served = prepared.servers.dtype
            return engine_sheet(source, served), {
                name: engine_sheet(draft, served) for name, draft in models.items()
            }
    return None, {}


@dataclass(frozen=True)
class Model:
    """A model's seconds for a step, for loading, and for each further token of a pass; all 0 for
    prompt lookup.
    """

    step: float = 0.0
    loading: float = 0.0
    token: float = 0.0

    def one_pass(self, tokens: float) -> float:
        """Seconds of a pass over a few tokens."""
        return self.step + (tokens - 1) * self.token

    def reading(self, tokens: float) -> float:
        """Seconds of long passes over `tokens` in total."""
        return tokens * self.token


def stages_of_decoder(
    prepared: Prepared, target: ModelSheet, drafts: Mapping[str, ModelSheet], speed: DeviceSpeed
) -> Iterator[Stage]:
    """The stages of a sweep with the built-in decoder, if responses reach their limits, every
    candidate is decoded at one k (with `--measure all` at every k), and timing steps takes between
    the least and the most that is worth it. With `--until settled` each wave begins with responses,
    and the first wave also times steps and decodes.

    Args:
        drafts: by name.
    """
    options, prompts = prepared.options, prepared.prompt_tokens
    ours = _model(target, options.target_quant, speed)
    theirs = {
        candidate: _model(drafts[candidate.draft], candidate.quant, speed)
        for candidate in prepared.candidates
        if candidate.draft in drafts
    }
    # Workers in processes of their own each load the target. With `--processes` there is one for
    # every candidate in every turn; the first also writes the responses.
    begin, workers = START_SECONDS + ours.loading, options.worker_count
    # The target reads the prompts and writes several responses side by side; then each model reads
    # all of it once, the target first.
    read = sum(tokens for tokens, _ in prompts) * options.samples
    written = sum(limit for _, limit in prompts) * options.samples
    seconds = ours.reading(read + written)
    if options.responses != "log":
        rows = min(RESPONSE_ROWS, len(prompts) * options.samples)
        seconds += written / rows * ours.one_pass(rows) + ours.reading(read)
    start = begin if options.elsewhere else ours.loading

    def model(candidate: Candidate) -> Model:
        return ours if candidate.draft == SELF else theirs.get(candidate, Model())

    def replaying(candidate: Candidate) -> float:
        """Reading everything and, as far as rules may ask, drafting on after wrong tokens."""
        draft, rows = model(candidate), min(GROUP, len(prompts) * options.samples)
        wrong = _WRONG * written * (options.stops and candidate in theirs)
        return draft.reading(read + written) + wrong * beyond / rows * draft.one_pass(rows)

    beyond, loading = max(options.ks) - 1, sum(draft.loading for draft in theirs.values())
    reading = sum(map(replaying, prepared.candidates))
    for wave, size in enumerate(wave_sizes(prepared)):
        share = size / len(prompts)
        again = wave == 0 or workers > 1  # all but the worker that times have ended by then
        yield Stage(None, "responses", again * start, share * seconds / workers)
        if workers > 1:
            yield Stage(None, "replay", loading / workers, share * reading / workers)
        for process in range(1 if wave else options.processes):
            for at, candidate in enumerate(in_turn(prepared.candidates, process)):
                draft = model(candidate)
                begun = begin * (process + at > 0) * (options.processes > 1)
                begun += (candidate in theirs) * draft.loading
                if workers == 1 or process > 0:
                    # The next process only loads it.
                    own = (process == 0) * share * replaying(candidate)
                    yield Stage(candidate, "replay", begun, own)
                    begun = 0.0
                for rows in options.concurrency if options.times(candidate) and not wave else ():
                    decoding = _decoding(prepared, ours, draft, rows)
                    least = _step_times(prepared, ours, draft, rows)
                    # What a restless machine is timed for, and a quiet one is not.
                    most = max(least, bool(options.most_ks) * SHARE_OF_DECODING * decoding)
                    yield Stage(candidate, "step times", begun, (least + most) / 2)
                    begun = 0.0
                    if options.most_ks:
                        yield Stage(candidate, "decoding", 0.0, decoding)


def wave_sizes(prepared: Prepared) -> list[int]:
    """How many requests each wave has; without `--until settled` all are measured at once."""
    count = len(prepared.prompt_tokens)
    if prepared.options.until == "all":
        return [count]
    return [len(wave) for wave in waves(map(str, range(count)))]


def _model(sheet: ModelSheet, level: str, speed: DeviceSpeed) -> Model:
    weights = sheet.read_at(level) / speed.reading
    step = weights + sheet.layers * speed.layer
    token = speed.token * weights + sheet.layers * speed.in_layer
    return Model(step, sheet.parameters / speed.loading, token)


def _step_times(prepared: Prepared, target: Model, draft: Model, rows: int) -> float:
    prompt = mean(tokens for tokens, _ in prepared.prompt_tokens)
    visits = LEAST_TURNS * _VISIT * (_CONTEXTS if rows == 1 else _CONTEXTS_OF_ROWS)
    prompts = PREFILL_TURNS * _PROMPT_VISIT * (_PROMPTS if rows == 1 else 0)
    timed = [(target, CostGrid((), max(prepared.options.ks), (), (), rows).verify_sizes)]
    if draft.step > 0 and draft is not target:
        timed.append((draft, _DRAFT_SIZES))
    return sum(
        visits * sum(model.one_pass(rows * size) for size in sizes)
        + prompts * model.reading(prompt)
        for model, sizes in timed
    )


def _decoding(prepared: Prepared, target: Model, draft: Model, rows: int) -> float:
    """Seconds of decoding as fast as without a draft."""
    options = prepared.options
    prompt = mean(tokens for tokens, _ in prepared.prompt_tokens)
    limit = mean(limit for _, limit in prepared.prompt_tokens)
    warm = min(limit, WARM_TOKENS + mean(options.ks))
    requests = min(options.measure_requests, len(prepared.prompt_tokens))
    responses = requests * repeats_of(requests, rows)
    # The first batch once more, to warm up.
    seconds = (responses * limit + rows * warm) / rows * target.one_pass(rows)
    seconds += (responses + rows) * (target.reading(prompt) + draft.reading(prompt))
    return (1 + options.expected_ks) * seconds


def engine_model(target: ModelSheet | None, speed: DeviceSpeed) -> Model | None:
    """The seconds of an engine's target; None: unknown."""
    if target is None:
        return None
    step = target.bytes_at("none") / speed.reading
    return Model(step, token=speed.token * step)


def sessions_of(
    prepared: Prepared, servers: Servers, *, every_k: bool
) -> Iterator[list[ServerConfig]]:
    """The servers that a sweep asks, in order, those together that take turns; the first writes
    every response. Each draft is started at least at the smallest and the largest k, from which the
    others are predicted.
    """
    options, speculates = prepared.options, prepared.options.measure in ("best", "all")
    yield [servers.writer]
    for repeat in range(options.repeats):
        if servers.given is not None:
            if servers.baseline is not None and servers.drafting and speculates:
                yield servers.session(servers.drafting._replace(repeat=repeat))
            continue
        plain = 0  # servers without a draft so far
        for candidate in in_turn(servers.levels, repeat):
            ks = prepared.ks(candidate) if speculates else ()
            if options.measure == "best" and not every_k:
                ks = tuple(sorted({*ks[:1], *ks[-1:]}))
            for k in in_turn(ks, repeat):
                yield servers.session(ServerConfig(candidate, k, repeat))
            due = servers.plain_until(candidate, repeat)
            yield from ([config] for config in due[plain:])
            plain = len(due)
        yield from ([config] for config in servers.plain_starts(repeat)[plain:])


def stages_on_engine(
    prepared: Prepared, servers: Servers, target: Model, *, every_k: bool = False
) -> Iterator[Stage]:
    """The stages of a sweep on an engine; the first stage of each session includes its servers'
    starts. Every server but the first answers the measured requests at every load.
    """
    options, prompts = prepared.options, prepared.prompt_tokens
    prompt, limit = (mean(lengths) for lengths in zip(*prompts, strict=True))
    responses, span = len(prompts) * options.samples, arriving_seconds(prepared)
    for session in sessions_of(prepared, servers, every_k=every_k):
        config, together = session[-1], len(session)
        start = together * (target.step + start_seconds(servers)) if servers.given is None else 0.0
        for load in servers.loads(config):
            writes = config == servers.writer and load == ALONE
            requests = min(options.measure_requests, len(prompts))
            if writes or load.concurrency is None:
                requests = responses
            rows = load.concurrency or options.max_concurrency
            seconds = limit / rows * target.one_pass(rows) + target.reading(prompt)
            seconds *= requests
            if load.concurrency is None:  # the last request still has to be answered when it comes
                seconds = max(seconds, span + limit * target.step + target.reading(prompt))
            what = f"{config.drafting}, {load}"
            yield Stage(config.candidate, what, start, together * seconds)
            start = 0.0


def check_side_by_side(prepared: Prepared) -> None:
    """Raise a UsageError if two servers do not fit in this machine's memory, as far as their models
    can be counted and are not started elsewhere.
    """
    servers = prepared.servers
    if servers is None or not servers.serving.side_by_side or servers.serving.command is not None:
        return
    target, drafts = sheets_of(prepared)
    if target is None:
        return
    free = memory_free("cpu")
    if torch.cuda.is_available():
        free = max(free, memory_free("auto"))
    for candidate in servers.levels:
        needed = memory_on_engine(prepared, servers, candidate, target, drafts)
        if needed > free:
            raise UsageError(
                f"--side-by-side: {candidate} and a server without a draft take "
                f"{format_size(needed)} or more together, and {format_size(free)} are free",
                hint="leave it out: then one server runs at a time",
            )


def memory_on_engine(
    prepared: Prepared,
    servers: Servers,
    candidate: Candidate,
    target: ModelSheet,
    drafts: Mapping[str, ModelSheet],
) -> int:
    """Bytes of the servers that are up together, with caches for the longest requests."""
    tokens = max(map(sum, prepared.prompt_tokens)) * prepared.options.max_concurrency
    up = [None, candidate] if servers.side_by_side else [candidate]
    return sum(memory_of(each, target, drafts, tokens) for each in up)


def memory_of(
    candidate: Candidate | None,
    target: ModelSheet,
    drafts: Mapping[str, ModelSheet],
    tokens: int,
    level: str = "none",
) -> int:
    """Bytes of the target, and of a candidate if there is one, with a cache for `tokens`, not
    counting a draft that only an engine knows; the target, at `level`, needs a second cache as its
    own draft.
    """
    models = [(target, level)]
    if candidate and candidate.draft in drafts:
        models.append((drafts[candidate.draft], candidate.quant))
    weights = sum(model.bytes_at(quant) for model, quant in models)
    own_draft = candidate is not None and candidate.draft == SELF
    caches = [model for model, _ in models] + [target] * own_draft
    return weights + tokens * sum(model.kv_bytes_per_token for model in caches)


def start_seconds(servers: Servers) -> float:
    """How long a server of the engine takes to start."""
    start = STARTED.get(servers.engine)
    return 0.0 if start is None else start.seconds


def arriving_seconds(prepared: Prepared) -> float:
    """Seconds between the first arrival and the last; 0 in a closed loop."""
    servers, options = prepared.servers, prepared.options
    if servers is None or servers.serving.arrivals == "closed":
        return 0.0
    pairs = product(prepared.prompts, range(options.samples))
    requests = [PromptSample(prompt, sample) for prompt, sample in pairs]
    return max(arrival_times(requests, servers.serving, options.traffic.seed).values())
