"""Trajectories and a draft → what the draft would have proposed at every position, by one pass
(design: one pass, every k).

At position j the draft's distribution is what it would have been in any round that reached j, since
a round only reaches j with all earlier tokens equal to the response. Prompt lookup has no such law:
it is recorded per start of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.drafters import LookupIndex
from draftbench.decoder.runner import Runner
from draftbench.decoder.sampling import best, distribution, temperature_only
from draftbench.measure.candidate import Bench, LoadedCandidate
from draftbench.measure.teacher import teacher_forced, top_two_margin
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, DraftingMode, LookupReplay, Replay, Sampling
from draftbench.run_folder.folder import PrivateDraft

# Positions that are stepped through one by one to see whether stepping agrees with the single pass.
STEPPED_POSITIONS = 48


def replay(
    loaded: LoadedCandidate, bench: Bench, group: Sequence[ScoredResponse]
) -> list[tuple[Replay | LookupReplay, PrivateDraft | None]]:
    """One pass along some responses side by side; with it, for the private part, what a model
    drafted.
    """
    if loaded.runner is not None:
        made = replay_model(loaded.runner, bench.target, group, loaded.candidate, bench.mode)
        return [*made]
    window = max(bench.ks)
    return [
        (replay_lookup(response, loaded.candidate, bench.lookup, window), None)
        for response in group
    ]


@dataclass
class _Columns:
    accept: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)


def replay_model(
    draft: Runner,
    target: Runner,
    group: Sequence[ScoredResponse],
    candidate: Candidate,
    mode: DraftingMode,
) -> list[tuple[Replay, PrivateDraft]]:
    """One teacher-forced pass of a draft model over some responses side by side; its argmax tokens
    go to the private part.

    Where the draft samples, the target passes over the responses too, so that Σ min(p, q) is exact
    at every position instead of estimated from the tokens that came out.
    """
    columns = [_Columns() for _ in group]
    texts = [(response.prompt.tokens, response.tokens) for response in group]
    samples = mode is not DraftingMode.GREEDY and any(
        response.trajectory.sampling.temperature > 0 for response in group
    )
    own = teacher_forced(target, texts, 1, draft.context_length) if samples else repeat(None)
    drafts = teacher_forced(draft, texts, 1, target.context_length)
    for (row, start, logits), beside in zip(drafts, own, strict=False):
        logits = logits[:, : target.vocab_size]  # no further does the decoder's draft look
        tokens, trajectory = group[row].tokens, group[row].trajectory
        chosen = torch.tensor(tokens[start : start + len(logits)], device=logits.device)
        _fill(columns[row], logits, chosen)
        if beside is None or trajectory.sampling.temperature == 0:
            columns[row].accept += (best(logits) == chosen).double().tolist()
        else:
            _sample(columns[row], (logits, beside[2]), chosen, trajectory.sampling, mode)
    return [
        _records(found, response, candidate, mode, draft)
        for found, response in zip(columns, group, strict=True)
    ]


def _sample(
    columns: _Columns,
    both: tuple[Tensor, Tensor],
    chosen: Tensor,
    sampling: Sampling,
    mode: DraftingMode,
) -> None:
    """min(1, q/p) at the tokens that came out, and Σ min(p, q), from logits of draft and target."""
    logits, beside = both
    filters = sampling if mode is DraftingMode.SAMPLED else temperature_only(sampling)
    q = _over(distribution(logits, filters), beside.shape[1])
    p = distribution(beside.to(q.device), sampling)
    columns.overlap += torch.minimum(p, q).sum(dim=-1).tolist()
    ratio = q.gather(1, chosen[:, None]).double() / p.gather(1, chosen[:, None]).double()
    columns.accept += ratio[:, 0].nan_to_num(0.0, 1.0).clamp(max=1.0).tolist()


def _records(
    columns: _Columns,
    response: ScoredResponse,
    candidate: Candidate,
    mode: DraftingMode,
    draft: Runner,
) -> tuple[Replay, PrivateDraft]:
    trajectory = response.trajectory
    missing = trajectory.output_tokens - 1 - len(columns.accept)
    overlap = columns.overlap if trajectory.sampling.temperature > 0 else columns.accept
    record = Replay(
        request=trajectory.request,
        sample=trajectory.sample,
        candidate=candidate,
        mode=mode,
        draftable=max(0, draft.context_length - len(response.prompt.tokens)),
        accept=_rounded(columns.accept, missing),
        confidence=_rounded(columns.confidence, missing),
        margin=_rounded(columns.margin, missing),
        rank=tuple(columns.rank + [draft.vocab_size] * missing),
        overlap=None if mode is DraftingMode.GREEDY else _rounded(overlap, missing),
    )
    private = PrivateDraft(
        request=trajectory.request,
        sample=trajectory.sample,
        candidate=candidate,
        tokens=tuple(columns.drafted),
    )
    return record, private


def _fill(columns: _Columns, logits: Tensor, chosen: Tensor) -> None:
    """What is kept of a chunk of the draft's logits [n, vocab] whatever the mode."""
    inside = chosen < logits.shape[1]
    own = logits.gather(1, chosen.clamp(max=logits.shape[1] - 1)[:, None])
    confidence = (logits.amax(-1).float() - torch.logsumexp(logits.float(), dim=-1)).exp()
    rank = torch.where(inside, (logits > own).sum(dim=-1), logits.shape[1])
    columns.drafted += best(logits).tolist()
    columns.confidence += confidence.tolist()
    columns.margin += top_two_margin(logits).tolist()
    columns.rank += rank.tolist()


def _over(q: Tensor, vocab_size: int) -> Tensor:
    """Draft probabilities over the target's vocabulary: 0 for tokens that the draft lacks."""
    return functional.pad(q, (0, vocab_size - q.shape[1]))


def _rounded(values: list[float], missing: int) -> tuple[float, ...]:
    """Three digits, the finest that may be shared; 0 where the draft could not draft."""
    return tuple([round(value, 3) for value in values] + [0.0] * missing)


def replay_lookup(
    response: ScoredResponse,
    candidate: Candidate,
    sizes: tuple[int, int],
    window: int,
) -> LookupReplay:
    """What prompt lookup proposes at every start of a round; no model runs.

    Args:
        sizes: longest and shortest n-gram.
        window: the largest k of the grid.
    """
    index = LookupIndex(*sizes)
    index.extend(list(response.prompt.tokens))
    proposed, matched = [], []
    tokens = response.tokens
    for start in range(1, len(tokens)):
        index.extend([tokens[start - 1]])
        found = index.lookup(window)
        hits = 0
        for guess, token in zip(found, tokens[start:], strict=False):
            if guess != token:
                break
            hits += 1
        proposed.append(len(found))
        matched.append(hits)
    return LookupReplay(
        request=response.trajectory.request,
        sample=response.trajectory.sample,
        candidate=candidate,
        window=window,
        proposed=tuple(proposed),
        matched=tuple(matched),
    )


def stepping_disagreement(runner: Runner, response: ScoredResponse) -> float | None:
    """Share of positions at which token-by-token stepping chooses another token than the single
    pass.

    Above a few percent the level's activations depend on their neighbours, and replay does not
    predict the decoder. None for a response too short to step through.
    """
    prompt, tokens = response.prompt.tokens, response.tokens[: STEPPED_POSITIONS + 1]
    room = runner.context_length - len(prompt)
    tokens = tokens[: max(0, room)]
    if len(tokens) < 2:
        return None
    once = [
        int(t) for _, _, z in teacher_forced(runner, [(prompt, tokens)], first=1) for t in best(z)
    ]
    cache = runner.new_cache(len(prompt) + len(tokens))
    runner.forward(torch.tensor(prompt, device=runner.device), cache, every=False)
    stepped = [
        int(best(runner.forward(torch.tensor([t], device=runner.device), cache, every=False)))
        for t in tokens[:-1]
    ]
    return sum(a != b for a, b in zip(once, stepped, strict=True)) / len(stepped)
