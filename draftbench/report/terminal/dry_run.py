"""A prepared sweep → what it would do: the grid, its passes, their time and the memory, before any
weight is loaded; as text, Markdown and JSON.

The time is a bound by arithmetic, not a measurement: every pass reads its weights once at an
assumed rate. Nothing here knows the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from draftbench.memory import format_size
from draftbench.models.facts import ModelSheet
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.report.terminal.text import Section
from draftbench.run_folder.manifest import Manifest

# Bytes that a pass reads in a second, and what a token of a long pass takes of a step. Of a desktop
# or a small server, and of one data-centre card: too slow for the best of each.
_BANDWIDTH = {"cpu": 20e9, "cuda": 1.5e12}
_TOKEN_IN_BULK = {"cpu": 1 / 6, "cuda": 1 / 100}
_COST_PASSES = 250


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: `prompts` are (prompt tokens, most output tokens) of every request,
    `sheets` the drafts' by name; of `decoded` requests each is decoded at `cells` k's, at the
    largest k with each of `thresholds` confidences, and plainly. `scored_together` is how many
    tokens of cache the target's responses take side by side; `timed` whether passes are.
    """

    candidates: Sequence[Candidate]
    prompts: Sequence[tuple[int, int]]
    target: ModelSheet
    sheets: Mapping[str, ModelSheet]
    decoded: int
    cells: int
    thresholds: int = 0
    scored_together: int = 0
    timed: bool = True

    @property
    def ways(self) -> int:
        """How often each decoded request is decoded beside one candidate."""
        return 1 + self.cells + self.thresholds

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
    both models, and all `together`.
    """

    candidate: str
    target_weights: int
    draft_weights: int
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
        memory=tuple(_need(question.target_quant, plan, c, tokens) for c in plan.candidates),
    )


def render(found: DryRun, style: str, width: int) -> str:
    """As table, json or markdown; `width` in columns matters to the table only."""
    if style == "json":
        return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    sections = (_grid_section(found), _passes_section(found), _memory_section(found))
    return "\n\n".join(s.markdown() if style == "markdown" else s.text(width) for s in sections)


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
    drafted = f"{plan.cells} k's"
    if plan.thresholds:
        drafted += f" and {plan.thresholds} confidences"
    share = most / max(1, len(plan.prompts) * question.samples)
    timed = _COST_PASSES * len(question.batches) if plan.timed else 0
    return (
        Pass("target writes", f"at most {most} tokens", written),
        Pass("target scores", f"one pass over each of {whole} tokens", whole * bulk * step),
        Pass("drafts replay", f"the same, once per candidate, for every k: {whole} tokens",
             whole * bulk * replay),
        Pass("step times", f"{timed} short passes of target and draft at several lengths",
             timed * (len(plan.candidates) * step + replay)),
        Pass("decoding",
             f"{decoded} answers: {plan.decoded} requests, plainly and at {drafted}",
             decoded * share * step),
    )  # fmt: skip


def _cache_tokens(manifest: Manifest, plan: Plan) -> int:
    # Cells of a batch are decoded in turns, so all their caches are open at once; before them those
    # of step times are, at two contexts.
    most = max(manifest.question.batches)
    open_rows = most * (plan.ways if plan.decoded else 2) if most > 1 and plan.timed else 1
    return max(plan.longest * open_rows, plan.scored_together)


def _need(target_quant: str, plan: Plan, candidate: Candidate, tokens: int) -> Need:
    target = plan.target.bytes_at(target_quant)
    sheet = plan.target if candidate.draft == SELF else plan.sheets.get(candidate.draft)
    own = 0 if candidate.draft == SELF else _bytes(plan, target_quant, candidate)
    cache = tokens * (plan.target.kv_bytes_per_token + (sheet.kv_bytes_per_token if sheet else 0))
    return Need(
        candidate=str(candidate),
        target_weights=target,
        draft_weights=own,
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


def _grid_section(found: DryRun) -> Section:
    answers = f", {found.samples} answers each" if found.samples > 1 else ""
    rows = [
        ("target", f"{found.target}, quantization {found.target_quant}, {found.dtype}"),
        ("candidates", ", ".join(found.candidates)),
        ("k", ", ".join(map(str, found.ks))),
        ("batch sizes", ", ".join(map(str, found.batches))),
        ("drafting", found.mode),
        ("requests", f"{found.requests} with {found.prompt_tokens} prompt tokens{answers}"),
        ("device", f"{found.device}, {found.threads} CPU threads"),
    ]
    return Section("What this sweep would measure", ("", ""), rows)


def _passes_section(found: DryRun) -> Section:
    rate, bulk = _BANDWIDTH[_kind(found.device)], _TOKEN_IN_BULK[_kind(found.device)]
    note = (
        f"About {_about(found.seconds)} in all, by arithmetic and not measured: every pass reads "
        f"its weights once at {rate / 1e9:g} GB/s, a token of a long pass takes 1/{1 / bulk:g} of "
        "a step, answers run to their limit, and speculation saves nothing. Loading is not in it."
    )
    rows = [(each.what, each.how_much, _about(each.seconds)) for each in found.passes]
    return Section("Passes", ("", "", "about"), rows, [note])


def _memory_section(found: DryRun) -> Section:
    head = ("candidate", "target weights", "draft weights", "KV cache", "together")
    rows = [
        (need.candidate, format_size(need.target_weights), format_size(need.draft_weights),
         format_size(need.cache), format_size(need.together))
        for need in found.memory
    ]  # fmt: skip
    note = (
        f"Weights by configuration; cache of {found.cache_tokens} tokens: what is scored side by "
        "side, or the longest request in every row of the largest batch, once for each k and "
        "confidence beside the baseline (twice where nothing is decoded). Activations are not "
        "counted."
    )
    return Section("Memory", head, rows, [note])


def _about(seconds: float) -> str:
    """No finer than the assumptions behind it."""
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.0f} s"
