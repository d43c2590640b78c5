"""A Llama-shaped transformers model → a runner with caches of its own.

transformers spends about 0.17 ms of Python on a layer, which is most of a small draft's step. This
runner keeps the model's weights and its rotary tables and drops the rest (`body`). It serves the
families whose layer is exactly this shape (`LEAN_FAMILIES`) and is compared with transformers' own
logits before it is used. Passes of a few tokens run whole, without Python between the layers: as
traces on a CPU (`traced`), as graphs on a GPU (`recorded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decode.attention import PIECE, FixedRows, ManyRows, OneRow
from draftbench.decode.body import Body
from draftbench.decode.recorded import Lender, RecordedPasses, Recorder
from draftbench.decode.runner import last_of_each, on_device, only_row
from draftbench.decode.traced import Traceable, trace

LEAN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Whole passes are tried with so many tokens of two rows: what they hold and should read anew shows
# in the second of a width. bfloat16's noise in a deep model is .98.
TRIED = ((3, 1), (1, 1), (2, 3), (1, 1), (0, 2), (1, 0), (0, 1), (2, 0))
LEAST_COSINE = 0.9
# Of a library's reason for what it cannot do.
MOST_CHARACTERS = 200


@dataclass
class SlabCache:
    """Keys and values side by side [rows, 2, key heads, capacity, head] per layer; the first
    `lengths[row]` entries are valid. `recorded` are passes that a GPU launches whole.
    """

    slabs: list[Tensor]
    lengths: list[int]
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
        self._traces: dict[int, Traceable] | None = None
        self._lender: Lender | None = None

    @property
    def name(self) -> str:
        whole = self._traces is not None or self._lender is not None
        how = "" if whole else ", call by call"
        return f"draftbench lean ({self.dtype}, {self.device}{how})".replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer, for counting."""
        yield from self._body.linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        return self._body.tensors()

    def trace(self) -> str | None:
        """From now on, run passes over a few tokens of one row as traces where a cache is made for
        timed ones; or why not.
        """
        self._traces = {}
        return self._obstacle_to_whole_passes()

    def record_with(self, recorder: Recorder) -> str | None:
        """From now on, run the passes over caches that are made for timed ones as `recorder`
        records them; or why not.
        """
        append = partial(_append_fixed, self._body, self.context_length - 1)
        self._lender = Lender(self._body.new_slabs, append, recorder)
        return self._obstacle_to_whole_passes()

    def _obstacle_to_whole_passes(self) -> str | None:
        try:
            obstacle = self._difference_of_whole_passes()
        # What cannot be traced or recorded is a library's to say, in an exception of its own.
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()
            obstacle = [line for line in said if "Error: " in line][-1][:MOST_CHARACTERS]
        if obstacle:
            self._traces = self._lender = None
        return obstacle

    def _difference_of_whole_passes(self) -> str | None:
        """How whole passes over two rows differ from the same ones call by call."""
        results = []
        for widest in (max(map(max, TRIED)), 0):
            cache = self.new_cache(sum(map(max, TRIED)), 2, widest)
            tokens = torch.arange(1, 1 + sum(map(sum, TRIED)), device=self.device)
            parts = tokens.remainder_(self.vocab_size).split([sum(counts) for counts in TRIED])
            passes = zip(parts, TRIED, strict=True)
            logits = [self.forward(t, cache, every=True, counts=counts) for t, counts in passes]
            results.append(torch.cat(logits).float())
        cosine = float(functional.cosine_similarity(results[0], results[1], dim=-1).min())
        return None if cosine >= LEAST_COSINE else f"its passes differ then (cosine {cosine:.3f})"

    def new_cache(self, capacity: int, rows: int = 1, widest: int = 0) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length."""
        if self._lender is not None and widest > 0:
            recorded = self._lender.lend(capacity, rows, widest)
            cache = SlabCache(recorded.slabs, [0] * rows, recorded)
            self._lender.take_back(recorded, after=cache)
            return cache
        if self._traces is not None:
            self._trace_up_to(widest, self._traces)
        return SlabCache(self._body.new_slabs(capacity, rows), [0] * rows)

    @torch.inference_mode()
    def _trace_up_to(self, widest: int, traces: dict[int, Traceable]) -> None:
        """Trace the passes that are missing, and run each once: it is planned then."""
        for n in range(len(traces) + 1, min(widest, self.context_length - 1) + 1):
            slabs = [slab[0] for slab in self._body.new_slabs(n + 1, 1)]
            example = [torch.zeros(n, dtype=torch.long), torch.tensor(1), *slabs]
            work = partial(_append_row, self._body, self._future, n)
            traces[n] = trace(work, example, self._body.packed)
            traces[n](*example)

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
        recorded = cache.recording(counts)
        if recorded is not None:
            both = recorded.append(tokens, counts, cache.lengths)
        else:
            placement = ManyRows(cache.lengths, counts, self._body.group, self._like)
            both = self._body.append(tokens, cache.slabs, placement)
        cache.lengths = [have + new for have, new in zip(cache.lengths, counts, strict=True)]
        return both

    def _append_to(self, row: int, tokens: Tensor, cache: SlabCache) -> list[Tensor]:
        """Read tokens [n] of one row; the sum of all blocks for each piece."""
        found, slabs = [], cache.of(row)
        for piece in tokens.split(PIECE):
            have, new = cache.lengths[row], piece.shape[0]
            run = self._traces.get(new) if self._traces else None
            run = run or partial(_append_row, self._body, self._future, new)
            found.append(run(piece, torch.tensor(have), *slabs))
            cache.lengths[row] = have + new
        return found


def _append_row(
    body: Body, future: Tensor, n: int, tokens: Tensor, start: Tensor, *slabs: Tensor
) -> Tensor:
    """Read tokens [n] of the row whose slabs these are, behind its `start` [] valid ones; the sum
    of all blocks.
    """
    return body.append(tokens, slabs, OneRow(start, n, body.group, future))


def _append_fixed(
    body: Body, last: int, tokens: Tensor, starts: Tensor, reach: int, slabs: list[Tensor]
) -> Tensor:
    """Read as many tokens [rows · width] of every row, behind `starts` [rows]."""
    width = len(tokens) // len(starts)
    placement = FixedRows(starts, width, reach, body.group, body.embedding, last)
    return body.append(tokens, slabs, placement)
