"""Kernels between two products against results by hand and PyTorch's in float64."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from draftbench.decoder import compiling, cpu_kernels
from draftbench.decoder.llama_model import RootMeanSquare, Stream, swiglu

SEEDS = st.integers(0, 10_000)
EITHER = pytest.mark.parametrize("most", [0, 1 << 16], ids=["torch", "kernels"])


def close(got, expected, digits=1e-5):
    torch.testing.assert_close(got.double(), expected.double(), rtol=digits, atol=digits)


@pytest.mark.parametrize("stream", [Stream, cpu_kernels.SmallStream])
def test_a_stream_adds_and_norms(stream):
    """By hand: (3, 0) + (0, 4), whose mean square and 3.5 are 16."""
    sums, norm = torch.tensor([[3.0, 0.0]]), RootMeanSquare(torch.tensor([1.0, 2.0]), 3.5)
    close(stream(sums).add_normed(torch.tensor([[0.0, 4.0]]), norm), torch.tensor([[0.75, 2.0]]))
    close(sums, torch.tensor([[3.0, 4.0]]))


@EITHER
def test_a_norm_of_heads_is_of_each_by_itself_however_it_is_computed(monkeypatch, most):
    """By hand: of (3, 4) and (4, 3) the mean square and 3.5 are 16."""
    monkeypatch.setattr(cpu_kernels, "MOST_NUMBERS", most)
    norm = RootMeanSquare(torch.tensor([1.0, 2.0]), 3.5)
    heads = torch.tensor([[[3.0, 4.0], [4.0, 3.0], [9.0, 9.0]]]).narrow(1, 0, 2)
    close(norm(heads), torch.tensor([[[0.75, 2.0], [1.0, 1.5]]]))


@given(SEEDS, st.integers(1, 3), st.integers(1, 70), st.sampled_from([1e-3, 1.0, 1e3]))
def test_a_norm_divides_by_the_root_of_the_mean_square(seed, rows, width, spread):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * spread + 100
    weight = torch.randn(width, generator=generator)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    close(RootMeanSquare(weight, 1e-6)(x), expected)


@given(SEEDS, st.integers(1, 3), st.integers(1, 70), st.sampled_from([0.1, 1.0, 100.0]))
def test_gates_are_silu_of_one_half_times_the_other(seed, rows, inner, spread):
    both = torch.randn(rows, 2 * inner, generator=torch.Generator().manual_seed(seed)) * spread
    gate, up = both.double().chunk(2, 1)
    expected = functional.silu(gate) * up
    close(swiglu(both), expected)
    stream = cpu_kernels.SmallStream(torch.zeros(rows, 4))
    close(stream.gated(both), expected)


def test_exponentials_are_exact_to_a_step_of_float32_and_keep_what_is_no_number():
    """silu(x) = x / (1 + e^-x), so x / silu(x) - 1 is e^-x."""
    x = torch.linspace(-20, 20, 40_001)
    both = torch.stack([x, torch.ones_like(x)], 1)
    expected = functional.silu(x.double())
    assert ((swiglu(both)[:, 0].double() - expected) / expected).nan_to_num().abs().max() < 3e-7
    assert swiglu(torch.tensor([[float("nan"), 1.0]])).isnan().all()
    extremes = swiglu(torch.tensor([[-1e4, 1.0], [1e4, 1.0], [-0.0, 1.0]]))
    torch.testing.assert_close(extremes, torch.tensor([[0.0], [1e4], [0.0]]))


def test_a_product_in_another_type_is_refused_before_it_is_read():
    with pytest.raises(TypeError, match="float32 in rows, not torch"):
        cpu_kernels.SmallStream(torch.zeros(1, 4)).add_normed(
            torch.zeros(1, 4, dtype=torch.bfloat16), RootMeanSquare(torch.ones(4), 1e-6)
        )


def test_kernels_compile_where_nothing_can_be_kept():
    """A container without a home: Numba finds no folder for its cache, and raises."""
    asked = []

    def refuses(*signatures, cache=False, **options):
        asked.append(cache)
        if cache:
            return lambda function: (_ for _ in ()).throw(RuntimeError("no locator available"))
        return lambda function: function

    def kernel():
        pass

    assert compiling.compiled("void()", by=refuses)(kernel) is kernel
    assert asked == [True, False]


def test_a_kept_kernel_is_compiled_again_when_any_file_of_kernels_changes():
    """Numba asks about a kernel's own file alone, not about those of kernels that it calls."""
    known = {file.name for file in compiling.FILES}
    uses = re.compile(r"^@(compiled|intrinsic|njit|overload)\b", re.MULTILINE)
    folder = Path(compiling.__file__).parent
    holds = {file.name for file in folder.rglob("*.py") if uses.search(file.read_text())}
    assert {"compiling.py", "cpu_layers.py"} < holds <= known
    assert cpu_kernels.norm_into.py_func.__qualname__.endswith(compiling.SOURCE)


def test_what_is_kept_of_older_sources_goes():
    kept = Path(compiling.__file__).parent / "__pycache__"
    mine, others = (
        kept / f"cpu_x.norm_{source}-1.py311.nbi" for source in (compiling.SOURCE, "0" * 8)
    )
    for file in (mine, others):
        file.touch()
    try:
        subprocess.run([sys.executable, "-c", "import draftbench.decoder.compiling"], check=True)
        assert mine.exists()
        assert not others.exists()
    finally:
        mine.unlink()
