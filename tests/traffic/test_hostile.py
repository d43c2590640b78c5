"""Whatever a traffic file holds, it is read or refused in words, and what it held is not quoted."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes import query

from draftbench.errors import TrafficError
from draftbench.traffic import load

THOROUGH = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KINDS = st.sampled_from([".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.zst"])
# fmt: off
NAMES = st.sampled_from([
    "prompt", "messages", "conversations", "body", "request", "response", "choices", "tools",
    "stop", "temperature", "top_p", "top_k", "max_tokens", "seed", "n", "role", "content",
    "segment", "timestamp", "url", "custom_id", "model",
])
# fmt: on
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["user", "assistant", "system", "1e999", "-1", "\x1b[31m", "../../etc"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


def read(path, data):
    """The traffic, or None where it was refused in words."""
    path.write_bytes(data)
    with contextlib.suppress(TrafficError):
        return load(query(path))
    return None


@THOROUGH
@given(kind=KINDS, data=st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused(tmp_path, kind, data):
    read(tmp_path / f"log{kind}", data)


@THOROUGH
@given(kind=st.sampled_from([".jsonl", ".json"]), row=st.dictionaries(NAMES, VALUES, max_size=5))
def test_rows_of_any_shape_are_read_or_refused(tmp_path, kind, row):
    read(tmp_path / f"log{kind}", json.dumps(row).encode() + b"\n")


@THOROUGH
@given(at=st.integers(0, 120), by=st.binary(min_size=1, max_size=3))
def test_a_good_row_with_bytes_changed_is_read_or_refused(tmp_path, at, by):
    row = {
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.5,
        "stop": ["\n"],
        "segment": "chat",
        "max_tokens": 5,
    }
    raw = json.dumps(row).encode()
    read(tmp_path / "log.jsonl", raw[:at] + by + raw[at + len(by) :] + b"\n")


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv"])
def test_a_file_of_one_endless_nesting_is_refused(tmp_path, kind):
    assert read(tmp_path / f"log{kind}", b'{"prompt":' + b"[" * 1_000_000) is None
