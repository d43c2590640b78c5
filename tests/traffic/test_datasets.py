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


LEADING_OUT = ("../secret.jsonl", "{root}/secret.jsonl", "*.jsonl", "https://example.org/a.jsonl")


@pytest.mark.parametrize("named", LEADING_OUT)
@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_folders_metadata_cannot_name_files_outside_of_it(
    tmp_path: Path, named: str, file: str
) -> None:
    (tmp_path / "secret.jsonl").write_text('{"prompt": "zebra"}\n')
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").symlink_to(tmp_path / "secret.jsonl")
    name = named.format(root=tmp_path)
    metadata = f'configs:\n- config_name: default\n  data_files: "{name}"\n'
    (folder / file).write_text(metadata if file.endswith("yaml") else f"---\n{metadata}---\n")
    with pytest.raises(TrafficError, match="lies outside of the folder") as raised:
        load(query(f"hf:{folder}"))
    assert raised.value.hint


def test_a_folders_metadata_cannot_hide_an_address_behind_an_alias(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n')
    text = "x: &a https://example.org/a.jsonl\nconfigs:\n- config_name: b\n  data_files: *a\n"
    (tmp_path / "README.md").write_text(f"---\n{text}---\n")
    with pytest.raises(TrafficError, match="lies outside"):
        load(query(f"hf:{tmp_path}"))


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"prompt": "zebra"}\n')
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(TrafficError, match=r"`train\.jsonl`, which lies outside"):
        load(query(f"hf:{folder}"))


def test_a_folders_metadata_may_name_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "b"}\n')
    text = "license_link: https://example.org\nconfigs:\n- config_name: c\n  data_files: b.jsonl\n"
    (tmp_path / "README.md").write_text(f"---\n{text}---\n")
    assert [request.prompt for request in load(query(f"hf:{tmp_path}")).requests] == ["b"]


@pytest.mark.parametrize("text", ["---\n{[\n---\n", "\xff"])
def test_metadata_that_cannot_be_read_is_an_error_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "README.md").write_bytes(text.encode("latin-1"))
    with pytest.raises(TrafficError, match="cannot be read"):
        load(query(f"hf:{tmp_path}"))


def test_a_folder_of_a_kind_that_only_the_library_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\n")
    with pytest.raises(TrafficError, match=r"`train\.txt`, of no kind"):
        load(query(f"hf:{tmp_path}"))
