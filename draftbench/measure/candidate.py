"""What all candidates of a sweep share while they are measured, and one loaded candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import msgspec
import torch

from draftbench.decoder.drafters import Drafter, LookupDrafter, ModelDrafter, StackDrafter
from draftbench.decoder.heads import Head
from draftbench.decoder.runner import Clock, Runner
from draftbench.decoder.sampling import best, top_two_margin
from draftbench.measure.prompts import TargetText
from draftbench.measure.teacher import teacher_forced
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.drafting import parsed
from draftbench.models.eagle import build_head
from draftbench.models.mtp import build_mtp
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids, translated
from draftbench.records import NEAR_TIE_MARGIN, Candidate, DraftingMode, ModelFacts, NGramSizes

# Positions that are stepped through one by one to see whether stepping agrees with the single pass.
STEPPED_POSITIONS = 48


@dataclass(frozen=True)
class MeasurementContext:
    """What every measurement of a sweep shares: the loaded target, its text, the clock, the k's."""

    target: Runner
    text: TargetText
    mode: DraftingMode
    ks: tuple[int, ...]
    lookup: NGramSizes
    dtype: str
    clock: Clock
    process: str  # id under which this process writes its records
    digest: Callable[[tuple[int, ...]], str]  # keyed hash of an output
    # Called between two timed pieces of work with how many units were finished since the last call.
    # If it raises, the work ends, and what was not yielded yet is lost.
    between: Callable[[int], None] = lambda done: None


@dataclass(frozen=True)
class LoadedCandidate:
    """A candidate with its runner (for a stack, its draft's; None for prompt lookup) or its head,
    and what all measurements share.
    """

    candidate: Candidate
    runner: Runner | Head | None
    measurement: MeasurementContext

    def drafter(self) -> Drafter:
        """A new drafter with empty caches."""
        runner, measurement = self.runner, self.measurement
        lookup = LookupDrafter(*measurement.lookup, measurement.target.device)
        if runner is None:
            return lookup
        drafter: Drafter
        if isinstance(runner, Head):
            drafter = runner.drafter()
        else:
            drafter = ModelDrafter(runner, measurement.mode)
        return StackDrafter(lookup, drafter) if self.candidate.fallback else drafter


def load_draft(
    draft: str,
    source: ModelSource,
    build: Build,
    target: ModelSource,
    runner: Runner | None,
    longest: ScoredResponse,
    engine: str | None = None,
) -> tuple[Runner | Head, ModelFacts]:
    """Load a draft model, made to use the target's ids, or a head on the target's `runner`.

    Args:
        draft: its name in the run.
        longest: the response on which a model is stepped.
        engine: what drafts with the head; None: the built-in decoder.

    Raises:
        ModelError: it cannot be loaded or quantized.
    """
    method = parsed(draft)[0]
    if method in ("eagle3", "mtp"):
        assert runner is not None
        if method == "mtp":
            return build_mtp(source, build, draft, runner)
        layers = target.config.get_text_config().num_hidden_layers
        return build_head(source, build, draft, runner, layers, engine)
    model, facts = build_runner(source, build, draft)
    model = translated(model, target, source)
    return model, msgspec.structs.replace(
        facts,
        translated=not keeps_ids(target, source),
        replay_disagreement=stepping_disagreement(model, longest, NEAR_TIE_MARGIN[facts.dtype]),
    )


def stepping_disagreement(
    runner: Runner, response: ScoredResponse, near_tie: float
) -> float | None:
    """Share of positions at which stepping token by token chooses another token than one pass does,
    without those where the logits of the pass are a near tie; None where none is left.

    A share above a few percent means that the level's activations depend on their neighbours, so
    that replay does not predict the decoder.
    """
    prompt = response.prompt.tokens
    room = max(0, runner.context_length - len(prompt))
    tokens = response.tokens[: min(room, STEPPED_POSITIONS + 1)]
    if len(tokens) < 2:
        return None
    parts = teacher_forced(runner, [(prompt, tokens)], first=1)
    logits = torch.cat([part for _, _, part in parts])
    once, clear = best(logits).tolist(), (top_two_margin(logits) > near_tie).tolist()
    cache = runner.new_cache(len(prompt) + len(tokens))

    def step(read: Sequence[int]) -> int:
        ids = torch.tensor(read, device=runner.device)
        return int(best(runner.forward(ids, cache, every=False)))

    step(prompt)
    steps = [step([token]) for token in tokens[:-1]]
    differs = [a != b for a, b in compress(zip(once, steps, strict=True), clear)]
    return sum(differs) / len(differs) if differs else None
