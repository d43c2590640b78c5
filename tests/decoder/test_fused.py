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
from draftbench.decoder.llama import swiglu
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
from draftbench.decoder import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Two steps of each type, as numbers are rounded twice; of bfloat16 two more by the interpreter.
STEPS = {torch.float32: 2.0**-19, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
each_type = pytest.mark.parametrize("dtype", STEPS, ids=str)


def assert_near(got, expected):
    step = STEPS[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=step, atol=step)


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
    got = fused.add_norm(sums, added, weight, 1e-5)
    assert_near(sums, expected)
    assert_near(got, normed)


@each_type
@pytest.mark.parametrize(("n", "first", "count", "head"), [(1, 0, 4, 16), (3, 2, 1, 10)])
def test_only_the_heads_that_are_given_are_normed(normal, dtype, n, first, count, head):
    qkv, weight = normal(n, 6, head, dtype=dtype), normal(head, dtype=dtype)
    expected = qkv.clone()
    heads = expected.narrow(1, first, count)
    heads.copy_(functional.rms_norm(heads, (head,), weight, 1e-5))
    fused.norm_heads(qkv.narrow(1, first, count), weight, 1e-5)
    assert_near(qkv, expected)


@each_type
@pytest.mark.parametrize(("n", "inner"), [(1, 64), (3, 77), (2, 2500), (5, 1)])
def test_swiglu_is_pytorchs(normal, dtype, n, inner):
    gate_up = normal(n, 2 * inner, dtype=dtype)
    assert_near(fused.swiglu(gate_up), swiglu(gate_up))


@each_type
@pytest.mark.parametrize(
    ("rows", "width", "heads", "kv_heads", "half"),
    [(1, 1, 4, 2, 8), (1, 5, 6, 2, 5), (3, 2, 3, 1, 9), (2, 3, 4, 4, 16)],
)
def test_queries_are_rotated_and_keys_and_values_stored_where_pytorch_does(
    normal, dtype, rows, width, heads, kv_heads, half
):
    """Also past the last position that the tables know, whose results are never read."""
    head, capacity, positions = 2 * half, 24, 20
    rotary = llama.Rotary(*(normal(positions, 1, head, dtype=dtype) for _ in range(2)))
    starts = torch.tensor([19, 0, 7][:rows], device=DEVICE)
    qkv = normal(rows * width, heads + 2 * kv_heads, head, dtype=dtype)
    slabs = normal(2, 2, rows, kv_heads, capacity, head, dtype=dtype)
    given, outcomes = (slabs, starts, width, capacity, rotary, heads // kv_heads), []
    for kind in (EvenRows, fused.FusedRows):
        slab = slabs[1].clone()
        outcomes.append((kind(*given)._store(qkv.clone(), slab), slab))
    (query, slab), (fused_query, fused_slab) = outcomes
    assert_near(fused_query, query)
    assert_near(fused_slab, slab)
    # Nothing else in the slab was touched.
    assert int((fused_slab != slabs[1]).any(dim=-1).sum()) <= 2 * rows * width * kv_heads


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from draftbench.decoder import fused

TENSORS = "sums added weight normed gate_up gated qkv cos sin query slab".split()
OTHERS = {"starts": "*i64", "eps": "fp32", "to_values": "i64", "block": "constexpr"}
KERNELS = (fused._add_norm, fused._norm_heads, fused._swiglu, fused._rotate_and_store)
for kernel in KERNELS:
    for dtype in ("bf16", "fp16", "fp32"):
        types = {
            name: f"*{dtype}" if name in TENSORS else OTHERS.get(name, "i32")
            for name in kernel.arg_names
        }
        if kernel is fused._norm_heads:
            types["heads"] = f"*{dtype}"
        block = (kernel.arg_names.index("block"),)
        source = ASTSource(kernel, types, {block: 64})
        for capability in (80, 90):
            assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]
"""


@pytest.mark.slow
def test_each_kernel_compiles_for_ampere_and_hopper(tmp_path):
    """Which needs no GPU."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True, timeout=300)


@pytest.fixture
def fused_kernels(monkeypatch):
    monkeypatch.setattr(llama, "has_fused_kernels", lambda device: True)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="a trace stands for a CUDA graph on a CPU")
@pytest.mark.parametrize("name", LLAMA)
def test_a_recorded_pass_of_these_kernels_gives_the_logits_of_transformers(fused_kernels, name):
    model = random_model(LLAMA[name])
    ids, expected = full_pass(model)
    runner = runner_of(model)
    assert runner.record_with(Traced) is None
    assert_agrees_with_full_pass(runner, expected, ids, widths=range(1, 6))
    assert_rows_do_not_meet(runner, model, widths=range(1, 6))
    assert runner.name == "draftbench (float32, cpu, fused kernels)"


@pytest.mark.skipif(DEVICE == "cuda", reason="a trace stands for a CUDA graph on a CPU")
def test_kernels_that_give_other_logits_are_not_used_and_the_pass_is_recorded_without(
    fused_kernels, monkeypatch
):
    monkeypatch.setattr(fused, "swiglu", lambda gate_up: swiglu(gate_up.flip(1)))
    runner = runner_of(random_model(LLAMA["llama"]))
    why = runner.record_with(Traced)
    assert "its passes take more launches than they could: its passes differ" in why
    assert runner.name == "draftbench (float32, cpu)"
    assert runner.new_cache(8, widths=(1,)).graphs is not None
