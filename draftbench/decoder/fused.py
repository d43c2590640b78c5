"""Recorded passes by kernels of their own: a layer of a few tokens in five launches instead of 17.

A pass over a few tokens is memory-bound, and a launch takes a few microseconds in which no weight
is read. A layer becomes

    queries, keys and values · attention · output · gate and up · down

with one more launch if attention is split into chunks of keys. Each leaves tokens as the next one
multiplies them, in 16 or in 8 bits. A pass over many tokens is compute-bound: it uses PyTorch's
products, and one launch for what lies between two of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decoder import kernels
from draftbench.decoder.linear import matrix_of
from draftbench.decoder.llama_model import Layer, LlamaModel
from draftbench.decoder.runner import HiddenStates

# float16 would overflow before a norm's factor is applied, and tensor cores cannot multiply
# float32.
FOR_FEW = (torch.bfloat16,)


class FusedPasses:
    """A model's passes over the same number of tokens in every row (`LlamaModel.continue_evenly`),
    by these kernels.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        matrices = [matrix_of(layer) for layer in model.linears]
        # Query, key and value, output, gate and up, down of each layer, and then the head.
        self._matrices = [matrix for matrix in matrices if matrix is not None]
        self._few = 0
        if model.like.dtype in FOR_FEW and len(self._matrices) == len(matrices):
            narrow = all(matrix.scale is not None for matrix in self._matrices)
            self._few = kernels.MOST_TOKENS if narrow else kernels.FEW

    def __call__(
        self,
        reach: int,
        tokens: Tensor,
        starts: Tensor,
        slabs: Tensor,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """Logits after each of the tokens [rows · width], which go after the `starts` [rows] valid
        ones of each row.

        Args:
            reach: number of keys to look at, at least every start + width.
            hidden: takes down layers' inputs.
        """
        append = self._of_few if len(tokens) <= self._few else self._of_many
        return append(reach, tokens, starts, slabs, hidden)

    def _of_few(
        self, reach: int, tokens: Tensor, starts: Tensor, slabs: Tensor, hidden: HiddenStates | None
    ) -> Tensor:
        layers, dtype = self._model.layers, self._model.like.dtype
        kinds = [matrix.weight.dtype for matrix in self._matrices]
        norm = layers[0].input_norm
        begun = kernels.begin(tokens, self._model.embedding, norm.weight, kinds[0])
        sums, x, squares, largest = begun
        for index, layer in enumerate(layers):
            if hidden is not None:
                hidden.take(index, sums)
            at = 4 * index
            qkv, out, gate_up, down = self._matrices[at : at + 4]
            given = kernels.given(x, squares, norm.eps, largest, qkv)
            heads, slab = kernels.product(*given, dtype), slabs.select(0, index)
            x, largest = self._attention(heads, layer, starts, slab, reach, kinds[at + 1])
            norm, given = layer.mlp_norm, kernels.given(x, None, 0.0, largest, out)
            x, squares, largest = kernels.add_product(sums, norm.weight, kinds[at + 2], *given)
            given = kernels.given(x, squares, norm.eps, largest, gate_up)
            x, largest = kernels.gated_product(*given, kinds[at + 3])
            norm, given = layer.next_norm, kernels.given(x, None, 0.0, largest, down)
            x, squares, largest = kernels.add_product(sums, norm.weight, kinds[at + 4], *given)
        given = kernels.given(x, squares, norm.eps, largest, self._matrices[-1])
        return kernels.product(*given, dtype)

    def _of_many(
        self, reach: int, tokens: Tensor, starts: Tensor, slabs: Tensor, hidden: HiddenStates | None
    ) -> Tensor:
        model, layers = self._model, self._model.layers
        sums = functional.embedding(tokens, model.embedding).to(model.like.dtype)
        first = layers[0].input_norm
        x = functional.rms_norm(sums, first.shape, first.weight, first.eps)
        for index, layer in enumerate(layers):
            if hidden is not None:
                hidden.take(index, sums)
            slab = slabs.select(0, index)
            x = layer.qkv(x)
            x = layer.out(self._attention(x, layer, starts, slab, reach, x.dtype)[0])
            x = kernels.add_norm(sums, x, layer.mlp_norm.weight, layer.mlp_norm.eps)
            x = layer.down(kernels.swiglu(layer.gate_up(x)))
            x = kernels.add_norm(sums, x, layer.next_norm.weight, layer.next_norm.eps)
        return model.logits(x)

    def _attention(
        self, qkv: Tensor, layer: Layer, starts: Tensor, slab: Tensor, reach: int, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        norms: tuple[Tensor | None, Tensor | None, float] = (None, None, 0.0)
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = (layer.q_norm.weight, layer.k_norm.weight, layer.q_norm.eps)
        return kernels.attention(qkv, *norms, starts, *self._model.rotary, slab, reach, kind)
