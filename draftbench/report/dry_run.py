"""A prepared sweep → what it would do, in words: the grid, its passes, their time and the memory,
before any weight is loaded.

The time is a bound by arithmetic, not a measurement: every pass reads its weights once at an
assumed rate. Nothing here knows the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftbench.models.facts import ModelSheet
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.report.sections import Section
from draftbench.report.text import memory
from draftbench.store.manifest import Manifest

# Bytes that a pass reads in a second, and what a token of a long pass takes of a step. Of a desktop
# or a small server, and of one data-centre card: too slow for the best of each.
_BANDWIDTH = {"cpu": 20e9, "cuda": 1.5e12}
_TOKEN_IN_BULK = {"cpu": 1 / 6, "cuda": 1 / 100}
_COST_PASSES = 250


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: `prompts` are (prompt tokens, most output tokens) of every request,
    `sheets` the drafts' by name; of `decoded` requests each is decoded at `cells` k's and plainly.
    `scored_together` is how many tokens of cache the target's responses take side by side.
    """

    candidates: Sequence[Candidate]
    prompts: Sequence[tuple[int, int]]
    target: ModelSheet
    sheets: Mapping[str, ModelSheet]
    decoded: int
    cells: int
    scored_together: int = 0

    @property
    def read(self) -> int:
        """Prompt tokens of all requests."""
        return sum(tokens for tokens, _ in self.prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer."""
        return max(tokens + limit for tokens, limit in self.prompts)


def grid_text(manifest: Manifest, plan: Plan, width: int) -> str:
    """The grid, the passes with their time, and the memory of a sweep."""
    return "\n\n".join(
        section.text(width)
        for section in (_grid(manifest, plan), _passes(manifest, plan), _memory(manifest, plan))
    )


def _grid(manifest: Manifest, plan: Plan) -> Section:
    question = manifest.question
    answers = f", {question.samples} answers each" if question.samples > 1 else ""
    rows = [
        ("target", f"{question.target}, quantization {question.target_quant}, {question.dtype}"),
        ("candidates", ", ".join(map(str, plan.candidates))),
        ("k", ", ".join(map(str, question.ks))),
        ("batch sizes", ", ".join(map(str, question.batches))),
        ("drafting", question.mode.value),
        ("requests", f"{len(plan.prompts)} with {plan.read} prompt tokens{answers}"),
        ("device", f"{question.device}, {manifest.environment.threads} CPU threads"),
    ]
    return Section("What this sweep would measure", ("", ""), rows)


def _passes(manifest: Manifest, plan: Plan) -> Section:
    question, device = manifest.question, manifest.question.device
    kind = "cpu" if device == "cpu" else "cuda"
    rate, bulk = _BANDWIDTH[kind], _TOKEN_IN_BULK[kind]
    step = plan.target.weight_bytes[question.target_quant] / rate
    most = sum(limit for _, limit in plan.prompts) * question.samples
    whole = plan.read * question.samples + most
    written = 0.0 if question.responses == "log" else most * step
    replay = sum(_bytes(plan, question.target_quant, c) for c in plan.candidates) / rate
    decoded = plan.decoded * (plan.cells + 1) * len(plan.candidates) * len(question.batches)
    share = most / max(1, len(plan.prompts) * question.samples)
    rows = [
        ("target writes", f"at most {most} tokens", written),
        ("target scores", f"one pass over each of {whole} tokens", whole * bulk * step),
        ("drafts replay", f"the same, once per candidate, for every k: {whole} tokens",
         whole * bulk * replay),
        ("step times", "short passes of target and draft at several lengths",
         _COST_PASSES * (len(plan.candidates) * step + replay) * len(question.batches)),
        ("decoding", f"{decoded} answers: {plan.decoded} requests, plainly and at {plan.cells} k's",
         decoded * share * step),
    ]  # fmt: skip
    total = sum(seconds for *_, seconds in rows)
    note = (
        f"About {_about(total)} in all, by arithmetic and not measured: every pass reads "
        f"its weights once at {rate / 1e9:g} GB/s, a token of a long pass takes 1/{1 / bulk:g} of "
        "a step, answers run to their limit, and speculation saves nothing. Loading is not in it."
    )
    shown = [(what, words, _about(seconds)) for what, words, seconds in rows]
    return Section("Passes", ("", "", "at most"), shown, [note])


def _bytes(plan: Plan, target_quant: str, candidate: Candidate) -> int:
    """Weights that one pass of the candidate reads."""
    if candidate.draft == LOOKUP:
        return 0
    if candidate.draft == SELF:
        return plan.target.weight_bytes[target_quant]
    return plan.sheets[candidate.draft].weight_bytes[candidate.quant]


def _memory(manifest: Manifest, plan: Plan) -> Section:
    question = manifest.question
    target = plan.target.weight_bytes[question.target_quant]
    # Cells of a batch are decoded in turns, so all their caches are open at once.
    most = max(question.batches)
    open_rows = most * (plan.cells + 1) if most > 1 and plan.decoded else 1
    tokens = max(plan.longest * open_rows, plan.scored_together)
    rows = []
    for candidate in plan.candidates:
        sheet = plan.target if candidate.draft == SELF else plan.sheets.get(candidate.draft)
        own = 0 if candidate.draft == SELF else _bytes(plan, question.target_quant, candidate)
        cache = tokens * (
            plan.target.kv_bytes_per_token + (sheet.kv_bytes_per_token if sheet else 0)
        )
        total = memory(target + own + cache)
        rows.append((str(candidate), memory(target), memory(own), memory(cache), total))
    head = ("candidate", "target weights", "draft weights", "KV cache", "together")
    note = (
        f"Weights by configuration; cache of {tokens} tokens: what is scored side by side, or the "
        "longest request in every row of the largest batch, once for each k beside the baseline. "
        "Activations are not counted."
    )
    return Section("Memory", head, rows, [note])


def _about(seconds: float) -> str:
    """No finer than the assumptions behind it."""
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.0f} s"
