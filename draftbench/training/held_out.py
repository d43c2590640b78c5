"""How a draft is accepted along responses that it was not trained on: as a sweep replays it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    tokens_per_round,
)
from draftbench.acceptance.rounds import AnyReplay, Pairs
from draftbench.decoder.runner import Runner
from draftbench.measure.replay import ServedTarget, replay_head, replay_model
from draftbench.measure.trajectories import GROUP, ScoredResponse
from draftbench.models.eagle import build_head
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import translated
from draftbench.records import Candidate, DraftingMode, Trajectory


@dataclass(frozen=True)
class Acceptance:
    """A draft along some responses."""

    pairs: Pairs

    @cached_property
    def _rounds(self) -> CandidateRounds:
        return CandidateRounds.of(self.pairs)

    @cached_property
    def rate(self) -> Sample:
        """α; of a head, whose acceptance depends on where a round starts, that of the token that it
        drafts first.
        """
        by_position = alpha(self.pairs)
        if by_position is not None:
            return by_position
        return accepted_per_drafted(self._rounds.trajectories, self._rounds.at(1))

    def tokens_per_round(self, k: int) -> Sample:
        """What speed depends on."""
        return tokens_per_round(self._rounds.trajectories, self._rounds.at(k))


@dataclass(frozen=True)
class Replayer:
    """Replays checkpoints of one draft, each loaded as a sweep loads it.

    `target` is a runner where a head reads its states, else what it reads at most.
    """

    candidate: Candidate
    source: ModelSource  # of the target
    target: Runner | ServedTarget
    build: Build
    mode: DraftingMode
    ks: tuple[int, ...]

    def along(self, checkpoint: Path | str, responses: Sequence[ScoredResponse]) -> Acceptance:
        """The draft in a folder along some responses."""
        draft = ModelSource(str(checkpoint))
        pairs: list[tuple[Trajectory, AnyReplay]] = []
        if isinstance(self.target, ServedTarget):
            runner, _ = build_runner(draft, self.build, self.candidate.draft)
            runner = translated(runner, self.source, draft)
            for at in range(0, len(responses), GROUP):
                group = responses[at : at + GROUP]
                made = replay_model(runner, self.target, group, self.candidate, self.mode)
                pairs += list(zip([r.trajectory for r in group], made, strict=True))
            return Acceptance(pairs)
        layers = self.source.config.get_text_config().num_hidden_layers
        head, _ = build_head(draft, self.build, self.candidate.draft, self.target, layers)
        for response in responses:
            made_one = replay_head(response, self.candidate, head, self.target, max(self.ks))
            pairs.append((response.trajectory, made_one))
        return Acceptance(pairs)
