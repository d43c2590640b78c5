"""Data sets: how they are named, and what is read of them."""

from types import SimpleNamespace

import pytest
from scenes import query

from draftbench.errors import TrafficError
from draftbench.traffic import load
from draftbench.traffic.datasets import Dataset, parse_dataset


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("squad", ("squad", None, None, None)),
        ("org/name", ("org/name", None, None, None)),
        ("org/name:train", ("org/name", None, "train", None)),
        ("org/name/config:test", ("org/name", "config", "test", None)),
        ("org/name:train[:10]", ("org/name", None, "train[:10]", None)),
        ("org/name@v1.0", ("org/name", None, None, "v1.0")),
        ("org/name/config:test@refs/pr/1", ("org/name", "config", "test", "refs/pr/1")),
    ],
)
def test_a_hub_name_holds_one_slash_and_then_its_configuration_split_and_revision(text, parts):
    assert parse_dataset(text) == Dataset(*parts)


@pytest.mark.parametrize("text", ["", "a//b", "a/b/c/d", "org/name@", "@v1", "/a:b", "./a", "~/a"])
def test_what_cannot_be_a_data_set_of_the_hub_is_refused(text):
    with pytest.raises(TrafficError):
        parse_dataset(text)


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
