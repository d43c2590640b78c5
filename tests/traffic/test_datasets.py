"""Data sets: how they are named, and local folders read through the library."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftbench.errors import TrafficError
from draftbench.traffic import TrafficQuery, load
from draftbench.traffic.datasets import Dataset, parse_dataset


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
    ("text", "path", "config", "split", "revision"),
    [
        ("squad", "squad", None, None, None),
        ("org/name", "org/name", None, None, None),
        ("org/name:train", "org/name", None, "train", None),
        ("org/name/config:test", "org/name", "config", "test", None),
        ("org/name:train[:10]", "org/name", None, "train[:10]", None),
        ("org/name@v1.0", "org/name", None, None, "v1.0"),
        ("org/name/config:test@refs/pr/1", "org/name", "config", "test", "refs/pr/1"),
    ],
)
def test_a_hub_name_holds_one_slash_and_then_its_configuration_split_and_revision(
    text: str, path: str, config: str | None, split: str | None, revision: str | None
) -> None:
    assert parse_dataset(text) == Dataset(path, config, split, False, revision)


@pytest.mark.parametrize(
    "text", ["", "a//b", "a/b/c/d", "org/name@", "@v1", "/no/such/folder:train"]
)
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
    with pytest.raises(TrafficError, match="is outside of it") as raised:
        load(query(f"hf:{folder}"))
    assert raised.value.hint


def test_a_folders_metadata_cannot_hide_an_address_behind_an_alias(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n')
    text = "x: &a https://example.org/a.jsonl\nconfigs:\n- config_name: b\n  data_files: *a\n"
    (tmp_path / "README.md").write_text(f"---\n{text}---\n")
    with pytest.raises(TrafficError, match="is outside"):
        load(query(f"hf:{tmp_path}"))


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"prompt": "zebra"}\n')
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(TrafficError, match=r"`train\.jsonl`, which is outside"):
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
    with pytest.raises(TrafficError, match=r"`train\.txt`, which draftbench cannot read"):
        load(query(f"hf:{tmp_path}"))


def test_a_folder_is_of_no_commit_and_may_have_an_at_sign_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "data@v1"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "a"}\n')
    traffic = load(query(f"hf:{folder}"))
    assert (len(traffic.requests), traffic.revision) == (1, None)
    assert not query(f"hf:{folder}").on_hub


@pytest.mark.parametrize(
    ("source", "on_hub"), [("hf:org/name", True), ("suite:code", False), ("prod.jsonl", False)]
)
def test_a_name_after_hf_that_is_not_a_folder_is_on_the_hub(source: str, on_hub: bool) -> None:
    assert query(source).on_hub == on_hub


ONE, TWO = "1" * 40, "2" * 40


class Hub:
    """Stands in for the library: each time it is asked the branch has moved on by one commit."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.prepared = 0
        self.info = SimpleNamespace(splits={"train": None})
        self.config = SimpleNamespace(data_files=None)

    def __call__(self, path: str, config: str | None, *, revision: str | None) -> "Hub":
        self.asked.append((path, config, revision))
        self.hash = str(len(self.asked)) * 40
        return self

    def download_and_prepare(self) -> None:
        self.prepared += 1

    def as_dataset(self, *, split: str) -> list[dict[str, str]]:
        return [{"prompt": f"{split} of {self.hash}"}]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr("datasets.load_dataset_builder", hub)
    return hub


def test_the_rows_are_of_the_commit_that_is_recorded(hub: Hub) -> None:
    traffic = load(query("hf:org/name"))
    assert [request.prompt for request in traffic.requests] == [f"train of {ONE}"]
    assert traffic.revision == ONE
    assert hub.asked == [("hf://datasets/org/name", None, None)]
    assert hub.prepared == 1


def test_a_revision_is_asked_for_and_what_it_names_is_recorded(hub: Hub) -> None:
    traffic = load(query("hf:org/name/config:test@v1"))
    assert hub.asked == [("hf://datasets/org/name", "config", "v1")]
    assert (traffic.requests[0].prompt, traffic.revision) == (f"test of {ONE}", ONE)


def test_another_commit_than_was_asked_for_is_refused(hub: Hub) -> None:
    with pytest.raises(
        TrafficError, match=f"at `{TWO}` is not available; cached is {ONE}"
    ) as raised:
        load(query(f"hf:org/name@{TWO}"))
    assert f"@{ONE}" in raised.value.hint
    assert hub.prepared == 0


def test_more_than_one_split_is_refused_before_anything_is_downloaded(hub: Hub) -> None:
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
def test_a_hub_data_set_cannot_name_files_outside_of_itself(hub: Hub, named: str) -> None:
    own = f"hf://datasets/org/name@{ONE}/train.jsonl"
    hub.config.data_files = {"train": [own, named]}
    with pytest.raises(TrafficError, match="is outside of it"):
        load(query("hf:org/name"))
    assert hub.prepared == 0
    hub.asked.clear()
    hub.config.data_files = {"train": [own]}
    assert load(query("hf:org/name")).revision == ONE


def test_a_folder_that_lies_here_by_chance_is_not_taken_for_the_hubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "train.jsonl").write_text('{"prompt": "zebra"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TrafficError, match="cannot be read"):
        load(query("hf:org/name"))
