"""What a prepared sweep would do, counted before any weight is loaded or any server started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from draftbench.errors import ModelError
from draftbench.measure.teacher import TOKENS_AT_ONCE
from draftbench.measure.trajectories import GROUP, PromptSample
from draftbench.memory import BYTES_A_SECOND
from draftbench.models.check import check_models, engine_sheet, memory_here
from draftbench.models.check_result import ModelSheet
from draftbench.models.source import ModelSource
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.report.terminal.dry_run import (
    SERVER_START_SECONDS,
    DryRun,
    EngineDryRun,
    EngineNeed,
    EngineWork,
    Need,
    Pass,
)
from draftbench.run_folder.manifest import Manifest
from draftbench.sweep import Prepared
from draftbench.sweep.engine_arms import (
    ALONE,
    arrival_times,
    closing_starts,
    loads_of,
    startable,
)
from draftbench.sweep.work import work_of

# What an engine drafts with that has no weights.
_WITHOUT_WEIGHTS = (LOOKUP, "suffix")


def dry_run_of(prepared: Prepared) -> DryRun | EngineDryRun:
    """The grid, work and memory of a sweep; models are counted from their configurations.

    Raises:
        ModelError: a model of the built-in decoder cannot be counted.
    """
    if prepared.serving is not None:
        return engine_dry_run(prepared.manifest, _engine_plan(prepared))
    drafts, dtype = list(prepared.drafts.values()), prepared.build.dtype
    checked = check_models(prepared.target, drafts, memory_here(), dtype=dtype)
    sheets = {name: pair.draft for name, pair in zip(prepared.drafts, checked.pairs, strict=True)}
    return built_in_dry_run(prepared, checked.target, sheets)


def built_in_dry_run(
    prepared: Prepared, target: ModelSheet, sheets: Mapping[str, ModelSheet]
) -> DryRun:
    """A dry run of a sweep with the built-in decoder; `sheets` are the drafts' by name."""
    manifest, question = prepared.manifest, prepared.manifest.question
    passes = tuple(Pass(*each) for each in work_of(prepared, target, sheets))
    tokens = _cache_tokens(prepared)
    return DryRun(
        **_grid(manifest, prepared.candidates, prepared.prompt_tokens),
        target_quant=question.target_quant,
        dtype=question.dtype,
        device=question.device,
        threads=manifest.environment.threads,
        batches=question.batches,
        mode=question.mode.value,
        passes=passes,
        seconds=sum(each.seconds for each in passes),
        cache_tokens=tokens,
        memory=tuple(
            _need(prepared, candidate, target, sheets.get(candidate.draft), tokens)
            for candidate in prepared.candidates
        ),
    )


def _grid(
    manifest: Manifest, candidates: Sequence[Candidate], prompts: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The fields that both kinds of dry run have."""
    question = manifest.question
    return {
        "target": question.target,
        "candidates": tuple(map(str, candidates)),
        "ks": question.ks,
        "requests": len(prompts),
        "prompt_tokens": sum(tokens for tokens, _ in prompts),
        "samples": question.samples,
    }


def _cache_tokens(prepared: Prepared) -> int:
    """Most positions that the caches hold at once, for the longest requests.

    The configurations of a candidate are decoded in turn, so the caches of all are open together;
    before that step times have caches at two contexts, and the target scores responses side by
    side.
    """
    options, longest = prepared.options, max(map(sum, prepared.prompt_tokens))
    batch = max(prepared.manifest.question.batches)
    caches = 1 + options.most_ks if options.most_ks else 2 * (options.measure != "replay")
    rows = batch * caches if batch > 1 else 0
    return max(longest * max(rows, 1), min(GROUP * longest, max(TOKENS_AT_ONCE, longest)))


def _need(
    prepared: Prepared,
    candidate: Candidate,
    target: ModelSheet,
    sheet: ModelSheet | None,
    tokens: int,
) -> Need:
    """The memory of one candidate; `sheet` is its draft's, None for prompt lookup, which needs
    none, and for the target as its own draft, which needs a second cache.
    """
    level = prepared.manifest.question.target_quant
    weights, draft, twice = target.bytes_at(level), 0, target.second_layout_at(level)
    if sheet is not None:
        draft = sheet.bytes_at(candidate.quant)
        twice += sheet.second_layout_at(candidate.quant)
    drafting = target if candidate.draft == SELF else sheet
    by_token = target.kv_bytes_per_token + (drafting.kv_bytes_per_token if drafting else 0)
    twice = 0 if prepared.options.one_layout else twice
    return Need(
        candidate=str(candidate),
        target_weights=weights,
        draft_weights=draft,
        second_layout=twice,
        cache=tokens * by_token,
        together=weights + draft + twice + tokens * by_token,
    )


@dataclass(frozen=True)
class EnginePlan:
    """The servers that a sweep on an engine would start, and what each would be asked."""

    candidates: Sequence[Candidate]
    served: Sequence[Candidate]  # those that servers are started with
    least: int  # fewest starts with a draft in one turn
    most: int  # most starts with a draft in one turn
    grid: int  # starts with a draft if every k of every draft were started
    restarts: int  # turns
    in_flight: int  # most requests that a server answers at once
    plain: int  # starts without a draft
    prompts: Sequence[tuple[int, int]]  # prompt tokens and most output tokens of each request
    measured: int  # requests that a server answers at every load; all of them if `span` is known
    target: ModelSheet | None  # None: memory is unknown
    sheets: Mapping[str, ModelSheet]  # the drafts', by name
    running: bool  # the user's servers: none is started, and their memory is unknown
    visits: int = 0  # of the user's servers, after the responses are written
    under_load: bool = True  # whether the server that writes the responses answers at the loads too
    span: float | None = None  # seconds between the first arrival and the last; None: closed loop


def _engine_plan(prepared: Prepared) -> EnginePlan:
    options, serving = prepared.options, prepared.serving
    assert serving is not None
    sheet, sheets = None, {}
    if options.target:
        with contextlib.suppress(ModelError):  # an engine may serve what cannot be counted here
            sheet = engine_sheet(ModelSource(options.target, options.trust), serving.dtype)
            drafts = prepared.drafts.items()
            sheets = {name: engine_sheet(source, serving.dtype) for name, source in drafts}
    served = [c for c in prepared.candidates if c in serving.levels and serving.server is None]
    ks = [len(startable(serving, options, candidate)) for candidate in served]
    # At least the smallest k and the largest of each draft, from which the others are predicted.
    least = [min(2, count) for count in ks] if options.measure == "best" else ks
    speculates = options.measure in ("best", "all")
    span = None
    if serving.options.arrivals != "closed":
        pairs = product(prepared.prompts, range(options.samples))
        asked = [PromptSample(prompt, sample) for prompt, sample in pairs]
        span = max(arrival_times(asked, options).values())
    return EnginePlan(
        candidates=prepared.candidates,
        served=served,
        least=sum(least) * speculates,
        most=sum(ks) * speculates,
        grid=sum(ks),
        restarts=options.turns,
        in_flight=options.in_flight,
        plain=0 if serving.server else 1 + len(closing_starts(serving, options)),
        prompts=prepared.prompt_tokens,
        measured=min(options.measure_requests, len(prepared.prompts)),
        target=sheet,
        sheets=sheets,
        running=serving.server is not None,
        span=span,
        # The server that drafts and its baseline, once each.
        visits=2 if serving.baseline and speculates else 0,
        under_load=any(load != ALONE for load in loads_of(serving, options, serving.writer)),
    )


def engine_dry_run(manifest: Manifest, plan: EnginePlan) -> EngineDryRun:
    """A dry run of a sweep on a serving engine."""
    question, plain, turns = manifest.question, plan.plain, plan.restarts
    return EngineDryRun(
        **_grid(manifest, plan.candidates, plan.prompts),
        engine=question.engine or "",
        loads=question.batches,
        arrivals=question.arrivals,
        slots=question.slots,
        least=_work(manifest, plan, plain, plan.least * turns, least=True),
        most=_work(manifest, plan, plain, plan.most * turns),
        grid=_work(manifest, plan, min(plain, turns), plan.grid * turns),
        memory=tuple(_needs(plan)),
    )


def _work(
    manifest: Manifest, plan: EnginePlan, plain: int, drafting: int, *, least: bool = False
) -> EngineWork:
    """What so many starts without a draft and with one take: the first server writes every
    response, all others answer the measured requests.
    """
    question, starts = manifest.question, plain + drafting
    written = sum(limit for _, limit in plan.prompts) * question.samples
    longest = written / max(1, len(plan.prompts) * question.samples)  # tokens of a response
    # (tokens, requests in flight) of each server at each load
    if plan.span is None:
        visit = [(plan.measured * longest, load) for load in question.batches]
        first = [each for each in visit if each[1] > 1]  # at 1 it has written the responses
    else:
        visit = first = [(written, plan.in_flight)]
    first = first if plan.under_load else []
    visits = [*first, *visit * (plan.visits if plan.running else max(starts - 1, 0))]
    seconds = None
    if plan.span and least:  # no server is done before the last request has come
        seconds = len(visits) * plan.span + starts * SERVER_START_SECONDS
    if plan.target is not None and not plan.running:
        rate = BYTES_A_SECOND["cpu" if question.device == "cpu" else "cuda"]
        step = plan.target.bytes_at("none") / rate
        # The last request still has to be answered when it has come.
        arriving = 0.0 if plan.span is None else plan.span + longest * step
        seconds = starts * (SERVER_START_SECONDS + step) + written * step
        seconds += sum(max(tokens / load * step, arriving) for tokens, load in visits)
    tokens = written + sum(tokens for tokens, _ in visits)
    return EngineWork(starts=starts, tokens=round(tokens), seconds=seconds)


def _needs(plan: EnginePlan) -> Iterator[EngineNeed]:
    """The memory of a server of each candidate; nothing for the user's servers."""
    if plan.target is None or plan.running:
        return
    tokens = max(map(sum, plan.prompts)) * plan.in_flight
    for candidate in plan.served:
        sheet = plan.sheets.get(candidate.draft)
        weights, by_token = None, plan.target.kv_bytes_per_token
        if sheet is not None:
            weights, by_token = sheet.bytes_at(candidate.quant), by_token + sheet.kv_bytes_per_token
        elif candidate.draft in _WITHOUT_WEIGHTS:
            weights = 0
        yield EngineNeed(
            candidate=str(candidate),
            target_weights=plan.target.bytes_at("none"),
            draft_weights=weights,
            cache=None if weights is None else tokens * by_token,
        )
