"""Replays drafts along the target's responses: one pass shows what is accepted at every k.

At position j the draft's distribution is what it would be in any round that reaches j, since a
round reaches j only if all earlier tokens equal the response. What prompt lookup proposes also
depends on where the round starts, and on the rule of the engine that serves it; what a head
proposes, on where it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import repeat, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftbench.decoder.drafters import LookupIndex
from draftbench.decoder.heads import Head
from draftbench.decoder.runner import HiddenStates, Runner
from draftbench.decoder.sampling import best, distribution, temperature_only, top_two_margin
from draftbench.errors import ModelError
from draftbench.measure.candidate import LoadedCandidate
from draftbench.measure.teacher import teacher_forced
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, DraftingMode, LookupReplay, Replay


def replay(
    loaded: LoadedCandidate, group: Sequence[ScoredResponse]
) -> Sequence[Replay | LookupReplay]:
    """Replay a candidate along some responses."""
    runner, candidate, measurement = loaded.runner, loaded.candidate, loaded.measurement
    window = max(measurement.ks)
    if isinstance(runner, Head):
        return [
            replay_head(response, candidate, runner, measurement.target, window)
            for response in group
        ]
    if runner is not None:
        return replay_model(runner, measurement.target, group, candidate, measurement.mode)
    return [
        replay_lookup(response, candidate, LookupIndex(*measurement.lookup), window)
        for response in group
    ]


class ServedTarget(NamedTuple):
    """What replay needs to know of a target that a serving engine runs."""

    context_length: int


def replay_model(
    draft: Runner,
    target: Runner | ServedTarget,
    group: Sequence[ScoredResponse],
    candidate: Candidate,
    mode: DraftingMode,
) -> list[Replay]:
    """Pass a draft model over some responses side by side.

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
    drafted = teacher_forced(draft, texts, 1, target.context_length)
    for (row, start, logits), of_target in zip(drafted, scored, strict=False):
        tokens, sampling = group[row].tokens, group[row].trajectory.sampling
        chosen = torch.tensor(tokens[start : start + len(logits)], device=logits.device)
        index = chosen[:, None]
        if not samples or sampling.temperature == 0:
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
            "confidence": (logits.amax(-1).float() - torch.logsumexp(logits.float(), -1)).exp(),
            "margin": top_two_margin(logits),
            "rank": (logits > logits.gather(1, index)).sum(dim=-1),
        }
        for name, values in values_by_name.items():
            columns[row][name] += values.tolist()
    replays = []
    for column, response in zip(columns, group, strict=True):
        missing = len(response.tokens) - 1 - len(column["accept"])
        whole = mode is not DraftingMode.GREEDY and len(column["overlap"]) == len(column["accept"])
        record = Replay(
            request=response.trajectory.request,
            sample=response.trajectory.sample,
            candidate=candidate,
            mode=mode,
            draftable=max(0, draft.context_length - len(response.prompt.tokens)),
            accept=_rounded(column["accept"], missing),
            confidence=_rounded(column["confidence"], missing),
            margin=_rounded(column["margin"], missing),
            rank=(*column["rank"], *[draft.vocab_size] * missing),
            overlap=_rounded(column["overlap"], missing) if whole else None,
        )
        replays.append(record)
    return replays


def _rounded(values: list[float], missing: int) -> tuple[float, ...]:
    """Values rounded to three digits, so that they do not identify a prompt; 0 where the draft
    could not draft.
    """
    return tuple([round(value, 3) for value in values] + [0.0] * missing)


def replay_lookup(
    response: ScoredResponse, candidate: Candidate, index: LookupIndex, window: int
) -> LookupReplay:
    """What prompt lookup proposes from every position at which a round may start.

    Args:
        index: an empty one.
        window: the largest k.
    """
    index.extend(list(response.prompt.tokens))
    tokens, proposals = response.tokens, []
    for start in range(1, len(tokens)):
        index.extend([tokens[start - 1]])
        proposals.append(index.lookup(window))
    return _from_every_start(response, candidate, window, proposals)


def replay_head(
    response: ScoredResponse, candidate: Candidate, head: Head, target: Runner, window: int
) -> LookupReplay:
    """What a head proposes from every position at which a round may start, by one pass of the
    target over the response and `window` passes of the head. The head drafts along the response's
    tokens, since a round that proposes others does not get that far.

    Raises:
        ModelError: states of the target or logits of the head that are NaN or infinite.
    """
    text = [*response.prompt.tokens, *response.tokens]
    hidden, cache = HiddenStates(head.reads), target.new_cache(len(text) - 1)
    target.forward(torch.tensor(text[:-1], device=target.device), cache, every=False, hidden=hidden)
    states, first = hidden.joined(), len(response.prompt.tokens) - 1
    _refuse_unless_finite(states, "the target's hidden states")
    proposals, margins = list[list[int]](), list[list[float]]()
    for drafted in head.along(text, states, first, window):
        _refuse_unless_finite(drafted.margins, "the head's logits")
        proposals += drafted.tokens.tolist()
        margins += drafted.margins.tolist()
    return _from_every_start(response, candidate, window, proposals, margins)


def _refuse_unless_finite(values: Tensor, what: str) -> None:
    if not bool(values.isfinite().all()):
        raise ModelError(
            f"{what} are NaN or infinite",
            hint="try another dtype or quantization; the weights may be damaged",
        )


def _from_every_start(
    response: ScoredResponse,
    candidate: Candidate,
    window: int,
    proposals: Sequence[Sequence[int]],
    margins: Sequence[Sequence[float]] = (),
) -> LookupReplay:
    """The record of how long a prefix of each proposal the response has."""
    matched = []
    for start, proposal in enumerate(proposals, start=1):
        pairs = zip(proposal, response.tokens[start:], strict=False)
        matched.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return LookupReplay(
        request=response.trajectory.request,
        sample=response.trajectory.sample,
        candidate=candidate,
        window=window,
        proposed=tuple(map(len, proposals)),
        matched=tuple(matched),
        margin=_rounded([min(m[: n + 1]) for m, n in zip(margins, matched, strict=False)], 0),
    )
