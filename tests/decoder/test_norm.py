"""The norm by its formula, whichever kernel computes it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftbench.decoder.llama import RootMeanSquare, add_mirrored, mirror_signs, mirrored


def test_a_norm_by_hand():
    """Mean square of (3, 4) is 12.5, and 12.5 + 3.5 = 16: a quarter of each, times its weight."""
    norm = RootMeanSquare(torch.tensor([2.0, 10.0]), eps=3.5)
    torch.testing.assert_close(norm(torch.tensor([[3.0, 4.0]])), torch.tensor([[1.5, 10.0]]))


@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([1e-3, 1.0, 1e3]))
def test_one_large_mean_does_not_disturb_it(seed, rows, spread):
    """What a layer norm subtracts is 0 here, wherever the values lie."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 64, generator=generator) * spread + 100
    weight = torch.randn(64, generator=generator)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(RootMeanSquare(weight, 1e-6)(x), expected.float())


def test_bfloat16_is_rounded_once():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 96, generator=generator).bfloat16()
    weight = torch.randn(96, generator=generator).bfloat16()
    expected = torch.nn.functional.rms_norm(x, (96,), weight, 1e-6)
    torch.testing.assert_close(RootMeanSquare(weight, 1e-6)(x), expected, rtol=2**-8, atol=0)


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_a_sum_and_its_negative_grow_together(seed, rows):
    """In bfloat16 too: rounding does not see a sign."""
    generator = torch.Generator().manual_seed(seed)
    x, more = (torch.randn(rows, 32, generator=generator).bfloat16() for _ in range(2))
    both = mirrored(x)
    add_mirrored(both, more, mirror_signs(x))
    assert torch.equal(both, mirrored(x + more))
    norm = RootMeanSquare(torch.ones(32).bfloat16(), 1e-6)
    assert torch.equal(norm.of_mirrored(both), norm(x + more))
