"""What a kind of draft does to be trained: the interface of the module `training` of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.source import ModelSource

# Marks a token that is not learned, for PyTorch's cross entropy.
IGNORED = -100
# By name: `ids` [rows, tokens], `attended` (0: padding), `learned` (ids, or IGNORED), and the
# `temperature` at which the target wrote each row.
Batch = dict[str, Tensor]


def side_by_side(responses: Sequence[ScoredResponse], context: int) -> Batch:
    """Prompts and responses, padded at the end and cut at the context. The first token of a
    response is not learned, since it comes from the prefill and is never drafted.
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


class InTraining(Protocol):
    """A draft of any kind in training."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def width(self) -> int: ...  # of its states

    def batch(self, responses: Sequence[ScoredResponse]) -> Batch: ...

    def loss(self, batch: Batch) -> Tensor: ...

    def save(self, folder: Path) -> None: ...


SMALLER = "take a smaller draft or another device"


class TrainingSize(NamedTuple):
    """What decides about the memory of a training."""

    parameters: int
    trained: int  # of the parameters
    work: tuple[int, int, int]  # layers that a token passes, their width, and logits of a token
    targets: int  # how often the target is loaded beside it
    smaller: str  # what needs less memory


class Trainable(Protocol):
    """What the module `training` of a kind does."""

    def check(self, draft: ModelSource, target: ModelSource, lora: int | None) -> None:
        """Refuse a draft that cannot be trained for the target.

        Raises:
            UsageError, ModelError, PairError: it cannot.
        """

    def size_of(
        self, draft: ModelSource, target: ModelSource, lora: int | None, *, samples: bool
    ) -> TrainingSize:
        """How large its training is.

        Args:
            samples: whether the target samples.
        """
        ...

    def begin(
        self, draft: ModelSource, target: Any | None, device: str, lora: int | None
    ) -> InTraining:
        """The draft, ready to be trained.

        Args:
            target: the loaded target, if `size_of` counts it.
        """
        ...
