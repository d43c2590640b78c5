"""Files of every kind → numbered rows; broken, huge and compressed ones."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scenes import query

from draftbench.errors import TrafficError
from draftbench.traffic import files, load
from draftbench.traffic.files import read_rows

ROWS: list[dict[str, Any]] = [{"prompt": "Zürich, “née”"}, {"prompt": "two\nlines"}]


def zstd(data):
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def rows(path):
    return [
        (row.number, json.loads(row.data) if isinstance(row.data, bytes) else row.data)
        for row in read_rows(path)
    ]


def written(path, kind):
    if kind == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if kind == ".json":
        return json.dumps(ROWS, ensure_ascii=False, indent=1).encode()
    if kind == ".csv":
        return 'prompt\r\n"Zürich, “née”"\r\n"two\nlines"\r\n'.encode()
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path.read_bytes()


PACKED = [("", bytes), (".gz", gzip.compress), (".zst", zstd)]


@pytest.mark.parametrize(
    ("kind", "ending", "compress"),
    [
        (".parquet", "", bytes),
        *((kind, *way) for kind in (".jsonl", ".json", ".csv") for way in PACKED),
    ],
)
def test_every_kind_is_read_plain_and_compressed(tmp_path, kind, ending, compress):
    path = tmp_path / f"traffic{kind}{ending}"
    path.write_bytes(compress(written(tmp_path / "scratch", kind)))
    assert [row for _, row in rows(path)] == ROWS


@pytest.mark.parametrize(("ending", "compress"), PACKED)
def test_lines_of_json_have_either_name(tmp_path, ending, compress):
    path = tmp_path / f"traffic.ndjson{ending}"
    path.write_bytes(compress(written(tmp_path / "scratch", ".jsonl")))
    assert [row for _, row in rows(path)] == ROWS


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        # Lines are numbered as an editor does, and a table's row by its first line.
        (
            "a.jsonl",
            b'\xef\xbb\xbf{"prompt": "a"}\n\n  \n{"prompt": "b"}',
            [(1, {"prompt": "a"}), (4, {"prompt": "b"})],
        ),
        (
            "a.csv",
            b'\xef\xbb\xbfprompt\n"one\n\ntwo"\nthree\n',
            [(2, {"prompt": "one\n\ntwo"}), (5, {"prompt": "three"})],
        ),
        # Cells are texts, and empty ones are absent.
        (
            "b.csv",
            b'prompt,temperature,seed,stop,segment\n42,0.7,,"[""x"", ""y""]",007\n',
            [(2, {"prompt": "42", "temperature": "0.7", "stop": '["x", "y"]', "segment": "007"})],
        ),
    ],
)
def test_rows_have_the_numbers_of_their_lines_and_the_texts_of_their_cells(
    tmp_path, name, data, expected
):
    (tmp_path / name).write_bytes(data)
    assert rows(tmp_path / name) == expected


@pytest.mark.parametrize(
    "text",
    [
        '[{"prompt": "a"}, {"prompt": "b"}]',
        '{"prompt": "a"}\n{"prompt": "b"}',
        ' [\n{"prompt":"a"},{"prompt":"b"}]\n',
    ],
)
def test_json_is_an_array_or_rows_one_after_another(tmp_path, text, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text(text)
    expected = [(1, {"prompt": "a"}), (2, {"prompt": "b"})]
    assert rows(path) == expected
    monkeypatch.setattr(files, "_CHUNK", 3)  # every row is cut by the buffer
    assert rows(path) == expected


@pytest.mark.parametrize(("ending", "compress"), PACKED[1:])
def test_a_truncated_archive_loses_no_row_silently(tmp_path, ending, compress):
    lines = b"".join(b'{"prompt": "%d"}\n' % (number * 7919) for number in range(20_000))
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(compress(lines)[:-10])
    with pytest.raises(TrafficError, match="cannot be read"):
        rows(path)
    # An archive of several parts is read to the end.
    path.write_bytes(compress(b'{"prompt": "a"}\n') + compress(b'{"prompt": "b"}\n'))
    assert [row["prompt"] for _, row in rows(path)] == ["a", "b"]


def test_rows_end_at_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_ROW", 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100 + b'\n{"prompt": "b"}\n')
    first, second = read_rows(path)
    assert (first.number, first.data) == (1, b"x" * 21)
    assert (second.number, second.data) == (2, b'{"prompt": "b"}\n')
    path = tmp_path / "a.csv"
    path.write_text('prompt\n"open\n' + "line\n" * 100)
    with pytest.raises(TrafficError, match="a quote is not closed"):
        rows(path)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.parquet", b"not parquet", ""),
        ("a.parquet", b"", ""),
        ("a.jsonl.gz", b"not gzip", ""),
        ("a.jsonl.zst", b"not zstd", ""),
        ("a.csv", b'prompt\n"never closed\n', ""),
        ("a.json", b'[{"a": ' + b"[" * 100_000, "nested too deeply"),
        *(
            ("a.json", text, "row . is not JSON")
            for text in (b'[{"prompt": "a"}', b'[{"prompt": "a"}, {"pro', b'{"a": 1} x', b"[")
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, data, words):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(TrafficError, match=f"`{name}` cannot be read: {words}"):
        rows(path)


def test_a_date_beyond_those_of_python_is_a_broken_file(tmp_path):
    days = pa.array([2_000_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"prompt": ["a"], "day": days}), tmp_path / "a.parquet")
    with pytest.raises(TrafficError, match=r"`a\.parquet` cannot be read"):
        rows(tmp_path / "a.parquet")


def test_missing_files_folders_and_unknown_kinds_have_a_hint(tmp_path):
    for name in ("a.txt", "a.parquet.gz", "logs.jsonl"):
        (tmp_path / name).write_text("x")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    for path, hint in (
        (tmp_path / "none.jsonl", "suite:NAME"),
        (tmp_path / "logs", f"did you mean `{tmp_path}/logs.jsonl`"),
        (tmp_path / "logz.jsonl", f"did you mean `{tmp_path}/logs.jsonl`"),
        (Path("code"), "did you mean `suite:code`"),
        (tmp_path / "a.parquet.gz", "or .parquet"),
        (tmp_path, "name a file in it"),
        (tmp_path / "a.txt", ".parquet"),
        (tmp_path / "loop.jsonl", f"did you mean `{tmp_path}/logs.jsonl`"),
        (tmp_path / ("x" * 300 + ".jsonl"), "whether you may read it"),  # too long for a name
    ):
        with pytest.raises(TrafficError) as raised:
            rows(path)
        assert hint in raised.value.hint


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_neither_a_pipe_nor_a_device_is_waited_for(tmp_path, make):
    make(tmp_path / "log.jsonl")
    with pytest.raises(TrafficError, match="not a plain file"):
        load(query(tmp_path / "log.jsonl"))


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_file_in_utf_16_is_refused_by_name(tmp_path, name):
    text = "prompt;id\nna\u00efve;1\n" if name == "a.csv" else '{"prompt": "na\u00efve"}\n'
    (tmp_path / name).write_bytes(text.encode("utf-16"))
    with pytest.raises(TrafficError, match="is UTF-16") as raised:
        load(query(tmp_path / name))
    assert raised.value.hint == "save the file as UTF-8"
    (tmp_path / name).write_bytes(text.encode("utf-16-le"))  # without a mark at its beginning
    with pytest.raises(TrafficError):
        load(query(tmp_path / name, skip_bad=True))


def test_the_beginning_of_a_sound_file_is_no_reason_to_rename_it(tmp_path):
    """Known fault: a row without a prompt in a JSON list or a Parquet file was taken for one."""
    (tmp_path / "a.json").write_text('[{"prompt": ""}, {"prompt": ""}]')
    pq.write_table(pa.table({"prompt": ["", ""]}), tmp_path / "a.parquet")
    for name in ("a.json", "a.parquet"):
        with pytest.raises(TrafficError, match="the prompt is empty") as raised:
            load(query(tmp_path / name))
        assert raised.value.hint == "docs/logs.md has a row of each kind that can be read"


@pytest.mark.parametrize(
    ("sign", "word"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")]
)
def test_columns_are_separated_by_what_the_header_holds_most(tmp_path, sign, word):
    (tmp_path / "a.csv").write_text(f'prompt{sign}"a;b,c"\nOnce{sign}1\n')
    traffic = load(query(tmp_path / "a.csv"))
    assert traffic.requests[0].prompt == "Once"
    assert traffic.summary.layout == (f"columns separated by {word}",)
    (tmp_path / "b.csv").write_text(f"question{sign}id\nWho did it?{sign}1\n")
    words = f"its fields are `question`, `id`; read as columns separated by {word}"
    with pytest.raises(TrafficError, match=words) as raised:
        load(query(tmp_path / "b.csv"))
    assert raised.value.hint == "name the prompt's field, perhaps --prompt-field question"


def test_a_csv_row_with_more_or_fewer_cells_than_the_header_is_bad(tmp_path):
    text = "id,prompt,model\n1,First line\nsecond line,m\n\n2,Fine,m\n3,a,b,c\n"
    (tmp_path / "a.csv").write_text(text)
    traffic = load(query(tmp_path / "a.csv", skip_bad=True))
    assert [request.prompt for request in traffic.requests] == ["Fine"]
    assert [(bad.first, bad.reason, bad.rows) for bad in traffic.summary.bad_rows] == [
        ("a.csv:2", "it ends in column 2, and the header in column 3", 3)
    ]


def test_columns_of_the_same_name_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id,prompt,,,prompt\n1,Hello,,,World\n")
    with pytest.raises(TrafficError, match="columns 2 and 5 of line 1 have the same name"):
        load(query(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (gzip.compress(b"{}", mtime=0), "it is packed with gzip: name it log.jsonl.gz"),
        (b"PK\x03\x04...", "it is a zip archive or a spreadsheet: unpack it, or save it as .csv"),
        (b"<!DOCTYPE html>", "it is a page of HTML or XML: download the file itself"),
        (b"\0" * 300, "it is binary: a log is text"),
        (b'[\n{"prompt": "a"},\n{"prompt": "b"}\n]', "it is one JSON list: name it log.json"),
        (b'{\r\n"prompt": "a"\r\n}', "its objects go over several lines: name it log.json"),
        (b"INFO started\nINFO ended", "docs/logs.md has a row of each kind that can be read"),
        (b'{"prompt": "a"}\n{', "fix the row, or skip and count bad rows with --skip-bad"),
        (
            b'{"prompt": "a"}\n{"prompt": "Z\xfcrich"}',
            "save the file as UTF-8, or skip and count such rows with --skip-bad",
        ),
    ],
)
def test_the_hint_for_rows_that_are_no_json_says_what_the_file_is(tmp_path, data, hint):
    (tmp_path / "log.jsonl").write_bytes(data)
    with pytest.raises(TrafficError) as raised:
        load(query(tmp_path / "log.jsonl"))
    assert raised.value.hint == hint


def test_the_hint_for_a_table_without_rows_says_what_the_file_is(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"\0" * 300)
    with pytest.raises(TrafficError, match="holds no rows") as raised:
        load(query(tmp_path / "log.csv"))
    assert raised.value.hint == "it is binary: a log is text"
