"""Data sets: how they are named, and local folders read through the library."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scenes import query

from draftbench.errors import TrafficError
from draftbench.traffic import load
from draftbench.traffic.datasets import Dataset, parse_dataset


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("squad", ("squad", None, None, False, None)),
        ("org/name", ("org/name", None, None, False, None)),
        ("org/name:train", ("org/name", None, "train", False, None)),
        ("org/name/config:test", ("org/name", "config", "test", False, None)),
        ("org/name:train[:10]", ("org/name", None, "train[:10]", False, None)),
        ("org/name@v1.0", ("org/name", None, None, False, "v1.0")),
        ("org/name/config:test@refs/pr/1", ("org/name", "config", "test", False, "refs/pr/1")),
    ],
)
def test_a_hub_name_holds_one_slash_and_then_its_configuration_split_and_revision(text, parts):
    assert parse_dataset(text) == Dataset(*parts)


@pytest.mark.parametrize(
    "text", ["", "a//b", "a/b/c/d", "org/name@", "@v1", "/no/such/folder:train"]
)
def test_what_cannot_be_a_data_set_is_refused(text):
    with pytest.raises(TrafficError):
        parse_dataset(text)


def test_a_folder_of_parquet_is_read_by_split(tmp_path):
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


def folder_of(place, metadata, file="README.md"):
    """A folder with one log and its metadata, beside a file that is none of its business."""
    (place / "secret.jsonl").write_text('{"prompt": "zebra"}\n')
    folder = place / "data"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.jsonl").write_text(f'{{"prompt": "{name}"}}\n')
    (folder / file).write_text(metadata if file.endswith("yaml") else f"---\n{metadata}---\n")
    return folder


CONFIGURATION = 'configs:\n- config_name: default\n  data_files: "{}"\n'


@pytest.mark.parametrize(
    "named", ["../secret.jsonl", "{root}/secret.jsonl", "*.jsonl", "https://example.org/a.jsonl"]
)
@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_folders_metadata_cannot_name_files_outside_of_it(tmp_path, named, file):
    folder = folder_of(tmp_path, CONFIGURATION.format(named.format(root=tmp_path)), file)
    (folder / "train.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(TrafficError, match="is outside of it") as raised:
        load(query(f"hf:{folder}"))
    assert raised.value.hint


def test_a_folders_metadata_cannot_hide_an_address_behind_an_alias(tmp_path):
    text = "x: &a https://example.org/a.jsonl\nconfigs:\n- config_name: b\n  data_files: *a\n"
    with pytest.raises(TrafficError, match="is outside"):
        load(query(f"hf:{folder_of(tmp_path, text)}"))


def test_a_folders_metadata_may_name_its_own_files(tmp_path):
    text = "license_link: https://example.org\n" + CONFIGURATION.format("b.jsonl")
    folder = folder_of(tmp_path, text)
    assert [request.prompt for request in load(query(f"hf:{folder}")).requests] == ["b"]


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path):
    folder = folder_of(tmp_path, "")
    (folder / "c.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(TrafficError, match=r"`c\.jsonl`, which is outside"):
        load(query(f"hf:{folder}"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "cannot be read"),
        ({"train.txt": b"a\n"}, r"`train\.txt`, which draftbench cannot read"),
        ({"train.jsonl": b'{"prompt": "a"}\n', "README.md": b"---\n{[\n---\n"}, "cannot be read"),
        ({"train.jsonl": b'{"prompt": "a"}\n', "README.md": b"\xff"}, "cannot be read"),
    ],
)
def test_a_folder_without_readable_data_or_metadata_is_refused(tmp_path, files, words):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(TrafficError, match=words):
        load(query(f"hf:{tmp_path}:train"))


def test_a_folder_is_of_no_commit_and_may_have_an_at_sign_in_its_name(tmp_path):
    folder = tmp_path / "data@v1"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "a"}\n')
    traffic = load(query(f"hf:{folder}"))
    assert (len(traffic.requests), traffic.revision) == (1, None)
    assert not query(f"hf:{folder}").on_hub


@pytest.mark.parametrize(
    ("source", "on_hub"), [("hf:org/name", True), ("suite:code", False), ("prod.jsonl", False)]
)
def test_a_name_after_hf_that_is_not_a_folder_is_on_the_hub(source, on_hub):
    assert query(source).on_hub == on_hub


ONE, TWO = "1" * 40, "2" * 40


class Hub:
    """Stands in for the library: each time it is asked the branch has moved on by one commit."""

    def __init__(self):
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.prepared = 0
        self.info = SimpleNamespace(splits={"train": None})
        self.config = SimpleNamespace(data_files=None)

    def __call__(self, path, config, *, revision):
        self.asked.append((path, config, revision))
        self.hash = str(len(self.asked)) * 40
        return self

    def download_and_prepare(self):
        self.prepared += 1

    def as_dataset(self, *, split):
        return [{"prompt": f"{split} of {self.hash}"}]


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()
    monkeypatch.setattr("datasets.load_dataset_builder", hub)
    return hub


def test_the_rows_are_of_the_commit_that_is_recorded(hub):
    traffic = load(query("hf:org/name"))
    assert [request.prompt for request in traffic.requests] == [f"train of {ONE}"]
    assert traffic.revision == ONE
    assert hub.asked == [("hf://datasets/org/name", None, None)]
    assert hub.prepared == 1


def test_a_revision_is_asked_for_and_what_it_names_is_recorded(hub):
    traffic = load(query("hf:org/name/config:test@v1"))
    assert hub.asked == [("hf://datasets/org/name", "config", "v1")]
    assert (traffic.requests[0].prompt, traffic.revision) == (f"test of {ONE}", ONE)


def test_another_commit_than_was_asked_for_is_refused(hub):
    with pytest.raises(
        TrafficError, match=f"at `{TWO}` is not available; cached is {ONE}"
    ) as raised:
        load(query(f"hf:org/name@{TWO}"))
    assert f"@{ONE}" in raised.value.hint
    assert hub.prepared == 0


def test_more_than_one_split_is_refused_before_anything_is_downloaded(hub):
    hub.info.splits = {"train": None, "test": None}
    with pytest.raises(TrafficError, match="has 2 splits"):
        load(query("hf:org/name"))
    assert hub.prepared == 0


@pytest.mark.parametrize(
    "named",
    [
        "/home/user/secret.jsonl",
        "https://example.org/a.jsonl",
        f"hf://datasets/org/other@{TWO}/a.jsonl",
        f"hf://buckets/org/name@{ONE}/a.jsonl",
    ],
)
def test_a_hub_data_set_cannot_name_files_outside_of_itself(hub, named):
    own = f"hf://datasets/org/name@{ONE}/train.jsonl"
    hub.config.data_files = {"train": [own, named]}
    with pytest.raises(TrafficError, match="is outside of it"):
        load(query("hf:org/name"))
    assert hub.prepared == 0
    hub.asked.clear()
    hub.config.data_files = {"train": [own]}
    assert load(query("hf:org/name")).revision == ONE


def test_a_folder_that_lies_here_by_chance_is_not_taken_for_the_hubs(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "train.jsonl").write_text('{"prompt": "zebra"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TrafficError, match="cannot be read"):
        load(query("hf:org/name"))
