"""Responses side by side, as a training reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftbench.measure.trajectories import ScoredResponse

# What marks a token that is not learned, for PyTorch's cross entropy.
IGNORED = -100
# By name: `ids` [rows, tokens], `attended` (0: padding), `learned` (ids, or IGNORED) and, of each
# row, the `temperature` at which the target wrote it.
Batch = dict[str, Tensor]


def side_by_side(responses: Sequence[ScoredResponse], context: int) -> Batch:
    """Prompts and responses, padded at the end and cut at the context. The first token of a
    response is no draft's to learn: it comes from the prefill.
    """
    rows = [[*r.prompt.tokens, *r.tokens][:context] for r in responses]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    learned, attended = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    for at, (row, response) in enumerate(zip(rows, responses, strict=True)):
        ids[at, : len(row)], attended[at, : len(row)] = torch.tensor(row), 1
        first = len(response.prompt.tokens) + 1
        learned[at, first : len(row)] = ids[at, first : len(row)]
    heat = torch.tensor([r.trajectory.sampling.temperature for r in responses])
    return {"ids": ids, "attended": attended, "learned": learned, "temperature": heat}
