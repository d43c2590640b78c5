"""The kernel that is compiled where it runs: its sums, what they depend on, and what happens where
it cannot be built.
"""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from draftbench.decode import streamed
from draftbench.decode.kernels import PackedLinear, StreamedLinear, multiplies_bfloat16
from draftbench.decode.linear import make_linear
from draftbench.models.counting import weight_bytes

needs_kernel = pytest.mark.skipif(
    streamed.kernels_for(torch.zeros(4, 32)) is None,
    reason="this machine has no use or no compiler for the kernel",
)
needs_use = pytest.mark.skipif(
    not (streamed.is_faster_here() and multiplies_bfloat16()),
    reason="oneDNN or PyTorch is faster on this CPU",
)
# Half of the last of its 8 bits, and what 2,000 additions in float32 may lose.
ROUNDING, ADDING = 2**-8, 1e-5


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """Built again, into an empty cache; what was built before comes back afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    streamed._build.cache_clear()
    monkeypatch.setattr(streamed, "_loaded", lambda _: pytest.fail("loaded twice"))
    yield monkeypatch
    streamed._build.cache_clear()


def kernel():
    return streamed.kernels_for(torch.zeros(4, 32)).bfloat16


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 70).map(lambda lines: 32 * lines),
    outputs=st.integers(1, 9).map(lambda blocks: 4 * blocks),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_product_is_the_exact_one_rounded_once(rows, inputs, outputs, biased, seed):
    x, weight = random(rows, inputs, seed=seed), random(outputs, inputs, seed=seed + 1)
    bias = random(outputs, seed=seed + 2) if biased else None
    got = kernel()(x, weight, bias).double()
    wide = x.double(), weight.double()
    exact = functional.linear(*wide, None if bias is None else bias.double())
    size = wide[0].abs() @ wide[1].abs().T + 4
    assert ((got - exact).abs() <= ROUNDING * exact.abs() + ADDING * size).all()


@needs_kernel
@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 70).map(lambda lines: 32 * lines),
    outputs=st.integers(1, 9).map(lambda blocks: 4 * blocks),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_product_of_bytes_is_the_exact_one_rounded_once(rows, inputs, outputs, biased, seed):
    made = torch.Generator().manual_seed(seed)
    x = random(rows, inputs, seed=seed)
    codes = torch.randint(-127, 128, (outputs, inputs), generator=made).char()
    scales = torch.rand(outputs, generator=made)
    bias = random(outputs, seed=seed + 2) if biased else None
    got = streamed.kernels_for(codes).int8(x, codes, scales, bias).double()
    wide = x.double(), codes.double() * scales.double()[:, None]
    exact = functional.linear(*wide, None if bias is None else bias.double())
    size = wide[0].abs() @ wide[1].abs().T + 4
    assert ((got - exact).abs() <= ROUNDING * exact.abs() + ADDING * size).all()


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
def test_sizes_that_the_kernel_does_not_take_are_refused_by_it_and_left_to_others():
    x = random(1, 48)
    with pytest.raises(RuntimeError, match="no step divides"):
        kernel()(x, random(8, 48), None)
    for outputs, inputs in ((8, 48), (6, 64)):
        weight = random(outputs, inputs)
        assert streamed.kernels_for(weight) is None
        assert not isinstance(make_linear(weight, None, "none", simulate=False), StreamedLinear)


@needs_kernel
def test_a_piece_of_a_mapped_file_is_copied_and_a_matrix_of_its_own_is_not():
    """A tied head and its embedding are one; a piece would keep the whole file in memory."""
    weight = random(8, 64)
    for own in (True, False):
        layer = make_linear(weight, None, "none", simulate=False, own=own)
        assert (layer.weight.data_ptr() == weight.data_ptr()) is own
        assert torch.equal(layer.weight, weight)


class Tied:
    """What `weight_bytes` asks a runner: an embedding, and a head that shares its weights."""

    def __init__(self):
        self.embedding = random(8, 64)
        self.head = make_linear(self.embedding, None, "none", simulate=False, own=True)

    def tensors(self):
        yield self.embedding

    def modules(self):
        yield self.head


@needs_kernel
def test_a_head_that_shares_its_weights_counts_once():
    assert weight_bytes(Tied()) == 8 * 64 * 2


def built_elsewhere(cache, lines="", **environment):
    """Why another process has no kernel, in its words: none is loaded twice into one."""
    code = f"from draftbench.decode import streamed\n{lines}\nprint(streamed.obstacle())"
    given = os.environ | {"XDG_CACHE_HOME": str(cache)} | environment
    ran = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


@needs_kernel
def test_the_kernel_is_built_once_and_found_again(tmp_path):
    assert built_elsewhere(tmp_path) == "None"
    [built] = (tmp_path / "draftbench").iterdir()
    written = built.stat().st_mtime_ns
    assert built_elsewhere(tmp_path, CXX="/no/such/compiler") == "None"
    assert list((tmp_path / "draftbench").iterdir()) == [built]
    assert built.stat().st_mtime_ns == written


@needs_kernel
def test_a_kernel_that_computes_something_else_is_not_used(tmp_path):
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text(streamed.SOURCE.read_text().replace("0xffff0000u", "0xff000000u"))
    lines = f"import pathlib; streamed.SOURCE = pathlib.Path({str(wrong)!r})"
    assert built_elsewhere(tmp_path, lines) == "its results are wrong as this compiler makes it"


def refuse(*_, **__):
    raise subprocess.TimeoutExpired("c++", streamed.SECONDS)


def failing(monkeypatch, tmp_path, how):
    """Why the kernel cannot be built here, in the words that are expected."""
    if how == "no compiler":
        monkeypatch.setattr(streamed.shutil, "which", lambda _: None)
        return "no C++ compiler was found (c++, g++, clang++)"
    if how == "not what it says":
        monkeypatch.setenv("CXX", "/no/such/compiler")
        return "No such file or directory: '/no/such/compiler'"
    if how == "a compiler's error":
        broken = tmp_path / "broken.cpp"
        broken.write_text("#error too old")
        monkeypatch.setattr(streamed, "SOURCE", broken)
        return "it could not be compiled: "
    if how == "too slow":
        monkeypatch.setattr(streamed.subprocess, "run", refuse)
        return "timed out after 300.0 seconds"
    (tmp_path / "draftbench").write_text("")
    return "File exists"


HOWS = [
    "no compiler",
    "not what it says",
    "a compiler's error",
    "too slow",
    "a file for a folder",
]


@needs_use
@pytest.mark.parametrize("how", HOWS)
def test_what_keeps_it_from_being_built_is_said_and_onednn_serves(anew, tmp_path, how):
    expected = failing(anew, tmp_path, how)
    assert expected in streamed.obstacle()
    layer = make_linear(random(8, 64), None, "none", simulate=False)
    assert isinstance(layer, PackedLinear)


@pytest.mark.parametrize(
    ("found", "faster"),
    [
        ({"avx512_f": True, "amx_bf16": False}, True),
        ({"avx512_f": True, "amx_bf16": True}, False),
        ({"avx512_f": False}, False),
    ],
)
def test_it_is_for_cpus_with_wide_registers_and_without_tiles(monkeypatch, found, faster):
    monkeypatch.setattr(streamed.torch.cpu, "get_capabilities", lambda: found)
    monkeypatch.setattr(streamed.platform, "system", lambda: "Linux")
    monkeypatch.setattr(streamed.platform, "machine", lambda: "x86_64")
    assert streamed.is_faster_here.__wrapped__() is faster
    monkeypatch.setattr(streamed.platform, "machine", lambda: "aarch64")
    assert not streamed.is_faster_here.__wrapped__()
