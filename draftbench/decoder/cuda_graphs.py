"""Records passes of fixed shapes over one cache as CUDA graphs, and lends caches from a pool.

A GPU runs the kernels of a small model's step faster than a host can launch them one by one, so a
step is recorded as one CUDA graph, including the output head and what enters the layers that a head
reads. The choice of a token is not recorded: it is one more launch, and a draft chooses only among
the target's tokens.

A recording is tied to its shapes and to the memory that it reads and writes. So caches are lent
from a pool and taken back, and a recorded pass takes the same number of tokens in every row: the
surplus of narrower rows is written after their valid tokens, where the next pass overwrites it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.runner import HiddenStates, last_of_each, on_device, pinned

# A pass without arguments, which reads its inputs from its own tensors: logits and, where they are
# asked for, the inputs of some layers.
Pass = Callable[[], tuple[Tensor, ...]]
# Turns a pass into a recorded one that reads the same tensors when it is called.
Recorder = Callable[[Pass], Pass]
# Number of keys, tokens [rows · width], starts [rows], slabs, what takes layers' inputs down →
# logits after each token.
Append = Callable[[int, Tensor, Tensor, Tensor, HiddenStates | None], Tensor]
# Layers whose inputs a pass takes down.
Reads = tuple[int, ...]
# Capacities are multiples of this, and the shortest reach is.
STRIDE = 256
# Passes before a recording: a library's first calls allocate memory and choose kernels.
WARM_PASSES = 2
# Least cosine of a recorded pass's logits with those of the same pass launched call by call; in a
# deep model they differ by bfloat16's noise.
LEAST_COSINE = 0.98


class RecordingError(Exception):
    """A recorded pass does not compute the same as the original pass."""


class CudaGraphs:
    """Records passes into memory that they share, so that a result must be read before the next
    pass is launched.

    Args:
        stream: where passes are warmed up and recorded; what libraries allocate there is never
            freed.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream, self._memory = stream, torch.cuda.graph_pool_handle()

    def __call__(self, work: Pass) -> Pass:
        with torch.cuda.device(self._stream.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_PASSES):
                    work()
            before = torch.cuda.current_stream()
            before.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._memory, stream=self._stream):
                    result = work()
            finally:  # a recording that fails midway leaves the other stream current
                torch.cuda.set_stream(before)

        def launch() -> tuple[Tensor, ...]:
            graph.replay()
            return result

        return launch


class RecordedPasses:
    """Passes of some widths, in tokens per row, over one set of slabs.

    Args:
        slabs: dimension 2 is the rows, dimension 4 the tokens.
        recorder: for these passes alone, so that its memory is freed with them.
    """

    def __init__(self, slabs: Tensor, recorder: Recorder) -> None:
        self.slabs, self._recorder = slabs, recorder
        self.rows, self.capacity = slabs.shape[2], slabs.shape[4]
        self._device = str(slabs.device)
        self._starts = torch.zeros(self.rows, dtype=torch.long, device=self._device)
        self._tokens: dict[int, Tensor] = {}
        self._passes: dict[tuple[int, Reads, int], Pass] = {}
        # By what they take down: the tokens per row of recorded passes, in order.
        self.widths: dict[Reads, list[int]] = {}
        # By width, reads and reach: how each recording compared with the pass call by call.
        self.cosines: dict[tuple[int, Reads, int], float] = {}
        # The numbers of keys that passes are recorded for, each about twice the one before.
        self._reaches = [STRIDE]
        while self._reaches[-1] < self.capacity:
            self._reaches.append(min(2 * self._reaches[-1], self.capacity))

    @torch.inference_mode()
    def record(self, widths: Collection[int], reads: Reads, append: Append, plain: Append) -> None:
        """Record the missing passes of these widths, without and with what `reads` takes down, and
        compare each with the `plain` pass, launched call by call.

        Raises:
            RecordingError: they differ.
        """
        for taken, width in product(dict.fromkeys(((), reads)), sorted(set(widths))):
            if width in self.widths.get(taken, ()):
                continue
            size = self.rows * width
            tokens = self._tokens.setdefault(
                width, torch.zeros(size, dtype=torch.long, device=self._device)
            )
            for reach in self._reaches:
                if reach >= width:
                    self._starts.zero_()  # another cache's may lie too far for these
                    tokens.zero_()
                    inputs = (reach, tokens, self._starts, self.slabs)
                    launch = self._recorder(partial(_taking_down, taken, append, inputs))
                    check = partial(_taking_down, taken, plain, inputs)
                    cosine = self._cosine(launch, check, tokens, reach - width)
                    if not cosine >= LEAST_COSINE:
                        raise RecordingError(f"its passes differ then (cosine {cosine:.3f})")
                    self._passes[width, taken, reach] = launch
                    self.cosines[width, taken, reach] = cosine
            self.widths[taken] = sorted([*self.widths.get(taken, ()), width])

    def _cosine(self, launch: Pass, plain: Pass, tokens: Tensor, farthest: int) -> float:
        """Launch a recorded pass with tokens, starts, keys and values other than the recorded ones,
        and compare. Its first timed launch is then not its first launch.
        """
        steps = torch.arange(1, 1 + max(self.rows, len(tokens)), device=self._device)
        self._starts.copy_((farthest - 3 * (steps.narrow(0, 0, self.rows) - 1)).clamp_(min=0))
        # The first 16 tokens, which every vocabulary has.
        tokens.copy_(steps.narrow(0, 0, len(tokens)).remainder(16))
        self.slabs.normal_()
        pairs = zip(plain(), launch(), strict=True)
        cosines = [functional.cosine_similarity(a.float(), b.float(), dim=-1) for a, b in pairs]
        return float(torch.cat(cosines).min())

    def append(
        self,
        tokens: Tensor,
        counts: Sequence[int],
        lengths: Sequence[int],
        *,
        every: bool,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """Logits after each of the tokens [n], or after each row's last; they must be read before
        the next pass. Tokens lie row after row: `counts[r]` of them go after the `lengths[r]` valid
        ones of row r.
        """
        reads = hidden.layers if hidden else ()
        width = next(width for width in self.widths[reads] if width >= max(counts))
        farthest = max(length + count for length, count in zip(lengths, counts, strict=True))
        reach = next(reach for reach in self._reaches if reach >= max(farthest, width))
        launch, place = self._passes[width, reads, reach], self._tokens[width]
        self._starts.copy_(pinned(list(lengths), self._device), non_blocking=True)
        slots = [row * width + slot for row, count in enumerate(counts) for slot in range(count)]
        if len(slots) == len(place):
            place.copy_(tokens)
        else:
            place.index_copy_(0, on_device(slots, self._device), tokens)
        logits, *states = launch()
        if hidden is not None:
            hidden.add(self._of(slots, states[0]))
        return self._of(slots if every else [slots[at] for at in last_of_each(counts)], logits)

    def _of(self, slots: list[int], results: Tensor) -> Tensor:
        """A pass's results at some of its slots."""
        if len(slots) == len(results):
            return results
        return results.index_select(0, on_device(slots, self._device))


def _taking_down(
    reads: Reads, append: Append, inputs: tuple[int, Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """A pass's logits and, if it `reads` layers, their inputs side by side."""
    hidden = HiddenStates(reads) if reads else None
    logits = append(*inputs, hidden)
    return (logits, hidden.joined()) if hidden else (logits,)


@dataclass(frozen=True)
class Lender:
    """Lends slabs with their recordings to caches, and takes them back when a cache is freed. Idle
    slabs that are too small or have the wrong number of rows are freed.

    Args:
        append: the pass to record.
        plain: the same pass by PyTorch's operations, with which recordings are compared.
        longest: tokens per row for which slabs have room at least, so that the first slabs also
            serve longer caches and nothing is recorded again.
    """

    make_slabs: Callable[[int, int], Tensor]
    append: Append
    plain: Append
    make_recorder: Callable[[], Recorder]
    longest: int = 0
    idle: list[RecordedPasses] = field(default_factory=list)

    def lend(
        self, capacity: int, rows: int, widths: Collection[int], reads: Reads = ()
    ) -> RecordedPasses:
        """Zeroed slabs for `capacity` tokens in each of `rows` rows and one more pass, with passes
        of these widths recorded.
        """
        self.idle[:] = [
            passes
            for passes in self.idle
            # Its widest pass must fit entirely, even if this cache asks for narrower ones.
            if passes.rows == rows
            and passes.capacity >= capacity + max(*widths, *passes.widths[()])
        ]
        if self.idle:
            passes = self.idle.pop()
        else:
            room = max(capacity + max(widths), self.longest)
            slabs = self.make_slabs(-(-room // STRIDE) * STRIDE, rows)
            passes = RecordedPasses(slabs, self.make_recorder())
        passes.record(widths, reads, self.append, self.plain)
        passes.slabs.zero_()
        return passes

    def take_back(self, passes: RecordedPasses, *, after: object) -> None:
        """Make the slabs idle again once the cache `after` is freed."""
        weakref.finalize(after, self.idle.append, passes).atexit = False
