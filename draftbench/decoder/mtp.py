"""Multi-token prediction: the layer with which a target drafts for itself, from transformers
(`MtpModel`), with draftbench's cache and masks.

Let y be the text and h the target's states after its last norm. Row t of the layer reads the
embedding of y[t+1] beside h[t] and drafts y[t+2]. At later depths of a round the same layer is used
again: depth m reads the token that depth m - 1 drafted, and that depth's output in place of h[t].
It sees the keys of depth 0 up to its row, and those that its own round has added: what `eagle.py`
says of EAGLE-3 heads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.decoder.any_transformer import SlabTransformersCache, replace_linears
from draftbench.decoder.eagle import CHUNK, Drafted, EagleHead
from draftbench.decoder.linear import layouts_of
from draftbench.decoder.sampling import best, top_two_margin


class MtpHead:
    """The layer, with its weights; rows run one by one.

    Args:
        model: a loaded `MtpModel` of one layer, which shares embedding and output layer with the
            target.
        states: which of the target's states it reads: those after its last norm.
        level: quantization level of its linear layers.
    """

    def __init__(
        self, model: Any, states: int, level: str, context_length: int, **layouts: Any
    ) -> None:
        self.model, self.reads, self.context_length = model, (states,), context_length
        (self.layer,) = model.layers
        replace_linears(self.layer, level, embedding=model.embed_tokens.weight, **layouts)
        weight = self.layer.enorm.weight
        self.dtype, self.device = weight.dtype, str(weight.device)

    @property
    def name(self) -> str:
        how = layouts_of(self.modules())
        words = f"transformers' MtpModel ({self.dtype}, {self.device}{how}, rows one by one)"
        return words.replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        return self.layer.modules()  # type: ignore[no-any-return]

    def tensors(self) -> Iterator[Tensor]:
        """Its weights outside linear layers; embedding and output layer are the target's."""
        for module in self.modules():
            if not isinstance(module, nn.Linear):
                yield from module.parameters(recurse=False)

    def new_cache(
        self, capacity: int, rows: int = 1, widths: Collection[int] = ()
    ) -> SlabTransformersCache:
        return SlabTransformersCache(["full_attention"], capacity, rows)

    def entering(self, states: Tensor) -> Tensor:
        """What depth 0 reads of the target's states: all of them."""
        return states

    @torch.inference_mode()
    def step(
        self, tokens: Tensor, left: Tensor, cache: SlabTransformersCache, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Like `EagleHead.step`."""
        ends, parts = [], zip(tokens.split(list(counts)), left.split(list(counts)), strict=True)
        for row, (read, entering) in enumerate(parts):
            if len(read):
                cache.place = row
                ends.append(self._appended(read, entering, cache)[-1:])
        cache.lengths = [have + new for have, new in zip(cache.lengths, counts, strict=True)]
        left = torch.cat(ends)
        return best(self._logits(left)), left

    @torch.inference_mode()
    def along(
        self, tokens: Sequence[int], states: Tensor, first: int, depths: int
    ) -> Iterator[Drafted]:
        """Like `EagleHead.along`."""
        padded = torch.tensor([*tokens, *[0] * depths], device=self.device)
        cache, last = self.new_cache(len(tokens) + depths * CHUNK), len(tokens) - 2
        # Some rows at a time, since the mask's size is rows times text; those before `first` only
        # leave their keys.
        for start, end in pairwise([*range(0, first, CHUNK), *range(first, last, CHUNK), last]):
            n, parts = end - start, list[Drafted]()
            cache.lengths[0] = start
            left = self._appended(padded[start + 1 : end + 1], states[start:end], cache)
            if start < first:
                continue
            at = torch.arange(start, end, device=self.device)
            seen = torch.arange(end, device=self.device) <= at[:, None]
            for depth in range(depths):
                if depth > 0:
                    own = torch.eye(n, dtype=torch.bool, device=self.device)
                    cache.lengths[0], seen = seen.shape[1], torch.cat([seen, own], dim=1)
                    read = padded[start + depth + 1 : end + depth + 1]
                    left = self._appended(read, left, cache, at + depth, seen)
                logits = self._logits(left)
                parts.append(Drafted(best(logits), top_two_margin(logits)))
            yield Drafted.by_depth(parts)

    def _appended(
        self,
        tokens: Tensor,
        entering: Tensor,
        cache: SlabTransformersCache,
        at: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """The layer's output at new rows [n, hidden], which are appended to the cache's current
        row. They are `at` places of the text, and see what `seen` says, by default everything
        before them.
        """
        assert isinstance(cache.place, int)
        start, n = cache.lengths[cache.place], len(tokens)
        if at is None:
            at = torch.arange(start, start + n, device=self.device)
        if seen is None:
            seen = torch.arange(start + n, device=self.device) <= at[:, None]
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill_(~seen, torch.finfo(self.dtype).min)
        model, positions = self.model, (at + 1)[None]
        embedded = model.embed_tokens(tokens)[None]
        turned = None if model.rotary_emb is None else model.rotary_emb(embedded, positions)
        left: Tensor = self.layer(
            embedded,
            entering[None],
            position_embeddings=turned,
            position_ids=positions,
            attention_mask=mask[None, None],
            cache=cache,
        )
        return (model.shared_post_norm(left) if model.use_shared_post_norm else left)[0]

    def _logits(self, left: Tensor) -> Tensor:
        logits: Tensor = self.model._project_to_logits(left[None])[0]
        return logits


# What drafts from the target's states.
Head = EagleHead | MtpHead
