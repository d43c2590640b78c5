"""The kernels of recorded passes against PyTorch's operations: on a GPU where there is one, else in
Triton's interpreter, which cuts numbers off where a GPU rounds them to bfloat16.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from draftbench.decoder import llama, quantized_linear
from draftbench.decoder.attention import EvenRows, Rotary
from draftbench.decoder.linear import Matrix
from draftbench.decoder.llama_model import swiglu
from draftbench.decoder.quantized_linear import fp8_rows
from tests.decoder.test_cuda_graphs import Traced, assert_takes_down_what_enters_layers
from tests.decoder.test_runners import (
    LLAMA,
    assert_agrees_with_full_pass,
    assert_rows_do_not_meet,
    full_pass,
    random_model,
    runner_of,
)

pytest.importorskip("triton", reason="Triton comes with PyTorch's builds for CUDA")
from draftbench.decoder import fused, kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_cpu = pytest.mark.skipif(DEVICE == "cuda", reason="a GPU shows more")
# Two steps of each type, as numbers are rounded twice; of bfloat16 two more by the interpreter.
STEPS = {torch.float32: 2.0**-19, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
# What rounding normals to 8 bits may change: in 254 steps, the largest about 3σ, .7 %; in e4m3
# 2.7 %, but the interpreter makes half a power of two of what is rounded up to one: 6 %.
ROUNDED = {"int8": 0.02, "fp8": 0.15}
KINDS = ["as they are", "biased", "int8", "fp8"]
# A GPU is given what it runs faster than PyTorch: compiling a product in float32 takes seconds.
TYPES = STEPS if DEVICE == "cpu" else [torch.bfloat16]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def assert_near(got, expected):
    step = STEPS[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=step, atol=step)


def assert_alike(got, expected, kind="as they are"):
    """As a whole, since a sum of many rounded numbers may be small, and after up to five roundings
    more, and of tokens to 8 bits.
    """
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert float(error) < 2 * STEPS[expected.dtype] + ROUNDED.get(kind, 0.0)


@pytest.fixture
def normal():
    generator = torch.Generator().manual_seed(0)

    def drawn(*size, dtype):
        return torch.randn(*size, generator=generator).to(DEVICE, dtype)

    return drawn


@pytest.fixture
def matrix(normal):
    """Weights of a kind, and their product with tokens by PyTorch in float32, rounded once."""

    def drawn(outputs, inputs, dtype, kind):
        exact, bias = normal(outputs, inputs, dtype=dtype) / inputs**0.5, None
        ours = Matrix(exact, None, bias)
        if kind == "biased":
            bias = normal(outputs, dtype=dtype)
            ours = Matrix(exact, None, bias)
        elif kind == "fp8":
            codes, scale = fp8_rows(exact)
            exact, ours = codes.float() * scale, Matrix(codes, scale[:, 0].contiguous(), None)
        elif kind == "int8":
            codes = normal(outputs, inputs, dtype=torch.float32) * 40
            codes = codes.clamp(-127, 127).to(torch.int8)
            scale = normal(outputs, dtype=torch.float32).abs() / 100 / inputs**0.5
            exact, ours = codes.float() * scale[:, None], Matrix(codes, scale, None)
        bias = None if bias is None else bias.float()
        return ours, lambda x: functional.linear(x.float(), exact.float(), bias).to(dtype)

    return drawn


def by_group(x):
    """The largest values of each 32 of a token [groups, n]."""
    return torch.stack([part.float().abs().amax(1) for part in x.split(32, 1)])


def assert_left(x, largest, expected, kind):
    """That tokens are as expected, in the type that weights of a kind are multiplied with."""
    steps = x.float()
    if kind in ROUNDED:
        top = {"int8": 127, "fp8": 448}[kind]
        steps = steps * largest.repeat_interleave(32, 0)[: x.shape[1]].T / top
        assert_alike(by_group(steps), largest, kind)
    assert_alike(steps.to(expected.dtype), expected, kind)


def begun(x, weight, ours):
    """Tokens as products norm them, with what these need to know of them."""
    tokens, kind = torch.arange(len(x), device=DEVICE), ours.weight.dtype
    sums, scaled, squares, largest = kernels.begin(tokens, x, weight, kind)
    assert torch.equal(sums, x)
    return scaled, squares, 1e-5, largest


@each_type
@pytest.mark.parametrize(("n", "width"), [(1, 64), (3, 77), (2, 2500), (5, 1)])
def test_what_lies_between_two_products_is_pytorchs(normal, dtype, n, width):
    sums, added = (normal(n, width, dtype=dtype) for _ in range(2))
    weight, expected = normal(width, dtype=dtype), sums + added
    normed = functional.rms_norm(expected, (width,), weight, 1e-5)
    assert_near(kernels.add_norm(sums, added, weight, 1e-5), normed)
    assert_near(sums, expected)
    gate_up = normal(n, 2 * width, dtype=dtype)
    assert_near(kernels.swiglu(gate_up), swiglu(gate_up))


@each_type
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "outputs", "inputs"), [(1, 64, 32), (3, 70, 100), (5, 10, 33), (20, 48, 300)]
)
def test_a_product_is_pytorchs_normed_or_not_and_added_or_gated(
    normal, matrix, dtype, kind, n, outputs, inputs
):
    """Tokens of other types are rounded before weights of 8 bits; the others come rounded."""
    x, weight = normal(n, inputs, dtype=dtype), normal(inputs, dtype=dtype)
    ours, product = matrix(outputs, inputs, dtype, kind)
    left = ours.weight.dtype
    plain = kernels.given(x, None, 0.0, None, ours)
    assert_left(plain[0], plain[3], x, kind)
    assert_alike(kernels.product(*plain, dtype), product(x), kind)
    scaled, *more = begun(x, weight, ours)
    assert_left(scaled, more[2], x * weight, kind)
    given = kernels.given(scaled, *more, ours)
    assert given[0] is scaled
    expected = product(functional.rms_norm(x, weight.shape, weight, 1e-5))
    assert_alike(kernels.product(*given, dtype), expected, kind)
    assert_left(*kernels.gated_product(*given, left), swiglu(expected), kind)
    sums, norm = normal(n, outputs, dtype=dtype), normal(outputs, dtype=dtype)
    added = sums + product(x)
    scaled, squares, largest = kernels.add_product(sums, norm, left, *plain)
    assert_alike(sums, added, kind)
    assert_left(scaled, largest, added * norm, kind)
    assert_alike(squares.sum(0), added.float().square().sum(1).to(dtype), kind)


@each_type
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("rows", "width", "heads", "kv_heads", "half", "capacity"),
    [
        *((1, 1, 4, 2, 8, 24), (1, 5, 6, 2, 5, 24), (3, 2, 3, 1, 9, 24), (2, 3, 4, 4, 16, 24)),
        *((2, 1, 4, 2, 6, 512), (3, 3, 4, 2, 6, 700), (1, 20, 4, 1, 3, 300)),
        *((1, 2, 2, 1, 48, 24), (2, 3, 4, 2, 32, 300)),
    ],
)
def test_heads_are_normed_and_rotated_and_stored_and_attend_as_by_pytorch(
    normal, dtype, normed, rows, width, heads, kv_heads, half, capacity
):
    """Also past the last position that the tables know, whose results are never read; over chunks
    of keys, of some of which some rows see nothing; by several programs to a key head; where a
    row's tokens lie in two chunks; and left in 8 bits by heads of two or three groups.
    """
    head, every, n = 2 * half, heads + 2 * kv_heads, rows * width
    rotary = Rotary(*(normal(capacity - 4, 1, head, dtype=dtype) for _ in range(2)))
    starts = torch.tensor([capacity - width, 0, min(capacity // 2, kernels.CHUNK - 1)][:rows])
    starts = starts.to(DEVICE)
    slabs = normal(2, 2, rows, kv_heads, capacity, head, dtype=dtype)
    plain = EvenRows(slabs.clone(), starts, width, capacity, rotary, heads // kv_heads)
    slab = slabs[1].clone()
    qkv, weights = normal(n, every * head, dtype=dtype), [None, None]
    exact = qkv.clone().view(n, every, head)
    if normed:
        weights = [normal(head, dtype=dtype) for _ in range(2)]
        parts = exact.split((heads, kv_heads, kv_heads), 1)
        for part, weight in zip(parts, weights, strict=False):
            part.copy_(functional.rms_norm(part, (head,), weight, 1e-5))
    expected = plain.attend(1, exact)
    given = (qkv, *weights, 1e-5, starts, *rotary, slab, capacity)
    got, _ = kernels.attention(*given, dtype)
    assert_alike(slab, plain.slabs[1])
    # Nothing else in the slab was touched.
    assert int((slab != slabs[1]).any(dim=-1).sum()) <= 2 * n * kv_heads
    assert_alike(got, expected)
    for kind, left in (("int8", torch.int8), ("fp8", torch.float8_e4m3fn)):
        got, largest = kernels.attention(*given, left)
        assert (got.dtype == left) == (head % 32 == 0)
        assert_left(got, largest, expected, kind if got.dtype == left else "as they are")


@pytest.mark.slow
@on_a_cpu
def test_each_kernel_compiles_and_fits_on_ada_hopper_and_blackwell(tmp_path):
    """Which needs no GPU."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.decoder.compile_kernels"]
    subprocess.run(command, env=environment, check=True, timeout=1800)


@pytest.fixture
def fused_kernels(monkeypatch):
    """In float32, since other types would hide a fault; six tokens are few."""
    monkeypatch.setattr(llama, "has_triton", lambda device: True)
    monkeypatch.setattr(fused, "FOR_FEW", (torch.float32,))
    monkeypatch.setattr(kernels, "FEW", 6)


@pytest.mark.slow
@on_a_cpu
@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen3"])
def test_a_recorded_pass_of_these_kernels_gives_the_logits_of_transformers(fused_kernels, name):
    model = random_model(LLAMA[name])
    ids, expected = full_pass(model)
    runner = runner_of(model)
    assert runner.record_with(Traced) is None
    assert_agrees_with_full_pass(runner, expected, ids, widths=(1, 2, 5))
    assert_rows_do_not_meet(runner, model, widths=(2, 5))
    for few_or_many in (3, 4):
        assert_takes_down_what_enters_layers(runner, model, few_or_many)
    assert runner.name == "draftbench (float32, cpu, fused kernels)"


@pytest.mark.slow
@on_a_cpu
@pytest.mark.parametrize("level", ["int8", "fp8"])
def test_steps_by_weights_of_8_bits_are_the_passes_that_round_tokens_before_each_product(
    fused_kernels, monkeypatch, level
):
    """One row, and two."""
    kernel = quantized_linear.KERNELS["cuda", level]
    monkeypatch.setitem(quantized_linear.KERNELS, ("cpu", level), replace(kernel, least=(0, 0)))
    monkeypatch.setattr(quantized_linear, "has_triton", lambda device: True)
    runner = llama.LlamaRunner(random_model(LLAMA["qwen3"]), level)
    assert runner.record_with(Traced) is None
    for rows in (1, 2):
        cache = runner.new_cache(8, rows, widths=(1,))
        assert min(cache.graphs.cosines.values()) > 0.9999


def backwards(*given):
    return [x.flip(1) for x in ATTENTION(*given)]


def without_a_compiler(*given):
    raise RuntimeError("Failed to find C compiler. Please specify via CC\nand more")


ATTENTION = kernels.attention


@on_a_cpu
@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (backwards, r"its passes differ then \(cosine .*\)"),
        (without_a_compiler, "RuntimeError: Failed to find C compiler. Please specify via CC"),
    ],
)
def test_kernels_that_fail_or_give_other_logits_are_not_used_and_the_pass_is_recorded_without(
    fused_kernels, monkeypatch, attention, why
):
    monkeypatch.setattr(kernels, "attention", attention)
    runner = runner_of(random_model(LLAMA["llama"]))
    said = runner.record_with(Traced)
    assert re.fullmatch(f"its passes take more launches than they could: {why}", said)
    assert runner.name == "draftbench (float32, cpu)"
    assert runner.new_cache(8, widths=(1,)).graphs is not None
