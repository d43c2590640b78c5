"""Linear layers at every level: the error that the level's grid allows, and the same result for a
token alone and in company.
"""

import re
import weakref
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from draftbench.decoder import quantized_linear
from draftbench.decoder.linear import (
    FEW_APART,
    IN_16_BITS,
    IN_ROWS,
    INT8_FBGEMM,
    INT8_HALVES,
    INT8_ONEDNN,
    INT8_WEIGHT_ONLY,
    PACKED,
    PACKED_FROM,
    ROWS_FROM,
    TWICE,
    PackedLinear,
    has_fbgemm,
    int8_way,
    multiplies_bfloat16,
    narrow_type,
    padded_size,
    unquantized_linear,
    with_packed,
)
from draftbench.decoder.quantized_linear import (
    Int4CudaLinear,
    Int4Linear,
    Int8Linear,
    Int8WeightOnlyLinear,
    SimulatedLinear,
    fp8_rows,
    make_linear,
)
from draftbench.memory import LEVELS
from tests.decoder.operations import Operations

int8_fbgemm = partial(Int8Linear, way=INT8_FBGEMM)
int8_onednn = partial(Int8Linear, way=INT8_ONEDNN)
int8_halves = partial(Int8Linear, way=INT8_HALVES)

# Relative error of a normal weight matrix rounded to the level: int8 (absmax of 512 normals ≈
# 3.2σ, step 3.2/127, uniform error step/√12) ≈ .73%, and √2 times that where the activations are
# rounded to 8 bits too; int4 (range of 32 normals ≈ 4.1σ, step 4.1/15) ≈ 7.9%; e4m3 (3 mantissa
# bits) ≈ 2.6%, of weights and activations √2 times that.
EXPECTED_ERROR = {
    int8_fbgemm: 0.0103,
    int8_onednn: 0.0103,
    int8_halves: 0.0073,
    Int8WeightOnlyLinear: 0.0073,
    Int4Linear: 0.079,
}
FP8_ERROR = 0.037
needs_vnni = pytest.mark.skipif(
    int8_way() not in (INT8_FBGEMM, INT8_ONEDNN),
    reason="this CPU sums products of bytes in 16 bits",
)
needs_fbgemm = pytest.mark.skipif(not has_fbgemm(), reason="this PyTorch or CPU has no FBGEMM")
INT8_KERNELS = [
    pytest.param(int8_fbgemm, marks=[needs_vnni, needs_fbgemm], id="fbgemm"),
    pytest.param(int8_halves, marks=needs_fbgemm, id="halves"),
    pytest.param(int8_onednn, marks=needs_vnni, id="onednn"),
]
KERNELS = [*INT8_KERNELS, Int8WeightOnlyLinear, Int4Linear]


def normal(*shapes):
    """Normal numbers of these shapes, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def matrices():
    weight, x = normal((256, 512), (40, 512))
    weight, x = weight.bfloat16() * 0.05, x.bfloat16()
    return weight, x, x.float() @ weight.float().T


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33, 40])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_errs_as_much_as_its_grid(kernel, rows):
    weight, x, exact = matrices()
    got = kernel(weight, None)(x[:rows]).float()
    error = (got - exact[:rows]).norm() / exact[:rows].norm()
    assert error == pytest.approx(EXPECTED_ERROR[kernel], rel=0.15)


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "none"])
def test_simulation_errs_as_much_as_the_grid(level):
    error = {"fp8": FP8_ERROR, "int8": 0.0073, "int4": EXPECTED_ERROR[Int4Linear]}[level]
    weight, x, exact = matrices()
    got = SimulatedLinear(weight, None, level)(x).float()
    assert (got - exact).norm() / exact.norm() == pytest.approx(error, rel=0.15)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_simulated_fp8_is_what_a_row_wise_fp8_product_gives(rows):
    """A row of zeros on either side gives zeros, not NaN as 0 / 0 would."""
    weight, x, _ = matrices()
    weight[7], x[0] = 0, 0
    (codes, scale), (tokens, of_tokens) = fp8_rows(weight), fp8_rows(x[:rows])
    expected = torch._scaled_mm(
        tokens, codes.T, scale_a=of_tokens, scale_b=scale.T, out_dtype=torch.bfloat16
    )
    got = make_linear(weight, None, "fp8")(x[:rows])
    assert not got[0].any()
    assert not got[:, 7].any()
    # What is multiplied is rounded to bfloat16, and so is what comes out.
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=0.01)


def test_codes_of_fp8_are_e4m3s_nearest_and_a_row_of_zeros_has_codes_of_zero():
    """By hand: a scale of 2 / 448; 1 is 224 of it, 0.3 is 67.2, of whose neighbours 64 and 72 the
    first is nearer.
    """
    codes, scale = fp8_rows(torch.tensor([[2.0, 1.0, -0.3], [0.0, 0.0, 0.0]]))
    assert codes.float().tolist() == [[448, 224, -64], [0, 0, 0]]
    assert scale[0].item() == pytest.approx(2 / 448)


@pytest.fixture
def card(monkeypatch):
    """A tensor on a GPU: the shapes and multiples that PyTorch's kernels accept, and no memory."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with FakeTensorMode():
        yield partial(torch.empty, dtype=torch.bfloat16, device="cuda")


# Inputs that divide by 128, by 64 and by 32 alone: 8, 4 and 2 of the kernel's tiles.
@pytest.mark.parametrize("inputs", [4096, 1536, 576, 96])
@pytest.mark.parametrize("rows", [1, 2, 9, 512])
def test_int4_on_a_gpu_is_one_launch_of_unpadded_inputs(card, inputs, rows):
    layer = make_linear(card(64, inputs), card(64), "int4")
    # Half a byte a weight, 2 + 2 bytes for every 32.
    assert layer.weight_bytes == 64 * inputs * 0.625
    x = card(rows, inputs)
    with Operations() as operations:
        out = layer(x)
    assert (out.shape, out.device.type, out.dtype) == ((rows, 64), "cuda", torch.bfloat16)
    assert operations.launched == ["_weight_int4pack_mm", "add_"]


def test_int4_on_a_gpu_packs_the_first_of_two_codes_into_the_upper_half():
    """By hand, on the CPU: codes 15 and 0 are 240, 0 and 15 are 15; tinygemm unpacks them so."""
    weight = torch.tensor([[1.0, -1.0] * 16, [-1.0, 1.0] * 16]).bfloat16()
    packed = []

    def pack(codes, tiles):
        packed.append((codes, tiles))
        return codes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.ops.aten, "_convert_weight_to_int4pack", pack)
        Int4CudaLinear(weight, None)
    codes, tiles = packed[0]
    assert (codes.dtype, tiles) == (torch.uint8, 2)
    assert codes.tolist() == [[240] * 16, [15] * 16]


@pytest.mark.parametrize("level", ["fp8", "int8"])
def test_a_level_without_a_kernel_is_simulated_on_a_gpu_too(card, level):
    layer = make_linear(card(64, 96), None, level)
    out = layer(card(3, 96))
    assert (out.shape, out.device.type, layer.weight_bytes) == ((3, 64), "cuda", 2 * 64 * 96)


def test_the_scale_of_an_output_neither_stretches_nor_shrinks_it():
    """Codes are made for the scale as it is kept, in bfloat16, whose rounding is up to 0.4%."""
    weight, _, _ = matrices()
    layer = Int8WeightOnlyLinear(weight, None)
    kept = layer.weight.float() * layer.scale.float()[:, None]
    exact = weight.float()
    gain = (kept * exact).sum(1) / exact.square().sum(1) - 1
    assert gain.square().mean().sqrt() < 0.0007


@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize("inputs", [1, 8, 24, 33, 1000])
def test_int8_multiplies_matrices_whose_inputs_no_kernel_reads_at_once(inputs, rows):
    """PyTorch's kernel reads 16 inputs at a time, past the end of the last row."""
    weight, x = normal((33, inputs), (rows, inputs))
    got, exact = make_linear(weight, None, "int8")(x), x @ weight.T
    assert (got - exact).norm() < 0.03 * exact.norm()


@needs_fbgemm
@pytest.mark.parametrize(
    ("capable", "kernels", "way"),
    [
        ({"avx2", "f16c", "avx512_vnni"}, "AVX512", INT8_FBGEMM),
        ({"avx2", "f16c", "avx512_vnni", "amx_int8"}, "AVX512", INT8_ONEDNN),
        ({"avx2", "f16c", "avx512_vnni", "amx_int8"}, "AVX2", INT8_HALVES),
        ({"avx2", "f16c", "avx_vnni"}, "AVX2", INT8_ONEDNN),
        ({"avx2", "f16c"}, "AVX512", INT8_HALVES),
        ({"avx2", "f16c"}, "AVX2", INT8_HALVES),
        (set(), "AVX2", INT8_WEIGHT_ONLY),
    ],
)
def test_int8_goes_where_sums_of_bytes_do_not_overflow(monkeypatch, capable, kernels, way):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(capable, True))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kernels)
    assert int8_way() == way


@pytest.mark.parametrize(("outputs", "layer"), [(499, Int8WeightOnlyLinear), (500, Int8Linear)])
def test_int8_makes_integers_of_tokens_only_for_large_matrices(monkeypatch, outputs, layer):
    monkeypatch.setattr(quantized_linear, "int8_way", lambda: INT8_ONEDNN)
    made = make_linear(torch.ones(outputs, 1000), None, "int8")
    assert type(made) is layer


BYTES = [[127.0, -1, 64, 3], [-127, 127, 0, 0]]


@pytest.mark.parametrize(
    ("kernels", "weight", "x", "expected"),
    [
        # Weights and activations whose largest value is 127 are their own codes.
        (
            [INT8_KERNELS[0], INT8_KERNELS[2]],
            BYTES,
            [[1, 2, -127, 0], [127, 127, 127, 127], [0, 0, 0, 0]],
            [[127 - 2 - 64 * 127, -127 + 254], [127 * 193, 0], [0, 0]],
        ),
        # Sums of two products stay within 16 bits: 127 · 127 twice is 32258 of 32767, 255 · 127
        # twice is not.
        ([INT8_KERNELS[1]], [[127.0] * 64] * 16, [[127.0] * 64], [[127.0 * 127 * 64] * 16]),
        # Where the largest value is 63 · 126, each whole number has codes of its own.
        (
            [INT8_KERNELS[1]],
            BYTES,
            [[7938.0, 1, -126, 63], [5, 2, -7938, 0]],
            [
                [127 * 7938 - 1 - 64 * 126 + 3 * 63, 127 - 127 * 7938],
                [635 - 2 - 64 * 7938, 254 - 635],
            ],
        ),
    ],
    ids=["bytes", "halves within 16 bits", "halves in 126ths"],
)
def test_integers_are_multiplied_and_summed_exactly(kernels, weight, x, expected):
    """By hand."""
    for kernel in kernels:
        if not any(mark.args[0] for mark in kernel.marks):
            got = kernel.values[0](torch.tensor(weight), None)(torch.tensor(x).float())
            torch.testing.assert_close(got, torch.tensor(expected).float(), rtol=1e-6, atol=0.01)


@pytest.mark.parametrize("kernel", INT8_KERNELS)
@pytest.mark.parametrize(("outputs", "inputs"), [(256, 512), (251, 577), (16, 33)])
def test_an_int8_row_gives_to_the_last_bit_what_it_gives_alone(kernel, outputs, inputs):
    """Whatever its neighbours are: a row's scale is its own. Between rows 10 ** 60 apart, in passes
    of every kind of length.
    """
    x, weight = normal((70, inputs), (outputs, inputs))
    x, layer = torch.logspace(-30, 30, 70)[:, None] * x, kernel(weight, None)
    together = layer(x)
    for rows in (1, 2, 3, 5, 8, 9, 33, 64):
        for start in (0, 1, 70 - rows):
            assert torch.equal(layer(x[start : start + rows]), together[start : start + rows])


@pytest.mark.parametrize("kernel", INT8_KERNELS)
@pytest.mark.parametrize("value", [1e-45, 1e-20, 1e30, 2.0**120])
def test_int8_takes_values_of_any_size_and_rows_of_zeros(kernel, value):
    """By hand: the largest value of a row is exact, and nothing times anything is the bias."""
    weight = torch.tensor([[127.0, 0.0], [0.0, -127.0]])
    x = torch.tensor([[0.0, 0.0], [value, -value], [0.0, value]])
    got = kernel(weight, torch.tensor([1.0, 2.0]))(x)
    expected = torch.tensor([[1.0, 2.0], [127 * value + 1, 127 * value + 2], [1, 2 - 127 * value]])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "layer", [partial(unquantized_linear, two_layouts=False), INT8_KERNELS[-1]]
)
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_onednn_multiplies_with_a_kernel_and_not_with_its_reference(capfd, layer, rows):
    """Its reference gives the same figures, hundreds of times as slowly. What it takes is named in
    its log: `matmul,brg_matmul:avx512_core_vnni` or `matmul,ref_int8:any`.
    """
    weight, x, _ = matrices()
    # Numbers that need 32 bits.
    built = layer((weight.float() * 1.001).repeat(4, 1), None)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        built(x[:rows].float())
    log = capfd.readouterr().out
    used = re.findall(r",exec,cpu,(?:matmul|inner_product),([^,]+),", log)
    assert used
    assert not [kernel for kernel in used if "ref" in kernel]


@pytest.mark.parametrize("level", ["none", "int4"])
def test_a_token_does_not_depend_on_its_neighbours(level):
    """A token in front of large ones gives what it gives alone, up to bfloat16's last digits."""
    weight, x, _ = matrices()
    layer = make_linear(weight, None, level)
    together = layer(torch.cat([x[:1], 50 * x[1:]]))[0].float()
    alone = layer(x[:1])[0].float()
    assert (together - alone).norm() / alone.norm() < 0.01


needs_bfloat16 = pytest.mark.skipif(
    not multiplies_bfloat16(), reason="this CPU has no instructions for bfloat16"
)


@needs_bfloat16
def test_many_rows_in_bfloat16_are_multiplied_by_a_second_copy():
    weight, bias, x = (each.bfloat16() for each in normal((1200, 512), (1200,), (40, 512)))
    weight *= 0.05
    for two_layouts in (True, False):
        layer = unquantized_linear(weight, bias, two_layouts=two_layouts)
        assert layer.layout == (FEW_APART if two_layouts else IN_16_BITS)
        assert layer.weight_bytes == weight.nbytes
        assert layer.second_layout_bytes == (weight.nbytes if two_layouts else 0)
        for rows in (1, 2, 3, 4, 5, 33, 40):
            expected = torch.nn.functional.linear(x[:rows], weight, bias)
            torch.testing.assert_close(layer(x[:rows]), expected, rtol=2**-7, atol=2**-6)


def test_long_passes_share_few_sizes_and_short_ones_keep_their_own():
    """By hand: 33 goes up to a multiple of 32 / 8, 100 of 64 / 8, 600 of 512 / 8."""
    assert [padded_size(rows) for rows in (1, 9, 32)] == [1, 9, 32]
    assert [padded_size(rows) for rows in (33, 100, 512, 600)] == [36, 104, 512, 640]
    assert len({padded_size(rows) for rows in range(128, 2049)}) == 4 * 8 + 1
    assert all(rows <= padded_size(rows) <= 1.125 * rows for rows in range(33, 2049))


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
def test_tokens_come_in_any_shape_and_place_in_memory_and_get_the_bias(level):
    weight, x, _ = matrices()
    bias = torch.arange(256).bfloat16()
    layer, without = make_linear(weight, bias, level), make_linear(weight, None, level)
    flat = layer(x[:38])
    assert flat.shape == (38, 256)
    torch.testing.assert_close(layer(x[:38].view(2, 19, 512)).view(38, 256), flat)
    added = layer(x[:1]).float() - without(x[:1]).float()
    torch.testing.assert_close(added, bias[None].float(), atol=1.0, rtol=0.01)
    for rows in (1, 2, 3):
        apart = torch.cat([x, x], dim=1)[:rows, :512]
        torch.testing.assert_close(without(apart), without(x[:rows]), rtol=2**-7, atol=2**-7)


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
    weight, many = normal((-(-size // 1024), 256), (40, 256))
    layer = unquantized_linear(weight, None, two_layouts=two_layouts)
    assert getattr(layer, "layout", None) == layout
    assert getattr(layer, "second_layout_bytes", 0) == (weight.nbytes if layout == TWICE else 0)
    for x in (many[:rows] for rows in (1, 2, 5, 40)):
        torch.testing.assert_close(layer(x), x @ weight.T, rtol=1e-4, atol=1e-4)


def test_packed_weights_are_not_asked_for_a_torch_function():
    """Each would answer by an exception of C++."""
    asked = with_packed(torch._C._is_torch_function_enabled)
    assert not asked()
    assert torch._C._is_torch_function_enabled()


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_16_bits_hold_a_checkpoint_of_16_bits_and_multiply_it_in_float32(stored):
    weight, bias, many = normal((1200, 256), (1200,), (40, 256))
    weight = (0.02 * weight).to(stored).float()
    layer = unquantized_linear(weight, bias)
    assert isinstance(layer, PackedLinear)
    assert (layer.layout, layer.weight_bytes) == (IN_16_BITS, 2 * weight.numel())
    for x in (many[:rows] for rows in (1, 2, 5, 40)):
        exact = (x.double() @ weight.double().T + bias).float()
        torch.testing.assert_close(layer(x), exact, rtol=2**-18, atol=2**-18)


@pytest.mark.parametrize(
    ("value", "narrow"),
    [
        (2.0**-24, torch.bfloat16),  # in both types: float16's smallest
        (2.0**-100, torch.bfloat16),
        (65536.0, torch.bfloat16),
        (1 + 2.0**-10, torch.float16),  # three digits more than bfloat16 has
        (1 + 2.0**-11, None),
        (65504.0 + 2.0**-24, torch.float16),  # in float32 65504, float16's largest
        (float("nan"), None),
    ],
)
def test_16_bits_are_taken_if_they_have_every_weight_exactly(value, narrow):
    weight = torch.zeros(3000, 64)
    weight[2999, 0], weight[2999, 63] = 1.0, value
    assert narrow_type(weight) is narrow
    assert narrow_type(weight.to("meta")) is None


def test_int4_without_a_copy_is_its_kernel_at_every_length():
    weight, x, _ = matrices()
    twice, once = (Int4Linear(weight, None, two_layouts=two) for two in (True, False))
    assert (once.layout, once.second_layout_bytes) == ("int4 alone", 0)
    assert twice.second_layout_bytes in (2 * weight.numel(), 4 * weight.numel())
    assert twice.layout.startswith("int4 up to ")
    assert torch.equal(once(x), once.by_codes(x).to(x.dtype))
    torch.testing.assert_close(twice(x), once(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("size", [1.0, 3e4, 1e6])
def test_int4s_copy_holds_weights_of_any_size(size):
    weight, x, exact = matrices()
    got = Int4Linear(weight.float() * size, None)(x).float() / size
    assert (got - exact).norm() / exact.norm() == pytest.approx(
        EXPECTED_ERROR[Int4Linear], rel=0.15
    )


@pytest.mark.parametrize("copied", [True, False])
def test_rows_stay_where_they_are_unless_they_lie_in_a_file(copied):
    weight = torch.randn(ROWS_FROM // 1024, 256)
    layer = unquantized_linear(weight, None, copied=copied)
    assert (layer.address == weight.data_ptr()) is copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [unquantized_linear, *KERNELS])
def test_the_weights_it_is_made_of_stay_as_they_are_and_go_with_the_layer(kernel, dtype):
    """They may be a tied embedding's too, and are not to wait for the collector of cycles."""
    weight, _, _ = matrices()
    given = weight.to(dtype, copy=True)
    layer = kernel(given, None)
    assert torch.equal(given, weight.to(dtype))
    held = weakref.ref(layer)
    del layer
    assert held() is None
