"""How a block's tokens follow from its logits.

DFlash takes the best token at each place. DFlash 2 takes the best candidates of each place and goes
from one to the next: a candidate's score is its logit plus how well it follows the token chosen
before, given the place's state. DSpark adds to the logits of each place a bias by the token before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from draftbench.decoder.linear import Product
from draftbench.decoder.sampling import best, confidence, thousandths, top_two_margin
from draftbench.drafts.block.shape import Markov, Selector


@dataclass(frozen=True)
class Chosen:
    """A block's tokens as the target numbers them [blocks, k], and the scores among which each was
    the best [blocks, k, tokens]. `stated` is how sure its head for that says it is [blocks, k].
    """

    tokens: Tensor
    scores: Tensor
    stated: Tensor | None = None

    @property
    def margins(self) -> Tensor:
        """The best score less the second [blocks, k]."""
        return top_two_margin(self.scores)

    def sure(self, among: Literal["all", "ten"]) -> Tensor:
        """How sure it is of each token, cut to thousandths [blocks, k]: what its head says, if it
        has one, whatever the tokens among which is asked.
        """
        return confidence(self.scores, among) if self.stated is None else thousandths(self.stated)


class Choice(Protocol):
    """Chooses the tokens of blocks.

    Called with the logits [blocks, k, tokens that can be drafted] and the states behind them
    [blocks, k, hidden] of the places that draft, and the last known tokens [blocks].
    """

    def __call__(self, logits: Tensor, states: Tensor, lasts: Tensor) -> Chosen: ...


@dataclass(frozen=True)
class EachForItself:
    """DFlash: the best token at each place."""

    target_ids: Tensor

    def __call__(self, logits: Tensor, states: Tensor, lasts: Tensor) -> Chosen:
        return Chosen(self.target_ids[best(logits)], logits)


@dataclass(frozen=True)
class Following:
    """DFlash 2: a walk along the best candidates of each place."""

    of: Selector
    before: Tensor  # vectors of tokens as the one before [vocab, rank]
    after: Tensor  # and as the one that follows
    project: Product  # [n, hidden] → [n, rank]
    target_ids: Tensor

    def __call__(self, logits: Tensor, states: Tensor, lasts: Tensor) -> Chosen:
        scores, candidates = logits.topk(self.of.candidates, dim=-1)
        projected = self.project(states.flatten(0, 1)).view(*states.shape[:2], -1)
        tokens, totals, previous = list[Tensor](), list[Tensor](), lasts
        for place in range(logits.shape[1]):
            follows = self.before[previous] * projected[:, place]
            edges = (follows[:, None] * self.after[candidates[:, place]]).sum(-1)
            total = scores[:, place] + edges
            totals.append(total)
            at = best(total)[:, None]
            previous = self.target_ids[candidates[:, place].gather(1, at)[:, 0]]
            tokens.append(previous)
        every = torch.stack(totals, dim=1)
        # Among the candidates alone, whichever is asked for, as llama.cpp does.
        sure = torch.softmax(every.float(), dim=-1).amax(dim=-1)
        return Chosen(torch.stack(tokens, dim=1), every, sure)


@dataclass(frozen=True)
class Biased:
    """DSpark: the best token at each place, after a bias by the one before; it is as sure of it as
    its head for that says, if it has one.
    """

    of: Markov
    before: Tensor  # vectors of the target's tokens as the one before [vocab, rank]
    bias: Product  # [n, rank] → [n, tokens that can be drafted]
    mix: Product | None  # of "gated" and "rnn" heads
    stated: Product | None  # [n, hidden (+ rank)] → [n, 1], how sure it is
    target_ids: Tensor

    def __call__(self, logits: Tensor, states: Tensor, lasts: Tensor) -> Chosen:
        tokens, totals, previous = list[Tensor](), list[Tensor](), lasts
        said = list[Tensor]()
        memory = states.new_zeros(len(states), self.of.rank)
        for place in range(logits.shape[1]):
            vector = self.before[previous].to(states.dtype)
            if self.stated is not None:
                heard = [states[:, place], vector][: 1 + self.of.confident_of_both]
                said.append(torch.sigmoid(self.stated(torch.cat(heard, dim=1)).float()))
            if self.of.kind == "gated":
                assert self.mix is not None
                gate = torch.sigmoid(self.mix(torch.cat([states[:, place], vector], dim=1)))
                vector = gate * vector
            elif self.of.kind == "rnn":
                assert self.mix is not None
                read = torch.cat([memory, vector, states[:, place]], dim=1)
                gate, new, out = self.mix(read).chunk(3, dim=1)
                gate = torch.sigmoid(gate)
                memory = gate * memory + (1.0 - gate) * torch.tanh(new)
                vector = torch.tanh(out)
            total = logits[:, place] + self.bias(vector)
            totals.append(total)
            previous = self.target_ids[best(total)]
            tokens.append(previous)
        stated = torch.cat(said, dim=1) if said else None
        return Chosen(torch.stack(tokens, dim=1), torch.stack(totals, dim=1), stated)


def scaled(logits: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Logits times a scale, then bent to within ± softcap."""
    if scale != 1.0:
        logits = logits * scale
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap
