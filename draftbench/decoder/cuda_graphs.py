"""Records passes of fixed shapes over one cache as CUDA graphs, and lends caches from a pool.

A GPU runs the kernels of a small model's step faster than a host can launch them one by one, so a
step is recorded as one CUDA graph, including the output head and what enters the layers that a head
reads. The choice of a model's token is not recorded: it is one more launch, and a draft chooses
only among the target's tokens.

A recording is tied to its shapes and to the memory that it reads and writes. So caches are lent
from a pool and taken back, and a recorded pass takes the same number of tokens in every row: the
surplus of narrower rows is written after their valid tokens, where the next pass overwrites it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.runner import on_device, pinned
from draftbench.errors import ModelError

# A pass without arguments, which reads its inputs from its own tensors.
Pass = Callable[[], tuple[Tensor, ...]]
# Turns a pass into a recorded one that reads the same tensors when it is called.
Recorder = Callable[[Pass], Pass]
# Capacities are multiples of this, and the shortest reach is.
STRIDE = 256
# Passes before a recording: a library's first calls allocate memory and choose kernels.
WARM_PASSES = 2
# Least cosine of a recorded pass's results with those of the same pass launched call by call; in a
# deep model they differ by bfloat16's noise.
LEAST_COSINE = 0.98
# How many characters of a library's error are shown.
MOST_CHARACTERS = 200


class RecordingError(Exception):
    """A recorded pass does not compute the same as the original pass."""


class Evenly(NamedTuple):
    """Where a pass puts as many tokens of every row."""

    reach: int  # number of keys to look at, at least every start + width
    starts: Tensor  # [rows] the valid tokens before them
    ends: Tensor  # [rows] the place of each row's last token among those of all rows
    slabs: Tensor


# Where its tokens go and what it reads for each of them → results.
Work = Callable[..., tuple[Tensor, ...]]


class Kind(NamedTuple):
    """Passes that differ only in their sizes."""

    name: Hashable
    inputs: tuple[Tensor, ...]  # empty ones, of the types and sizes that it reads for a token
    work: Work
    plain: Work  # the same by PyTorch's operations, with which recordings are compared


# Kinds of passes, and the tokens per row for which they are recorded.
Wanted = Sequence[tuple[Kind, Collection[int]]]


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
        # Of each row the valid tokens, and the place of the last new one.
        self._rows = torch.zeros(2, self.rows, dtype=torch.long, device=self._device)
        self._inputs: dict[tuple[Hashable, int], list[Tensor]] = {}
        self._passes: dict[tuple[Hashable, int, int], Pass] = {}
        # By kind: the tokens per row of recorded passes, in order.
        self.widths: dict[Hashable, list[int]] = {}
        # By kind, width and reach: how each recording compared with the pass call by call.
        self.cosines: dict[tuple[Hashable, int, int], float] = {}
        # The numbers of keys that passes are recorded for, each about twice the one before.
        self._reaches = [STRIDE]
        while self._reaches[-1] < self.capacity:
            self._reaches.append(min(2 * self._reaches[-1], self.capacity))

    @property
    def widest(self) -> int:
        """Tokens per row of the widest recorded pass."""
        return max((widths[-1] for widths in self.widths.values()), default=0)

    @torch.inference_mode()
    def record(self, kind: Kind, widths: Collection[int]) -> None:
        """Record the missing passes of these widths, and compare each with the plain pass, launched
        call by call.

        Raises:
            RecordingError: they differ.
        """
        for width in sorted({*widths}.difference(self.widths.get(kind.name, ()))):
            size = self.rows * width
            inputs = [each.new_zeros(size, *each.shape[1:]) for each in kind.inputs]
            self._inputs[kind.name, width] = inputs
            starts, ends = self._rows.unbind()
            for reach in self._reaches:
                if reach >= width:
                    starts.zero_()  # another cache's may lie too far for these
                    ends.copy_(torch.arange(width - 1, size, width, device=self._device))
                    for each in inputs:
                        each.zero_()
                    given = (Evenly(reach, starts, ends, self.slabs), *inputs)
                    launch = self._recorder(partial(kind.work, *given))
                    plain = partial(kind.plain, *given)
                    cosine = self._cosine(launch, plain, inputs, reach - width)
                    if not cosine >= LEAST_COSINE:
                        raise RecordingError(f"its passes differ then (cosine {cosine:.3f})")
                    self._passes[kind.name, width, reach] = launch
                    self.cosines[kind.name, width, reach] = cosine
            self.widths[kind.name] = sorted([*self.widths.get(kind.name, ()), width])

    def _cosine(self, launch: Pass, plain: Pass, inputs: Sequence[Tensor], farthest: int) -> float:
        """Launch a recorded pass with inputs, starts, keys and values other than the recorded ones,
        and compare. Its first timed launch is then not its first launch.
        """
        steps = torch.arange(max(self.rows, *map(len, inputs)), device=self._device)
        self._rows[0].copy_((farthest - 3 * steps.narrow(0, 0, self.rows)).clamp_(min=0))
        for each in inputs:
            if each.is_floating_point():
                each.normal_()
            else:  # the first 16 tokens, which every vocabulary has
                each.copy_((steps.narrow(0, 0, len(each)) + 1).remainder(16))
        self.slabs.normal_()
        pairs = [(a, b) for a, b in zip(plain(), launch(), strict=True) if a.is_floating_point()]
        cosines = [functional.cosine_similarity(a.float(), b.float(), dim=-1) for a, b in pairs]
        return float(torch.cat([each.flatten() for each in cosines]).min())

    def serves(self, kind: Hashable, counts: Sequence[int]) -> bool:
        """Whether a pass of this kind that brings each row so many tokens is recorded."""
        return kind in self.widths and max(counts) <= self.widths[kind][-1]

    def launch(
        self,
        kind: Hashable,
        inputs: Sequence[Tensor],
        counts: Sequence[int],
        lengths: Sequence[int],
    ) -> tuple[list[int], tuple[Tensor, ...]]:
        """Launch a pass over tokens that lie row after row: `counts[r]` of them go after the
        `lengths[r]` valid ones of row r. Returns the tokens' places in the results, and the
        results, which must be read before the next pass.
        """
        width = next(width for width in self.widths[kind] if width >= max(counts))
        farthest = max(length + count for length, count in zip(lengths, counts, strict=True))
        reach = next(reach for reach in self._reaches if reach >= max(farthest, width))
        ends = [row * width + max(count, 1) - 1 for row, count in enumerate(counts)]
        self._rows.copy_(pinned([list(lengths), ends], self._device), non_blocking=True)
        slots = [row * width + slot for row, count in enumerate(counts) for slot in range(count)]
        places = self._inputs[kind, width]
        if len(slots) == self.rows * width:
            for place, given in zip(places, inputs, strict=True):
                place.copy_(given)
        else:
            at = on_device(slots, self._device)
            for place, given in zip(places, inputs, strict=True):
                place.index_copy_(0, at, given)
        return slots, self._passes[kind, width, reach]()

    def some(self, results: Tensor, at: Sequence[int]) -> Tensor:
        """A pass's results at some places; themselves where these are all."""
        if len(at) == len(results):
            return results
        return results.index_select(0, on_device(list(at), self._device))


@dataclass
class SlabCache:
    """Keys and values side by side [layers, 2, rows, key heads, capacity, head]; the first
    `lengths[row]` entries are valid. Short passes may run as `graphs`.
    """

    slabs: Tensor
    lengths: list[int]
    graphs: RecordedPasses | None = None

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length


@dataclass(frozen=True)
class Lender:
    """Lends caches with recordings, and takes the slabs back when a cache is freed. Idle slabs that
    are too small or have the wrong number of rows are freed.

    Args:
        longest: tokens per row for which slabs have room at least, so that the first slabs also
            serve longer caches and nothing is recorded again.
    """

    make_slabs: Callable[[int, int], Tensor]
    make_recorder: Callable[[], Recorder]
    longest: int = 0
    idle: list[RecordedPasses] = field(default_factory=list)

    def lend(self, capacity: int, rows: int, wanted: Wanted) -> SlabCache:
        """Zeroed slabs for `capacity` tokens in each of `rows` rows and one more pass, with what is
        wanted recorded.
        """
        widest = max(max(widths) for _, widths in wanted)
        self.idle[:] = [
            passes
            for passes in self.idle
            # Its widest pass must fit entirely, even if this cache asks for narrower ones.
            if passes.rows == rows and passes.capacity >= capacity + max(widest, passes.widest)
        ]
        if self.idle:
            passes = self.idle.pop()
        else:
            room = max(capacity + widest, self.longest)
            slabs = self.make_slabs(-(-room // STRIDE) * STRIDE, rows)
            passes = RecordedPasses(slabs, self.make_recorder())
        for kind, widths in wanted:
            passes.record(kind, widths)
        passes.slabs.zero_()
        cache = SlabCache(passes.slabs, [0] * rows, passes)
        weakref.finalize(cache, self.idle.append, passes).atexit = False
        return cache


class RecordsPasses:
    """What runs short passes as CUDA graphs from when it is asked to, if its device can."""

    device: str
    longest = 0  # tokens per row for which recorded caches have room from the start
    how = ""  # how it runs them, for its name
    _lender: Lender | None = None

    def new_slabs(self, capacity: int, rows: int) -> Tensor:
        """Zeros [layers, 2, rows, key heads, capacity, head]."""
        raise NotImplementedError

    def tried_first(self) -> Wanted:
        """One pass of each kind and width that shows whether they can be recorded."""
        raise NotImplementedError

    def record_short_passes(self) -> str | None:
        """From now on, run passes of the widths that a cache is made for as CUDA graphs. If a GPU
        cannot record them, returns a sentence that says why; a CPU has none.
        """
        if self.device == "cpu":
            return None
        stream = torch.cuda.Stream(self.device)
        return self.record_with(lambda: CudaGraphs(stream))

    def record_with(self, make_recorder: Callable[[], Recorder]) -> str | None:
        """`record_short_passes` with any recorder."""
        if why := self.try_recording(make_recorder):
            self.how = ", call by call"
            return f"launches its steps call by call, not as CUDA graphs: {why}"
        return None

    def try_recording(self, make_recorder: Callable[[], Recorder]) -> str:
        """Try to record on short caches; returns why that fails, empty if it works."""
        lender = Lender(self.new_slabs, make_recorder, self.longest)
        try:
            for rows in (1, 2):
                replace(lender, longest=0, idle=[]).lend(1, rows, self.tried_first())
        except RecordingError as error:
            return str(error)
        # A library that cannot record raises an exception of any class.
        except Exception as error:
            return reason_of(error)
        self._lender = lender
        return ""

    def forget_caches(self) -> None:
        """Free the slabs that are not lent out, and their recordings."""
        if self._lender is not None:
            self._lender.idle.clear()

    def cache_of(self, capacity: int, rows: int, wanted: Wanted) -> SlabCache:
        """An empty cache, with what is wanted recorded if passes are.

        Raises:
            ModelError: these passes cannot be recorded, though others could. Launched call by call
                their times would not be comparable.
        """
        wanted = [(kind, widths) for kind, widths in wanted if widths]
        if self._lender is None or not wanted:
            return SlabCache(self.new_slabs(capacity, rows), [0] * rows)
        try:
            return self._lender.lend(capacity, rows, wanted)
        except torch.OutOfMemoryError:
            raise
        # A library that cannot record raises an exception of any class.
        except Exception as error:
            raise ModelError(
                f"passes over {rows} rows of {capacity} tokens cannot be recorded as CUDA graphs "
                f"({reason_of(error)})",
                hint="fewer rows or shorter responses may work; please report it",
            ) from error


def reason_of(error: Exception) -> str:
    """The first line of a library's error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:MOST_CHARACTERS]
