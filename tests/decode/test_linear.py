"""Linear layers at every level: the error that the level's grid allows, and the same result for a
token alone and in company.
"""

import pytest
import torch

from draftbench.decode.linear import INT4_GROUP, at_a_common_size, fits_level, make_linear

# Relative error of a normal weight matrix rounded to the level: int8 (absmax of 512 normals ≈ 3.2σ,
# step 3.2/127, uniform error step/√12) ≈ .7 %; int4 (range of 32 normals ≈ 4.1σ, step 4.1/15) ≈ 7.9
# %; e4m3 (3 mantissa bits) ≈ 2.6 %.
EXPECTED_ERROR = {"int8": 0.0073, "int4": 0.079, "fp8": 0.026}


def matrices():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 512, generator=generator).bfloat16() * 0.05
    x = torch.randn(40, 512, generator=generator).bfloat16()
    return weight, x, x.float() @ weight.float().T


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33, 40])
@pytest.mark.parametrize("level", ["int8", "int4"])
def test_a_kernel_errs_as_much_as_its_grid(level, rows):
    weight, x, exact = matrices()
    got = make_linear(weight, None, level, simulate=False)(x[:rows]).float()
    error = (got - exact[:rows]).norm() / exact[:rows].norm()
    assert error == pytest.approx(EXPECTED_ERROR[level], rel=0.15)


@pytest.mark.parametrize("level", EXPECTED_ERROR)
def test_simulation_errs_as_much_as_the_grid(level):
    weight, x, exact = matrices()
    got = make_linear(weight, None, level, simulate=True)(x).float()
    assert (got - exact).norm() / exact.norm() == pytest.approx(EXPECTED_ERROR[level], rel=0.15)


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
def test_a_token_does_not_depend_on_its_neighbours(level):
    """A token in front of large ones gives what it gives alone, up to bfloat16's last digits."""
    weight, x, _ = matrices()
    layer = make_linear(weight, None, level, simulate=False)
    together = layer(torch.cat([x[:1], 50 * x[1:]]))[0].float()
    alone = layer(x[:1])[0].float()
    assert (together - alone).norm() / alone.norm() < 0.01


def test_packing_changes_no_more_than_the_last_digit():
    """oneDNN may add the products in another order; bfloat16 has 8 bits of mantissa."""
    weight, x, _ = matrices()
    packed = make_linear(weight, None, "none", simulate=False)(x)
    plain = torch.nn.functional.linear(x, weight)
    torch.testing.assert_close(packed, plain, rtol=2**-7, atol=2**-7)


def test_long_passes_share_few_sizes_and_short_ones_keep_their_own():
    """By hand: 33 and 100 go up to whole tiles of 16, 600 to a multiple of 512 / 8."""
    assert [at_a_common_size(rows) for rows in (1, 9, 32)] == [1, 9, 32]
    assert [at_a_common_size(rows) for rows in (33, 100, 512, 600)] == [48, 112, 512, 640]
    assert len({at_a_common_size(rows) for rows in range(128, 2049)}) == 4 * 8 + 1
    assert all(rows <= at_a_common_size(rows) <= 1.125 * rows for rows in range(128, 2049))


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
def test_the_shape_of_a_pass_is_that_of_its_tokens(level):
    weight, x, _ = matrices()
    layer = make_linear(weight, torch.ones(256).bfloat16(), level, simulate=False)
    flat = layer(x[:38])
    assert flat.shape == (38, 256)
    torch.testing.assert_close(layer(x[:38].view(2, 19, 512)).view(38, 256), flat)


def test_a_bias_is_added():
    weight, x, _ = matrices()
    bias = torch.arange(256).bfloat16()
    for level in ("none", "int8", "int4"):
        with_bias = make_linear(weight, bias, level, simulate=False)(x[:1]).float()
        without = make_linear(weight, None, level, simulate=False)(x[:1]).float()
        torch.testing.assert_close(with_bias - without, bias[None].float(), atol=1.0, rtol=0.01)


def test_int4_needs_whole_groups():
    assert not fits_level(torch.zeros(64, INT4_GROUP + 1), "int4")
    assert fits_level(torch.zeros(64, INT4_GROUP), "int4")
