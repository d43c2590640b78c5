"""What a prepared sweep would do: grid, work, time and memory, before any weight is loaded.

The time is a bound by arithmetic: every pass reads its weights once at an assumed rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from draftbench.memory import format_size
from draftbench.models.check_result import ModelSheet
from draftbench.records import LOOKUP, SELF, Candidate, to_json
from draftbench.report.terminal.text import (
    SCREEN_COLUMNS,
    Section,
    clipped,
    counted,
    ranges,
    shortened,
)
from draftbench.run_folder.manifest import Manifest, Question

# Bytes that a pass reads in a second, and what a token of a long pass takes of a step. Of a desktop
# or a small server, and of one data-centre card: too slow for the best of each.
_BANDWIDTH = {"cpu": 20e9, "cuda": 1.5e12}
_TOKEN_IN_BULK = {"cpu": 1 / 6, "cuda": 1 / 100}
_COST_PASSES = 250
_MOST_ROWS = 4


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: `prompts` are (prompt tokens, most output tokens) of every request,
    `sheets` the drafts' by name; of `decoded` requests each is decoded at `cells` k's and without a
    draft. `scored_together` is how many tokens of cache the target's responses take side by side;
    `timed` whether passes are.
    """

    candidates: Sequence[Candidate]
    prompts: Sequence[tuple[int, int]]
    target: ModelSheet
    sheets: Mapping[str, ModelSheet]
    decoded: int
    cells: int
    scored_together: int = 0
    timed: bool = True

    @property
    def ways(self) -> int:
        """How often each decoded request is decoded beside one candidate."""
        return 1 + self.cells

    @property
    def read(self) -> int:
        """Prompt tokens of all requests."""
        return sum(tokens for tokens, _ in self.prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer."""
        return max(tokens + limit for tokens, limit in self.prompts)


class Pass(msgspec.Struct, frozen=True):
    """A kind of work: `what` is done, to `how_much`, in about so many `seconds`."""

    what: str
    how_much: str
    seconds: float


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that measuring a candidate takes: `target_weights`, `draft_weights`, the `cache` of
    both models, and all `together`; beside them at most `second_layout` on a CPU, for unquantized
    weights that are packed for passes over several tokens.
    """

    candidate: str
    target_weights: int
    draft_weights: int
    second_layout: int
    cache: int
    together: int


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep would measure. `seconds` are the sum over its passes, a bound by arithmetic;
    `cache_tokens` are the positions that the caches hold at once.
    """

    target: str
    target_quant: str
    dtype: str
    device: str
    threads: int
    candidates: tuple[str, ...]
    ks: tuple[int, ...]
    batches: tuple[int, ...]
    mode: str
    requests: int
    prompt_tokens: int
    samples: int
    passes: tuple[Pass, ...]
    seconds: float
    cache_tokens: int
    memory: tuple[Need, ...]


def dry_run(manifest: Manifest, plan: Plan) -> DryRun:
    """Count what a sweep would do."""
    question = manifest.question
    passes, tokens = _passes(manifest, plan), _cache_tokens(manifest, plan)
    return DryRun(
        target=question.target,
        target_quant=question.target_quant,
        dtype=question.dtype,
        device=question.device,
        threads=manifest.environment.threads,
        candidates=tuple(map(str, plan.candidates)),
        ks=question.ks,
        batches=question.batches,
        mode=question.mode.value,
        requests=len(plan.prompts),
        prompt_tokens=plan.read,
        samples=question.samples,
        passes=passes,
        seconds=sum(each.seconds for each in passes),
        cache_tokens=tokens,
        memory=tuple(_need(question, plan, c, tokens) for c in plan.candidates),
    )


def render(plan: DryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    sections = (_grid(plan), _work(plan), _memory(plan))
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    screen = "\n\n".join(section.text(min(width, SCREEN_COLUMNS)) for section in sections)
    return clipped(screen, "--format json")


def _passes(manifest: Manifest, plan: Plan) -> tuple[Pass, ...]:
    question = manifest.question
    kind = _kind(question.device)
    rate, bulk = _BANDWIDTH[kind], _TOKEN_IN_BULK[kind]
    step = plan.target.bytes_at(question.target_quant) / rate
    most = sum(limit for _, limit in plan.prompts) * question.samples
    whole = plan.read * question.samples + most
    written = 0.0 if question.responses == "log" else most * step
    replay = sum(_bytes(plan, question.target_quant, c) for c in plan.candidates) / rate
    decoded = plan.decoded * plan.ways * len(plan.candidates) * len(question.batches)
    share = most / max(1, len(plan.prompts) * question.samples)
    timed = _COST_PASSES * len(question.batches) if plan.timed else 0
    return (
        Pass("target writes", f"at most {most} tokens", written),
        Pass("target scores", f"{whole} tokens in long passes", whole * bulk * step),
        Pass("drafts replay", f"{whole} tokens once per candidate, for every k",
             whole * bulk * replay),
        Pass("step times", f"{timed} short passes of target and draft at several lengths",
             timed * (len(plan.candidates) * step + replay)),
        Pass("decoding",
             f"{decoded} responses: {counted(plan.decoded, 'request')}, without a draft and at "
             f"{plan.cells} k's",
             decoded * share * step),
    )  # fmt: skip


def _cache_tokens(manifest: Manifest, plan: Plan) -> int:
    # Cells of a batch are decoded in turns, so all their caches are open at once; before them those
    # of step times are, at two contexts.
    most = max(manifest.question.batches)
    open_rows = most * (plan.ways if plan.decoded else 2) if most > 1 and plan.timed else 1
    return max(plan.longest * open_rows, plan.scored_together)


def _need(question: Question, plan: Plan, candidate: Candidate, tokens: int) -> Need:
    target_quant = question.target_quant
    target = plan.target.bytes_at(target_quant)
    sheet = plan.target if candidate.draft == SELF else plan.sheets.get(candidate.draft)
    own = 0 if candidate.draft == SELF else _bytes(plan, target_quant, candidate)
    cache = tokens * (plan.target.kv_bytes_per_token + (sheet.kv_bytes_per_token if sheet else 0))
    packed = (target, target_quant), (own, candidate.quant)
    on_cpu = question.device == "cpu"
    return Need(
        candidate=str(candidate),
        target_weights=target,
        draft_weights=own,
        second_layout=sum(size for size, level in packed if level == "none" and on_cpu),
        cache=cache,
        together=target + own + cache,
    )


def _bytes(plan: Plan, target_quant: str, candidate: Candidate) -> int:
    """Weights that one pass of the candidate reads."""
    if candidate.draft == LOOKUP:
        return 0
    if candidate.draft == SELF:
        return plan.target.bytes_at(target_quant)
    return plan.sheets[candidate.draft].bytes_at(candidate.quant)


def _kind(device: str) -> str:
    return "cpu" if device == "cpu" else "cuda"


def _grid(plan: DryRun) -> Section:
    requests = f"{counted(plan.requests, 'request')} with {plan.prompt_tokens} prompt tokens"
    if plan.samples > 1:
        requests += f", {plan.samples} responses each"
    rows = [
        ("target", f"{shortened(plan.target, 40)}, quantization {plan.target_quant}, {plan.dtype}"),
        ("drafts", _as_fit(plan.candidates, 76)),
        ("grid", f"k = {ranges(plan.ks)}; batch size {ranges(plan.batches)}; {plan.mode} drafting"),
        ("traffic", requests),
        ("device", f"{plan.device}, {counted(plan.threads, 'CPU thread')}"),
    ]
    return Section("This sweep would measure", ("", ""), rows)


def _as_fit(names: Sequence[str], width: int) -> str:
    """As many names as fit, and how many more there are."""
    for shown in range(len(names), 0, -1):
        rest = f" and {len(names) - shown} more" if shown < len(names) else ""
        text = ", ".join(names[:shown]) + rest
        if len(text) <= width:
            return text
    return shortened(", ".join(names), width)


def _work(plan: DryRun) -> Section:
    rate, bulk = _BANDWIDTH[_kind(plan.device)], _TOKEN_IN_BULK[_kind(plan.device)]
    note = (
        f"Estimated without running anything: weights are read at {rate / 1e9:g} GB/s, a token of "
        f"a long pass takes 1/{1 / bulk:g} of a step, responses reach their limit."
    )
    rows = [(each.what, each.how_much, _about(each.seconds)) for each in plan.passes]
    return Section(f"Work: about {_about(plan.seconds)}", ("", "", ""), rows, [note])


def _memory(plan: DryRun) -> Section:
    largest = sorted(plan.memory, key=lambda need: -need.together)
    rows = [
        (
            shortened(need.candidate, 32),
            *map(format_size, (need.target_weights, need.draft_weights, need.cache, need.together)),
        )
        for need in largest[:_MOST_ROWS]
    ]
    title = f"Memory: up to {format_size(largest[0].together)}" if largest else "Memory"
    notes = [f"With {plan.cache_tokens} tokens of cache; activations are not counted."]
    second = max((need.second_layout for need in plan.memory), default=0)
    if second:
        notes.append(
            f"On a CPU up to {format_size(second)} more: a second layout of unquantized weights "
            "(none with --one-layout)."
        )
    if len(largest) > len(rows):
        notes.insert(0, f"and {len(largest) - len(rows)} more that need less: --format json")
    return Section(title, ("draft", "target", "draft weights", "cache", "total"), rows, notes)


def _about(seconds: float) -> str:
    """No finer than the assumptions behind it."""
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.0f} s"
