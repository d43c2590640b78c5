"""The replay of a draft model: what it would propose at every position of a response."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from draftbench.decoder.runner import Runner
from draftbench.decoder.sampling import best, distribution, temperature_only, top_two_margin
from draftbench.measure.replay import ServedTarget, rounded
from draftbench.measure.teacher import teacher_forced
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, DraftingMode, Replay


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
            accept=rounded(column["accept"], missing),
            confidence=rounded(column["confidence"], missing),
            margin=rounded(column["margin"], missing),
            rank=(*column["rank"], *[draft.vocab_size] * missing),
            overlap=rounded(column["overlap"], missing) if whole else None,
        )
        replays.append(record)
    return replays
