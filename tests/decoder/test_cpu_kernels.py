"""Kernels between two products against results by hand and PyTorch's in float64."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from draftbench.decoder import attention, compiled, cpu_kernels
from draftbench.decoder.attention import Rotary, placed
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


def exact_attention(qkv, slabs, lengths, counts, rotary, heads):
    """By the definition, token by token in float64; the cache that results."""
    kept, at, results = slabs.clone(), 0, []
    key_heads, head = slabs.shape[3], slabs.shape[5]
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        for place in range(length, length + count):
            q, k, v = qkv[at].double().split([heads, key_heads, key_heads])
            cos, sin = (table[place, 0].double() for table in rotary)
            q, k = (
                x * cos + torch.cat([x[:, head // 2 :], x[:, : head // 2]], 1) * sin for x in (q, k)
            )
            kept[0, 0, row, :, place], kept[0, 1, row, :, place] = k, v
            seen = kept[0, :, row, :, : place + 1].double()
            keys, values = seen.repeat_interleave(heads // key_heads, 1)
            shares = torch.softmax((keys @ q[:, :, None])[..., 0] / head**0.5, -1)
            results.append((shares[:, None] @ values).flatten())
            at += 1
    return torch.stack(results), kept


LAYOUTS = {"one": (1, 1, 8), "shared": (6, 2, 4), "odd": (9, 3, 10)}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [-1, 1 << 20], ids=["torch", "kernels"])
@pytest.mark.parametrize(
    ("lengths", "counts"),
    [([0], [1]), ([7], [1]), ([3], [5]), ([2, 0, 9], [1, 1, 1]), ([2, 6, 0], [3, 0, 1])],
)
def test_each_token_sees_its_row_up_to_itself(monkeypatch, layout, dtype, most, lengths, counts):
    monkeypatch.setattr(attention, "MOST_PRODUCTS", most)
    (heads, key_heads, head), generator = layout, torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    slabs = random(1, 2, len(counts), key_heads, 12, head).to(dtype)
    qkv, rotary = (
        random(sum(counts), heads + 2 * key_heads, head),
        Rotary(random(12, 1, head), random(12, 1, head)),
    )
    expected, kept = exact_attention(qkv, slabs, lengths, counts, rotary, heads)
    future = slabs.new_full((8, 8), float("-inf")).triu_(1)
    where = placed(slabs, lengths, counts, rotary, heads // key_heads, future)
    assert isinstance(where, cpu_kernels.FewTokens) is (most > 0)
    got = where.attend(0, qkv.clone())
    # PyTorch computes attention over a bfloat16 cache in bfloat16.
    digits = 2**-6 if dtype == torch.bfloat16 and most < 0 else 1e-5
    close(got, expected, digits)
    close(slabs, kept, 1e-5)


def test_positions_past_the_last_that_a_model_knows_are_rotated_as_that_one():
    tables = Rotary(torch.rand(4, 1, 4), torch.rand(4, 1, 4))
    qkv, results = torch.randn(1, 3, 4), []
    for rotary in (tables, Rotary(*(torch.cat([table, table[-1:]]) for table in tables))):
        slabs = torch.ones(1, 2, 1, 1, 8, 4)
        where = cpu_kernels.FewTokens(slabs, [4], [1], 1, *rotary)
        results.append(where.attend(0, qkv.clone()).clone())
    torch.testing.assert_close(*results, rtol=0, atol=0)


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_bfloat16_cache_rounds_as_pytorch_does(bits):
    """To the nearest, and halfway to the even one."""
    number = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    if not number.isfinite():
        return
    slabs = torch.zeros(1, 2, 1, 1, 1, 2, dtype=torch.bfloat16)
    still = torch.ones(1, 1, 2), torch.zeros(1, 1, 2)
    qkv = torch.zeros(1, 3, 2)
    qkv[0, 2] = number
    cpu_kernels.FewTokens(slabs, [0], [1], 1, *still).attend(0, qkv)
    assert torch.equal(slabs[0, 1].flatten(), number.bfloat16().expand(2))


def test_a_product_in_another_type_is_refused_before_it_is_read():
    with pytest.raises(TypeError, match="float32 in rows, not torch"):
        cpu_kernels.SmallStream(torch.zeros(1, 4)).add_normed(
            torch.zeros(1, 4, dtype=torch.bfloat16), RootMeanSquare(torch.ones(4), 1e-6)
        )


def test_a_place_behind_the_cache_is_refused_before_it_is_written():
    tables = torch.ones(9, 1, 2), torch.zeros(9, 1, 2)
    with pytest.raises(IndexError, match="place 4 of a cache for 4 tokens"):
        cpu_kernels.FewTokens(torch.zeros(1, 2, 1, 1, 4, 2), [3], [2], 1, *tables)


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

    assert compiled.compiled("void()", by=refuses)(kernel) is kernel
    assert asked == [True, False]


def test_a_kept_kernel_is_compiled_again_when_any_file_of_kernels_changes():
    """Numba asks about a kernel's own file alone, not about those of kernels that it calls."""
    known = {file.name for file in compiled.FILES}
    uses = re.compile(r"^@(compiled|intrinsic|njit|overload)\b", re.MULTILINE)
    folder = Path(compiled.__file__).parent
    holds = {file.name for file in folder.rglob("*.py") if uses.search(file.read_text())}
    assert {"compiled.py", "cpu_layers.py"} < holds <= known
    assert cpu_kernels.norm_into.py_func.__qualname__.endswith(compiled.SOURCE)
