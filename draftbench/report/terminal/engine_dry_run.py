"""What a sweep on a serving engine would do: servers started, tokens written, minutes and memory,
beside those of a grid that starts every k of every draft. Nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from draftbench.memory import format_size
from draftbench.models.check_result import ModelSheet
from draftbench.records import Candidate, to_json
from draftbench.report.terminal.dry_run import ASSUMED_BANDWIDTH, about
from draftbench.report.terminal.text import Section, counted, render_sections, shortened
from draftbench.run_folder.manifest import Manifest

# From the command to the first answer, beside reading the weights; of vLLM on two cores.
START_SECONDS = 30.0


@dataclass(frozen=True)
class EnginePlan:
    """What a sweep would ask: `prompts` are (prompt tokens, most output tokens) of every request,
    `measured` of which each speculating server answers at every load. `served` are the candidates
    for which servers are started, each at `fewest` k's or at all; `sheets` the drafts' by name.
    Without `target`, on servers that run already, memory and times are unknown.
    """

    candidates: Sequence[Candidate]
    served: Sequence[Candidate]
    fewest: int
    ks: Sequence[int]
    loads: Sequence[int]
    restarts: int
    prompts: Sequence[tuple[int, int]]
    measured: int
    target: ModelSheet | None
    sheets: Mapping[str, ModelSheet]
    running: bool  # servers of the user's


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Servers started, tokens that they write, and seconds that it takes; None where unknown."""

    starts: int  # of servers
    tokens: int  # that they write
    seconds: float | None  # None: unknown


class EngineNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a server of a candidate takes: `target_weights`, `draft_weights`, `cache`; the
    engine's own buffers come on top.
    """

    candidate: str
    target_weights: int
    draft_weights: int
    cache: int  # of both models, for the requests in flight


class EngineDryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep on an engine would measure: the work that is the `least` and the `most`, and
    that of a `grid` of every k of every draft. `loads` are requests in flight.
    """

    engine: str  # which engine
    target: str
    candidates: tuple[str, ...]
    ks: tuple[int, ...]
    loads: tuple[int, ...]
    arrivals: str  # closed, log or poisson:RATE
    requests: int
    prompt_tokens: int  # of all requests
    samples: int
    least: Work
    most: Work
    grid: Work
    memory: tuple[EngineNeed, ...]


def engine_dry_run(manifest: Manifest, plan: EnginePlan) -> EngineDryRun:
    """Count what a sweep would do."""
    question, every = manifest.question, len(plan.ks)
    plain = 0 if plan.running else max(2, plan.restarts)
    drafts = len(plan.served)
    return EngineDryRun(
        engine=question.engine or "",
        target=question.target,
        candidates=tuple(map(str, plan.candidates)),
        ks=tuple(plan.ks),
        loads=tuple(plan.loads),
        arrivals=question.arrivals,
        requests=len(plan.prompts),
        prompt_tokens=sum(tokens for tokens, _ in plan.prompts),
        samples=question.samples,
        least=_work(manifest, plan, plain, drafts * plan.fewest * plan.restarts),
        most=_work(manifest, plan, plain, drafts * (every if plan.fewest else 0) * plan.restarts),
        grid=_work(manifest, plan, min(plain, plan.restarts), drafts * every * plan.restarts),
        memory=tuple(_needs(plan)),
    )


def _work(manifest: Manifest, plan: EnginePlan, plain: int, drafting: int) -> Work:
    """The first plain server writes every response; all others answer the measured requests."""
    written = sum(limit for _, limit in plan.prompts) * manifest.question.samples
    mean = written / max(1, len(plan.prompts) * manifest.question.samples)
    starts = plain + drafting
    others = [load for load in plan.loads if load != 1]
    # (tokens at one load, that load), by visits.
    asked = [(written, 1), *((plan.measured * mean, load) for load in others)]
    later = max(starts - 1, 0) if not plan.running else 1
    asked += [(plan.measured * mean, load) for load in plan.loads] * later
    seconds = None
    if plan.target is not None and not plan.running:
        rate = ASSUMED_BANDWIDTH["cpu" if manifest.question.device == "cpu" else "cuda"]
        size = plan.target.bytes_at("none")
        seconds = sum(tokens / load for tokens, load in asked) * size / rate
        seconds += starts * (START_SECONDS + size / rate)
    return Work(starts=starts, tokens=round(sum(tokens for tokens, _ in asked)), seconds=seconds)


def _needs(plan: EnginePlan) -> list[EngineNeed]:
    if plan.target is None or plan.running:
        return []
    tokens = max(map(sum, plan.prompts)) * max(plan.loads)
    weights = plan.target.bytes_at("none")
    needs = []
    for candidate in plan.served:
        sheet = plan.sheets.get(candidate.draft)
        by_token = plan.target.kv_bytes_per_token + (sheet.kv_bytes_per_token if sheet else 0)
        needs.append(
            EngineNeed(
                candidate=str(candidate),
                target_weights=weights,
                draft_weights=sheet.bytes_at(candidate.quant) if sheet else 0,
                cache=tokens * by_token,
            )
        )
    return needs


def render(plan: EngineDryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    requests = f"{counted(plan.requests, 'request')} with {plan.prompt_tokens} prompt tokens"
    if plan.samples > 1:
        requests += f", {plan.samples} responses each"
    loads = f"{', '.join(map(str, plan.loads))} in flight"
    rows = [
        ("engine", plan.engine),
        ("target", shortened(plan.target, 40)),
        ("drafts", shortened(", ".join(plan.candidates), 76)),
        ("k", ", ".join(map(str, plan.ks))),
        ("load", loads if plan.arrivals == "closed" else f"arrivals: {plan.arrivals}"),
        ("traffic", requests),
    ]
    work = [
        (
            name,
            str(each.starts),
            str(each.tokens),
            "–" if each.seconds is None else about(each.seconds),
        )
        for name, each in (
            ("at least", plan.least),
            ("at most", plan.most),
            ("every k of every draft", plan.grid),
        )
    ]
    notes = ["Responses reach their limit; replay of the drafts is not counted."]
    if plan.most.seconds is not None:
        notes.append(
            f"Times without running anything: {START_SECONDS:.0f} s a start, weights read as fast "
            "as on a common machine, and no speed-up."
        )
    sections = [
        Section("This sweep would measure", ("", ""), rows),
        Section("Work", ("", "servers started", "tokens written", "time"), work, notes),
    ]
    if plan.memory:
        needs = [
            (
                need.candidate,
                *map(format_size, (need.target_weights, need.draft_weights, need.cache)),
            )
            for need in plan.memory
        ]
        sections.append(
            Section(
                "Memory",
                ("draft", "target", "draft weights", "cache"),
                needs,
                ["Unquantized target; the engine's own buffers are not counted."],
            )
        )
    return render_sections(sections, style, width, "--format json")
