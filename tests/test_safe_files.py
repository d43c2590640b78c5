"""Files are written whole or not at all; what a reader could choke on is refused; text from files
moves no cursor and stays text in the Markdown that goes to pull requests and job pages.
"""

import json
import os
import re
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from draftbench.report.text import Section
from draftbench.safe_files import (
    MAX_YAML_BYTES,
    UnreadableError,
    json_without_controls,
    markdown_escaped,
    read_limited,
    read_yaml,
    without_controls,
    write_whole,
)


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_write_that_fails_keeps_what_was_there(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    (tmp_path / "scratch").write_bytes(b"half")
    write_whole(tmp_path / "file", b"new", tmp_path / "scratch")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"new")
    reader.join(10)
    assert read == [b"new"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_neither_a_pipe_nor_a_device_is_waited_for(tmp_path, make):
    make(tmp_path / "file")
    with pytest.raises(UnreadableError, match="not a plain file"):
        read_limited(tmp_path / "file", 10)


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


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain – ünïcode 🧑‍💻 خانه‌ها", "plain – ünïcode 🧑‍💻 خانه‌ها"),
        ("\x1b[2J", "�[2J"),
        ("a\nb\tc\x7f", "a�b�c�"),
        ("\x9b31m", "�31m"),
        ("\u202eevil\u2066", "�evil�"),
        ("\udc80", "�"),
    ],
)
def test_controls_go_and_writing_stays(text, clean):
    assert without_controls(text) == clean


@settings(max_examples=30)
@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.text(), inner)), st.booleans())  # fmt: skip
def test_a_document_keeps_everything_but_controls(document, escaped):
    raw = json.dumps(document, ensure_ascii=escaped).encode()

    def clean(value):
        if isinstance(value, str):
            return without_controls(value)
        if isinstance(value, list):
            return [clean(inner) for inner in value]
        if isinstance(value, dict):
            return {clean(key): clean(inner) for key, inner in value.items()}
        return value

    assert json.loads(json_without_controls(raw)) == clean(document)


def test_lines_are_kept_where_they_may_be():
    assert without_controls("a\n\x1bb\r\n", lines=True) == "a\n�b�\n"


def test_a_document_of_plain_ascii_is_not_touched():
    raw = b'{"a":  "plain", "b": [1.50, 1e-7]}'
    assert json_without_controls(raw) is raw


@pytest.mark.parametrize("raw", [b'{"a": "\\n', b'"\\n" x', b"\x7f"])
def test_no_document_is_an_error(raw):
    with pytest.raises(msgspec.DecodeError):
        json_without_controls(raw)


HOSTILE = [
    "@all",
    "see #1 and org/repo#2",
    "$x$ and &amp; and ~~gone~~",
    "http://evil.example or www.evil.example",
    "# heading",
    "+ item",
    "![image](http://evil.example/x.png)",
    "<img src=x onerror=alert(1)>",
    "`code` **bold** _soft_ [text](link)",
    "one | cell\nand another line",
    "\x1b[31mred\u202edaer",
]


def rendered(markdown):
    page = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)
    return re.sub(r"</?p>\n?", "", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_is_neither_markup_nor_a_mention_nor_a_link(text):
    html = rendered(markdown_escaped(text))
    assert re.findall(r"<[a-z/][^>]*>", html) == []
    assert not re.search(r"[@#]\w|www\.|://(?<!\u200b//)|[\x1b\u202e]", html)


def test_escaped_text_reads_as_before():
    text = "qwen0.5:int4, k = 5: 2.10× (1.88–2.36) & {no} \\ more!"
    assert rendered(markdown_escaped(text)) == text.replace("&", "&amp;")


def test_a_section_escapes_its_title_cells_and_notes():
    page = Section("of @a", ["#1"], [["www.b.c"]], ["http://d"]).markdown()
    assert [part in page for part in ("@a", "#1", "www.b", "://d")] == [False] * 4
