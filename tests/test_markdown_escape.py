"""Text from files stays text in the Markdown that goes to pull requests and job pages."""

import re

import pytest
from markdown_it import MarkdownIt

from draftbench.report.terminal.text import Section
from draftbench.safe_files import markdown_escaped

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
