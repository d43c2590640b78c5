"""A trajectory and a draft → what the draft would have proposed at every position, by one pass
(design: one pass, every k).

At position j the draft's distribution is what it would have been in any round that reached j, since
a round only reaches j with all earlier tokens equal to the response. Prompt lookup has no such law:
it is recorded per start of a round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftbench.decode.drafters import LookupIndex
from draftbench.decode.runner import Runner
from draftbench.decode.sampling import distribution, temperature_only
from draftbench.measure.teacher import teacher_forced, top_two_margin
from draftbench.records import Candidate, DraftingMode, LookupReplay, Replay, Sampling, Trajectory
from draftbench.store.folder import PrivateText

# Positions that are stepped through one by one to see whether stepping agrees with the single pass.
STEPPED_POSITIONS = 48


@dataclass
class _Columns:
    accept: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)


def replay_model(
    runner: Runner,
    text: PrivateText,
    trajectory: Trajectory,
    candidate: Candidate,
    mode: DraftingMode,
) -> Replay:
    """One teacher-forced pass of a draft model over one response."""
    columns = _Columns()
    log_p = torch.tensor(text.log_p, dtype=torch.float64)
    for start, logits in teacher_forced(runner, text.prompt, text.tokens, first=1):
        chosen = torch.tensor(text.tokens[start : start + len(logits)], device=logits.device)
        p = log_p[start : start + len(logits)].exp().to(logits.device) if len(log_p) else None
        _fill(columns, logits, chosen, p, (mode, trajectory.sampling))
    missing = trajectory.output_tokens - 1 - len(columns.accept)
    return Replay(
        request=trajectory.request,
        sample=trajectory.sample,
        draft=candidate.draft,
        quant=candidate.quant,
        mode=mode,
        draftable=max(0, runner.context_length - len(text.prompt)),
        accept=tuple(columns.accept + [0.0] * missing),
        confidence=tuple(columns.confidence + [0.0] * missing),
        margin=tuple(columns.margin + [0.0] * missing),
        rank=tuple(columns.rank + [runner.vocab_size] * missing),
    )


def _fill(
    columns: _Columns,
    logits: Tensor,
    chosen: Tensor,
    p: Tensor | None,
    setting: tuple[DraftingMode, Sampling],
) -> None:
    """Append one chunk's acceptance probabilities and what else is kept of the draft's logits."""
    mode, sampling = setting
    inside = chosen < logits.shape[1]
    index = chosen.clamp(max=logits.shape[1] - 1)[:, None]
    own = logits.gather(1, index)
    match = (logits.argmax(dim=-1) == chosen).double()
    if mode is DraftingMode.GREEDY or sampling.temperature == 0 or p is None:
        accept = match
    else:
        filters = sampling if mode is DraftingMode.SAMPLED else temperature_only(sampling)
        q = distribution(logits, filters).gather(1, index)[:, 0].double()
        accept = torch.where(p > 0, q / p, torch.zeros_like(q)).clamp(max=1.0) * inside
    peak = logits.amax(dim=-1)
    confidence = (peak.float() - torch.logsumexp(logits.float(), dim=-1)).exp()
    rank = torch.where(inside, (logits > own).sum(dim=-1), logits.shape[1])
    columns.accept += [round(value, 3) for value in accept.tolist()]
    columns.confidence += [round(value, 3) for value in confidence.tolist()]
    columns.margin += [round(value, 4) for value in top_two_margin(logits).tolist()]
    columns.rank += rank.tolist()


def replay_lookup(
    text: PrivateText,
    trajectory: Trajectory,
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
    index.extend(list(text.prompt))
    proposed, matched = [], []
    for start in range(1, len(text.tokens)):
        index.extend([text.tokens[start - 1]])
        found = index.lookup(window)
        hits = 0
        for guess, token in zip(found, text.tokens[start:], strict=False):
            if guess != token:
                break
            hits += 1
        proposed.append(len(found))
        matched.append(hits)
    return LookupReplay(
        request=trajectory.request,
        sample=trajectory.sample,
        draft=candidate.draft,
        quant=candidate.quant,
        window=window,
        proposed=tuple(proposed),
        matched=tuple(matched),
    )


def stepping_disagreement(runner: Runner, text: PrivateText) -> float | None:
    """Share of positions at which token-by-token stepping chooses another token than the single
    pass.

    Above a few percent the level's activations depend on their neighbours, and replay does not
    predict the decoder. None for a response too short to step through.
    """
    tokens = text.tokens[: STEPPED_POSITIONS + 1]
    room = runner.context_length - len(text.prompt)
    tokens = tokens[: max(0, room)]
    if len(tokens) < 2:
        return None
    once = [
        int(t)
        for _, z in teacher_forced(runner, text.prompt, tokens, first=1)
        for t in z.argmax(-1)
    ]
    cache = runner.new_cache(len(text.prompt) + len(tokens))
    runner.forward(torch.tensor(text.prompt, device=runner.device), cache, 1)
    stepped = [
        int(runner.forward(torch.tensor([token], device=runner.device), cache, 1).argmax())
        for token in tokens[:-1]
    ]
    return sum(a != b for a, b in zip(once, stepped, strict=True)) / len(stepped)
