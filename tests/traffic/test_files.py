"""Files of every kind → numbered rows; broken, huge and compressed ones."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftbench.errors import TrafficError
from draftbench.traffic import files
from draftbench.traffic.files import read_rows

ROWS: list[dict[str, Any]] = [{"prompt": "Zürich, “née”"}, {"prompt": "two\nlines"}]


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def rows(path: Path) -> list[tuple[int, Any]]:
    return [
        (row.number, json.loads(row.data) if isinstance(row.data, bytes) else row.data)
        for row in read_rows(path)
    ]


def written(path: Path, kind: str) -> bytes:
    if kind == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if kind == ".json":
        return json.dumps(ROWS, ensure_ascii=False, indent=1).encode()
    if kind == ".csv":
        return 'prompt\r\n"Zürich, “née”"\r\n"two\nlines"\r\n'.encode()
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize(
    ("ending", "compress"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)]
)
def test_every_kind_is_read_plain_and_compressed(
    tmp_path: Path, kind: str, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"traffic{kind}{ending}"
    path.write_bytes(compress(written(tmp_path / "scratch", kind)))
    assert [row for _, row in rows(path)] == ROWS


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n  \n{"prompt": "b"}')
    assert rows(path) == [(1, {"prompt": "a"}), (4, {"prompt": "b"})]


def test_a_csv_row_is_numbered_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt\n"one\n\ntwo"\nthree\n')
    assert rows(path) == [(2, {"prompt": "one\n\ntwo"}), (5, {"prompt": "three"})]


def test_csv_cells_are_numbers_and_structures_only_where_these_belong(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "prompt,temperature,max_tokens,seed,stop,response,segment\n"
        '42,0.7,64,,"[""x"", ""y""]","{""a"": 1}",007\n'
    )
    expected = {
        "prompt": "42",
        "temperature": 0.7,
        "max_tokens": 64,
        "stop": ["x", "y"],
        "response": '{"a": 1}',
        "segment": "007",
    }
    assert rows(path) == [(2, expected)]


@pytest.mark.parametrize(
    "text",
    [
        '[{"prompt": "a"}, {"prompt": "b"}]',
        '{"prompt": "a"}\n{"prompt": "b"}',
        ' [\n{"prompt":"a"},{"prompt":"b"}]\n',
    ],
)
def test_json_is_an_array_or_rows_one_after_another(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    expected = [(1, {"prompt": "a"}), (2, {"prompt": "b"})]
    assert rows(path) == expected
    monkeypatch.setattr(files, "_CHUNK", 3)  # every row is cut by the buffer
    assert rows(path) == expected


@pytest.mark.parametrize("text", ['[{"prompt": "a"}', '[{"prompt": "a"}, {"pro', '{"a": 1} x', "["])
def test_a_json_file_that_is_cut_off_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TrafficError, match=r"`a\.json` cannot be read: row \d is not JSON"):
        rows(path)


@pytest.mark.parametrize(
    ("name", "compress"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)]
)
def test_a_truncated_archive_loses_no_row_silently(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    lines = b"".join(b'{"prompt": "%d"}\n' % (number * 7919) for number in range(20_000))
    path = tmp_path / name
    path.write_bytes(compress(lines)[:-10])
    with pytest.raises(TrafficError, match="cannot be read"):
        rows(path)


def test_archives_of_several_parts_are_read_to_the_end(tmp_path: Path) -> None:
    for name, compress in (("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)):
        path = tmp_path / name
        path.write_bytes(compress(b'{"prompt": "a"}\n') + compress(b'{"prompt": "b"}\n'))
        assert [row["prompt"] for _, row in rows(path)] == ["a", "b"]


def test_an_over_long_line_is_cut_and_the_next_one_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ROW", 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100 + b'\n{"prompt": "b"}\n')
    first, second = read_rows(path)
    assert (first.number, first.data) == (1, b"x" * 21)
    assert (second.number, second.data) == (2, b'{"prompt": "b"}\n')


def test_a_compression_bomb_fails_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED", 1 << 20)
    path = tmp_path / "a.parquet.zst"
    path.write_bytes(zstd(b"\0" * (8 << 20)))
    with pytest.raises(TrafficError, match="8 GiB"):
        rows(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.parquet", b"not parquet"),
        ("a.parquet", b""),
        ("a.jsonl.gz", b"not gzip"),
        ("a.jsonl.zst", b"not zstd"),
        ("a.csv", b'prompt\n"never closed\n'),
        ("a.json", b'[{"a": ' + b"[" * 100_000),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(TrafficError, match=f"`{name}` cannot be read"):
        rows(path)


def test_a_date_beyond_those_of_python_is_a_broken_file(tmp_path: Path) -> None:
    days = pa.array([2_000_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"prompt": ["a"], "day": days}), tmp_path / "a.parquet")
    with pytest.raises(TrafficError, match=r"`a\.parquet` cannot be read"):
        rows(tmp_path / "a.parquet")


def test_a_quote_that_is_not_closed_stops_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ROW", 100)
    path = tmp_path / "a.csv"
    path.write_text('prompt\n"open\n' + "line\n" * 100)
    with pytest.raises(TrafficError, match="a quote is not closed"):
        rows(path)


def test_missing_files_folders_and_unknown_kinds_have_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for path, hint in (
        (tmp_path / "none.jsonl", "suite:NAME"),
        (tmp_path, f"hf:{tmp_path}"),
        (tmp_path / "a.txt", ".parquet"),
    ):
        with pytest.raises(TrafficError) as raised:
            rows(path)
        assert hint in raised.value.hint
