"""EAGLE-3 heads: one layer that drafts from the target's own states (Li et al. 2025).

Let y be the text and h the target's states. Row t reads the embedding of y[t+1] beside g[t], which
`fc` computes from h[t] at some layers, and drafts y[t+2]. Depth m of a round reads the token that
depth m - 1 drafted, and the output of depth m - 1 in place of g. A round reads accepted tokens
again with the target's states, so the keys of depth 0 depend on the text alone; keys of later
depths are seen only within their round. So K passes over a text show what a round starting anywhere
in it drafts at every k ≤ K.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import (
    PIECE,
    EvenRows,
    LaterDepths,
    OneRow,
    Placement,
    Rotary,
    in_pieces,
    placed,
)
from draftbench.decoder.cuda_graphs import Evenly, Kind, RecordsPasses, SlabCache, Wanted
from draftbench.decoder.linear import Product, as_function, between_products, runner_name
from draftbench.decoder.llama_model import RootMeanSquare, rotary_tables, swiglu
from draftbench.decoder.runner import at_ends
from draftbench.decoder.sampling import best
from draftbench.drafts.heads.head import CHUNK, Drafted, Head


@dataclass(frozen=True)
class EagleShape:
    """What a head's config.json says about it."""

    layer: Any  # the transformers configuration of its layer
    reads: tuple[int, ...]  # the target's layers whose inputs it reads
    drafted: int  # tokens that it can draft
    norm_before_residual: bool = False  # whether the residual stream begins behind `hidden_norm`
    norm_before_fc: bool = False  # whether all states together are normed before `fc`
    fc_norm: bool = False  # whether those of each layer are
    norm_output: bool = False  # whether the next depth reads states behind the last norm

    @property
    def head_dim(self) -> int:
        return getattr(self.layer, "head_dim", None) or (
            self.layer.hidden_size // self.layer.num_attention_heads
        )


class EagleHead(RecordsPasses, Head):
    """A head with its weights.

    Args:
        tensors: of its checkpoint, by the names of the speculators format.
        embedding: the target's [vocab, hidden], for a head without its own.
        rotary: a transformers module that gives rotary tables.
        make_linear: makes a layer of weights and bias.
        context_length: the target's.
        longest: tokens per row for which recorded caches have room from the start.
    """

    later_depths = LaterDepths  # where its replay's later depths stand in the text

    def __init__(
        self,
        shape: EagleShape,
        tensors: Mapping[str, Tensor],
        embedding: Tensor,
        rotary: nn.Module,
        make_linear: Callable[..., nn.Module],
        dtype: torch.dtype,
        device: str,
        context_length: int,
        longest: int = 0,
    ) -> None:
        self.shape, layer = shape, shape.layer
        self.reads, self.context_length, self.dtype = shape.reads, context_length, dtype
        self.longest = min(longest, context_length)
        self.heads, self.kv_heads = layer.num_attention_heads, layer.num_key_value_heads
        self.group = self.heads // self.kv_heads
        self.linears: list[nn.Module] = []

        def given(name: str) -> Tensor:
            return tensors[name].to(device, dtype, copy=True)

        def norm(name: str) -> RootMeanSquare | None:
            found = f"{name}.weight" in tensors
            return RootMeanSquare(given(f"{name}.weight"), layer.rms_norm_eps) if found else None

        def linear(*names: str) -> Product:
            weight = torch.cat([given(f"{name}.weight") for name in names])
            biases = [given(f"{n}.bias") for n in names if f"{n}.bias" in tensors]
            bias = torch.cat(biases) if biases else None
            self.linears.append(make_linear(weight, bias, copied=True))
            return as_function(self.linears[-1])

        inner = "layers.0."
        attention, mlp = f"{inner}self_attn.", f"{inner}mlp."
        self.norms = {
            name: found
            for name, at in {
                "all": "input_norm",
                "embedded": f"{inner}input_layernorm",
                "state": f"{inner}hidden_norm",
                "q": f"{attention}q_norm",
                "k": f"{attention}k_norm",
                "mlp": f"{inner}post_attention_layernorm",
                "last": "norm",
                **{f"layer {i}": f"fc_norm.{i}" for i in range(len(self.reads))},
            }.items()
            if (found := norm(at)) is not None
        }
        self.fc = linear("fc")
        self.qkv = linear(*(f"{attention}{each}_proj" for each in "qkv"))
        self.out = linear(f"{attention}o_proj")
        self.gate_up = linear(f"{mlp}gate_proj", f"{mlp}up_proj")
        self.down, self.logits = linear(f"{mlp}down_proj"), linear("lm_head")
        self.own_embedding = "embed_tokens.weight" in tensors
        self.embedding = given("embed_tokens.weight") if self.own_embedding else embedding
        like = self.norms["last"].weight
        self.device, self.between = str(like.device), between_products(dtype, like.device)
        tables = rotary_tables(rotary.to(device), like, context_length)
        self.rotary = Rotary(*tables)
        offsets = tensors.get("d2t", torch.zeros(shape.drafted, dtype=torch.long))
        self.target_ids = (torch.arange(shape.drafted) + offsets.long().cpu()).to(device)
        self._future = like.new_full((PIECE, PIECE), float("-inf")).triu_(1)

    @property
    def name(self) -> str:
        return runner_name("draftbench", self, self.how)

    def modules(self) -> Iterator[nn.Module]:
        yield from self.linears

    def tensors(self) -> Iterator[Tensor]:
        yield from (norm.weight for norm in self.norms.values())
        if self.own_embedding:
            yield self.embedding

    def new_slabs(self, capacity: int, rows: int) -> Tensor:
        size = 1, 2, rows, self.kv_heads, capacity, self.shape.head_dim
        return self.norms["last"].weight.new_zeros(size)

    def tried_first(self) -> Wanted:
        return [(self._steps(), (1, 2))]

    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> SlabCache:
        return self.cache_of(capacity, rows, [(self._steps(), {1, *widths} if widths else ())])

    def _steps(self) -> Kind:
        """Its passes as they are recorded."""
        tokens = self.target_ids.new_empty(0)
        like, width = self.norms["last"].weight, self.shape.layer.hidden_size
        left = like.new_empty(0, width, dtype=self.between)
        return Kind("step", (tokens, left), self._step_evenly, self._step_evenly)

    def _step_evenly(self, at: Evenly, tokens: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """`step` with as many tokens of every row."""
        width = len(tokens) // len(at.starts)
        placement = EvenRows(at.slabs, at.starts, width, at.reach, self.rotary, self.group)
        last, left = (
            each.index_select(0, at.ends) for each in self._layer(tokens, left, placement)
        )
        return self.logits(last), left

    @torch.inference_mode()
    def entering(self, states: Tensor) -> Tensor:
        """g of the states h."""
        states = states.to(self.between)
        if "all" in self.norms:
            states = self.norms["all"](states)
        if self.shape.fc_norm:
            parts = enumerate(states.chunk(len(self.reads), dim=1))
            states = torch.cat([self.norms[f"layer {i}"](part) for i, part in parts], dim=1)
        return self.fc(states)

    @torch.inference_mode()
    def step(
        self, tokens: Tensor, left: Tensor, cache: SlabCache, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        lengths = cache.lengths
        cache.lengths = [have + new for have, new in zip(lengths, counts, strict=True)]
        if (graphs := cache.graphs) and graphs.serves("step", counts):
            _, (logits, left) = graphs.launch("step", (tokens, left), counts, lengths)
            busy = [at for at, count in enumerate(counts) if count]
            return graphs.some(logits, busy), graphs.some(left, busy)
        passes = in_pieces(lengths, counts)
        sizes = [sum(some) for _, some in passes]
        for (at, some), piece, part in zip(
            passes, tokens.split(sizes), left.split(sizes), strict=True
        ):
            place = placed(cache.slabs, at, some, self.rotary, self.group, self._future)
            last, left = self._layer(piece, part, place)
        return self.logits(at_ends(last, some)), at_ends(left, some)

    def chosen(self, logits: Tensor) -> Tensor:
        return self.target_ids[best(logits)]

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
        text = torch.tensor(tokens, device=self.device)
        entering, cache = self.entering(states), self.new_cache(len(tokens))
        if first:
            self.step(text[1 : first + 1], entering[:first], cache, [first])
        for start in range(first, len(tokens) - 2, CHUNK):
            n = min(CHUNK, len(tokens) - 2 - start)
            slabs, read = cache.slabs[:, :, 0], text[start + 1 : start + 1 + n]
            rotary, group = self.rotary, self.group
            placement: Placement = OneRow(slabs, start, n, rotary, group, self._future)
            later = self.later_depths(slabs, start, n, rotary, group)
            left, parts = entering[start : start + n], list[Drafted]()
            for _ in range(depths):
                last, left = self._layer(read, left, placement)
                parts.append(self.drafted(self.logits(last), stops=stops))
                read, placement = parts[-1].tokens, later
            yield Drafted.by_depth(parts)

    def _layer(self, tokens: Tensor, state: Tensor, placement: Placement) -> tuple[Tensor, Tensor]:
        """States for the output head, and for the next depth, of tokens [n] and states [n, h]."""
        norms, heads = self.norms, self.heads
        embedded = functional.embedding(tokens, self.embedding).to(self.between)
        normed = norms["state"](state)
        both = torch.cat([norms["embedded"](embedded), normed], dim=1)
        qkv = self.qkv(both).view(len(tokens), -1, self.shape.head_dim)
        if "q" in norms:
            queries, keys = qkv.narrow(1, 0, heads), qkv.narrow(1, heads, self.kv_heads)
            queries.copy_(norms["q"](queries))
            keys.copy_(norms["k"](keys))
        x = normed if self.shape.norm_before_residual else state
        x = x + self.out(placement.attend(0, qkv))
        x = x + self.down(swiglu(self.gate_up(norms["mlp"](x))))
        last = norms["last"](x)
        return last, last if self.shape.norm_output else x
