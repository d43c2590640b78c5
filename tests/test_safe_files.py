"""Files are written whole or not at all; text from files stays text in the Markdown that goes to
pull requests and job pages.
"""

import os
import re
import threading

import pytest
from markdown_it import MarkdownIt

from draftbench.report.text import Section
from draftbench.safe_files import markdown_escaped, write_whole


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
