"""A draft model as the built-in decoder uses it: checked, loaded, replayed, timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress

import msgspec
import torch

from draftbench.decoder.runner import Runner
from draftbench.decoder.sampling import best, top_two_margin
from draftbench.drafts.loading import Loading, Pairing
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.drafts.model.replay import replay_model
from draftbench.measure.replay import ServedTarget
from draftbench.measure.teacher import teacher_forced
from draftbench.measure.timed_passes import CostGrid, TimedPass, runner_passes
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.check import engine_sheet
from draftbench.models.compatibility import check_pair, pair_facts
from draftbench.models.engine_rules import engine_answers, engine_called
from draftbench.models.quantize import build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids, translated
from draftbench.records import (
    NEAR_TIE_MARGIN,
    Candidate,
    CostPoint,
    DraftingMode,
    ModelFacts,
    Replay,
)

# Positions that are stepped through one by one to see whether stepping agrees with the single pass.
STEPPED_POSITIONS = 48


class ModelDraft:
    """A model that drafts for a target with the target's ids."""

    reads: Sequence[int] = ()

    def __init__(self, runner: Runner, target: Runner | ServedTarget, mode: DraftingMode) -> None:
        self.runner, self.target, self.mode = runner, target, mode
        self.context_length = runner.context_length

    def drafter(self) -> ModelDrafter:
        return ModelDrafter(self.runner, self.mode)

    def replay(
        self, candidate: Candidate, group: Sequence[ScoredResponse], window: int
    ) -> list[Replay]:
        return replay_model(self.runner, self.target, group, candidate, self.mode)

    def passes(
        self,
        record: Callable[..., CostPoint],
        grid: CostGrid,
        first: Sequence[int] | None = None,
    ) -> Iterator[TimedPass]:
        """Its passes in a round, of which the first reads one token, or two after a full round.

        Args:
            first: tokens that the first reads otherwise.
        """
        return runner_passes(self.runner, record, grid, first or (1, 2))


class OwnDraft(ModelDraft):
    """The target as its own draft, for the control: its passes are the target's."""

    def __init__(self, target: Runner, mode: DraftingMode) -> None:
        super().__init__(target, target, mode)

    def passes(
        self,
        record: Callable[..., CostPoint],
        grid: CostGrid,
        first: Sequence[int] | None = None,
    ) -> Iterator[TimedPass]:
        return iter(())


def check(source: ModelSource, pairing: Pairing) -> tuple[str, ...]:
    """By tokenizer, configuration and the files' numbers."""
    caveats = check_pair(pairing.target, source, pairing.traffic, chats=pairing.chats)
    source.check_weights()
    source.check_values()
    return caveats


def load(loading: Loading) -> tuple[ModelDraft, ModelFacts]:
    """Load a model, and make it use the target's ids."""
    source, target = loading.source, loading.target
    model, facts = build_runner(source, loading.build, loading.candidate.draft)
    model = translated(model, target, source)
    near_tie = NEAR_TIE_MARGIN[facts.dtype]
    return ModelDraft(model, loading.runner, loading.mode), msgspec.structs.replace(
        facts,
        translated=not keeps_ids(target, source),
        replay_disagreement=stepping_disagreement(model, loading.longest, near_tie),
    )


def refused_by(engine: str, target: ModelSource, source: ModelSource) -> str | None:
    """Where replay translates some of its tokens, whatever the engine says of such a pair."""
    if keeps_ids(target, source):
        return None
    for answer in engine_answers(pair_facts(target, source)):
        if engine_called(answer.engine) == engine and answer.standing == "refuses":
            return answer.reason
    return None


def held(facts: ModelFacts, loading: Loading, dtype: str) -> ModelFacts:
    """Counted from its configuration."""
    sheet = engine_sheet(loading.source, dtype)
    return msgspec.structs.replace(
        facts,
        weight_bytes=sheet.bytes_at(loading.candidate.quant),
        kv_bytes_per_token=sheet.kv_bytes_per_token,
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
