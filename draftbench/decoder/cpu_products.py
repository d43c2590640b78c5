"""Products of tokens with 16-bit weights, by a kernel that Numba compiles for this CPU.

A pass over one token takes as long as reading every weight once, and a pass over a few should cost
little more. So weights stay in 16 bits, and are widened once for as many tokens as the registers
can sum (Goto and van de Geijn 2008, *Anatomy of high-performance matrix multiplication*). Every
output is one sum in float32, in the order of the inputs: it is the same for any number of other
tokens and of threads. `scripts/bench_layouts.py` times it.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from threading import Lock

import numpy as np
import torch
from llvmlite import ir
from numba import carray, cfunc, from_dtype, int32, int64, intp, types, void
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.compiling import (
    THREADED_FROM,
    OfThisProcess,
    address_of,
    called,
    compiled,
    in_parallel,
    on_stack,
    thread_number,
    threads_allowed,
    threads_there,
)

# Numbers in a register, and how many registers of 16-bit weights are read for each input.
_MACHINE, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()
LANES, VECTORS = (16, 2) if "+avx512f" in _FEATURES else (8, 1)
# The outputs whose weights these are, and how many tokens are summed at once: their sums take two
# registers for each token and VECTORS, 24 of AVX-512's 32 or 12 of AVX2's 16.
PANEL, TOKENS = VECTORS * 2 * LANES, 6
# How many inputs a panel goes through before the next: that many of each token fit the L1 cache.
INPUTS = 256 * VECTORS
# Bytes of a cache line, and 16-bit numbers in a piece of memory that is reserved for weights.
LINE, RESERVED = 64, 1 << 24
# What weights may be. LLVM knows no float16 on an x86 CPU that cannot convert it.
_CONVERTS = "+f16c" in _FEATURES or not _MACHINE.startswith(("x86", "i"))
TYPES = (torch.bfloat16, torch.float16) if _CONVERTS else (torch.bfloat16,)

_FLOAT, _INT, _PLACE = ir.FloatType(), ir.IntType(32), ir.IntType(intp.bitwidth)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)


def _summing(module, tokens, is_half):
    """The function for some tokens: a panel's sums so far and, input by input, each token times its
    weights.

    Its arguments are the addresses of tokens, weights [inputs, PANEL], sums so far and results; the
    number of inputs; and how far apart two tokens lie, two of the sums so far, and two results.
    """
    kind = ir.FunctionType(ir.VoidType(), [_PLACE] * 8)
    function = ir.Function(module, kind, f"sums_of_{tokens}_{is_half}")
    function.linkage = "internal"
    function.attributes.add("noinline")  # several in one function would share parts of their loops
    builder = ir.IRBuilder(function.append_basic_block())
    x, weights, so_far, out, inputs, x_apart, so_far_apart, out_apart = function.args

    def at(address, place, kind):
        return builder.gep(builder.inttoptr(address, kind.as_pointer()), [place])

    def loaded(address, place, kind):
        return builder.load(at(address, place, kind), align=4)

    def register(address, place):
        return builder.bitcast(at(address, place, _FLOAT), _FLOATS.as_pointer())

    def times(number, factor, plus=0):
        return builder.add(builder.mul(number, _PLACE(factor)), _PLACE(plus))

    def filled(value):
        return ir.Constant(_INTS, [value] * LANES)

    def widened(place):
        """A register of weights as two of float32."""
        if is_half:
            halves = [loaded(weights, times(place, 2, side), _HALVES) for side in range(2)]
            return [builder.fpext(each, _FLOATS) for each in halves]
        pairs = loaded(weights, place, _INTS)  # a bfloat16 is the upper half of a float32
        bits = builder.shl(pairs, filled(16)), builder.and_(pairs, filled(0xFFFF0000))
        return [builder.bitcast(each, _FLOATS) for each in bits]

    def everywhere(number):
        empty = ir.Constant(_FLOATS, ir.Undefined)
        return builder.shuffle_vector(
            builder.insert_element(empty, number, _INT(0)), empty, filled(0)
        )

    sums = {
        (token, part): cgutils.alloca_once_value(builder, builder.load(begin, align=4))
        for token in range(tokens)
        for part in range(2 * VECTORS)
        for begin in [register(so_far, times(so_far_apart, token, part * LANES))]
    }
    with cgutils.for_range(builder, inputs) as loop:
        places = (times(loop.index, VECTORS, vector) for vector in range(VECTORS))
        wide = [each for place in places for each in widened(place)]
        for token in range(tokens):
            every = everywhere(loaded(x, builder.add(loop.index, times(x_apart, token)), _FLOAT))
            for part, weight in enumerate(wide):
                product = builder.fmul(every, weight, flags=["contract"])
                before = builder.load(sums[token, part])
                after = builder.fadd(before, product, flags=["contract"])
                builder.store(after, sums[token, part])
    for (token, part), sum_ in sums.items():
        place = register(out, times(out_apart, token, part * LANES))
        builder.store(builder.load(sum_), place, align=4)
    builder.ret_void()
    return function


@intrinsic
def _sum(typing, case, x, weights, so_far, out, inputs, x_apart, so_far_apart, out_apart):
    """`_summing` for twice the number of tokens, plus 1 if weights are float16."""

    def generate(context, builder, signature, arguments):
        end = builder.append_basic_block()
        switch = builder.switch(arguments[0], end)
        for tokens in range(1, TOKENS + 1):
            for is_half in range(len(TYPES)):
                switch.add_case(2 * tokens + is_half, block := builder.append_basic_block())
                with builder.goto_block(block):
                    builder.call(_summing(builder.module, tokens, is_half), arguments[1:])
                    builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return void(int32, *[intp] * 8), generate


@compiled(void(types.CPointer(int64)), by=cfunc)
def _of_a_thread(task):
    """A product's panels that fall to this thread. It must not raise: nobody would hear of it."""
    half, x, weights, bias, out, n, inputs, panels, shared = carray(task, 9)
    thread, threads = (thread_number(), threads_there()) if shared else (0, 1)
    first, last = panels * thread // threads, panels * (thread + 1) // threads
    apart, parts = panels * PANEL, (n + TOKENS - 1) // TOKENS
    for begun in range(0, max(inputs, 1), INPUTS):
        some = min(INPUTS, inputs - begun)
        for panel in range(first, last):
            to = out + 4 * panel * PANEL
            so_far, so_far_apart = (to, apart) if begun else (bias + 4 * panel * PANEL, 0)
            for part in range(parts):  # as equal as can be: a few tokens take as long as more
                token, end = n * part // parts, n * (part + 1) // parts
                _sum(
                    int32(2 * (end - token) + half),
                    x + 4 * (token * inputs + begun),
                    weights + 2 * PANEL * (begun * panels + panel * some),
                    so_far + 4 * token * so_far_apart,
                    to + 4 * token * apart,
                    some,
                    inputs,
                    so_far_apart,
                    apart,
                )


# How a product is computed; results are rows of `outputs` numbers, whole panels.
PRODUCT = np.dtype(
    [(each, np.int64) for each in ("of_a_thread", "half", "weights", "bias", "inputs", "outputs")]
)


@compiled(void(from_dtype(PRODUCT), *[intp] * 4))
def multiply(how, x, out, n, threads):
    """Products of the n tokens at `x`; `out` has room for n rows of results."""
    shared = threads > 1 and n * how.inputs * how.outputs >= THREADED_FROM
    at, panels = (how.half, x, how.weights, how.bias, out), how.outputs // PANEL
    task = on_stack((*at, n, how.inputs, panels, intp(shared)))
    if shared:
        in_parallel(how.of_a_thread, task, threads, 0)
    else:
        called(how.of_a_thread, task)


_rest, _one_at_a_time = np.empty(0, np.int16), Lock()  # what is left of the last piece


def _reserved(numbers: int) -> Tensor:
    """Memory for 16-bit numbers, aligned to a cache line. NumPy asks Linux for pages of 2 MB where
    it reserves several: to look up pages of 4 kB would take a sixth of the time of a step.
    """
    global _rest
    size = -(-2 * numbers // LINE) * LINE // 2
    with _one_at_a_time:
        alone = size > RESERVED // 2  # others would keep its memory when it is no longer needed
        if alone or size > len(_rest):
            piece = np.empty((size if alone else RESERVED) + LINE // 2, np.int16)
            room = piece[-piece.ctypes.data % LINE // 2 :]
        else:
            room = _rest
        if not alone:
            _rest = room[size:]
    return torch.from_numpy(room[:numbers])


def in_panels(weight: Tensor) -> Tensor:
    """16-bit weights [outputs, inputs] → their bits, up to INPUTS inputs after another: [panels,
    inputs, PANEL], with zeros up to a whole panel. The two halves of a register alternate in
    bfloat16, so that pairs are widened by a shift and a mask.
    """
    whole = functional.pad(weight, (0, 0, 0, -len(weight) % PANEL)).view(torch.int16)
    order = (0, 4, 1, 3, 2) if weight.dtype == torch.bfloat16 else (0, 4, 1, 2, 3)
    held, pieces = _reserved(whole.numel()), whole.split(INPUTS, dim=1)
    for some, place in zip(pieces, held.split([each.numel() for each in pieces]), strict=True):
        halves = some.unflatten(0, (-1, VECTORS, 2, LANES)).permute(order)
        place.view(halves.shape).copy_(halves)
    return held


class PanelProduct(OfThisProcess):
    """x [n, inputs] → x · weightᵀ + bias [n, outputs] in float32, with weights [outputs, inputs] in
    one of TYPES.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs, self.inputs = weight.shape
        self.whole = -(-self.outputs // PANEL) * PANEL
        held, added = in_panels(weight), torch.zeros(self.whole)
        if bias is not None:
            added[: self.outputs] = bias
        self._read = held, added  # their memory, which must not go
        at = held.data_ptr(), added.data_ptr()
        half = TYPES.index(weight.dtype)
        self.record = np.void((_of_a_thread.address, half, *at, self.inputs, self.whole), PRODUCT)

    def __call__(self, x: Tensor) -> Tensor:
        n, width = x.shape
        if width != self.inputs or not x.is_cpu:
            raise ValueError(f"{self.inputs} inputs on a CPU, not {width} on {x.device}")
        x, out = x.contiguous(), x.new_empty(n, self.whole)
        multiply(self.record, address_of(x), out.data_ptr(), n, threads_allowed())
        return out if self.whole == self.outputs else out[:, : self.outputs].contiguous()
