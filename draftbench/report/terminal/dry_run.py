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
from draftbench.report.terminal.text import Section, counted, render_sections, shortened
from draftbench.run_folder.manifest import Manifest

# Bytes that a pass reads in a second, and what a token of a long pass takes of a step. Of a desktop
# or a small server, and of one data-centre card: too slow for the best of each.
ASSUMED_BANDWIDTH = {"cpu": 20e9, "cuda": 1.5e12}
_TOKEN_IN_BULK = {"cpu": 1 / 6, "cuda": 1 / 100}
_COST_PASSES = 250
_MOST_ROWS = 4


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: `prompts` are (prompt tokens, most output tokens) of every request,
    `sheets` the drafts' by name; of `decoded` requests each is decoded at `cells` k's and without a
    draft. `scored_together` is how many tokens of cache the target's responses take side by side;
    `timed` whether passes are; both are done in each of so many `processes`.
    """

    candidates: Sequence[Candidate]
    prompts: Sequence[tuple[int, int]]
    target: ModelSheet
    sheets: Mapping[str, ModelSheet]
    decoded: int
    cells: int
    scored_together: int = 0
    timed: bool = True
    processes: int = 1


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
        prompt_tokens=sum(tokens for tokens, _ in plan.prompts),
        samples=question.samples,
        passes=passes,
        seconds=sum(each.seconds for each in passes),
        cache_tokens=tokens,
        memory=tuple(_need(manifest, plan, candidate, tokens) for candidate in plan.candidates),
    )


def _passes(manifest: Manifest, plan: Plan) -> tuple[Pass, ...]:
    question, samples = manifest.question, manifest.question.samples
    rate, bulk = _assumed(question.device)
    target = plan.target.bytes_at(question.target_quant)
    # Seconds of a pass of the target, and of one of each candidate.
    step = target / rate
    steps = sum(_weights(plan, each, target) for each in plan.candidates) / rate
    written = sum(limit for _, limit in plan.prompts) * samples
    whole = sum(tokens for tokens, _ in plan.prompts) * samples + written
    timed = _COST_PASSES * len(question.batches) * plan.processes if plan.timed else 0
    cells = len(plan.candidates) * len(question.batches) * plan.processes
    responses = plan.decoded * (1 + plan.cells) * cells
    each = f", in {plan.processes} processes" if plan.processes > 1 else ""
    mean = written / max(1, len(plan.prompts) * samples)
    work = (
        (
            "target writes",
            f"at most {written} tokens",
            0.0 if question.responses == "log" else written * step,
        ),
        ("target scores", f"{whole} tokens in long passes", whole * bulk * step),
        ("drafts replay", f"{whole} tokens once per candidate, for every k", whole * bulk * steps),
        (
            "step times",
            f"{timed} short passes of target and draft at several lengths{each}",
            timed * (len(plan.candidates) * step + steps),
        ),
        (
            "decoding",
            f"{responses} responses: {counted(plan.decoded, 'request')}, without a draft and at "
            f"{plan.cells} k's{each}",
            responses * mean * step,
        ),
    )
    return tuple(Pass(*each) for each in work)


def _assumed(device: str) -> tuple[float, float]:
    """Bytes a second, and a token of a long pass in steps."""
    kind = "cpu" if device == "cpu" else "cuda"
    return ASSUMED_BANDWIDTH[kind], _TOKEN_IN_BULK[kind]


def _cache_tokens(manifest: Manifest, plan: Plan) -> int:
    # Cells of a batch are decoded in turns, so all their caches are open at once; before them those
    # of step times are, at two contexts.
    batch = max(manifest.question.batches)
    caches = 1 + plan.cells if plan.decoded else 2
    rows = batch * caches if batch > 1 and plan.timed else 1
    return max(max(map(sum, plan.prompts)) * rows, plan.scored_together)


def _need(manifest: Manifest, plan: Plan, candidate: Candidate, tokens: int) -> Need:
    level = manifest.question.target_quant
    target = plan.target.bytes_at(level)
    sheet, draft = plan.sheets.get(candidate.draft), _weights(plan, candidate, target)
    if candidate.draft == SELF:
        sheet, draft = plan.target, 0
    cache = tokens * (plan.target.kv_bytes_per_token + (sheet.kv_bytes_per_token if sheet else 0))
    packed = plan.target.second_layout_bytes * (level == "none")
    if sheet and draft:
        packed += sheet.second_layout_bytes * (candidate.quant == "none")
    return Need(
        candidate=str(candidate),
        target_weights=target,
        draft_weights=draft,
        second_layout=packed,
        cache=cache,
        together=target + draft + cache,
    )


def _weights(plan: Plan, candidate: Candidate, target: int) -> int:
    """Bytes that one pass of the candidate reads."""
    if candidate.draft in (LOOKUP, SELF):
        return 0 if candidate.draft == LOOKUP else target
    return plan.sheets[candidate.draft].bytes_at(candidate.quant)


def render(plan: DryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    rate, bulk = _assumed(plan.device)
    assumed = (
        f"Estimated without running anything: weights are read at {rate / 1e9:g} GB/s, a token of "
        f"a long pass takes 1/{1 / bulk:g} of a step, responses reach their limit."
    )
    work = [(each.what, each.how_much, about(each.seconds)) for each in plan.passes]
    sections = (
        _grid(plan),
        Section(f"Work: about {about(plan.seconds)}", ("", "", ""), work, [assumed]),
        _memory(plan),
    )
    return render_sections(sections, style, width, "--format json")


def _grid(plan: DryRun) -> Section:
    requests = f"{counted(plan.requests, 'request')} with {plan.prompt_tokens} prompt tokens"
    if plan.samples > 1:
        requests += f", {plan.samples} responses each"
    # As many names as fit.
    drafts = shortened(", ".join(plan.candidates), 76)
    for most in range(1, len(plan.candidates) + 1):
        rest = len(plan.candidates) - most
        names = ", ".join(plan.candidates[:most]) + (f" and {rest} more" if rest else "")
        drafts = names if len(names) <= 76 else drafts
    ks = ", ".join(map(str, plan.ks))
    if len(plan.ks) > 2 and plan.ks == tuple(range(plan.ks[0], plan.ks[-1] + 1)):
        ks = f"{plan.ks[0]}–{plan.ks[-1]}"
    batches = ", ".join(map(str, plan.batches))
    rows = [
        ("target", f"{shortened(plan.target, 40)}, quantization {plan.target_quant}, {plan.dtype}"),
        ("drafts", drafts),
        ("grid", f"k = {ks}; batch size {batches}; {plan.mode} drafting"),
        ("traffic", requests),
        ("device", f"{plan.device}, {counted(plan.threads, 'CPU thread')}"),
    ]
    return Section("This sweep would measure", ("", ""), rows)


def _memory(plan: DryRun) -> Section:
    largest = sorted(plan.memory, key=lambda need: -need.together)
    rows = []
    for need in largest[:_MOST_ROWS]:
        sizes = (need.target_weights, need.draft_weights, need.cache, need.together)
        rows.append((shortened(need.candidate, 32), *map(format_size, sizes)))
    notes = [f"With {plan.cache_tokens} tokens of cache; activations are not counted."]
    if len(largest) > len(rows):
        notes.insert(0, f"and {len(largest) - len(rows)} more that need less: --format json")
    second = max((need.second_layout for need in plan.memory), default=0)
    if second:
        notes.append(
            f"On a CPU up to {format_size(second)} more: a second layout of unquantized weights "
            "(none with --one-layout)."
        )
    title = f"Memory: up to {format_size(largest[0].together)}" if largest else "Memory"
    return Section(title, ("draft", "target", "draft weights", "cache", "total"), rows, notes)


def about(seconds: float) -> str:
    """No finer than the assumptions behind it."""
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.0f} s"
