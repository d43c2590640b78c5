"""Weights of a root-mean-square norm → the norm in as few operations as a CPU allows, and the sum
of a model's blocks in the form that it is normed in. On a GPU the same form costs little more.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RootMeanSquare:
    """x / √(mean of x² + eps) · weight, over the last dimension (Zhang and Sennrich 2019, eq. 4).

    A CPU has a dozen kernels for it and one for the layer norm, which is the same of (x, -x): its
    mean is 0 and its variance the mean of x². Between layers that each empty the cache a norm took
    a tenth of a small model's step.

    Args:
        weight: [d] on its final device.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps, self.size = weight, eps, len(weight)
        self._twice, self._shape = torch.cat([weight, weight]), (2 * len(weight),)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., d] → [..., d]."""
        return self.of_mirrored(mirrored(x))

    def of_mirrored(self, both: Tensor) -> Tensor:
        """(x, -x) as [..., 2, d] → [..., d]."""
        normed = torch.layer_norm(both.flatten(-2), self._shape, self._twice, None, self.eps)
        return normed.narrow(-1, 0, self.size)


def mirrored(x: Tensor) -> Tensor:
    """[..., d] → (x, -x) as [..., 2, d]."""
    return torch.stack([x, -x], dim=-2)


def mirror_signs(like: Tensor) -> Tensor:
    """What `add_mirrored` multiplies with, [2, 1]."""
    return torch.tensor([[1.0], [-1.0]], dtype=like.dtype, device=like.device)


def add_mirrored(both: Tensor, x: Tensor, signs: Tensor) -> None:
    """Add [..., d] to a mirrored sum [..., 2, d] in place."""
    both.addcmul_(x.unsqueeze(-2), signs)
