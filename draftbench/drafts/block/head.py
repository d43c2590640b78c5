"""A block drafter: what it keeps of a text, and what it drafts after it.

Let y be the text and h the target's states. A token's keys and values are made of h at that token
alone, so they depend on the text alone. A block holds the last known token y[n], at its own place,
and masks at the places after it; the block's places see the text before n and each other. Masks
draft the token of their own place or, if the block is anchored, every place drafts the one after
it. What a block drafts depends on how many tokens it drafts, unless each place sees only those
before it: so there is a pass for every length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import BlockRows, Placement, Rotary, TextBlocks, store
from draftbench.decoder.cuda_graphs import Evenly, Kind, RecordsPasses, SlabCache, Wanted
from draftbench.decoder.linear import Product, as_function, between_products, runner_name
from draftbench.decoder.llama_model import RootMeanSquare, rotary_tables
from draftbench.decoder.runner import Runner, on_device
from draftbench.drafts.block.choice import Biased, Choice, Chosen, EachForItself, Following, scaled
from draftbench.drafts.block.layers import Convolution, Layer
from draftbench.drafts.block.shape import BlockShape
from draftbench.drafts.heads.head import Drafted

# Places of blocks that draft side by side in replay; each sees the others' keys hidden.
PLACES = 512


class BlockHead(RecordsPasses):
    """A block drafter with its weights.

    Args:
        tensors: of its checkpoint, by the names of the speculators format.
        target: the target as it runs, whose embedding and output head it uses unless it has some.
        rotary: a transformers module that gives rotary tables.
        make_linear: makes a layer of weights and bias.
        longest: tokens per row for which recorded caches have room from the start.
    """

    def __init__(
        self,
        shape: BlockShape,
        tensors: Mapping[str, Tensor],
        target: Runner,
        rotary: nn.Module,
        make_linear: Callable[..., nn.Module],
        dtype: torch.dtype,
        longest: int = 0,
    ) -> None:
        self.shape, layer = shape, shape.layer
        self.reads, self.context_length = shape.reads, target.context_length
        self.longest = min(longest, self.context_length)
        self.dtype, device = dtype, target.device
        self.entering_size = tensors["fc.weight"].shape[1]
        self.heads, self.kv_heads = layer.num_attention_heads, layer.num_key_value_heads
        self.linears: list[nn.Module] = []
        self._tensors: list[Tensor] = []

        def given(name: str) -> Tensor:
            self._tensors.append(tensors[name].to(device, dtype, copy=True))
            return self._tensors[-1]

        def norm(name: str) -> RootMeanSquare:
            return RootMeanSquare(given(f"{name}.weight"), layer.rms_norm_eps)

        def linear(*names: str) -> Product:
            taken = [tensors[f"{name}.weight"].to(device, dtype) for name in names]
            biases = [
                tensors[f"{n}.bias"].to(device, dtype) for n in names if f"{n}.bias" in tensors
            ]
            bias = torch.cat(biases) if biases else None
            self.linears.append(make_linear(torch.cat(taken), bias, copied=True))
            return as_function(self.linears[-1])

        def convolution(at: str) -> Convolution | None:
            if shape.convolutions is None:
                return None
            kernels = linear(f"{at}.kernel_projection")
            return Convolution(given(f"{at}.base_kernel"), kernels, shape.convolutions)

        self.fc, self.hidden_norm, self.norm = linear("fc"), norm("hidden_norm"), norm("norm")
        self.layers = []
        for inner in (f"layers.{index}." for index in range(layer.num_hidden_layers)):
            attention, mlp = f"{inner}self_attn.", f"{inner}mlp."
            self.layers.append(
                Layer(
                    input_norm=norm(f"{inner}input_layernorm"),
                    q=linear(f"{attention}q_proj"),
                    kv=linear(f"{attention}k_proj", f"{attention}v_proj"),
                    q_norm=norm(f"{attention}q_norm"),
                    k_norm=norm(f"{attention}k_norm"),
                    out=linear(f"{attention}o_proj"),
                    mlp_norm=norm(f"{inner}post_attention_layernorm"),
                    gate_up=linear(f"{mlp}gate_proj", f"{mlp}up_proj"),
                    down=linear(f"{mlp}down_proj"),
                    attention_conv=convolution(f"{inner}attention_conv"),
                    mlp_conv=convolution(f"{inner}mlp_conv"),
                    kv_heads=self.kv_heads,
                    head_dim=shape.head_dim,
                )
            )
        own_embedding = "embed_tokens.weight" in tensors
        self.embedding = given("embed_tokens.weight") if own_embedding else target.embedding
        self.logits = linear("lm_head") if "lm_head.weight" in tensors else target.continued
        offsets = tensors.get("d2t", torch.zeros(shape.drafted, dtype=torch.long))
        target_ids = (torch.arange(shape.drafted) + offsets.long().cpu()).to(device)
        self.target_ids = target_ids
        self.choose: Choice = EachForItself(target_ids)
        if shape.selector is not None:
            at = "candidate_selector."
            codebooks = given(f"{at}predecessor_codebook"), given(f"{at}successor_codebook")
            project = linear(f"{at}hidden_projection")
            self.choose = Following(shape.selector, *codebooks, project, target_ids)
        elif (markov := shape.markov) is not None:
            at, mixed = "markov_head.", {"gated": "gate_proj", "rnn": "joint_proj"}
            before, bias = given(f"{at}markov_w1.weight"), linear(f"{at}markov_w2")
            mix = linear(at + mixed[markov.kind]) if markov.kind in mixed else None
            stated = linear("confidence_head.proj") if markov.confident else None
            self.choose = Biased(markov, before, bias, mix, stated, target_ids)
        like = self.norm.weight
        self.device, self.group = str(like.device), self.heads // self.kv_heads
        self.between = between_products(dtype, like.device)
        self.rotary = Rotary(*rotary_tables(rotary.to(device), like, self.context_length))

    @property
    def name(self) -> str:
        return runner_name("draftbench", self, self.how)

    def modules(self) -> Iterator[nn.Module]:
        yield from self.linears

    def tensors(self) -> Iterator[Tensor]:
        yield from self._tensors

    def new_slabs(self, capacity: int, rows: int) -> Tensor:
        size = len(self.layers), 2, rows, self.kv_heads, capacity, self.shape.head_dim
        return self.norm.weight.new_zeros(size)

    def tried_first(self) -> Wanted:
        return [(self._reads(), (1, 2)), (self._drafts(1), (self.shape.places(1),))]

    def new_cache(
        self,
        capacity: int,
        rows: int = 1,
        widths: Collection[int] = (),
        lengths: Collection[int] = (),
    ) -> SlabCache:
        """Room for the text, and for a block after it.

        Args:
            widths: tokens per row that will be read at once while this is timed.
            lengths: tokens that will be drafted.
        """
        places = self.shape.places
        wanted = [(self._reads(), widths), *((self._drafts(k), (places(k),)) for k in lengths)]
        return self.cache_of(capacity + places(self.shape.most), rows, wanted)

    def _reads(self) -> Kind:
        """Its passes over the text as they are recorded."""
        states = self.norm.weight.new_empty(0, self.entering_size)
        return Kind("read", (states,), self._read_evenly, self._read_evenly)

    def _drafts(self, k: int) -> Kind:
        """Its blocks of k drafted tokens."""
        work = partial(self._draft_evenly, k)
        return Kind(("block", k), (self.target_ids.new_empty(0),), work, work)

    @torch.inference_mode()
    def read(self, states: Tensor, cache: SlabCache, counts: Sequence[int]) -> None:
        """Append the keys and values of the target's states [n, layers read · hidden] at the next
        tokens, some for each row of the cache.
        """
        lengths = cache.lengths
        cache.lengths = [have + new for have, new in zip(lengths, counts, strict=True)]
        if (graphs := cache.graphs) and graphs.serves("read", counts):
            graphs.launch("read", (states,), counts, lengths)
            return
        places = [
            (row, length + i)
            for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
            for i in range(count)
        ]
        self._read(states, cache.slabs, *on_device(places, self.device).unbind(1))

    def _read_evenly(self, at: Evenly, states: Tensor) -> tuple[Tensor, ...]:
        """`read` with as many tokens of every row."""
        rows, width = len(at.starts), len(states) // len(at.starts)
        row, slot = (torch.arange(n, device=at.starts.device) for n in (rows, width))
        row = row.unsqueeze(1).expand(-1, width).reshape(-1)
        return self._read(states, at.slabs, row, (at.starts.unsqueeze(1) + slot).flatten())

    def _read(
        self, states: Tensor, slabs: Tensor, row: Tensor, place: Tensor
    ) -> tuple[Tensor, ...]:
        """Store keys and values at places of rows, and return them by layer."""
        entering, stored = self.hidden_norm(self.fc(states.to(self.between))), list[Tensor]()
        for index, layer in enumerate(self.layers):
            stored.append(layer.keys_and_values(entering))
            store(stored[-1], slabs.select(0, index), row, place, self.rotary)
        return tuple(stored)

    @torch.inference_mode()
    def draft(self, lasts: Tensor, k: int, cache: SlabCache, rows: Sequence[int]) -> Chosen:
        """Draft k tokens after the last known tokens [rows] of some rows, whose texts before these
        were read. What it chose must be read before the next pass.
        """
        width, sees, lengths = self.shape.places(k), self.shape.sees, cache.lengths
        tokens = self._begun(lasts, width)
        if (graphs := cache.graphs) and graphs.serves(("block", k), [width]):
            counts = [width if row in rows else 0 for row in range(len(lengths))]
            _, results = graphs.launch(("block", k), (tokens,), counts, lengths)
            return Chosen(*(graphs.some(each, rows) for each in results))
        # Other rows take part, as in `ManyRows`, unless one is left.
        alone = len(rows) == 1
        taking = list(rows) if alone else list(range(len(lengths)))
        slabs = cache.slabs.narrow(2, rows[0], 1) if alone else cache.slabs
        some = None if len(rows) == len(taking) else on_device(list(rows), self.device)
        starts = on_device([lengths[row] for row in taking], self.device)
        reach, group = max(lengths[row] for row in rows) + width, self.group
        placement = BlockRows(slabs, starts, width, reach, self.rotary, group, sees, some)
        return self._drafted(tokens, k, placement)

    def _draft_evenly(self, k: int, at: Evenly, tokens: Tensor) -> tuple[Tensor, ...]:
        """`draft` in every row."""
        width, sees = self.shape.places(k), self.shape.sees
        placement = BlockRows(at.slabs, at.starts, width, at.reach, self.rotary, self.group, sees)
        chosen = self._drafted(tokens, k, placement)
        stated = () if chosen.stated is None else (chosen.stated,)
        return (chosen.tokens, chosen.scores, *stated)

    @torch.inference_mode()
    def along(
        self,
        text: Tensor,
        states: Tensor,
        first: int,
        lengths: Sequence[int],
        *,
        stops: bool = False,
    ) -> dict[int, Drafted]:
        """What blocks of some numbers of tokens draft after each token of a text from `first` on,
        as long as one follows.

        Args:
            states: the target's at all of the text's tokens except the last.
            stops: whether with how sure it is.
        """
        cache, found = self.new_cache(len(text)), {}
        self.read(states, cache, [len(states)])
        starts = torch.arange(first, len(text) - 1, device=self.device)
        slabs, sees = cache.slabs[:, :, 0], self.shape.sees
        for k in lengths:
            width, parts = self.shape.places(k), list[Drafted]()
            for some in starts.split(max(1, PLACES // width)):
                placement = TextBlocks(slabs, some, width, self.rotary, self.group, sees)
                chosen = self._drafted(self._begun(text[some], width), k, placement)
                sure = [chosen.sure("all"), chosen.sure("ten")] if stops else None
                both = None if sure is None else torch.stack(sure, dim=-1)
                parts.append(Drafted(chosen.tokens, chosen.margins, both))
            found[k] = Drafted.side_by_side(parts)
        return found

    def _begun(self, lasts: Tensor, width: int) -> Tensor:
        """Blocks [blocks · width] that begin with these tokens [blocks], and masks."""
        tokens = lasts.new_full((len(lasts), width), self.shape.mask)
        tokens[:, 0] = lasts
        return tokens.flatten()

    def _drafted(self, tokens: Tensor, k: int, placement: Placement) -> Chosen:
        """What blocks draft."""
        shape = self.shape
        width = shape.places(k)
        x = functional.embedding(tokens, self.embedding).to(self.between)
        if shape.embedding_scale != 1.0:
            x = x * shape.embedding_scale
        for index, layer in enumerate(self.layers):
            x = layer(x, placement, index, width)
        drafting = self.norm(x).unflatten(0, (-1, width)).narrow(1, width - k, k)
        logits = self.logits(drafting.flatten(0, 1)).unflatten(0, (-1, k))
        lasts = tokens.unflatten(0, (-1, width)).select(1, 0)
        return self.choose(scaled(logits, shape.logit_scale, shape.softcap), drafting, lasts)
