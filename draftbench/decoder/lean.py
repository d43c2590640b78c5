"""A Llama-shaped transformers model → a runner with caches of its own.

transformers spends about 0.17 ms of Python on a layer, which is most of a small draft's step. This
runner keeps the model's weights and its rotary tables and drops the rest (`body`). It serves the
families whose layer is exactly this shape (`LEAN_FAMILIES`) and is compared with transformers' own
logits before it is used. Passes of a few tokens run whole, without Python between the layers: as
traces on a CPU (`traced`), as graphs on a GPU (`recorded`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import PIECE, EvenRows, ManyRows, OneRow
from draftbench.decoder.body import Body
from draftbench.decoder.kernels import streams
from draftbench.decoder.recorded import Append, Lender, RecordedPasses, Recorder
from draftbench.decoder.runner import last_of_each, on_device, only_row
from draftbench.decoder.traced import Traceable, trace

LEAN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Whole passes are tried with so many tokens of two rows: what they hold and should read anew shows
# in the second of a width. bfloat16's noise in a deep model is .98.
TRIED = ((2, 1), (1, 1), (2, 2), (1, 1), (1, 2), (2, 2), (0, 2), (1, 0), (0, 1), (2, 0))
LEAST_COSINE = 0.9
# Of the passes of one model; five were counted for eleven shapes of caches.
MOST_COMPILATIONS = 64
# Of a library's reason for what it cannot do.
MOST_CHARACTERS = 200


@dataclass
class SlabCache:
    """Keys and values side by side [rows, 2, key heads, capacity, head] per layer; the first
    `lengths[row]` entries are valid. Passes of `widths` tokens a row run whole: as traces, or as a
    GPU `recorded` them.
    """

    slabs: list[Tensor]
    lengths: list[int]
    widths: Collection[int] = ()
    recorded: RecordedPasses | None = None
    _of_rows: dict[int, list[Tensor]] = field(default_factory=dict)

    def of(self, row: int) -> list[Tensor]:
        """One row's slabs [2, key heads, capacity, head]."""
        if row not in self._of_rows:
            self._of_rows[row] = [slab[row] for slab in self.slabs]
        return self._of_rows[row]

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length

    def recording(self, counts: Sequence[int]) -> RecordedPasses | None:
        """What a pass over so many tokens of each row is recorded in."""
        found = self.recorded
        return found if found is not None and max(counts) <= found.widest else None


def lean_obstacle(model: Any) -> str | None:
    """Why this transformers model cannot run here, or None."""
    config = model.config
    if config.model_type not in LEAN_FAMILIES:
        return f"the family {config.model_type} has layers of another shape"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act}"
    layer_types = getattr(config, "layer_types", None) or []
    if any(kind != "full_attention" for kind in layer_types):
        return "sliding-window layers"
    if getattr(config, "sliding_window", None) and config.model_type == "mistral":
        return "a sliding window"
    if "dynamic" in str((getattr(config, "rope_parameters", None) or {}).get("rope_type")):
        return "rotary tables that depend on the sequence"
    if len({p.device for p in model.parameters()}) > 1:
        return "weights on several devices"
    return None


class LeanRunner:
    """Runs the weights of a Llama-shaped model.

    Args:
        model: a loaded transformers causal LM without `lean_obstacle`; unusable afterwards.
        level: quantization level of the linear layers, the output head included.
        simulate: round the weights to the level's grid instead of using its kernel.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool) -> None:
        config = model.config
        self.vocab_size, self.context_length = config.vocab_size, config.max_position_embeddings
        self._body = Body(model, level, simulate=simulate)
        self._like = self._body.embedding
        self.dtype, self.device = self._like.dtype, str(self._like.device)
        future = torch.full((PIECE, PIECE), float("-inf"), dtype=self.dtype)
        self._future = future.triu_(1).to(self._like.device)
        self._traces: dict[tuple[int, int], Traceable] | None = None
        self._lender: Lender | None = None
        self._compiled = False

    @property
    def name(self) -> str:
        whole = self._traces is not None or self._lender is not None
        how = ", streamed" * streams(self.modules()) + ", compiled" * (whole and self._compiled)
        how += ", call by call" * (not whole)
        return f"draftbench lean ({self.dtype}, {self.device}{how})".replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer, for counting."""
        yield from self._body.linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        return self._body.tensors()

    def trace(self) -> str | None:
        """From now on, run passes of the widths that a cache is made for as traces; or why not."""
        self._traces = {}
        return self._obstacle_to_whole_passes()

    def record_with(
        self, make_recorder: Callable[[], Recorder], *, compiled: bool = False
    ) -> str | None:
        """From now on, run passes of the widths that a cache is made for as such a recorder records
        them, of the operations themselves or `compiled` with torch.compile; or why not.
        """
        append: Append = partial(_append_rows, self._body, self.context_length - 1)
        if compiled:
            # A few times: what differs between two passes becomes a variable of the next.
            append = torch.compile(  # type: ignore[call-overload]
                append, fullgraph=True, isolate_recompiles=True, recompile_limit=MOST_COMPILATIONS
            )
        self._compiled = compiled
        self._lender = Lender(self._body.new_slabs, append, make_recorder)
        return self._obstacle_to_whole_passes()

    def _obstacle_to_whole_passes(self) -> str | None:
        try:
            obstacle = self._difference_of_whole_passes()
        # What cannot be traced or recorded is a library's to say, in an exception of its own.
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()
            # TorchScript tells the reason last, others first.
            obstacle = ([line for line in said if "Error: " in line] or said[:1])[-1]
            obstacle = obstacle[:MOST_CHARACTERS]
        if obstacle:
            self._traces = self._lender = None
        return obstacle

    def _difference_of_whole_passes(self) -> str | None:
        """How whole passes over two rows differ from the same ones call by call."""
        results, capacity = [], sum(map(max, TRIED))
        self._cache_of_whole_passes(capacity, 1, (1, 2))
        whole = self._cache_of_whole_passes(capacity, 2, (1, 2))
        for cache in (whole, self.new_cache(capacity, 2)):
            tokens = torch.arange(1, 1 + sum(map(sum, TRIED)), device=self.device)
            parts = tokens.remainder_(self.vocab_size).split([sum(counts) for counts in TRIED])
            passes = zip(parts, TRIED, strict=True)
            logits = [self.forward(t, cache, every=True, counts=counts) for t, counts in passes]
            results.append(torch.cat(logits).float())
        cosine = float(functional.cosine_similarity(results[0], results[1], dim=-1).min())
        return None if cosine >= LEAST_COSINE else f"its passes differ then (cosine {cosine:.3f})"

    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length."""
        if widths:
            try:
                return self._cache_of_whole_passes(capacity, rows, widths)
            except RuntimeError:  # these cannot run whole, though those that were tried could
                pass
        return SlabCache(self._body.new_slabs(capacity, rows), [0] * rows)

    def _cache_of_whole_passes(
        self, capacity: int, rows: int, widths: Collection[int]
    ) -> SlabCache:
        if self._lender is not None:
            recorded = self._lender.lend(capacity, rows, widths)
            cache = SlabCache(recorded.slabs, [0] * rows, widths, recorded)
            self._lender.take_back(recorded, after=cache)
            return cache
        if self._traces is not None:
            longest = min(PIECE, self.context_length - 1)
            for width in widths:
                if width <= longest and (rows, width) not in self._traces:
                    self._traces[rows, width] = self._traced(rows, width)
        return SlabCache(self._body.new_slabs(capacity, rows), [0] * rows, widths)

    @torch.inference_mode()
    def _traced(self, rows: int, width: int) -> Traceable:
        """A trace of the pass over `width` tokens behind one in each row, which ran once: it is
        planned then.
        """
        slabs = self._body.new_slabs(width + 1, rows)
        tokens = torch.zeros(rows * width, dtype=torch.long)
        work, starts = self._append_rows(None), torch.ones(rows, dtype=torch.long)
        if rows == 1:
            slabs = [slab[0] for slab in slabs]
            work, starts = self._append_row(width), starts[0]
        traced = trace(work, [tokens, starts, *slabs], self._body.packed)
        traced(tokens, starts, *slabs)
        return traced

    def _append_row(self, width: int) -> Traceable:
        """(tokens, start, one row's slabs ...) → the sum of all blocks."""
        return partial(_append_row, self._body, self._future, width)

    def _append_rows(self, reach: int | None) -> Traceable:
        """(tokens, starts, slabs ...) → the sum of all blocks, for as many tokens in each row."""
        return partial(_append_rows, self._body, self.context_length - 1, reach)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, cache: SlabCache, *, every: bool, counts: Sequence[int] | None = None
    ) -> Tensor:
        """Append tokens [n]; logits after every one or after each row's last. A long prompt is read
        in pieces.
        """
        counts = counts or [tokens.shape[0]]
        row = only_row(counts)
        if row is None or cache.recording(counts):
            both = self._append_side_by_side(tokens, cache, counts)
            if not every and max(counts) > 1:
                both = both[on_device(last_of_each(counts), self.device)]
        else:
            pieces = self._append_to(row, tokens, cache)
            both = torch.cat(pieces) if every else pieces[-1][-1:]
        return self._body.logits(both)

    def _append_side_by_side(
        self, tokens: Tensor, cache: SlabCache, counts: Sequence[int]
    ) -> Tensor:
        """Read tokens [n] of several rows; the sum of all blocks."""
        lengths, width, recorded = cache.lengths, max(counts), cache.recording(counts)
        cache.lengths = [have + new for have, new in zip(lengths, counts, strict=True)]
        if recorded is not None:
            return recorded.append(tokens, counts, lengths)
        if min(counts) < width:
            placement = ManyRows(lengths, counts, self._body.group, self._like)
            return self._body.append(tokens, cache.slabs, placement)
        run = self._whole(cache, len(counts), width) or self._append_rows(max(cache.lengths))
        return run(tokens, on_device(lengths, self.device), *cache.slabs)

    def _append_to(self, row: int, tokens: Tensor, cache: SlabCache) -> list[Tensor]:
        """Read tokens [n] of one row; the sum of all blocks for each piece."""
        found, slabs = [], cache.of(row)
        for piece in tokens.split(PIECE):
            have, new = cache.lengths[row], piece.shape[0]
            run = self._whole(cache, 1, new) or self._append_row(new)
            found.append(run(piece, torch.tensor(have), *slabs))
            cache.lengths[row] = have + new
        return found

    def _whole(self, cache: SlabCache, rows: int, width: int) -> Traceable | None:
        """The trace of a pass that the cache was made for."""
        return self._traces.get((rows, width)) if self._traces and width in cache.widths else None


def _append_row(
    body: Body, future: Tensor, width: int, tokens: Tensor, start: Tensor, *slabs: Tensor
) -> Tensor:
    """Read tokens [width] of the row whose slabs these are, behind its `start` [] valid ones; the
    sum of all blocks.
    """
    return body.append(tokens, slabs, OneRow(start, width, body.group, future))


def _append_rows(
    body: Body, last: int, reach: int | None, tokens: Tensor, starts: Tensor, *slabs: Tensor
) -> Tensor:
    """Read tokens [rows · width], as many of each row, behind `starts` [rows] valid ones."""
    width = len(tokens) // len(starts)
    placement = EvenRows(starts, width, reach, body.group, body.embedding, last)
    return body.append(tokens, slabs, placement)
