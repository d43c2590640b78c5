"""The layers of a block drafter: Qwen3's, with keys and values of the text made of the target's
states; in DFlash 2 with convolutions within the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from draftbench.decoder.attention import Placement
from draftbench.decoder.linear import Product
from draftbench.decoder.llama_model import RootMeanSquare, swiglu
from draftbench.drafts.block.shape import Convolutions


@dataclass(frozen=True)
class Convolution:
    """A causal convolution over a block's places before and after what it encloses, whose kernel is
    the sum of a fixed one and one that the input gives, the same for a group of channels.
    """

    base: Tensor  # [2, taps, hidden]
    kernels: Product  # [n, hidden] → [n, 2 · taps · groups]
    of: Convolutions

    def around(self, inner: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
        """What it makes of `inner`, for rows x [blocks · width, hidden]."""
        taps, group = self.of.taps, self.of.group
        dynamic = self.kernels(x).view(len(x) // width, width, 2, taps, -1)
        # `repeat_interleave` would make the host wait for a GPU.
        repeated = dynamic.unsqueeze(-1).expand(*dynamic.shape, group).flatten(-2)
        before, after = repeated.unbind(2)
        return self._convolved(inner(self._convolved(x, before, 0)), after, 1)

    def _convolved(self, x: Tensor, dynamic: Tensor, side: int) -> Tensor:
        blocks = x.view(*dynamic.shape[:2], -1)
        kernel = self.base[side] + dynamic  # [blocks, width, taps, hidden]
        total = kernel[:, :, 0] * blocks
        for tap in range(1, min(self.of.taps, blocks.shape[1])):
            total[:, tap:] += kernel[:, tap:, tap] * blocks[:, :-tap]
        return total.view_as(x)


@dataclass(frozen=True)
class Layer:
    """One layer with its weights."""

    input_norm: RootMeanSquare
    q: Product
    kv: Product
    q_norm: RootMeanSquare
    k_norm: RootMeanSquare
    out: Product
    mlp_norm: RootMeanSquare
    gate_up: Product
    down: Product
    attention_conv: Convolution | None
    mlp_conv: Convolution | None
    kv_heads: int
    head_dim: int

    def norms(self) -> Iterator[RootMeanSquare]:
        yield from (self.input_norm, self.q_norm, self.k_norm, self.mlp_norm)

    def keys_and_values(self, x: Tensor) -> Tensor:
        """Of states x [n, hidden], keys before their rotation [n, 2 · key heads, head]."""
        kv = self.kv(x).view(len(x), -1, self.head_dim)
        keys = kv.narrow(1, 0, self.kv_heads)
        keys.copy_(self.k_norm(keys))
        return kv

    def __call__(self, x: Tensor, placement: Placement, index: int, width: int) -> Tensor:
        """States after it of blocks' places x [blocks · width, hidden]."""

        def attention(x: Tensor) -> Tensor:
            query = self.q_norm(self.q(x).view(len(x), -1, self.head_dim))
            both = torch.cat([query, self.keys_and_values(x)], dim=1)
            return self.out(placement.attend(index, both))

        def mlp(x: Tensor) -> Tensor:
            return self.down(swiglu(self.gate_up(x)))

        for norm, half, conv in (
            (self.input_norm, attention, self.attention_conv),
            (self.mlp_norm, mlp, self.mlp_conv),
        ):
            normed = norm(x)
            x = x + (half(normed) if conv is None else conv.around(half, normed, width))
        return x
