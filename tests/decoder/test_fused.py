"""The kernels of recorded passes against PyTorch's operations: on a GPU where there is one, else in
Triton's interpreter, which cuts numbers off where a GPU rounds them to bfloat16.
"""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from draftbench.decoder import llama
from draftbench.decoder.attention import EvenRows
from draftbench.decoder.linear import Matrix
from draftbench.decoder.llama import swiglu
from draftbench.decoder.quantized_linear import fp8_rows
from tests.decoder.test_cuda_graphs import Traced
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
# Two steps of each type, as numbers are rounded twice; of bfloat16 two more by the interpreter.
STEPS = {torch.float32: 2.0**-19, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
# What rounding normals to 8 bits may change: in 254 steps, the largest about 3σ, .7 %; in e4m3
# 2.7 %, but the interpreter makes half a power of two of what is rounded up to one: 6 %.
ROUNDED = {"int8": 0.02, "fp8": 0.12}
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


@each_type
@pytest.mark.parametrize(("n", "width"), [(1, 64), (3, 100), (2, 1537), (5, 1)])
def test_a_sum_and_its_norm_are_pytorchs(normal, dtype, n, width):
    sums, added = (normal(n, width, dtype=dtype) for _ in range(2))
    weight = normal(width, dtype=dtype)
    expected = sums + added
    normed = functional.rms_norm(expected, (width,), weight, 1e-5)
    got = kernels.add_norm(sums, added, weight, 1e-5)
    assert_near(sums, expected)
    assert_near(got, normed)


SIZES = [(1, 64, 32), (3, 70, 100), (5, 5, 33), (20, 48, 300)]
KINDS = ["as they are", "biased", "int8", "fp8"]


@pytest.fixture
def matrix(normal):
    """Weights of a kind and the matrix that they stand for."""

    def drawn(outputs, inputs, dtype, kind):
        exact = normal(outputs, inputs, dtype=dtype) / inputs**0.5
        bias = normal(outputs, dtype=dtype) if kind == "biased" else None
        if kind not in ROUNDED:
            return Matrix(exact, None, bias), exact
        if kind == "fp8":
            codes, scale = fp8_rows(exact)
            return Matrix(codes, scale[:, 0].contiguous(), None), codes.float() * scale
        codes = (normal(outputs, inputs, dtype=torch.float32) * 40).clamp(-127, 127).to(torch.int8)
        scale = normal(outputs, dtype=torch.float32).abs() / 100 / inputs**0.5
        return Matrix(codes, scale, None), codes.float() * scale[:, None]

    return drawn


def linear(x, matrix, exact):
    """In float32, rounded once."""
    bias = None if matrix.bias is None else matrix.bias.float()
    return functional.linear(x.float(), exact.float(), bias).to(x.dtype)


def normed(x, weight):
    return functional.rms_norm(x, (x.shape[1],), weight, 1e-5)


@each_type
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "outputs", "inputs"), SIZES)
def test_a_product_is_pytorchs_with_and_without_a_norm_and_added(
    normal, matrix, dtype, kind, n, outputs, inputs
):
    x, weight = normal(n, inputs, dtype=dtype), normal(inputs, dtype=dtype)
    ours, exact = matrix(outputs, inputs, dtype, kind)
    expected = linear(x, ours, exact)
    assert_alike(kernels.product(*kernels.given(x, None, 0.0, ours), dtype), expected, kind)
    given = kernels.given(*kernels.begin(x, weight), 1e-5, ours)
    assert_alike(kernels.product(*given, dtype), linear(normed(x, weight), ours, exact), kind)
    sums, norm = normal(n, outputs, dtype=dtype), normal(outputs, dtype=dtype)
    added = sums + expected
    scaled, squares = kernels.add_product(sums, norm, *kernels.given(x, None, 0.0, ours))
    assert_alike(sums, added, kind)
    assert_alike(scaled, added * norm, kind)
    assert_alike(squares.sum(0), added.float().square().sum(1).to(dtype), kind)


@each_type
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "inner", "inputs"), SIZES)
def test_a_gated_product_is_swiglu_of_the_product(normal, matrix, dtype, kind, n, inner, inputs):
    x, weight = normal(n, inputs, dtype=dtype), normal(inputs, dtype=dtype)
    ours, exact = matrix(2 * inner, inputs, dtype, kind)
    given = kernels.given(*kernels.begin(x, weight), 1e-5, ours)
    expected = swiglu(linear(normed(x, weight), ours, exact))
    assert_alike(kernels.gated_product(*given, dtype), expected, kind)


@each_type
@pytest.mark.parametrize(("n", "inner"), [(1, 64), (3, 77), (2, 2500), (5, 1)])
def test_swiglu_is_pytorchs(normal, dtype, n, inner):
    gate_up = normal(n, 2 * inner, dtype=dtype)
    assert_near(kernels.swiglu(gate_up), swiglu(gate_up))


LAYOUTS = [(1, 1, 4, 2, 8), (1, 5, 6, 2, 5), (3, 2, 3, 1, 9), (2, 3, 4, 4, 16)]
layouts = pytest.mark.parametrize(("rows", "width", "heads", "kv_heads", "half"), LAYOUTS)


@pytest.fixture
def placed(normal):
    """Slabs of two layers, starts, the tables' positions, some of which are too few, and what
    PyTorch makes of queries, keys and values in the second layer.
    """

    def made(rows, width, heads, kv_heads, half, dtype):
        head, capacity, positions = 2 * half, 24, 20
        rotary = llama.Rotary(*(normal(positions, 1, head, dtype=dtype) for _ in range(2)))
        starts = torch.tensor([19, 0, 7][:rows], device=DEVICE)
        slabs = normal(2, 2, rows, kv_heads, capacity, head, dtype=dtype)
        plain = EvenRows(slabs.clone(), starts, width, capacity, rotary, heads // kv_heads)
        return slabs, starts, rotary, plain

    return made


def assert_placed(slabs, slab, plain, rows, width, kv_heads):
    assert_alike(slab, plain.slabs[1])
    # Nothing else in the slab was touched.
    assert int((slab != slabs[1]).any(dim=-1).sum()) <= 2 * rows * width * kv_heads


@each_type
@layouts
@pytest.mark.parametrize("norms", [False, True])
def test_queries_are_normed_rotated_and_attend_and_keys_and_values_are_stored_as_by_pytorch(
    normal, placed, dtype, rows, width, heads, kv_heads, half, norms
):
    """Also past the last position that the tables know, whose results are never read."""
    slabs, starts, rotary, plain = placed(rows, width, heads, kv_heads, half, dtype)
    every, head = heads + 2 * kv_heads, 2 * half
    qkv, slab = normal(rows * width, every * head, dtype=dtype), slabs[1].clone()
    weights = [normal(head, dtype=dtype) for _ in range(2)] if norms else [None, None]
    exact = qkv.clone().view(-1, every, head)
    if norms:
        for first, count, weight in ((0, heads, weights[0]), (heads, kv_heads, weights[1])):
            part = exact.narrow(1, first, count)
            part.copy_(functional.rms_norm(part, (head,), weight, 1e-5))
    expected = plain.attend(1, exact)
    query = kernels.rotate(qkv, *weights, 1e-5, starts, *rotary, slab)
    assert_placed(slabs, slab, plain, rows, width, kv_heads)
    assert_alike(kernels.attention(query, slab, starts, slabs.shape[4]), expected)


@each_type
@layouts
def test_a_rotated_product_is_the_product_rotated_and_stored(
    normal, matrix, placed, dtype, rows, width, heads, kv_heads, half
):
    slabs, starts, rotary, plain = placed(rows, width, heads, kv_heads, half, dtype)
    every, inputs = (heads + 2 * kv_heads) * 2 * half, 70
    x, weight = normal(rows * width, inputs, dtype=dtype), normal(inputs, dtype=dtype)
    given, exact = matrix(every, inputs, dtype, "biased")
    qkv = linear(normed(x, weight), given, exact)
    expected = plain.attend(1, qkv.view(rows * width, -1, 2 * half))
    slab = slabs[1].clone()
    ours = kernels.given(*kernels.begin(x, weight), 1e-5, given)
    query = kernels.rotated_product(*ours, starts, *rotary, slab)
    assert_placed(slabs, slab, plain, rows, width, kv_heads)
    assert_alike(kernels.attention(query, slab, starts, slabs.shape[4]), expected)


@each_type
@pytest.mark.parametrize(("rows", "width", "reach"), [(2, 1, 512), (3, 3, 700), (1, 9, 1280)])
def test_chunks_of_keys_are_joined_to_attention_over_all(normal, dtype, rows, width, reach):
    """Some rows see nothing of some chunks."""
    heads, kv_heads, head = 4, 2, 12
    slab = normal(2, rows, kv_heads, reach, head, dtype=dtype)
    query = normal(rows * width, heads, head, dtype=dtype)
    starts = torch.tensor([reach - width, 0, 300][:rows], device=DEVICE)
    places = starts[:, None] + torch.arange(width, device=DEVICE)
    mask = torch.arange(reach, device=DEVICE) <= places[:, None, :, None]
    keys, values = (part.repeat_interleave(heads // kv_heads, 1).float() for part in slab)
    asked = query.view(rows, width, heads, head).transpose(1, 2).float()
    expected = functional.scaled_dot_product_attention(asked, keys, values, mask)
    expected = expected.transpose(1, 2).reshape(rows * width, -1).to(dtype)
    assert_alike(kernels.attention(query, slab, starts, reach), expected)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU shows more")
def test_each_kernel_compiles_and_fits_on_ada_and_hopper(tmp_path):
    """Which needs no GPU."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run(
        [sys.executable, "-m", "tests.decoder.compile_kernels"],
        env=environment,
        check=True,
        timeout=600,
    )


@pytest.fixture
def fused_kernels(monkeypatch):
    """In float32, since other types would hide a fault; six tokens are few."""
    monkeypatch.setattr(llama, "has_triton", lambda device: True)
    monkeypatch.setattr(fused, "FOR_FEW", (torch.float32,))
    monkeypatch.setattr(kernels, "FEW", 6)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="a trace stands for a CUDA graph on a CPU")
@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen3"])
def test_a_recorded_pass_of_these_kernels_gives_the_logits_of_transformers(fused_kernels, name):
    model = random_model(LLAMA[name])
    ids, expected = full_pass(model)
    runner = runner_of(model)
    assert runner.record_with(Traced) is None
    assert_agrees_with_full_pass(runner, expected, ids, widths=(1, 2, 5))
    assert_rows_do_not_meet(runner, model, widths=(2, 5))
    assert runner.name == "draftbench (float32, cpu, fused kernels)"


@pytest.mark.skipif(DEVICE == "cuda", reason="a trace stands for a CUDA graph on a CPU")
def test_kernels_that_give_other_logits_are_not_used_and_the_pass_is_recorded_without(
    fused_kernels, monkeypatch
):
    monkeypatch.setattr(kernels, "attention", lambda query, *_: query.flatten(1).flip(1))
    runner = runner_of(random_model(LLAMA["llama"]))
    why = runner.record_with(Traced)
    assert "its passes take more launches than they could: its passes differ" in why
    assert runner.name == "draftbench (float32, cpu)"
    assert runner.new_cache(8, widths=(1,)).graphs is not None
