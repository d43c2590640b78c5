"""Files that would make a reader wait, swell or leave its folder."""

from __future__ import annotations

import gzip
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.utils import filter_repo_objects
from scenes import EMBEDDED, query

from draftbench.errors import ModelError, TrafficError
from draftbench.models.checkpoint import check_files
from draftbench.models.source import ModelSource
from draftbench.safe_files import MAX_YAML_BYTES, UnreadableError, read_limited, read_yaml
from draftbench.traffic import files, load


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(TrafficError, match="not a plain file"):
        load(query(tmp_path / "log.jsonl"))
    with pytest.raises(UnreadableError, match="not a plain file"):
        read_limited(tmp_path / "log.jsonl", 10)


def test_a_device_without_end_is_not_read(tmp_path):
    (tmp_path / "log.jsonl").symlink_to("/dev/zero")
    with pytest.raises(TrafficError, match="not a plain file"):
        load(query(tmp_path / "log.jsonl"))
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(UnreadableError, match=r"config\.json: it is not a plain file"):
        check_files(tmp_path)


def test_a_file_over_its_limit_is_refused_and_one_at_it_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_limited(path, 100) == b"x" * 100
    with pytest.raises(UnreadableError, match="larger than"):
        read_limited(path, 99)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x\n", "line 2: aliases are not read"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "aliases are not read"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("a: 2001-99-99\n", "month must be in 1..12"),
        ("a: " + "9" * 5000, "4300 digits"),
        ('a: "\\ud800"\n', "surrogates not allowed"),
        ("a: \x07\n", "special characters are not allowed"),
        ("a: " + "x" * MAX_YAML_BYTES, "larger than the 64 KiB"),
    ],
)
def test_yaml_is_plain_values_or_refused(tmp_path, text, words):
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(UnreadableError, match=words):
        read_yaml(tmp_path / "file.yaml")


def test_a_compressed_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_ALWAYS_UNPACKED", 1000)
    monkeypatch.setattr(files, "MAX_RATIO", 10)
    rows = b'{"prompt": "a"}\n' * 2_000
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(rows))
    with pytest.raises(TrafficError, match="unpacks to more than 10 times its size"):
        load(query(tmp_path / "log.jsonl.gz"))
    monkeypatch.setattr(files, "MAX_RATIO", 1000)
    assert load(query(tmp_path / "log.jsonl.gz")).summary.rows == 2_000


def test_a_few_bytes_that_stand_for_rows_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_ROWS", 1000)
    pq.write_table(pa.table({"prompt": ["a"] * 1001}), tmp_path / "log.parquet")
    with pytest.raises(TrafficError, match="more than 1000 rows"):
        load(query(tmp_path / "log.parquet"))


def test_a_header_of_more_columns_than_anybody_has_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text(",".join(f"c{i}" for i in range(1001)) + "\na\n")
    with pytest.raises(TrafficError, match="more than 1000 columns"):
        load(query(tmp_path / "log.csv"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", '{"num_hidden_layers": 1000000000}', "`num_hidden_layers` is more than"),
        ("config.json", '{"text_config": {"num_experts": 1e12}}', "`num_experts` is more than"),
        ("config.json", '{"vocab_size": ' + "9" * 400 + "}", "`vocab_size` is more than"),
        ("config.json", '{"rope_theta": NaN}', "`rope_theta` is more than"),
        ("config.json", '{"max_position_embeddings": 1000000000}', "`max_position_embeddings` is"),
        ("config.json", '{"max_position_embeddings": 0}', "is less than any model has"),
        ("config.json", '{"text_config": {"num_hidden_layers": -2}}', "is less than any"),
        ("config.json", "[" * 100_000, "recursion"),
        ("tokenizer.json", '{"\xff": 1}'.encode("latin-1"), "utf-8"),
        ("adapter_config.json", "{}", "it is an adapter"),
        ("a.safetensors.index.json", '{"weight_map": {"w": "../x"}}', "not in this folder"),
        ("a.safetensors.index.json", '{"weight_map": {"w": "/etc/passwd"}}', "not in this folder"),
        ("a.safetensors.index.json", '{"weight_map": {"w": ""}}', "not in this folder"),
        ("a.safetensors.index.json", "[]", "no `weight_map`"),
    ],
)
def test_a_checkpoint_that_would_swell_or_lead_away_is_refused(tmp_path, name, content, words):
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UnreadableError, match=words):
        check_files(tmp_path)


def header(rest: bytes, fields: int = 0, tensors: int = 0) -> bytes:
    counts = b"".join(n.to_bytes(8, "little") for n in (tensors, fields))
    return b"GGUF\3\0\0\0" + counts + rest


def tensor(*shape: int, kind: int, start: int) -> bytes:
    sizes = b"".join(n.to_bytes(8, "little") for n in shape)
    return (
        KEY
        + len(shape).to_bytes(4, "little")
        + sizes
        + kind.to_bytes(4, "little")
        + start.to_bytes(8, "little")
    )


ENDLESS = (1 << 60).to_bytes(8, "little")
KEY = (1).to_bytes(8, "little") + b"k"
ARRAY = (9).to_bytes(4, "little")
SHORT = "it is cut off"
BLOCKS = (17).to_bytes(8, "little") + b"llama.block_count" + (4).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a GGUF file"),
        (header(b"", fields=1 << 60), SHORT),
        (header(ENDLESS + b"k" * 8, fields=1), SHORT),
        # The library would walk an array of 2^60 empty numbers.
        (header(KEY + ARRAY + (4).to_bytes(4, "little") + ENDLESS, fields=1), SHORT),
        (header(KEY + ARRAY + (ARRAY + (1).to_bytes(8, "little")) * 5000, fields=1), "recursion"),
        (header(KEY + (77).to_bytes(4, "little"), fields=1), "77"),
        # A tokenizer alone, whose model would be built of a billion layers.
        (header(BLOCKS + (10**9).to_bytes(4, "little"), fields=1), "`block_count` is more than"),
        # 3 × 4 float32 from byte 8 on, of which 50 bytes are there.
        (header(tensor(3, 4, kind=0, start=8) + b"\0" * 50, tensors=1), SHORT),
        # Two blocks of 32 in 4 bits, each 18 bytes.
        (header(tensor(64, kind=2, start=0) + b"\0" * 35, tensors=1), SHORT),
        (header(tensor(1 << 62, 1 << 62, kind=0, start=1 << 63), tensors=1), "cut off|reshape"),
    ],
)
def test_a_gguf_header_must_fit_into_its_file(tmp_path, data, words):
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(UnreadableError, match=words):
        check_files(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.gguf", header(KEY + ARRAY + ARRAY + ENDLESS, fields=1)),
        ("model.gguf", header(KEY + ARRAY + (ARRAY + (1).to_bytes(8, "little")) * 5000, fields=1)),
        ("sweep.yaml", b"drafts: " + b"[" * 5000),
        ("sweep.yaml", b"drafts: " + b"[" * 250 + b"]" * 250),
    ],
)
def test_a_hostile_file_ends_in_one_error_and_one_hint(command, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    words = {
        "model.gguf": ["check", "--target", tmp_path / name, "--drafts", tmp_path / name],
        "sweep.yaml": ["sweep", tmp_path / name, "--dry-run"],
    }[name]
    outcome = command(*words)
    assert (outcome.code, outcome.out) == (2, "")
    error, hint = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")


def test_what_the_hub_sent_is_looked_at_before_it_is_read(tmp_path, monkeypatch):
    """A cache as the hub's library makes it: snapshots of links to blobs."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    repository, commit = cache / "models--org--bomb", "0" * 40
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / part).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs" / "a").write_text('{"model_type": "llama", "num_hidden_layers": 1e9}')
    (repository / "snapshots" / commit / "config.json").symlink_to(repository / "blobs" / "a")
    with pytest.raises(ModelError, match="`num_hidden_layers` is more than any model has"):
        _ = ModelSource("org/bomb").config


def test_a_tokenizer_of_the_hub_is_looked_at_before_it_is_read(tmp_path, monkeypatch):
    """The first reading fetches all small files, and only those."""
    sent = {"config.json": b"{}", "tokenizer.json": b'{"\xff": 1}', "a.safetensors": b""}

    def download(repository, *, revision, allow_patterns, ignore_patterns):
        assert (repository, revision) == ("org/bomb", "main")
        for name in filter_repo_objects(sent, allow_patterns=allow_patterns):
            (tmp_path / name).write_bytes(sent[name])
        return str(tmp_path)

    # Modules that are first imported now would keep the name that is replaced.
    assert ModelSource(str(EMBEDDED / "target")).tokenizer
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ModelError, match=r"tokenizer\.json: 'utf-8' codec"):
        _ = ModelSource("org/bomb").tokenizer
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "tokenizer.json"}


@pytest.mark.parametrize(
    ("name", "most"),
    [("chat_template.jinja", 4), ("tokenizer.model", 256), ("merges.txt", 256), ("vocab.txt", 256)],
)
def test_a_text_of_a_checkpoint_has_a_limit(tmp_path, name, most):
    with (tmp_path / name).open("wb") as stream:
        stream.truncate((most << 20) + 1)
    with pytest.raises(UnreadableError, match=f"{name}: it is larger"):
        check_files(tmp_path)
