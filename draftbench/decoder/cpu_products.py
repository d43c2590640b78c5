"""Products of tokens with 16-bit weights, by a kernel that Numba compiles for this CPU.

A pass over one token takes as long as reading every weight once, and a pass over a few should cost
little more. So weights stay in 16 bits, and are widened once for as many tokens as the registers
can sum (Goto and van de Geijn 2008, *Anatomy of high-performance matrix multiplication*). Every
output is one sum in float32, in the order of the inputs: it is the same for any number of other
tokens and of threads. `scripts/bench_layouts.py` times it.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from llvmlite import binding, ir
from numba import carray, cfunc, int32, int64, intp, types, uint32, void
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from threadpoolctl import threadpool_info
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.cpu_kernels import address_of, compiled, floats_at

# Weights of an input are read by vectors of 64 bytes, those of 32 outputs.
LANES, VECTOR = 16, 32
# How many tokens and vectors are summed at once: twice as many sums as their product fit into 32
# registers of AVX-512, or as pairs of half the size into 16 of AVX2.
_HAS_AVX512 = "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2]
TOKENS, VECTORS = (6, 2) if _HAS_AVX512 else (3, 1)
# Outputs that are summed at once. Their weights lie together, in the order in which they are read.
PANEL = VECTORS * VECTOR
# Products of fewer multiplications take one thread less time than several.
THREADED_FROM = 1 << 17
# Bytes of a cache's line, and of the pieces in which memory for weights is reserved.
LINE, RESERVED = 64, 1 << 25

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)


@intrinsic
def _sums(typing, case, x, weights, bias, out, inputs, stride):
    """A panel's bias and, input by input, each token times its weights.

    `case` is twice the number of tokens, plus 1 if weights are float16. Then there are addresses: x
    [tokens, inputs], `weights` [inputs, PANEL], `bias`, `out` [tokens, stride]; and sizes.
    """

    def generate(context, builder, signature, arguments):
        case, x, weights, bias, out, inputs, stride = arguments
        vectors = [(vector, half) for vector in range(VECTORS) for half in range(2)]

        def at(address, place, kind):
            return builder.gep(builder.inttoptr(address, kind.as_pointer()), [place])

        def loaded(address, place, kind):
            return builder.load(at(address, place, kind), align=4)

        def times(number, factor, plus):
            return builder.add(builder.mul(number, inputs.type(factor)), inputs.type(plus))

        def filled(value):
            return ir.Constant(_INTS, [value] * LANES)

        def widened(place, is_half):
            """A vector of weights as two of float32."""
            if is_half:
                halves = [loaded(weights, times(place, 2, half), _HALVES) for half in range(2)]
                return [builder.fpext(each, _FLOATS) for each in halves]
            pairs = loaded(weights, place, _INTS)  # a bfloat16 is the upper half of a float32
            bits = builder.shl(pairs, filled(16)), builder.and_(pairs, filled(0xFFFF0000))
            return [builder.bitcast(each, _FLOATS) for each in bits]

        def everywhere(number):
            empty = ir.Constant(_FLOATS, ir.Undefined)
            first = builder.insert_element(empty, number, _INT(0))
            return builder.shuffle_vector(first, empty, filled(0))

        def summed(tokens, is_half):
            sums = {}
            for place, of in enumerate(vectors):
                begun = loaded(bias, inputs.type(place), _FLOATS)
                for token in range(tokens):
                    sums[token, of] = cgutils.alloca_once_value(builder, begun)
            with cgutils.for_range(builder, inputs) as loop:
                wide = {}
                for vector in range(VECTORS):
                    place = times(loop.index, VECTORS, vector)
                    for half, each in enumerate(widened(place, is_half)):
                        wide[vector, half] = each
                for token in range(tokens):
                    place = builder.add(loop.index, times(inputs, token, 0))
                    number = everywhere(loaded(x, place, _FLOAT))
                    for of in vectors:
                        product = builder.fmul(number, wide[of], flags=["contract"])
                        sum_ = builder.load(sums[token, of])
                        builder.store(
                            builder.fadd(sum_, product, flags=["contract"]), sums[token, of]
                        )
            for token in range(tokens):
                for place, of in enumerate(vectors):
                    begin = at(out, times(stride, token, place * LANES), _FLOAT)
                    pointer = builder.bitcast(begin, _FLOATS.as_pointer())
                    builder.store(builder.load(sums[token, of]), pointer, align=4)

        end = builder.append_basic_block()
        switch = builder.switch(case, end)
        for tokens in range(1, TOKENS + 1):
            for is_half in range(2):
                switch.add_case(2 * tokens + is_half, block := builder.append_basic_block())
                with builder.goto_block(block):
                    summed(tokens, is_half)
                    builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return void(int32, intp, intp, intp, intp, intp, intp), generate


def _openmp() -> ctypes.CDLL | None:
    """The runtime of PyTorch's threads, if it has GCC's interface. Threads of another runtime would
    compete with these for the cores.
    """
    found = (each["filepath"] for each in threadpool_info() if each["user_api"] == "openmp")
    loaded = (ctypes.CDLL(path) for path in found)
    return next((each for each in loaded if hasattr(each, "GOMP_parallel")), None)


_OPENMP = _openmp()
for _name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"):
    _function = getattr(_OPENMP, _name, None)
    _place = None if _function is None else ctypes.cast(_function, ctypes.c_void_p).value
    binding.add_symbol(_name, _place or 1)  # without a runtime it is never called
_in_parallel = types.ExternalFunction("GOMP_parallel", void(intp, intp, uint32, uint32))
_thread_number = types.ExternalFunction("omp_get_thread_num", int32())
_threads_there = types.ExternalFunction("omp_get_num_threads", int32())


@intrinsic
def _called(typing, function, task):
    """The function at an address, called with a task."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [arguments[1].type])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return void(intp, intp), generate


@compiled(void(types.CPointer(int64)), by=cfunc)
def _of_a_thread(task):
    """A product's panels that fall to this thread."""
    half, x, weights, bias, out, n, inputs, outputs, shared = carray(task, 9)
    panels, first, last = (outputs + PANEL - 1) // PANEL, 0, (outputs + PANEL - 1) // PANEL
    if shared:
        thread, threads = _thread_number(), _threads_there()
        first, last = panels * thread // threads, panels * (thread + 1) // threads
    beyond = np.empty((n if last * PANEL > outputs else 0, PANEL), np.float32)
    for panel in range(first, last):
        left = outputs - panel * PANEL
        to, stride = out + 4 * panel * PANEL, outputs
        if left < PANEL:
            to, stride = beyond.ctypes.data, PANEL
        for token in range(0, n, TOKENS):
            _sums(
                int32(2 * min(TOKENS, n - token) + half),
                x + 4 * token * inputs,
                weights + 2 * panel * PANEL * inputs,
                bias + 4 * panel * PANEL,
                to + 4 * token * stride,
                inputs,
                stride,
            )
        if left < PANEL:
            carray(floats_at(out), (n, outputs))[:, panel * PANEL :] = beyond[:, :left]


@compiled(void(*[intp] * 10))
def _product(half, x, weights, bias, out, n, inputs, outputs, threads, of_a_thread):
    shared = threads > 1 and n * inputs * outputs >= THREADED_FROM
    task = np.array([half, x, weights, bias, out, n, inputs, outputs, shared])
    if shared:
        _in_parallel(of_a_thread, task.ctypes.data, threads, 0)
    else:
        _called(of_a_thread, task.ctypes.data)


_rest = np.empty(0, np.int16)  # of the last piece


def _reserved(numbers: int) -> Tensor:
    """Memory for 16-bit numbers, from a new line on. NumPy asks Linux for pages of 2 MB where it
    reserves several: to look up pages of 4 kB would take a sixth of the time of a step.
    """
    global _rest
    size = -(-2 * numbers // LINE) * LINE // 2
    if size > len(_rest):
        piece = np.empty(max(size, RESERVED // 2) + LINE // 2, np.int16)
        _rest = piece[-piece.ctypes.data % LINE // 2 :]
    taken, _rest = _rest[:numbers], _rest[size:]
    return torch.from_numpy(taken)


def in_panels(weight: Tensor) -> Tensor:
    """16-bit weights [outputs, inputs] → their bits [panels, inputs, PANEL], with zeros up to a
    whole panel. The two halves of a vector alternate in bfloat16, so that a vector of pairs is
    widened by a shift and a mask.
    """
    outputs, inputs = weight.shape
    whole = functional.pad(weight, (0, 0, 0, -outputs % PANEL))
    halves = whole.view(torch.int16).view(-1, VECTORS, 2, LANES, inputs)
    order = (0, 4, 1, 3, 2) if weight.dtype == torch.bfloat16 else (0, 4, 1, 2, 3)
    ordered = halves.permute(order)
    return _reserved(whole.numel()).view(ordered.shape).copy_(ordered).view(-1, inputs, PANEL)


def product_of(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """x [n, inputs] → x · weightᵀ + bias [n, outputs] in float32, with bfloat16 or float16 weights
    [outputs, inputs].
    """
    outputs, inputs = weight.shape
    held = in_panels(weight)
    added = torch.zeros(len(held) * PANEL)
    if bias is not None:
        added[:outputs] = bias
    half, of_a_thread = int(weight.dtype == torch.float16), _of_a_thread.address
    threads = torch.get_num_threads if _OPENMP else lambda: 1

    def product(x: Tensor) -> Tensor:
        x, n = x.contiguous(), x.shape[0]
        out = x.new_empty(n, outputs)
        at = address_of(x), held.data_ptr(), added.data_ptr(), out.data_ptr()
        _product(half, *at, n, inputs, outputs, threads(), of_a_thread)
        return out

    return product
