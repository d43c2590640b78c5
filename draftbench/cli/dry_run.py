"""What a prepared sweep would do, counted before any weight is loaded or any server started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import product

from draftbench.errors import ModelError
from draftbench.measure.teacher import TOKENS_AT_ONCE
from draftbench.measure.trajectories import GROUP, PromptSample
from draftbench.memory import format_size
from draftbench.models.check import check_models, engine_sheet, memory_here
from draftbench.models.check_result import ModelSheet
from draftbench.models.drafting import parsed
from draftbench.models.source import ModelSource
from draftbench.records import SELF, Candidate, Record, to_json
from draftbench.report.terminal.text import (
    SCREEN_COLUMNS,
    Section,
    counted,
    duration,
    render_sections,
    shortened,
)
from draftbench.run_folder.manifest import Manifest
from draftbench.sweep.engine_servers import ALONE, arrival_times
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.work import DeviceSpeed, seconds_of, speed_of

_NAMES = 76  # columns of the names of drafts


# From the command that starts a server to its first answer, without reading the weights, on two
# cores: as vLLM, or as llama.cpp.
_START_SECONDS, _QUICK_START_SECONDS = 30.0, 2.0


def dry_run_of(prepared: Prepared) -> DryRun:
    """The time and memory of a sweep; models are counted from their configurations.

    Raises:
        ModelError: a model of the built-in decoder cannot be counted.
    """
    dtype = prepared.build.dtype
    models = {n: s for n, s in prepared.drafts.items() if parsed(n)[0] == "draft-model"}
    speed = speed_of(prepared.manifest.question.device)
    if prepared.serving is None:
        checked = check_models(prepared.target, list(models.values()), memory_here(), dtype=dtype)
        sheets = [pair.draft for pair in checked.pairs]
        by_name = dict(zip(models, sheets, strict=True))
        return of_decoder(prepared, checked.target, by_name, speed)
    target, drafts, served = None, {}, prepared.serving.dtype
    if prepared.options.target:
        with contextlib.suppress(ModelError):  # an engine may serve what cannot be counted here
            source = ModelSource(prepared.options.target, prepared.options.trust)
            target = engine_sheet(source, served)
            drafts = {name: engine_sheet(draft, served) for name, draft in models.items()}
    return of_engine(prepared, target, drafts, speed)


def of_decoder(
    prepared: Prepared, target: ModelSheet, drafts: Mapping[str, ModelSheet], speed: DeviceSpeed
) -> DryRun:
    """A dry run with the built-in decoder; `drafts` by name."""
    level, tokens = prepared.options.target_quant, _cache_tokens(prepared)
    twice = not prepared.options.one_layout
    return DryRun(
        manifest=prepared.manifest,
        candidates=tuple(map(str, prepared.candidates)),
        prompt_tokens=sum(tokens for tokens, _ in prepared.prompt_tokens),
        least_starts=None,
        most_starts=None,
        least_seconds=None,
        most_seconds=seconds_of(prepared, target, drafts, speed),
        memory=max(
            _memory(candidate, target, drafts, tokens, level, second_layout=twice)
            for candidate in prepared.candidates
        ),
        assumed=(
            "Worst case for this machine, as busy as it is now: every response reaches its limit "
            "and no draft saves time.",
            f"Memory: weights, and a cache for the {tokens} tokens that are held at once at most; "
            "activations are not counted.",
        ),
    )


def of_engine(
    prepared: Prepared,
    target: ModelSheet | None,
    drafts: Mapping[str, ModelSheet],
    speed: DeviceSpeed,
) -> DryRun:
    """A dry run on a serving engine; a `target` of None cannot be counted here."""
    serving = prepared.serving
    assert serving is not None
    started = [c for c in prepared.candidates if c in serving.levels and serving.server is None]
    if serving.server is not None:
        target = None  # it runs elsewhere
    span = _span(prepared)
    step = target.bytes_at("none") / speed.reading if target else None
    (least_starts, least), (most_starts, most) = _starts(prepared, started, step, span)
    assumed = ["Responses reach their limit; replay of the drafts is not counted."]
    if most is not None:
        assumed.append(
            f"Estimated without starting anything: a start takes {_start_seconds(prepared):.0f} s, "
            "weights are read as fast as this machine can, and no draft saves time."
        )
    if span is not None and least is not None:
        assumed.append(
            "How fast the servers are is unknown: the time is that of the arrivals."
            if most is None
            else "Each server is sent requests for as long as they take to arrive."
        )
    memory = None
    if target and started:
        tokens = max(map(sum, prepared.prompt_tokens)) * prepared.options.max_concurrency
        memory = max(_memory(candidate, target, drafts, tokens) for candidate in started)
        assumed.append(
            "Memory: weights, and a cache for the longest requests; the engine's own buffers "
            "come on top."
        )
    return DryRun(
        manifest=prepared.manifest,
        candidates=tuple(map(str, prepared.candidates)),
        prompt_tokens=sum(tokens for tokens, _ in prepared.prompt_tokens),
        least_starts=least_starts,
        most_starts=most_starts,
        least_seconds=least,
        most_seconds=most,
        memory=memory,
        assumed=tuple(assumed),
    )


def _cache_tokens(prepared: Prepared) -> int:
    """Most positions that the caches hold at once, for the longest requests.

    The configurations of a candidate are decoded in turn, so the caches of all are open together;
    before that step times have caches at two contexts, and the target scores responses side by
    side.
    """
    options, longest = prepared.options, max(map(sum, prepared.prompt_tokens))
    concurrency = max(options.concurrency)
    caches = 1 + options.most_ks if options.most_ks else 2 * (options.measure != "replay")
    rows = concurrency * caches if concurrency > 1 else 0
    return max(longest * max(rows, 1), min(GROUP * longest, max(TOKENS_AT_ONCE, longest)))


def _memory(
    candidate: Candidate,
    target: ModelSheet,
    drafts: Mapping[str, ModelSheet],
    tokens: int,
    level: str = "none",
    *,
    second_layout: bool = False,
) -> int:
    """Bytes of a candidate with a cache of so many tokens, without a drafter that only an engine
    knows; the target, at this level, needs a second cache as its own draft.
    """
    models = [(target, level)]
    if candidate.draft in drafts:
        models.append((drafts[candidate.draft], candidate.quant))
    weights = sum(
        model.bytes_at(quant) + second_layout * model.second_layout_at(quant)
        for model, quant in models
    )
    caches = [model for model, _ in models] + [target] * (candidate.draft == SELF)
    return weights + tokens * sum(model.kv_bytes_per_token for model in caches)


def _span(prepared: Prepared) -> float | None:
    """Seconds between the first arrival and the last; None in a closed loop."""
    if prepared.serving is None or prepared.serving.options.arrivals == "closed":
        return None
    pairs = product(prepared.prompts, range(prepared.options.samples))
    requests = [PromptSample(prompt, sample) for prompt, sample in pairs]
    return max(arrival_times(requests, prepared.options).values())


def _start_seconds(prepared: Prepared) -> float:
    quick = prepared.manifest.question.engine == "llama.cpp"
    return _QUICK_START_SECONDS if quick else _START_SECONDS


def _starts(
    prepared: Prepared, started: list[Candidate], step: float | None, span: float | None
) -> tuple[tuple[int, float | None], tuple[int, float | None]]:
    """How many servers the sweep starts and the seconds that it takes, at least and at most: the
    first server writes every response, each other one answers the measured requests at every load.

    Args:
        step: seconds of a token of the target; None: unknown.
        span: seconds between the first arrival and the last; None: a closed loop.
    """
    options, serving, prompts = prepared.options, prepared.serving, prepared.prompt_tokens
    assert serving is not None
    written = sum(limit for _, limit in prompts) * options.samples
    longest = written / (len(prompts) * options.samples)  # tokens of a response
    # (tokens, requests in flight) of a server at each load
    if span is None:
        measured = min(options.measure_requests, len(prompts)) * longest
        visit = [(measured, load) for load in options.concurrency]
        first = [each for each in visit if each[1] > 1]  # at 1 it has written the responses
    else:
        visit = first = [(written, options.max_concurrency)]
    if all(load == ALONE for load in serving.loads(serving.writer)):
        first = []

    repeats, speculates = options.repeats, options.measure in ("best", "all")
    plain = 0 if serving.server else 1 + repeats * len(serving.plain_starts(0))
    ks = [len(serving.ks(candidate)) for candidate in started]
    # At least the smallest k and the largest of each draft, from which the others are predicted.
    fewest = [min(2, count) for count in ks] if options.measure == "best" else ks

    def of(drafting: int, *, least: bool = False) -> tuple[int, float | None]:
        starts = plain + drafting * repeats * speculates
        others = max(starts - 1, 0)
        if serving.server is not None:  # the server that drafts and its baseline, once each
            others = 2 if serving.baseline and speculates else 0
        visits = [*first, *visit * others]
        seconds = None
        if step is not None:
            # The last request still has to be answered when it has come.
            arriving = 0.0 if span is None else span + longest * step
            seconds = starts * (_start_seconds(prepared) + step) + written * step
            seconds += sum(max(tokens / load * step, arriving) for tokens, load in visits)
        elif span and least:  # no server is done before the last request has come
            seconds = len(visits) * span + starts * _start_seconds(prepared)
        return starts, seconds

    return of(sum(fewest), least=True), of(sum(ks))


class DryRun(Record, frozen=True):
    """What a sweep would measure, by arithmetic alone. `manifest` is the head of the run folder
    that it would write. Its time lies between `least_seconds` and `most_seconds`, None where
    unknown.
    """

    manifest: Manifest
    candidates: tuple[str, ...]
    prompt_tokens: int
    least_starts: int | None  # of servers of an engine
    most_starts: int | None  # if every k of every draft is started
    least_seconds: float | None
    most_seconds: float | None
    memory: int | None  # bytes, of the candidate that needs most; None: unknown
    assumed: tuple[str, ...]  # what time and memory are computed from


def render(plan: DryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    section = Section(_title(plan), ("", ""), list(_grid(plan)), plan.assumed)
    return render_sections([section], style, min(width, SCREEN_COLUMNS))


def _title(plan: DryRun) -> str:
    least, most = duration(plan.least_seconds), duration(plan.most_seconds)
    # An engine's own buffers, which are unknown, can be most of its memory.
    known = plan.memory is not None and not plan.manifest.question.engine
    memory = f" and {format_size(plan.memory or 0)} of memory" if known else ""
    if plan.most_seconds is None:
        return "This sweep would measure"
    if plan.least_seconds is None:
        return f"This sweep would take up to about {most}{memory}"
    return f"This sweep would take about {' to '.join(dict.fromkeys((least, most)))}{memory}"


def _grid(plan: DryRun) -> Iterator[tuple[str, str]]:
    """What is measured, on what and where."""
    question, traffic = plan.manifest.question, plan.manifest.traffic
    target = shortened(question.target, 40)
    ks = ", ".join(map(str, question.ks))
    if len(question.ks) > 2 and question.ks == tuple(range(question.ks[0], question.ks[-1] + 1)):
        ks = f"{question.ks[0]}–{question.ks[-1]}"
    load = f"concurrency {', '.join(map(str, question.concurrency))}"
    if question.arrivals != "closed":
        max_concurrency = (
            f"{question.max_concurrency}"
            if question.max_concurrency
            else "as many as the engine takes"
        )
        load = f"arrivals {question.arrivals}, {max_concurrency} answered at once"
    requests = f"{counted(traffic.requests, 'request')} with {plan.prompt_tokens} prompt tokens"
    if question.samples > 1:
        requests += f", {question.samples} responses each"
    if question.engine:
        yield "engine", question.engine
        yield "target", target
    else:
        yield "target", f"{target}, quantization {question.target_quant}, {question.dtype}"
    yield "drafts", _names(plan.candidates)
    yield "grid", f"k = {ks}; {load}; {question.mode} drafting"
    yield "traffic", requests
    if question.engine:
        starts = dict.fromkeys((plan.least_starts, plan.most_starts))
        yield "servers", f"{' to '.join(map(str, starts))} started"
        if plan.memory is not None:
            yield "memory", f"{format_size(plan.memory)} or more"
    else:
        threads = counted(plan.manifest.environment.threads, "CPU thread")
        yield "device", f"{question.device}; {threads}"


def _names(candidates: tuple[str, ...]) -> str:
    """As many as fit, one at least."""
    for most in range(len(candidates), 0, -1):
        rest = len(candidates) - most
        names = ", ".join(candidates[:most]) + (f" and {rest} more" if rest else "")
        if len(names) <= _NAMES:
            return names
    return shortened(", ".join(candidates), _NAMES)
