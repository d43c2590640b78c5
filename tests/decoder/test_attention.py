"""Attention by chunks of keys, against attention written out in double precision. A GPU's kernel is
stood in for by the CPU's, which gives the same sums.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftbench.decoder import attention
from draftbench.decoder.attention import EvenRows, Rotary

HEAD, CHUNK = 16, 8
WITH_LOG_SUMS = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def cpu_attention_with_log_sums(query, keys, values, mask):
    """Laid out as the GPU's kernel does: [chunks, queries, heads, head]."""
    mixed, log_sums = WITH_LOG_SUMS(query, keys, values, attn_mask=mask)
    return mixed.transpose(1, 2).contiguous().transpose(1, 2), log_sums


@pytest.fixture(scope="module", autouse=True)
def by_chunk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "CHUNK", CHUNK)
        patch.setattr(attention, "_splits", lambda slabs, reach: True)
        patch.setattr(attention, "_attention_with_log_sums", cpu_attention_with_log_sums)
        yield


def written_out(qkv, slabs, starts, width, group):
    """Softmax of products over what each query sees, one head of one token after the other."""
    kv_heads = slabs.shape[3]
    query, new = qkv.double().split((group * kv_heads, 2 * kv_heads), 1)
    known = slabs[0].double().clone()
    places = [(row, start + slot) for row, start in enumerate(starts) for slot in range(width)]
    for token, (row, place) in enumerate(places):
        known[:, row, :, place] = new[token].view(2, kv_heads, HEAD)
    out = torch.empty_like(query)
    for token, (row, place) in enumerate(places):
        for head in range(group * kv_heads):
            keys, values = known[:, row, head // group, : place + 1]
            scores = keys @ query[token, head] / HEAD**0.5
            out[token, head] = scores.softmax(0) @ values
    return out.flatten(1)


@settings(deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 4]),
    st.integers(2, 4),
    st.data(),
)
def test_chunks_give_what_all_keys_at_once_give(seed, rows, width, group, chunks, data):
    """Also where a row ends in its first chunk, so that it sees nothing of the others."""
    reach, kv_heads = chunks * CHUNK, 2
    starts = [data.draw(st.integers(0, reach - width)) for _ in range(rows)]
    generator = torch.Generator().manual_seed(seed)
    slabs = torch.randn(1, 2, rows, kv_heads, reach + 3, HEAD, generator=generator)
    qkv = 3 * torch.randn(rows * width, (group + 2) * kv_heads, HEAD, generator=generator)
    still = Rotary(torch.ones(reach, 1, HEAD), torch.zeros(reach, 1, HEAD))
    expected = written_out(qkv, slabs, starts, width, group)
    placement = EvenRows(slabs, torch.tensor(starts), width, reach, still, group)
    got = placement.attend(0, qkv.clone())
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
