"""A model's decoder layers in one call, for passes of a few tokens on a CPU.

A small model's products take less time than the Python between them. Here nothing runs between two
kernels but the next one.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import from_dtype, intp, types, void
from torch import Tensor

from draftbench.decoder.compiling import OfThisProcess, address_of, compiled, threads_allowed
from draftbench.decoder.cpu_attention import FewTokens, attend
from draftbench.decoder.cpu_kernels import MOST_NUMBERS, Norm, add_norm_into, norm_into, swiglu_into
from draftbench.decoder.cpu_products import PRODUCT, multiply

_NORM = np.dtype([("weights", np.int64), ("eps", np.float32)], align=True)
_NORMS, _PRODUCTS = ("q_norm", "k_norm", "mlp_norm", "next_norm"), ("qkv", "out", "gate_up", "down")
_LAYER = np.dtype(
    [(each, PRODUCT) for each in _PRODUCTS] + [(each, _NORM) for each in _NORMS], align=True
)


_MANY = types.Array(from_dtype(_LAYER), 1, "C")


@compiled(void(_MANY, intp, intp, types.UniTuple(intp, 3), *[intp] * 8))
def _layers(layers, first, last, heads, place, sums, normed, large, small, n, width, threads):
    """A pass of n tokens through some layers; `LlamaModel` has the same, kernel by kernel."""
    queries, key_heads, head = heads
    for index in range(first, last):
        layer = layers[index]
        multiply(layer.qkv, normed, large, n, threads)
        apart = layer.qkv.outputs
        if layer.q_norm.weights:
            for query in range(large, large + 4 * n * apart, 4 * apart):
                key = query + 4 * queries * head
                norm_into(query, layer.q_norm.weights, query, queries, head, layer.q_norm.eps)
                norm_into(key, layer.k_norm.weights, key, key_heads, head, layer.k_norm.eps)
        attend(place, index, large, apart, small)
        multiply(layer.out, small, large, n, threads)
        apart, norm = layer.out.outputs, layer.mlp_norm
        add_norm_into(sums, normed, large, apart, norm.weights, n, width, norm.eps)
        multiply(layer.gate_up, normed, large, n, threads)
        swiglu_into(large, layer.gate_up.outputs, small, n, layer.down.inputs)
        multiply(layer.down, small, large, n, threads)
        apart, norm = layer.down.outputs, layer.next_norm
        add_norm_into(sums, normed, large, apart, norm.weights, n, width, norm.eps)


class CompiledLayers(OfThisProcess):
    """Decoder layers whose products are all by panels (`cpu_products`): up to `most` tokens go
    through any number of them in one call.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        def of_norm(norm: Norm | None) -> tuple[int, float]:
            return (0, 0.0) if norm is None else (norm.wide.data_ptr(), norm.eps)

        products = [[getattr(layer, each) for each in _PRODUCTS] for layer in layers]
        norms = [[of_norm(getattr(layer, each)) for each in _NORMS] for layer in layers]
        self.most = min(getattr(each, "most", MOST_NUMBERS) for row in products for each in row)
        records = [[each.record for each in row] for row in products]
        self._read = layers  # their memory, which must not go
        self._table = np.array([(*a, *b) for a, b in zip(records, norms, strict=True)], _LAYER)
        # How many numbers each token leaves: a product's results, and what the next one takes.
        self._widest = [
            max(int(self._table[each][side].max()) for each in _PRODUCTS)
            for side in ("outputs", "inputs")
        ]

    @staticmethod
    def of(layers: Sequence[Any]) -> CompiledLayers | None:
        """None if one of their products is computed in another way."""
        products = (getattr(layer, each) for layer in layers for each in _PRODUCTS)
        by_panels = all(getattr(product, "record", None) is not None for product in products)
        return CompiledLayers(layers) if by_panels else None

    def __call__(
        self, place: FewTokens, sums: Tensor, first: int, last: int, normed: Tensor
    ) -> Tensor:
        """Take the residual stream `sums` [n, hidden], and what it is behind a norm, through some
        layers, in place.
        """
        n, width = sums.shape
        room = sums.new_empty(n * sum(self._widest))
        small = room.data_ptr() + 4 * n * self._widest[0]
        at = address_of(sums), address_of(normed), room.data_ptr(), small
        given = self._table, first, last, place.heads, place.address
        _layers(*given, *at, n, width, threads_allowed())
        return normed
