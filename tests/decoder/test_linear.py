"""Linear layers at every level: the error that the level's grid allows, and the same result for a
token alone and in company.
"""

import re
import weakref

import pytest
import torch

from draftbench.decoder.linear import (
    IN_16_BITS,
    IN_ROWS,
    PACKED,
    PACKED_FROM,
    ROWS_FROM,
    TWICE,
    PackedLinear,
    fits_16_bits,
    has_fbgemm,
    multiplies_bfloat16,
    multiplies_integers,
    padded_size,
    unquantized_linear,
)
from draftbench.decoder.quantized_linear import (
    Int4Linear,
    Int8Linear,
    Int8WeightOnlyLinear,
    fits_level,
    make_linear,
)
from draftbench.memory import INT4_GROUP

# Relative error of a normal weight matrix rounded to the level: int8 (absmax of 512 normals ≈ 3.2σ,
# step 3.2/127, uniform error step/√12) ≈ .73 %, and √2 times that where the activations are rounded
# too; int4 (range of 32 normals ≈ 4.1σ, step 4.1/15) ≈ 7.9 %; e4m3 (3 mantissa bits) ≈ 2.6 %.
EXPECTED_ERROR = {Int8Linear: 0.0103, Int8WeightOnlyLinear: 0.0073, Int4Linear: 0.079}
FP8_ERROR = 0.026
needs_integers = pytest.mark.skipif(
    not multiplies_integers(), reason="this CPU does not multiply bytes"
)
KERNELS = [pytest.param(Int8Linear, marks=needs_integers), Int8WeightOnlyLinear, Int4Linear]


def matrices():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 512, generator=generator).bfloat16() * 0.05
    x = torch.randn(40, 512, generator=generator).bfloat16()
    return weight, x, x.float() @ weight.float().T


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33, 40])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_errs_as_much_as_its_grid(kernel, rows):
    weight, x, exact = matrices()
    got = kernel(weight, None)(x[:rows]).float()
    error = (got - exact[:rows]).norm() / exact[:rows].norm()
    assert error == pytest.approx(EXPECTED_ERROR[kernel], rel=0.15)


@pytest.mark.parametrize(("level", "error"), [("fp8", FP8_ERROR), ("int8", 0.0073)])
def test_simulation_errs_as_much_as_the_grid(level, error):
    weight, x, exact = matrices()
    got = make_linear(weight, None, level, simulate=True)(x).float()
    assert (got - exact).norm() / exact.norm() == pytest.approx(error, rel=0.15)


def test_the_scale_of_an_output_neither_stretches_nor_shrinks_it():
    """Codes are made for the scale as it is kept, in bfloat16, whose rounding is up to 0.4 %."""
    weight, _, _ = matrices()
    layer = Int8WeightOnlyLinear(weight, None)
    kept = layer.weight.float() * layer.scale.float()[:, None]
    exact = weight.float()
    gain = (kept * exact).sum(1) / exact.square().sum(1) - 1
    assert gain.square().mean().sqrt() < 0.0007


@needs_integers
def test_bytes_are_multiplied_and_summed_exactly():
    """By hand: weights and activations whose largest value is 127 are their own codes."""
    weight = torch.tensor([[127, -1, 64, 3], [-127, 127, 0, 0]]).bfloat16()
    x = torch.tensor([[1, 2, -127, 0], [127, 127, 127, 127], [0, 0, 0, 0]]).bfloat16()
    expected = [[127 - 2 - 64 * 127, -127 + 254], [127 * 193, 0], [0, 0]]
    got = Int8Linear(weight, None)(x).float()
    torch.testing.assert_close(got, torch.tensor(expected).float(), rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    "layer", [unquantized_linear, pytest.param(Int8Linear, marks=needs_integers)]
)
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_onednn_multiplies_with_a_kernel_and_not_with_its_reference(capfd, layer, rows):
    """Its reference gives the same figures, hundreds of times as slowly. What it takes is named in
    its log: `matmul,brg_matmul:avx512_core_vnni` or `matmul,ref_int8:any`.
    """
    weight, x, _ = matrices()
    wide = torch.bfloat16 if multiplies_bfloat16() else torch.float32
    # Numbers that need 32 bits.
    built = layer((weight.float() * 1.001).to(wide).repeat(4, 1), None)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        built(x[:rows].to(wide))
    log = capfd.readouterr().out
    used = re.findall(r",exec,cpu,(?:matmul|inner_product),([^,]+),", log)
    assert used
    assert not [kernel for kernel in used if "ref" in kernel]


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
    """By hand: 33 goes up to a multiple of 32 / 8, 100 of 64 / 8, 600 of 512 / 8."""
    assert [padded_size(rows) for rows in (1, 9, 32)] == [1, 9, 32]
    assert [padded_size(rows) for rows in (33, 100, 512, 600)] == [36, 104, 512, 640]
    assert len({padded_size(rows) for rows in range(128, 2049)}) == 4 * 8 + 1
    assert all(rows <= padded_size(rows) <= 1.125 * rows for rows in range(33, 2049))


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
def test_the_shape_of_a_pass_is_that_of_its_tokens(level):
    weight, x, _ = matrices()
    layer = make_linear(weight, torch.ones(256).bfloat16(), level, simulate=False)
    flat = layer(x[:38])
    assert flat.shape == (38, 256)
    torch.testing.assert_close(layer(x[:38].view(2, 19, 512)).view(38, 256), flat)


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rows_need_not_follow_each_other_in_memory(level, rows):
    weight, x, _ = matrices()
    layer = make_linear(weight, None, level, simulate=False)
    apart = torch.cat([x, x], dim=1)[:rows, :512]
    assert rows == 1 or not apart.is_contiguous()
    torch.testing.assert_close(layer(apart), layer(x[:rows]), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("rows", [1, 2, 9, 40])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_float32_model_keeps_float32_around_a_quantized_layer(kernel, rows):
    weight, x, _ = matrices()
    layer = kernel(weight, torch.ones(256))
    got = layer(x[:rows].float())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, layer(x[:rows]).float(), rtol=0.01, atol=0.02)


@pytest.mark.parametrize(
    ("size", "two_layouts", "layout"),
    [
        (PACKED_FROM - 1024, True, None),
        (PACKED_FROM, True, PACKED),
        (ROWS_FROM, True, TWICE),
        (ROWS_FROM, False, IN_ROWS),
    ],
)
def test_weights_that_need_32_bits_are_held_as_is_fastest_for_their_size(size, two_layouts, layout):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(-(-size // 1024), 256, generator=generator)
    layer = unquantized_linear(weight, None, two_layouts=two_layouts)
    assert getattr(layer, "layout", None) == layout
    assert getattr(layer, "second_layout_bytes", 0) == (weight.nbytes if layout == TWICE else 0)
    for rows in (1, 2, 5, 40):
        x = torch.randn(rows, 256, generator=generator)
        torch.testing.assert_close(layer(x), x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not has_fbgemm(), reason="this PyTorch has no FBGEMM, or this CPU no F16C")
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_16_bits_hold_a_checkpoint_of_16_bits_and_multiply_it_in_float32(stored):
    generator = torch.Generator().manual_seed(0)
    weight = (0.02 * torch.randn(1200, 256, generator=generator)).to(stored).float()
    bias = torch.randn(1200, generator=generator)
    layer = unquantized_linear(weight, bias)
    assert isinstance(layer, PackedLinear)
    assert (layer.layout, layer.weight_bytes) == (IN_16_BITS, 2 * weight.numel())
    for rows in (1, 2, 5, 40):
        x = torch.randn(rows, 256, generator=generator)
        exact = (x.double() @ weight.double().T + bias).float()
        torch.testing.assert_close(layer(x), exact, rtol=2**-18, atol=2**-18)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (2.0**-25, True),  # half the step of float16's smallest numbers: rounds to 0
        (3 * 2.0**-26, True),  # between two of them
        (65504.0, True),  # float16's largest
        (65536.0, False),  # a bfloat16 number
        (1 + 2.0**-12, False),  # a digit too many
        (float("nan"), False),
        (float("inf"), False),
    ],
)
def test_one_weight_beyond_16_bits_keeps_32_for_all(value, fits):
    weight = torch.zeros(3000, 64)
    weight[2999, 63] = value
    assert fits_16_bits(weight) is (fits and has_fbgemm())


@pytest.mark.parametrize("copied", [True, False])
def test_rows_stay_where_they_are_unless_they_lie_in_a_file(copied):
    weight = torch.randn(ROWS_FROM // 1024, 256)
    layer = unquantized_linear(weight, None, copied=copied)
    assert (layer.address == weight.data_ptr()) is copied


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [unquantized_linear, *KERNELS])
def test_the_weights_it_is_made_of_stay_as_they_are(kernel, dtype):
    """They may be a tied embedding's too."""
    weight, _, _ = matrices()
    given = weight.to(dtype, copy=True)
    kernel(given, None)
    assert torch.equal(given, weight.to(dtype))


@pytest.mark.parametrize("kernel", [unquantized_linear, *KERNELS])
def test_a_layer_that_nobody_holds_is_gone_at_once(kernel):
    """A model's weights are not to wait for the collector of cycles."""
    weight, _, _ = matrices()
    layer = kernel(weight.float(), None)
    held = weakref.ref(layer)
    del layer
    assert held() is None
