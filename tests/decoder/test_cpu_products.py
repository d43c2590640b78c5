"""Products with 16-bit weights: their definition in float64, the same bits in any company."""

import os
import subprocess
import sys
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import carray, cfunc, int64, types, void

from draftbench.decoder import compiling, cpu_products
from draftbench.decoder.compiling import floats_at
from draftbench.decoder.cpu_products import PANEL, PRODUCT, TYPES, PanelProduct, in_panels, multiply


@pytest.fixture
def threads():
    """threads(n): PyTorch computes on n threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def normal(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@settings(max_examples=40, deadline=None)
@example(outputs=70, inputs=1100, tokens=7, dtype=torch.bfloat16, with_bias=True)
@example(outputs=64, inputs=1100, tokens=1, dtype=torch.float16, with_bias=True)
@given(
    outputs=st.integers(0, 200),
    inputs=st.integers(0, 600),
    tokens=st.integers(0, 20),
    dtype=st.sampled_from(TYPES),
    with_bias=st.booleans(),
)
def test_products_of_any_size_are_those_of_the_definition(
    outputs, inputs, tokens, dtype, with_bias
):
    weight, bias, x = normal((outputs, inputs), outputs, (tokens, inputs), seed=outputs)
    weight = weight.to(dtype)
    got = PanelProduct(weight, bias if with_bias else None)(x)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    assert got.shape == (tokens, outputs)
    # Each of the sums rounds every addend once: at most inputs + 1 times half a step of float32.
    reach = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert bool(((got - exact).abs() <= (inputs + 1) * 2.0**-24 * reach).all())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("outputs", [1024, 1000])
def test_a_token_gives_the_same_bits_alone_and_among_others_on_any_number_of_threads(
    threads, dtype, outputs
):
    weight, x = normal((outputs, 300), (23, 300))
    product = PanelProduct(weight.to(dtype), None)
    threads(1)
    alone = torch.cat([product(each[None]) for each in x])
    for many in (1, 2, 3):
        threads(many)
        for width in range(1, 24):
            assert torch.equal(product(x[:width]), alone[:width])


def test_panels_hold_outputs_input_by_input_and_halves_of_a_bfloat16_vector_alternate(monkeypatch):
    for name, value in (("LANES", 16), ("VECTORS", 1), ("PANEL", 32), ("INPUTS", 512)):
        monkeypatch.setattr(cpu_products, name, value)
    weight = torch.arange(40.0)[:, None] + torch.tensor([0.0, 100.0])
    narrow, halves = (in_panels(weight.to(each)) for each in (torch.bfloat16, torch.float16))
    assert len(narrow) == len(halves) == 2 * 2 * 32
    expected = [
        each + 100.0 for pair in zip(range(16), range(16, 32), strict=True) for each in pair
    ]
    assert narrow.view(torch.bfloat16)[32:64].tolist() == expected
    assert halves.view(torch.float16)[32:64].tolist() == [100.0 + each for each in range(32)]
    assert halves.view(torch.float16)[64:96].tolist() == [*range(32, 40), *[0.0] * 24]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_of_the_type_is_widened_to_itself(dtype):
    """All 65,536 of them: zeros, subnormal numbers, infinities and NaNs too."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    got = PanelProduct(every[:, None], None)(torch.ones(1, 1))[0]
    # The sum with a bias of 0 has no negative zero.
    torch.testing.assert_close(got, every.float() + 0.0, rtol=0, atol=0, equal_nan=True)


def test_tokens_anywhere_in_memory_are_multiplied_and_other_types_are_refused():
    weight, x = normal((64, 32), (5, 64))
    product = PanelProduct(weight.bfloat16(), None)
    assert torch.equal(product(x[:, ::2]), product(x[:, ::2].contiguous()))
    with pytest.raises(TypeError, match="reads float32"):
        product(x[:, :32].bfloat16())
    for wrong in (x, x[:, :32].to("meta")):
        with pytest.raises(ValueError, match="32 inputs on a CPU, not"):
            product(wrong)


def test_without_the_interface_of_gccs_openmp_one_thread_computes(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert compiling.threads_allowed() == (3 if sys.platform == "linux" else 1)
    monkeypatch.setattr(compiling, "_OPENMP", object())
    assert compiling.threads_allowed() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="others may have no such interface")
def test_large_products_are_shared_by_as_many_threads_as_pytorch_has():
    seen = torch.zeros(4)

    @cfunc(void(types.CPointer(int64)))
    def looks(task):
        numbers = carray(floats_at(task[4]), 4)
        numbers[compiling.thread_number()] = compiling.threads_there()

    for inputs, expected in ((1 << 20, [2, 2, 0, 0]), (1, [1, 0, 0, 0])):
        seen.zero_()
        how = np.void((looks.address, 0, 0, 0, inputs, PANEL), PRODUCT)
        multiply(how, 0, seen.data_ptr(), 1, 2)
        assert seen.tolist() == expected


# Freed memory is overwritten, and not kept for the thread that freed it.
_UNKIND = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"}


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_nothing_is_read_from_memory_that_was_given_back():
    code = (
        "import torch; from draftbench.decoder.cpu_products import PanelProduct\n"
        "x, weight = torch.ones(3, 300), torch.ones(1000, 300).bfloat16()\n"
        "for n in (1, 2):\n"
        "    torch.set_num_threads(n)\n"
        "    assert PanelProduct(weight, None)(x).eq(300).all()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | _UNKIND, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("numbers", [[1, 40, 0, 33, 32], [1 << 23, 5, (1 << 24) + 1, 1 << 23]])
def test_weights_are_aligned_to_lines_and_share_none(numbers):
    reserved = [cpu_products._reserved(each) for each in numbers]
    assert [len(each) for each in reserved] == numbers
    assert all(each.data_ptr() % 64 == 0 for each in reserved)
    spans = sorted((at, at + 2 * len(each)) for each in reserved for at in [each.data_ptr()])
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_a_large_matrix_takes_its_memory_with_it():
    cpu_products._reserved(1)
    rest = cpu_products._rest
    gone = weakref.ref(cpu_products._reserved(1 << 24).numpy().base)
    assert cpu_products._rest is rest
    assert gone() is None
