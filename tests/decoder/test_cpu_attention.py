"""Attention of a few tokens against its definition in float64, and rounding against PyTorch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftbench.decoder import attention
from draftbench.decoder.attention import Rotary, placed
from draftbench.decoder.compiling import THREADED_FROM
from draftbench.decoder.cpu_attention import MOST_PRODUCTS, FewTokens, is_fast


def close(got, expected, digits=1e-5):
    torch.testing.assert_close(got.double(), expected.double(), rtol=digits, atol=digits)


@pytest.fixture
def threads():
    """threads(n): PyTorch computes on n threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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
@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
@pytest.mark.parametrize(
    ("lengths", "counts"),
    [([0], [1]), ([7], [1]), ([3], [5]), ([2, 0, 9], [1, 1, 1]), ([2, 6, 0], [3, 0, 1])],
)
def test_each_token_sees_its_row_up_to_itself(monkeypatch, layout, dtype, kernels, lengths, counts):
    if not kernels:
        monkeypatch.setattr(attention, "CACHED", ())
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
    assert isinstance(where, FewTokens) is kernels
    got = where.attend(0, qkv.clone())
    # PyTorch computes attention over a bfloat16 cache in bfloat16.
    digits = 2**-6 if dtype == torch.bfloat16 and not kernels else 1e-5
    close(got, expected, digits)
    close(slabs, kept, 1e-5)


def test_positions_past_the_last_that_a_model_knows_are_rotated_as_that_one():
    tables = Rotary(torch.rand(4, 1, 4), torch.rand(4, 1, 4))
    qkv, results = torch.randn(1, 3, 4), []
    for rotary in (tables, Rotary(*(torch.cat([table, table[-1:]]) for table in tables))):
        slabs = torch.ones(1, 2, 1, 1, 8, 4)
        where = FewTokens(slabs, [4], [1], 1, *rotary)
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
    FewTokens(slabs, [0], [1], 1, *still).attend(0, qkv)
    assert torch.equal(slabs[0, 1].flatten(), number.bfloat16().expand(2))


def test_a_place_behind_the_cache_is_refused_before_it_is_written():
    tables = torch.ones(9, 1, 2), torch.zeros(9, 1, 2)
    with pytest.raises(IndexError, match="place 4 of a cache for 4 tokens"):
        FewTokens(torch.zeros(1, 2, 1, 1, 4, 2), [3], [2], 1, *tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_are_the_same_alone_and_among_threads(threads, dtype):
    """Three tokens of two rows, of heads that no number of threads divides."""
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(3, 9 + 2 * 3, 64, generator=generator)
    start = torch.randn(1, 2, 2, 3, 300, 64, generator=generator).to(dtype)
    rotary = Rotary(*torch.randn(2, 300, 1, 64, generator=generator))
    assert THREADED_FROM < (298 + 2 * 12) * 9 * 64
    results = []
    for many in (1, 2, 3, 7):
        threads(many)
        slabs = start.clone()
        got = FewTokens(slabs, [297, 10], [1, 2], 3, *rotary).attend(0, qkv.clone())
        results.append((got, slabs))
    expected, kept = exact_attention(qkv, start, [297, 10], [1, 2], rotary, 9)
    for got, slabs in results:
        assert torch.equal(got, results[0][0])
        close(got, expected)
        close(slabs, kept)


def test_a_pass_keeps_the_number_of_threads_that_it_has_room_for(threads):
    threads(1)
    where = FewTokens(torch.zeros(1, 2, 1, 1, 8, 4), [2], [1], 1, *torch.ones(2, 1, 1, 4))
    threads(4)
    assert (where._numbers[1], where._read[-1].shape[0]) == (1, 1)


def test_a_cache_with_gaps_is_refused():
    slabs = torch.zeros(1, 2, 1, 1, 8, 8)[..., ::2]
    with pytest.raises(TypeError, match="a cache in steps of"):
        FewTokens(slabs, [2], [1], 1, torch.ones(1, 1, 4), torch.zeros(1, 1, 4))


def test_scores_that_would_overflow_are_shares_all_the_same():
    """By hand: a key that agrees by 2,000 takes all, two that do share alike."""
    still = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    slabs = torch.zeros(1, 2, 1, 1, 3, 4)
    slabs[0, 0, 0, 0, :2, 0] = torch.tensor([20.0, 200.0])
    slabs[0, 1, 0, 0, :2, 0] = torch.tensor([1.0, 2.0])
    qkv = torch.zeros(1, 3, 4)
    qkv[0, 0, 0], qkv[0, 1, 0], qkv[0, 2, 0] = 20.0, 200.0, 4.0
    got = FewTokens(slabs, [2], [1], 1, *still).attend(0, qkv)
    assert got.tolist() == [[3.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("many", [1, 3])
def test_one_token_is_always_fast_and_several_while_they_see_little(threads, many):
    """2 · 4 heads · 8 numbers for each key that is seen; the same for any number of threads."""
    threads(many)
    slabs = torch.empty(1, 2, 1, 2, 1, 8, device="meta")
    assert is_fast(slabs, [1 << 30], [1], 2)
    most = MOST_PRODUCTS // 64
    assert is_fast(slabs, [most // 2 - 2], [2], 2)
    assert not is_fast(slabs, [most // 2 - 1], [2], 2)
    # PyTorch pays for every row what the one with most tokens takes: 2 · 3 of which 4 are needed.
    assert is_fast(slabs, [most] * 3, [2, 1, 1], 2)
    assert not is_fast(slabs, [most] * 3, [2, 2, 1], 2)
    # Idle rows change nothing for a prompt.
    for idle in (0, 8 * most):
        assert not is_fast(slabs, [idle, 0, idle], [0, most, 0], 2)
        assert is_fast(slabs, [idle, 0, idle], [0, 2, 0], 2)
