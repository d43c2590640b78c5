"""Products with 16-bit weights: their definition in float64, the same bits in any company."""

import sys

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftbench.decoder import cpu_products
from draftbench.decoder.cpu_products import in_panels, product_of

TYPES = [torch.bfloat16, torch.float16]


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
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 600),
    tokens=st.integers(0, 20),
    dtype=st.sampled_from(TYPES),
    with_bias=st.booleans(),
)
def test_products_of_any_size_are_those_of_the_definition(
    outputs, inputs, tokens, dtype, with_bias
):
    weight, bias, x = normal((outputs, inputs), outputs, (tokens, inputs), seed=outputs)
    weight = weight.to(dtype)
    got = product_of(weight, bias if with_bias else None)(x)
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
    product = product_of(weight.to(dtype), None)
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
    narrow, halves = (in_panels(weight.to(dtype)) for dtype in TYPES)
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
    got = product_of(every[:, None], None)(torch.ones(1, 1))[0]
    # The sum with a bias of 0 has no negative zero.
    torch.testing.assert_close(got, every.float() + 0.0, rtol=0, atol=0, equal_nan=True)


def test_tokens_anywhere_in_memory_are_multiplied_and_other_types_are_refused():
    weight, x = normal((64, 32), (5, 64))
    product = product_of(weight.bfloat16(), None)
    assert torch.equal(product(x[:, ::2]), product(x[:, ::2].contiguous()))
    with pytest.raises(TypeError, match="reads float32"):
        product(x[:, :32].bfloat16())


def test_without_the_interface_of_gccs_openmp_one_thread_computes(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu_products, "_OPENMP", None)
    monkeypatch.setattr(cpu_products, "_product", lambda *given: asked.append(given))
    product_of(torch.zeros(1024, 1024).bfloat16(), None)(torch.ones(1, 1024))
    monkeypatch.setattr(cpu_products, "threadpool_info", lambda: [{"user_api": "blas"}])
    assert cpu_products._openmp() is None
    assert [given[-2] for given in asked] == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="others may have no such interface")
def test_pytorchs_own_threads_compute():
    assert cpu_products._OPENMP is not None or not torch.backends.openmp.is_available()


@pytest.mark.parametrize("numbers", [[1, 40, 0, 33, 32], [1 << 24, 5, (1 << 24) + 1]])
def test_weights_begin_on_a_line_and_share_none(numbers):
    reserved = [cpu_products._reserved(each) for each in numbers]
    assert [len(each) for each in reserved] == numbers
    lines = [
        set(range(at // 64, (at + 2 * len(each) + 63) // 64))
        for each in reserved
        if len(each) < 1000
        for at in [each.data_ptr()]
    ]
    assert all(each.data_ptr() % 64 == 0 for each in reserved)
    assert len(set().union(*lines)) == sum(map(len, lines))
