"""Data sets: how they are named, and local folders read through the library."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftbench.errors import TrafficError
from draftbench.traffic import TrafficQuery, load
from draftbench.traffic.hub import Dataset, parse_dataset


def query(source: str) -> TrafficQuery:
    return TrafficQuery(
        source=source,
        sample=None,
        seed=0,
        segment_by=None,
        prompt_field=None,
        response_field=None,
        skip_bad=False,
        key=b"key",
    )


@pytest.mark.parametrize(
    ("text", "path", "config", "split"),
    [
        ("squad", "squad", None, None),
        ("org/name", "org/name", None, None),
        ("org/name:train", "org/name", None, "train"),
        ("org/name/config:test", "org/name", "config", "test"),
        ("org/name:train[:10]", "org/name", None, "train[:10]"),
    ],
)
def test_a_hub_name_holds_one_slash_and_then_its_configuration(
    text: str, path: str, config: str | None, split: str | None
) -> None:
    assert parse_dataset(text) == Dataset(path, config, split, local=False)


@pytest.mark.parametrize("text", ["", "a//b", "a/b/c/d", "/no/such/folder:train"])
def test_what_cannot_be_a_data_set_is_refused(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_dataset(text)


def test_a_folder_of_parquet_is_read_by_split(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": text}], "segment": "s"} for text in "abc"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "test.parquet")
    traffic = load(query(f"hf:{tmp_path}:train"))
    assert [request.messages for request in traffic.requests] == [
        ({"role": "user", "content": text},) for text in "abc"
    ]
    assert traffic.requests[1].source == f"{tmp_path.name}:train:2"
    with pytest.raises(TrafficError, match="has 2 splits") as raised:
        load(query(f"hf:{tmp_path}"))
    assert f"hf:{tmp_path}:train" in raised.value.hint


def test_a_folder_of_jsonl_with_one_split_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "a", "temperature": 0.5}) + "\n")
    (request,) = load(query(f"hf:{tmp_path}")).requests
    assert (request.prompt, request.sampling.temperature) == ("a", 0.5)


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        load(query(f"hf:{tmp_path}:train"))
