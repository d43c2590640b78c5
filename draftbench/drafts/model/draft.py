"""A draft model as the built-in decoder uses it: checked, loaded, replayed, timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any

import msgspec
import torch
from torch import Tensor

from draftbench.decoder.runner import Runner
from draftbench.decoder.sampling import (
    best,
    confidence,
    distribution,
    temperature_only,
    top_two_margin,
)
from draftbench.drafts.kind import Method
from draftbench.drafts.loading import Loading, Pairing
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.drafts.model.off_path import Departure, drafted_off_path
from draftbench.engines.every import ENGINES
from draftbench.measure.replay import ServedTarget, confidences_of, rounded
from draftbench.measure.teacher import teacher_forced
from draftbench.measure.timed_passes import CostGrid, Record, Sizes, TimedPass, runner_passes
from draftbench.measure.trajectories import Group, ScoredResponse
from draftbench.models.check import engine_sheet
from draftbench.models.compatibility import check_pair, pair_facts
from draftbench.models.quantize import build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids, translated
from draftbench.records import (
    NEAR_TIE_MARGIN,
    Candidate,
    Confidences,
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
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> list[Replay]:
        beyond = window - 1 if stops else None
        return replay_model(self.runner, self.target, group, candidate, self.mode, beyond)

    def passes(self, record: Record, grid: CostGrid, first: Sizes = None) -> Iterator[TimedPass]:
        """Its passes in a round, of which the first reads one token, or two after a full round."""
        if self.runner is self.target:  # as its own draft it has no other passes
            return iter(())
        return runner_passes(self.runner, record, grid, first or (1, 2))


def check(source: ModelSource, pairing: Pairing, _: Method) -> tuple[str, ...]:
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
    facts = msgspec.structs.replace(facts, translated=not keeps_ids(target, source))
    if loading.longest is not None:
        differs = stepping_disagreement(model, loading.longest, NEAR_TIE_MARGIN[facts.dtype])
        facts = msgspec.structs.replace(facts, replay_disagreement=differs)
    return ModelDraft(model, loading.runner, loading.mode), facts


def refused_by(engine: str, target: ModelSource, source: ModelSource, _: Method) -> str | None:
    """Where replay translates some of its tokens, whatever the engine says of such a pair."""
    if engine not in ENGINES or keeps_ids(target, source):
        return None
    answer = ENGINES[engine].answer(pair_facts(target, source))
    return answer.reason if answer.standing == "refuses" else None


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


def replay_model(
    draft: Runner,
    target: Runner | ServedTarget,
    group: Sequence[ScoredResponse],
    candidate: Candidate,
    mode: DraftingMode,
    beyond: int | None = None,
) -> list[Replay]:
    """Pass a draft model over some responses side by side, and let it draft up to `beyond` tokens
    more after each wrong one and after the end; None: no rule will ask how sure it is there.

    Where the draft samples, the target passes over them too, so that Σ min(p, q) is exact at every
    position. Of a `ServedTarget` only the log-probabilities of the tokens that came out are known,
    so that Σ min(p, q) is unknown.
    """
    # For each response, values by position as far as the draft could draft.
    columns: list[dict[str, list[Any]]] = [defaultdict(list) for _ in group]
    texts = [(response.prompt.tokens, response.tokens) for response in group]
    samples = mode is not DraftingMode.GREEDY and any(
        response.trajectory.sampling.temperature > 0 for response in group
    )
    scored: Iterable[tuple[int, int, Tensor] | None] = repeat(None)
    if samples and not isinstance(target, ServedTarget):
        scored = teacher_forced(target, texts, 1, draft.context_length)
    off_path: dict[int, Confidences] = {}

    def draft_on(rows: Sequence[int], cache: Any) -> None:
        leaving = [
            _departures(columns[row], group[row], draft, beyond or 0) if greedy[row] else []
            for row in rows
        ]
        off_path.update(zip(rows, drafted_off_path(draft, cache, leaving), strict=True))

    greedy = [not samples or each.trajectory.sampling.temperature == 0 for each in group]
    further = None if beyond is None else draft_on
    context = target.context_length
    drafted = teacher_forced(draft, texts, 1, context, room=beyond or 0, once_read=further)
    for (row, start, logits), of_target in zip(drafted, scored, strict=False):
        tokens, sampling = group[row].tokens, group[row].trajectory.sampling
        chosen = torch.tensor(tokens[start : start + len(logits)], device=logits.device)
        index = chosen[:, None]
        if greedy[row]:
            accept = overlap = (best(logits) == chosen).double()
        else:
            filtered = mode is DraftingMode.SAMPLED
            q = distribution(logits, sampling if filtered else temperature_only(sampling))
            if of_target is not None:
                p = distribution(of_target[2].to(q.device), sampling)
                of_chosen = p.gather(1, index)[:, 0].double()
                overlap = torch.minimum(p, q).sum(dim=-1)
            else:
                log_p = group[row].log_p[start : start + len(logits)]
                of_chosen = torch.tensor(log_p, dtype=torch.float64, device=q.device).exp()
                overlap = torch.empty(0)
            ratio = q.gather(1, index)[:, 0].double() / of_chosen
            accept = ratio.nan_to_num(0.0, 1.0).clamp(max=1.0)
        values_by_name = {
            "accept": accept,
            "overlap": overlap,
            "confidence": confidence(logits, "all"),
            "margin": top_two_margin(logits),
            "rank": (logits > logits.gather(1, index)).sum(dim=-1),
        }
        if beyond is not None:
            values_by_name |= {"of_ten": confidence(logits, "ten"), "drafted": best(logits)}
        for name, values in values_by_name.items():
            columns[row][name] += values.tolist()
    replays = []
    nowhere = confidences_of([[]], [[]])
    for row, (column, response) in enumerate(zip(columns, group, strict=True)):
        missing = len(response.tokens) - 1 - len(column["accept"])
        whole = mode is not DraftingMode.GREEDY and len(column["overlap"]) == len(column["accept"])
        record = Replay(
            request=response.trajectory.request,
            sample=response.trajectory.sample,
            candidate=candidate,
            mode=mode,
            draftable=max(0, draft.context_length - len(response.prompt.tokens)),
            accept=rounded(column["accept"], missing),
            confidence=rounded(column["confidence"], missing),
            margin=rounded(column["margin"], missing),
            rank=(*column["rank"], *[draft.vocab_size] * missing),
            overlap=rounded(column["overlap"], missing) if whole else None,
            confidence_of_ten=() if beyond is None else rounded(column["of_ten"], missing),
            off_path=off_path.get(row, nowhere) if beyond is not None and greedy[row] else None,
        )
        replays.append(record)
    return replays


def _departures(
    column: dict[str, list[Any]], response: ScoredResponse, draft: Runner, beyond: int
) -> list[Departure]:
    """Where a draft leaves a response: after each wrong token, and after the last token if that is
    its own. It drafts on as far as a round may go.
    """
    prompt, end = len(response.prompt.tokens), len(response.tokens) - 1
    # The last position that it can draft, and the last that a round may: one more token follows.
    last = min(draft.context_length - prompt, response.trajectory.limit - 2)
    found = [
        Departure(prompt + at, token, max(0, min(beyond, last - at)))
        for at, (accept, token) in enumerate(
            zip(column["accept"], column["drafted"], strict=True), start=1
        )
        if accept == 0
    ]
    if column["accept"][end - 1 : end] == [1.0]:
        most = max(0, min(beyond, last - end))
        return [*found, Departure(prompt + end, column["drafted"][-1], most)]
    return [*found, Departure(prompt + end, 0, 0)]
