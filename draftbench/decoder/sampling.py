"""Turns logits into distributions and tokens, with random numbers fixed by position.

Filters apply in the order temperature, top-k, top-p, min-p. A uniform number is a function of
(request, sample, purpose, position). So a resumed run draws the same tokens as an uninterrupted
one, and greedy drafting leaves the output unchanged at any temperature.

Source of the acceptance rule: Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from draftbench.records import Sampling

# On a CPU top-p looks at this many of the largest probabilities first, which takes a tenth of the
# time of looking at all 150,000.
TOP_P_CANDIDATES = 256
# What probabilities are counted in: they then have the same sum in any order.
_ONE = 1 << 62
# Bits of a digit. A number below 2 in 32 bits has two, without the sign and the topmost bit.
_DIGIT = 15
# The tokens among which llama.cpp's draft takes its confidence.
MOST_LIKELY = 10

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Uniforms:
    """Uniform numbers in [0, 1) for every output position of one sample of one request, one stream
    per purpose.
    """

    request: str
    sample: int
    positions: int

    def stream(self, purpose: str) -> np.ndarray:
        """[positions] float64, for the purpose target, draft, accept or residual."""
        name = f"{self.request}/{self.sample}/{purpose}".encode()
        key = int.from_bytes(hashlib.sha256(name).digest()[:16], "big")
        return np.random.Generator(np.random.Philox(key=key)).random(self.positions)


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Next-token probabilities [n, vocab] (float32) after the request's filters, from logits [n,
    vocab]; for temperatures above 0.
    """
    probs = torch.softmax(logits.float() / sampling.temperature, dim=-1)
    if sampling.top_k is not None and 0 < sampling.top_k < probs.shape[-1]:
        probs = _at_least(torch.topk(probs, sampling.top_k, dim=-1).values[:, -1:], probs)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        probs = _at_least(_least_of_nucleus(probs, sampling.top_p, sampling.top_k), probs)
    if sampling.min_p is not None and sampling.min_p > 0.0:
        probs = _at_least(sampling.min_p * probs.amax(dim=-1, keepdim=True), probs)
    return probs


def _at_least(least: Tensor, probs: Tensor) -> Tensor:
    """The probabilities of at least `least`, renormalized."""
    kept = torch.where(probs >= least, probs, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def _least_of_nucleus(probs: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """The smallest probability [n, 1] in the smallest set whose sum reaches `top_p`; a token as
    probable as the set's last one belongs to it too.

    On a GPU the host would have to wait to see whether the largest few reach `top_p`: they are
    tried there only if `top_k` has left no more than these.
    """
    size = min(TOP_P_CANDIDATES, probs.shape[-1])
    reaches = size == probs.shape[-1] or (top_k is not None and 0 < top_k <= size)
    if not reaches and probs.device.type != "cpu":
        return _least_by_digits(probs, top_p)
    top = torch.topk(probs, size, dim=-1).values
    short = (_counted(top).cumsum(dim=-1) < _needed(top_p)).sum(dim=-1, keepdim=True)
    least = top.gather(-1, short.clamp(max=size - 1))
    if not reaches and (rows := (short == size).flatten().nonzero().flatten()).numel():
        least[rows] = _least_by_digits(probs[rows], top_p)
    return least


def _needed(top_p: float) -> int:
    """What counted probabilities must add up to; however small, the largest is kept."""
    return max(1, int(top_p * _ONE))


def _least_by_digits(probs: Tensor, top_p: float) -> Tensor:
    """`_least_of_nucleus` without sorting and without a wait. The bits of positive numbers are
    ordered as the numbers are, so it is found digit by digit: as many of the smallest are left out
    as together have no more than what the nucleus does not need.
    """
    bits, counted = probs.view(torch.int32), _counted(probs)
    unneeded = (counted.sum(dim=-1, keepdim=True) - _needed(top_p)).clamp_(min=0)
    least = torch.zeros_like(unneeded)
    for shift in (_DIGIT, 0):
        digits = (bits >> shift).bitwise_and_((1 << _DIGIT) - 1).long()
        sums = counted.new_zeros(len(probs), 1 << _DIGIT).scatter_add_(-1, digits, counted)
        sums = sums.cumsum_(dim=-1)
        out = sums <= unneeded
        digit = out.sum(dim=-1, keepdim=True)
        least = least << _DIGIT | digit
        unneeded = unneeded - torch.where(out, sums, 0).amax(dim=-1, keepdim=True)
        counted = torch.where(digits == digit, counted, 0)
    return least.int().view(torch.float32)


def _counted(probs: Tensor) -> Tensor:
    return (probs.double() * _ONE).long()


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [n] by inverse transform of `uniform` [n] through the rows of probs [n, vocab]."""
    cumulative = probs.double().cumsum(dim=-1)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=probs.shape[-1] - 1)


def best(logits: Tensor) -> Tensor:
    """The token with the largest logit [n] of [n, vocab]; the first in a tie."""
    # `max`, since a CPU's `argmax` reads bfloat16 numbers one by one.
    return logits.max(dim=-1).indices


def top_two_margin(logits: Tensor) -> Tensor:
    """Difference of the best and the second-best logit [...] of [..., vocab], in float32."""
    top = torch.topk(logits, 2, dim=-1).values.float()
    return top[..., 0] - top[..., 1]


def confidence(logits: Tensor, among: Literal["all", "ten"]) -> Tensor:
    """The probability of the best token [n] by logits [n, vocab], among all tokens or the ten best,
    computed in float32 and cut to thousandths (float64).
    """
    if among == "ten":
        logits = torch.topk(logits, min(MOST_LIKELY, logits.shape[-1]), dim=-1).values
    return thousandths(torch.softmax(logits.float(), dim=-1).amax(dim=-1))


def thousandths(probabilities: Tensor) -> Tensor:
    """Probabilities cut to thousandths (float64)."""
    return (probabilities.double() * 1000).floor() / 1000


def temperature_only(sampling: Sampling) -> Sampling:
    """The temperature without the filters, as in vLLM's probabilistic drafting."""
    return Sampling(temperature=sampling.temperature)


def filters_of(sampling: Sampling) -> Sampling:
    """The settings that a distribution depends on: all but the seed."""
    return replace(sampling, seed=None)


def equal_places(keys: Iterable[_Key]) -> dict[_Key, list[int]]:
    """Where each key occurs, so that rows with equal settings are computed at once."""
    places: defaultdict[_Key, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return places


def target_tokens(
    p: Tensor, q: Tensor, proposed: Tensor, uniforms: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """The target's tokens [n] where drafts were sampled: a proposal d if it is accepted, with
    probability min(1, p(d)/q(d)), else a draw from the residual max(p - q, 0), which is never d;
    where nothing is proposed, as at the end of a round, a draw from p.

    Args:
        p: target distributions [n, vocab].
        q: draft distributions [n, vocab], the ones that `proposed` [n] was drawn from; zeros where
            nothing is proposed.
        proposed: draft tokens [n].
        uniforms: per position [n], for acceptance, residual and the token without a proposal.
    """
    accept, residual, bonus = uniforms
    index = proposed.unsqueeze(1)
    p_drafted, q_drafted = p.gather(1, index).squeeze(1), q.gather(1, index).squeeze(1)
    is_drafted = q_drafted > 0
    passed = (accept.float() * q_drafted < p_drafted) & is_drafted
    rest = (p - q).clamp(min=0.0)
    # The residual is 0 everywhere if p = q up to rounding; it is then only drawn from because of
    # rounding, and p is right.
    rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)
    return torch.where(passed, proposed, draw(rest, torch.where(is_drafted, residual, bonus)))


def accepted_of(target: Sequence[int], proposed: Sequence[int]) -> int:
    """How many proposed tokens [k] are accepted: those before the first that differs from the
    target's tokens [k+1].

    With sampled drafting the target's tokens are those of `target_tokens`. With greedy drafting, at
    any temperature, they are drawn from p: q is one-hot, so d is accepted with probability p(d) and
    the residual is p without d, which is the same as drawing y from p and accepting d if y = d.
    """
    accepted = 0
    while accepted < len(proposed) and target[accepted] == proposed[accepted]:
        accepted += 1
    return accepted
