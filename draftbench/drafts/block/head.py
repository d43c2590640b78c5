"""A block drafter: what it keeps of a text, and what it drafts after it.

Let y be the text and h the target's states. A token's keys and values are made of h at that token
alone, so they depend on the text alone. A block holds the last known token y[n], at its own place,
and masks at the places after it; the block's places see the text before n and each other. Masks
draft the token of their own place or, if the block is anchored, every place drafts the one after
it. What a block drafts depends on how many tokens it drafts, unless each place sees only those
before it: so there is a pass for every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import BlockRows, Placement, Rotary, TextBlocks, store
from draftbench.decoder.cuda_graphs import SlabCache
from draftbench.decoder.linear import Product, as_function, runner_name
from draftbench.decoder.llama_model import rotary_tables
from draftbench.decoder.runner import Runner, on_device
from draftbench.drafts.block.choice import Biased, Choice, Chosen, EachForItself, Following, scaled
from draftbench.drafts.block.layers import Convolution, Layer, Norm
from draftbench.drafts.block.shape import BlockShape
from draftbench.drafts.heads.head import Drafted

# Places of blocks that draft side by side in replay; each sees the others' keys hidden.
PLACES = 512


class BlockHead:
    """A block drafter with its weights.

    Args:
        tensors: of its checkpoint, by the names of the speculators format.
        target: the target as it runs, whose embedding and output head it uses unless it has some.
        rotary: a transformers module that gives rotary tables.
        make_linear: makes a layer of weights and bias.
    """

    def __init__(
        self,
        shape: BlockShape,
        tensors: Mapping[str, Tensor],
        target: Runner,
        rotary: nn.Module,
        make_linear: Callable[..., nn.Module],
        dtype: torch.dtype,
    ) -> None:
        self.shape, layer = shape, shape.layer
        self.reads, self.context_length = shape.reads, target.context_length
        self.dtype, device = dtype, target.device
        self.heads, self.kv_heads = layer.num_attention_heads, layer.num_key_value_heads
        self.linears: list[nn.Module] = []
        self._tensors: list[Tensor] = []

        def given(name: str) -> Tensor:
            self._tensors.append(tensors[name].to(device, dtype, copy=True))
            return self._tensors[-1]

        def norm(name: str) -> Norm:
            return Norm(given(f"{name}.weight"), layer.rms_norm_eps)

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
        self.rotary = Rotary(*rotary_tables(rotary.to(device), like, self.context_length))

    @property
    def name(self) -> str:
        return runner_name("draftbench", self)

    def modules(self) -> Iterator[nn.Module]:
        yield from self.linears

    def tensors(self) -> Iterator[Tensor]:
        yield from self._tensors

    def new_cache(self, capacity: int, rows: int = 1) -> SlabCache:
        """Room for the text, and for a block after it."""
        room, head_dim = capacity + self.shape.places(self.shape.most), self.shape.head_dim
        size = len(self.layers), 2, rows, self.kv_heads, room, head_dim
        return SlabCache(self.norm.weight.new_zeros(size), [0] * rows)

    @torch.inference_mode()
    def read(self, states: Tensor, cache: SlabCache, counts: Sequence[int]) -> Tensor:
        """Append the keys and values of the target's states [n, layers read · hidden] at the next
        tokens, some for each row of the cache. Returns their places.
        """
        entering = self.hidden_norm(self.fc(states))
        places = [
            (row, length + i)
            for row, (length, count) in enumerate(zip(cache.lengths, counts, strict=True))
            for i in range(count)
        ]
        row, place = on_device(places, self.device).unbind(1)
        for index, layer in enumerate(self.layers):
            slab = cache.slabs[index]
            store(layer.keys_and_values(entering), slab, row, place, self.rotary)
        cache.lengths = [have + new for have, new in zip(cache.lengths, counts, strict=True)]
        return place

    @torch.inference_mode()
    def draft(self, lasts: Tensor, k: int, cache: SlabCache, rows: Sequence[int]) -> Chosen:
        """Draft k tokens after the last known tokens [rows] of some rows, whose texts before these
        were read.
        """
        width, sees = self.shape.places(k), self.shape.sees
        group, rotary = self.group, self.rotary
        placement = BlockRows(cache.slabs, cache.lengths, rows, width, rotary, group, sees)
        return self._drafted(lasts, k, placement)

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
                chosen = self._drafted(text[some], k, placement)
                sure = [chosen.sure("all"), chosen.sure("ten")] if stops else None
                both = None if sure is None else torch.stack(sure, dim=-1)
                parts.append(Drafted(chosen.tokens, chosen.margins, both))
            found[k] = Drafted.side_by_side(parts)
        return found

    def _drafted(self, lasts: Tensor, k: int, placement: Placement) -> Chosen:
        """What blocks draft that begin with these tokens [blocks]."""
        shape = self.shape
        width = shape.places(k)
        tokens = lasts.new_full((len(lasts), width), shape.mask)
        tokens[:, 0] = lasts
        x = functional.embedding(tokens.flatten(), self.embedding).to(self.dtype)
        if shape.embedding_scale != 1.0:
            x = x * shape.embedding_scale
        for index, layer in enumerate(self.layers):
            x = layer(x, placement, index, width)
        drafting = self.norm(x).view(len(lasts), width, -1)[:, width - k :]
        logits = self.logits(drafting.flatten(0, 1)).view(len(lasts), k, -1)
        return self.choose(scaled(logits, shape.logit_scale, shape.softcap), drafting, lasts)
