"""The kernel compiled on this machine: its sums, and why it could not be built."""

import os
import platform
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from draftbench.decoder import avx512_kernel
from draftbench.decoder.linear import PackedLinear, multiplies_bfloat16
from draftbench.decoder.quantized_linear import make_linear
from draftbench.models.quantize import weight_bytes

RUNS = torch.cpu.get_capabilities().get("avx512_f", False) and platform.system() == "Linux"
needs_kernel = pytest.mark.skipif(
    not RUNS or avx512_kernel._build().kernels is None,
    reason="this machine has no AVX-512 or no compiler for the kernels",
)
needs_use = pytest.mark.skipif(
    not (avx512_kernel.is_faster_here() and multiplies_bfloat16()),
    reason="oneDNN or PyTorch is faster on this CPU",
)
# Half of the last of its 8 bits, and what 2,000 additions in float32 may lose.
ROUNDING, ADDING = 2**-8, 1e-5


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """Built again, into an empty cache; what was built before comes back afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    avx512_kernel._build.cache_clear()
    monkeypatch.setattr(avx512_kernel, "_loaded", lambda _: pytest.fail("loaded twice"))
    yield monkeypatch
    avx512_kernel._build.cache_clear()


def kernel():
    return avx512_kernel._build().kernels.bfloat16


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


PRODUCTS = given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 70).map(lambda lines: 32 * lines),
    outputs=st.integers(1, 9).map(lambda blocks: 4 * blocks),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)


def assert_rounded_once(got, x, weight, bias):
    """`got` is the exact product with float64 weights, but for its one rounding."""
    exact = functional.linear(x.double(), weight, None if bias is None else bias.double())
    size = x.double().abs() @ weight.abs().T + 4
    assert ((got.double() - exact).abs() <= ROUNDING * exact.abs() + ADDING * size).all()


@needs_kernel
@settings(max_examples=60, deadline=None)
@PRODUCTS
def test_a_product_is_the_exact_one_rounded_once(rows, inputs, outputs, biased, seed):
    x, weight = random(rows, inputs, seed=seed), random(outputs, inputs, seed=seed + 1)
    bias = random(outputs, seed=seed + 2) if biased else None
    assert_rounded_once(kernel()(x, weight, bias), x, weight.double(), bias)


@needs_kernel
@settings(max_examples=30, deadline=None)
@PRODUCTS
def test_a_product_of_bytes_is_the_exact_one_rounded_once(rows, inputs, outputs, biased, seed):
    made = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (outputs, inputs), generator=made).char()
    x, scales = random(rows, inputs, seed=seed), torch.rand(outputs, generator=made)
    bias = random(outputs, seed=seed + 2) if biased else None
    got = avx512_kernel._build().kernels.int8(x, codes, scales, bias)
    assert_rounded_once(got, x, codes.double() * scales.double()[:, None], bias)


@needs_kernel
@pytest.mark.parametrize("rows", [2, 5, 6, 7, 13, 64])
def test_a_token_gives_the_same_bits_alone_and_in_company(rows):
    x, weight = random(rows, 1056), random(40, 1056, seed=1)
    together = kernel()(x, weight, None)
    alone = torch.cat([kernel()(row[None], weight, None) for row in x])
    assert torch.equal(together, alone)


@needs_kernel
def test_results_are_rounded_to_the_nearest_and_ties_to_even():
    """By hand: 8 bits of mantissa hold 256 and 258, not 257 nor 259; 260 and 257.5 are above."""
    weight = torch.zeros(4, 32).bfloat16()
    weight[:, :2] = torch.tensor([[256, 1], [256, 3], [256, 1.5], [256, 0.5]])
    got = kernel()(torch.ones(1, 32).bfloat16(), weight, None)
    assert got.tolist() == [[256.0, 260.0, 258.0, 256.0]]


@needs_kernel
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.38e38])
def test_what_is_no_number_or_too_large_for_one_stays_so(value):
    weight = torch.zeros(4, 32).bfloat16()
    weight[0, 0] = value
    got = kernel()(torch.full((1, 32), 2.0).bfloat16(), weight, None)[0, :2]
    expected = torch.tensor([2 * torch.tensor(value).bfloat16().float(), 0.0]).bfloat16()
    torch.testing.assert_close(got, expected, equal_nan=True)


@needs_kernel
def test_rows_may_lie_apart_and_values_may_not():
    x, weight = random(3, 128), random(8, 64, seed=1)
    apart = kernel()(x[:, :64], weight, None)
    assert torch.equal(apart, kernel()(x[:, :64].contiguous(), weight, None))
    with pytest.raises(RuntimeError, match="values are apart"):
        kernel()(x[:, ::2], weight, None)


@needs_kernel
@pytest.mark.parametrize(
    ("x", "weight", "bias", "why"),
    [
        (random(1, 48), random(8, 48), None, "no step divides"),
        (random(1, 64), random(6, 64), None, "no step divides"),
        (random(1, 0), random(8, 0), None, "no step divides"),
        (random(64), random(8, 64), None, "not rows and a matrix"),
        (random(2, 32), random(8, 64), None, "of another size"),
        (random(2, 64).float(), random(8, 64), None, "another type"),
        (random(2, 64), random(8, 64).float(), None, "another type"),
        (random(2, 64), random(64, 8).T, None, "a matrix whose values are apart"),
        (random(2, 64), random(8, 64), random(8).float(), "a bias"),
        (random(2, 64), random(8, 64), random(2), "a bias"),
        (random(2, 64), random(8, 64), random(16)[::2], "a bias"),
    ],
)
def test_what_the_kernel_does_not_take_is_an_error_and_no_number(x, weight, bias, why):
    with pytest.raises(RuntimeError, match=why):
        kernel()(x, weight, bias)


@needs_use
@pytest.mark.parametrize(("outputs", "inputs"), [(8, 48), (6, 64)])
def test_a_matrix_that_the_kernel_does_not_take_is_packed(outputs, inputs):
    layer = make_linear(random(outputs, inputs), None, "none", simulate=False)
    assert isinstance(layer, PackedLinear)


@needs_use
@pytest.mark.skipif(avx512_kernel.obstacle() is not None, reason="it cannot be built here")
@pytest.mark.parametrize("level", ["none", "int8"])
def test_a_layer_takes_any_dimensions_and_strides(level):
    layer = make_linear(random(8, 64), None, level, simulate=False)
    x = random(2, 3, 64)
    assert layer.streams
    expected = layer(x.reshape(6, 64)).view(2, 3, 8)
    assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x.transpose(1, 2).contiguous().transpose(1, 2)), expected)
    with pytest.raises(RuntimeError):
        layer(random(2, 32))


@needs_use
@pytest.mark.skipif(avx512_kernel.obstacle() is not None, reason="it cannot be built here")
def test_a_piece_of_a_mapped_file_is_copied_and_a_matrix_of_its_own_is_not():
    """A tied head and its embedding are one; a piece would keep the whole file in memory."""
    weight = random(8, 64)
    for own in (True, False):
        layer = make_linear(weight, None, "none", simulate=False, copied=own)
        assert (layer.weight.data_ptr() == weight.data_ptr()) is own
        assert torch.equal(layer.weight, weight)


class Tied:
    """What `weight_bytes` asks a runner: an embedding, and a head that shares its weights."""

    def __init__(self):
        self.embedding = random(8, 64)
        self.head = make_linear(self.embedding, None, "none", simulate=False, copied=True)

    def tensors(self):
        yield self.embedding

    def modules(self):
        yield self.head


@needs_use
@pytest.mark.skipif(avx512_kernel.obstacle() is not None, reason="it cannot be built here")
def test_a_head_that_shares_its_weights_counts_once():
    assert weight_bytes(Tied()) == 8 * 64 * 2


def built_elsewhere(cache, lines="", **environment):
    """Why another process has no kernel, in its words: none is loaded twice into one."""
    code = f"from draftbench.decoder import avx512_kernel\n{lines}\n"
    code += "print(avx512_kernel._build().obstacle)"
    given = os.environ | {"XDG_CACHE_HOME": str(cache)} | environment
    ran = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


@pytest.mark.slow
@needs_kernel
def test_the_kernel_is_built_once_and_found_again(tmp_path):
    assert built_elsewhere(tmp_path) == "None"
    [built] = (tmp_path / "draftbench").iterdir()
    written = built.stat().st_mtime_ns
    assert built_elsewhere(tmp_path, CXX="/no/such/compiler") == "None"
    assert list((tmp_path / "draftbench").iterdir()) == [built]
    assert built.stat().st_mtime_ns == written


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("left", [0, 100, 8192])
def test_a_damaged_library_is_built_again_and_never_loaded(tmp_path, left):
    """A loader that reads beyond the end of a file ends the process."""
    assert built_elsewhere(tmp_path) == "None"
    [built] = (tmp_path / "draftbench").iterdir()
    whole = built.read_bytes()
    built.write_bytes(whole[:left])
    assert "no C++ compiler" not in built_elsewhere(tmp_path)
    assert built.read_bytes() == whole or len(list((tmp_path / "draftbench").iterdir())) > 1
    assert built_elsewhere(tmp_path) == "None"


@pytest.mark.slow
@needs_kernel
def test_code_that_others_may_have_put_there_is_not_loaded(tmp_path):
    (tmp_path / "draftbench").mkdir()
    (tmp_path / "draftbench").chmod(0o777)
    assert built_elsewhere(tmp_path) == "others may write to the folder of its cache"


@pytest.mark.slow
@needs_kernel
def test_a_kernel_that_computes_something_else_is_not_used(tmp_path):
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text(avx512_kernel.SOURCE.read_text().replace("0xffff0000u", "0xff000000u"))
    lines = f"import pathlib; avx512_kernel.SOURCE = pathlib.Path({str(wrong)!r})"
    assert built_elsewhere(tmp_path, lines) == "built by this compiler, it computes wrong results"


def compiler(folder, *lines):
    """A program that stands for one."""
    program = folder / "cc"
    program.write_text("\n".join(["#!/bin/sh", *lines]))
    program.chmod(0o700)
    return str(program)


def failing(monkeypatch, tmp_path, how):
    """Why the kernel cannot be built here, in the words that are expected."""
    if how == "no compiler":
        monkeypatch.setattr(avx512_kernel.shutil, "which", lambda _: None)
        return "no C++ compiler was found (c++, g++, clang++)"
    if how == "not what it says":
        monkeypatch.setenv("CXX", "/no/such/compiler")
        return "the C++ compiler `compiler` cannot be run: No such file or directory"
    if how == "half a command":
        monkeypatch.setenv("CXX", "c++ '")
        return "`CXX` names no command"
    if how == "a compiler's error":
        monkeypatch.setenv(
            "CXX", compiler(tmp_path, "echo '/home/a.cpp:1: error: old' >&2; exit 1")
        )
        return "the C++ compiler `cc` failed: old"
    if how == "a compiler without words":
        monkeypatch.setenv("CXX", compiler(tmp_path, "exit 3"))
        return "the C++ compiler `cc` failed: exit 3"
    if how == "a compiler that makes nothing":
        monkeypatch.setenv("CXX", "true")
        return "the C++ compiler `true` failed: exit 0"
    if how == "too slow":
        monkeypatch.setattr(avx512_kernel, "SECONDS", 0.5)
        monkeypatch.setenv("CXX", compiler(tmp_path, f"sleep 3 && touch {tmp_path}/ran-on"))
        return "the C++ compiler `cc` took longer than 0.5 seconds"
    (tmp_path / "draftbench").write_text("")
    return "the kernel cannot be kept or loaded: File exists"


HOWS = [
    "no compiler",
    "not what it says",
    "half a command",
    "a compiler's error",
    "a compiler without words",
    "a compiler that makes nothing",
    "too slow",
    "a file for a folder",
]


@needs_use
@pytest.mark.parametrize("how", HOWS)
def test_what_keeps_it_from_being_built_is_said_and_onednn_serves(anew, tmp_path, how):
    expected = failing(anew, tmp_path, how)
    assert avx512_kernel.obstacle() == expected
    layer = make_linear(random(8, 64), None, "none", simulate=False)
    assert isinstance(layer, PackedLinear)


@pytest.mark.slow
@needs_use
def test_a_compiler_that_is_stopped_leaves_nothing_running(anew, tmp_path):
    failing(anew, tmp_path, "too slow")
    assert avx512_kernel.obstacle() is not None
    time.sleep(3.5)
    assert not (tmp_path / "ran-on").exists()


@pytest.mark.parametrize(
    ("found", "faster"),
    [
        ({"avx512_f": True, "amx_bf16": False}, True),
        ({"avx512_f": True, "amx_bf16": True}, False),
        ({"avx512_f": False}, False),
    ],
)
def test_it_is_for_cpus_with_wide_registers_and_without_tiles(monkeypatch, found, faster):
    monkeypatch.setattr(avx512_kernel.torch.cpu, "get_capabilities", lambda: found)
    monkeypatch.setattr(avx512_kernel.platform, "system", lambda: "Linux")
    monkeypatch.setattr(avx512_kernel.platform, "machine", lambda: "x86_64")
    assert avx512_kernel.is_faster_here.__wrapped__() is faster
    monkeypatch.setattr(avx512_kernel.platform, "machine", lambda: "aarch64")
    assert not avx512_kernel.is_faster_here.__wrapped__()
