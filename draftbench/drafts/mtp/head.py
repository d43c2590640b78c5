"""Multi-token prediction: the layers with which a target drafts for itself, from transformers
(`MtpModel`), with draftbench's cache and masks.

Let y be the text and h the target's states after its last norm. Row t of the first layer reads the
embedding of y[t+1] beside h[t] and drafts y[t+2]. A single layer is used again at later depths:
depth m reads the token that depth m - 1 drafted, and that depth's output in place of h[t]. It sees
the keys of depth 0 up to its row, and those that its own round has added: what `eagle3/head.py`
says of EAGLE-3 heads. Of several layers, number j reads y[t+1+j] and the output of layer j - 1 at
row t, and sees only its own keys: a plain causal pass over the text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.decoder.any_transformer import SlabTransformersCache, replace_linears
from draftbench.decoder.drafters import Draft, Proposal, ProposalRequest, going_on
from draftbench.decoder.linear import runner_name
from draftbench.decoder.runner import DecodeTask, on_device
from draftbench.drafts.heads.head import CHUNK, Drafted, Head, HeadDrafter
from draftbench.records import StopRule


class MtpHead(Head):
    """The layers, with their weights; rows run one by one.

    Args:
        model: a loaded `MtpModel`, which shares embedding and output layer with the target.
        states: which of the target's states it reads: those after its last norm.
        level: quantization level of its linear layers.
    """

    def __init__(
        self, model: Any, states: int, level: str, context_length: int, **layouts: Any
    ) -> None:
        self.model, self.reads, self.context_length = model, (states,), context_length
        self.layers = len(model.layers)
        # The kind of layer to rotate for, where a model's kinds rotate differently.
        self._rotates = {"layer_type": "full_attention"} if model.has_per_layer_rope else {}
        for layer in model.layers:
            replace_linears(layer, level, embedding=model.embed_tokens.weight, **layouts)
        weight = model.layers[0].enorm.weight
        self.dtype, self.device = weight.dtype, str(weight.device)

    @property
    def name(self) -> str:
        return runner_name("transformers' MtpModel", self, ", rows one by one")

    def modules(self) -> Iterator[nn.Module]:
        return chain.from_iterable(layer.modules() for layer in self.model.layers)

    def tensors(self) -> Iterator[Tensor]:
        for module in self.modules():
            if not isinstance(module, nn.Linear):
                yield from module.parameters(recurse=False)

    def new_cache(
        self, capacity: int, rows: int = 1, widths: Collection[int] = ()
    ) -> SlabTransformersCache:
        return SlabTransformersCache(["full_attention"] * self.layers, capacity, rows)

    def entering(self, states: Tensor) -> Tensor:
        return states

    @torch.inference_mode()
    def step(
        self, tokens: Tensor, left: Tensor, cache: SlabTransformersCache, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """With a single layer."""
        ends, parts = [], zip(tokens.split(list(counts)), left.split(list(counts)), strict=True)
        for row, (read, entering) in enumerate(parts):
            if len(read):
                cache.place = row
                ends.append(self.appended(read, entering, cache)[-1:])
        cache.lengths = [have + new for have, new in zip(cache.lengths, counts, strict=True)]
        left = torch.cat(ends)
        return self.logits(left), left

    @torch.inference_mode()
    def along(
        self,
        tokens: Sequence[int],
        states: Tensor,
        first: int,
        depths: int,
        *,
        stops: bool = False,
    ) -> Iterator[Drafted]:
        if self.layers > 1:
            depths = min(depths, self.layers)
            yield from self._along_layers(tokens, states, first, depths, stops=stops)
            return
        text = torch.tensor(tokens, device=self.device)
        cache, last = self.new_cache(len(tokens) + depths * CHUNK), len(tokens) - 2
        # Some rows at a time, since the mask's size is rows times text; those before `first` only
        # leave their keys.
        for start, end in pairwise([*range(0, first, CHUNK), *range(first, last, CHUNK), last]):
            read, left, parts = text[start + 1 : end + 1], states[start:end], list[Drafted]()
            at = torch.arange(start, end, device=self.device)
            seen = torch.arange(end, device=self.device) <= at[:, None]
            own = torch.eye(end - start, dtype=torch.bool, device=self.device)
            for depth in range(depths if start >= first else 1):
                cache.lengths[0] = seen.shape[1] if depth else start
                seen = torch.cat([seen, own], dim=1) if depth else seen
                left = self.appended(read, left, cache, depth, at, seen)
                if start >= first:
                    parts.append(self.drafted(self.logits(left), stops=stops))
                    read = parts[-1].tokens
            if parts:
                yield Drafted.by_depth(parts)

    def _along_layers(
        self, tokens: Sequence[int], states: Tensor, first: int, depths: int, *, stops: bool
    ) -> Iterator[Drafted]:
        """With several layers. A round's last row t reads what it drafts from layer 1 on, and so do
        the rows before it: layer j reads drafted tokens at its j last rows, t - j + 1 … t.
        """
        text, last = torch.tensor(tokens, device=self.device), len(tokens) - 2
        cache, left = self.new_cache(len(tokens) + CHUNK), states[:last]
        # What each layer leaves where it reads the text, and with it the keys that all rounds see.
        along = list[Tensor]()
        for depth in range(depths):
            parts = [left[:0]]
            for start in range(0, last - depth, CHUNK):
                end, cache.lengths[0] = min(start + CHUNK, last - depth), start
                read = text[start + depth + 1 : end + depth + 1]
                parts.append(self.appended(read, left[start:end], cache, depth))
            left = torch.cat(parts)
            along.append(left)
        size = max(1, CHUNK // max(1, depths - 1))
        for start in range(first, last, size):
            newest = torch.arange(start, min(start + size, last), device=self.device)
            drafted = [self.drafted(self.logits(along[0][newest]), stops=stops)]
            own = along[0].new_empty(len(newest), 0, along[0].shape[1])
            for depth in range(1, depths):
                order = torch.arange(depth, device=self.device)
                rows = newest[:, None] - order.flip(0)  # [starts, rows]; below 0 there are none
                before = along[depth - 1][rows[:, :1].clamp(min=0)]
                entering = torch.cat([before, own], dim=1).flatten(0, 1)
                read = torch.stack([each.tokens for each in drafted], dim=1).flatten()
                seen = self._seen_by_rounds(rows, last - depth)
                cache.lengths[0] = last - depth
                own = self.appended(read, entering, cache, depth, rows.flatten(), seen)
                own = own.unflatten(0, rows.shape)
                drafted.append(self.drafted(self.logits(own[:, -1]), stops=stops))
            yield Drafted.by_depth(drafted)

    def _seen_by_rounds(self, rows: Tensor, text: int) -> Tensor:
        """What the rows [starts, rows] of several rounds see of a text's rows, up to those that
        their round reads itself, and of each other: those of their round up to themselves.
        """
        at, start = rows.flatten(), torch.arange(len(rows), device=rows.device)
        start = start[:, None].expand_as(rows).flatten()
        of_text = torch.arange(text, device=rows.device) < rows[:, :1].flatten()[start][:, None]
        of_round = (start[:, None] == start) & (at <= at[:, None])
        there = (at >= 0) | torch.eye(len(at), dtype=torch.bool, device=rows.device)
        return torch.cat([of_text, of_round & there], dim=1)

    def appended(
        self,
        tokens: Tensor,
        entering: Tensor,
        cache: SlabTransformersCache,
        depth: int = 0,
        at: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """A depth's output at new rows [n, hidden], which are appended to the cache's current row.
        They are `at` places of the text, and see what `seen` says, by default everything before
        them.
        """
        assert isinstance(cache.place, int)
        start, n = cache.lengths[cache.place], len(tokens)
        if at is None:
            at = torch.arange(start, start + n, device=self.device)
        if seen is None:
            seen = torch.arange(start + n, device=self.device) <= at[:, None]
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill_(~seen, torch.finfo(self.dtype).min)
        model, positions = self.model, (at + depth + 1)[None]
        embedded = model.embed_tokens(tokens)[None]
        turned = None
        if model.rotary_emb is not None:
            turned = model.rotary_emb(embedded, positions, **self._rotates)
        left: Tensor = model.layers[min(depth, self.layers - 1)](
            embedded,
            entering[None],
            position_embeddings=turned,
            position_ids=positions,
            attention_mask=mask[None, None],
            cache=cache,
        )
        return (model.shared_post_norm(left) if model.use_shared_post_norm else left)[0]

    def logits(self, left: Tensor) -> Tensor:
        """The logits after a depth's output."""
        logits: Tensor = self.model._project_to_logits(left[None])[0]
        return logits

    def drafter(self) -> HeadDrafter:
        return HeadDrafter(self) if self.layers == 1 else LayersDrafter(self)


class LayersDrafter(HeadDrafter):
    """Several layers that propose their argmax, one token each. A layer's row is final once the
    token that it reads is in the text; rows that read drafted tokens are read again, and so are
    those that a layer has not read yet, since rounds differ in how many layers they reach.
    """

    head: MtpHead

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        super().open(rows, capacity, widths)
        # By row and layer: how many of the text's rows it has read for good, and what is entering
        # the rows after these, as far as it is known.
        self._read_by = [[0] * self.head.layers for _ in range(rows)]
        self._entering: list[list[Tensor]] = [[] for _ in range(rows)]

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        """Read the prompt's rows, each layer those whose tokens are known."""
        assert states is not None
        self._read_by[row] = [0] * self.head.layers
        self._unread[row], *self._entering[row] = states, *[states[:0]] * (self.head.layers - 1)
        self._read(row, task.prompt, None, None)

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        drafts = [Draft(ask, min(ask.k, self.head.layers), stop) for ask in asks]
        for draft in drafts:
            if draft.most > 0:
                self._read(draft.ask.row, draft.ask.context, draft, stop)
        return [draft.proposal for draft in drafts]

    @torch.inference_mode()
    def _read(
        self, row: int, text: Sequence[int], draft: Draft | None, stop: StopRule | None
    ) -> None:
        """Run the layers over the text's rows that they have not read, for a draft through its last
        row, of which each layer drafts a token until the draft ends. Along a response drafts are
        asked for fewer and fewer tokens, so that layers that they do not reach need not read.
        """
        head, cache, read_by = self.head, self.cache, self._read_by[row]
        waiting = [self._unread[row], *self._entering[row]]
        layers = draft.most if draft else head.layers
        begun, end = min(read_by[:layers]), len(text) - 1
        read = on_device(list(text[begun + 1 :]), head.device)
        # What the layer before leaves at the rows after those that are waiting, and how many of the
        # text's rows it leaves something final at.
        left, known, more = waiting[0][:0], read_by[0] + len(waiting[0]), True
        cache.place = row
        for depth in range(layers):
            start, final = read_by[depth], max(read_by[depth], end - depth)
            entering = torch.cat([waiting[depth], left])
            until = end if draft else final
            if not more or until == start:
                waiting[depth] = entering[: known - start]
                break
            at = start - begun + depth
            cache.lengths[row] = start
            left = head.appended(
                read[at : at + until - start], entering[: until - start], cache, depth
            )
            waiting[depth], read_by[depth] = entering[final - start : known - start], final
            known = final
            if draft:
                logits = head.logits(left[-1:])
                draft.tokens.append(head.chosen(logits))
                read = torch.cat([read, draft.tokens[-1]])
                more = bool(going_on([draft], logits, stop))
        self._unread[row], *self._entering[row] = waiting
        cache.lengths[row] = read_by[0]
