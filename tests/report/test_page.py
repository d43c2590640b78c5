import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.report.page import examine, page
from draftbench.report.page.sections import DRAWN
from draftbench.report.terminal.recommendation import FIGURES, render
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run, run_of

REFERENCE = Path(__file__).parents[2] / "results/reference/qwen2.5-coder"
NOTHING = {key: [] for key, *_ in DRAWN}
HOSTILE = '<script>alert(1)</script>" onload="x'


def examined(name, run, **options):
    return examine(name, run, recommend(run, DecisionOptions(**options)))


class Read(HTMLParser):
    """Tags with their attributes, ids, links, the style sheet and the exact numbers by cell."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.numbers, self.text, self.style = [], {}, "", ""
        self._cell = self._figure = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "tr":
            self._cell = tuple(found.get(f"data-{name}") for name in ("draft", "quant", "k"))
        if tag == "td":
            self._figure = found.get("data-figure")
        if tag == "data" and self._figure:
            exact = [float(found[name]) for name in ("value", "data-low", "data-high")]
            self.numbers[(*self._cell, self._figure)] = exact

    def handle_data(self, data):
        if self.tags[-1:] and self.tags[-1][0] == "style" and not self.style:
            self.style = data
        self.text += data

    def all(self, name):
        return [found[name] for _, found in self.tags if name in found]


@pytest.fixture(scope="module")
def run(hand):
    return run_of(hand.manifest(), hand.perfect())


@pytest.fixture(scope="module")
def text(run):
    return page(examined("run", run))


@pytest.fixture(scope="module")
def read(text):
    return Read(text)


@pytest.fixture(scope="module")
def reference():
    return page(examined("reference", read_run(RunFolder(REFERENCE))))


def test_the_figures_of_the_page_are_those_of_the_json(run, read):
    answer = json.loads(render(recommend(run), "json", 80))
    expected = {
        (cell["draft"], cell["quant"], str(cell["k"]), name): [
            cell[name][end] for end in ("value", "low", "high")
        ]
        for cell in answer["evaluations"]
        for name in FIGURES
        if cell[name] is not None
    }
    assert len(expected) > 10
    assert read.numbers == expected


def test_the_reference_page_shows_waits_and_sourced_advice(reference):
    read = Read(reference)
    assert "stream: gap between chunks (ms)" in read.text
    assert "Rules of thumb" in read.text
    assert "generalcompute.com" in read.text


def test_speed_ups_by_concurrency_stand_beside_their_drawing(hand):
    run = run_of(hand.manifest(batches=(1, 2)), hand.loaded())
    text = page(examined("run", run))
    answer = json.loads(render(recommend(run), "json", 80))
    first, second = (level["speedup_expected"] for level in answer["levels"])
    section = text[text.index('id="load"') :]
    section = section[: section.index("</section>")]
    assert f"{first['value']:.2f} ±" in section
    assert f"{second['value']:.2f} ±" in section
    assert "It clearly pays up to a concurrency of 1." in section


def test_the_decision_stands_first(read):
    headings = [tag for tag, _ in read.tags if tag in ("h1", "h2")]
    assert headings[0] == "h1"
    assert "Speculate: small, k = 2" in read.text


def test_a_speed_up_below_the_asked_one_is_said_to_be_that(run, monkeypatch):
    monkeypatch.setattr("draftbench.report.page.drawings", lambda answer, figures: NOTHING)
    # 8 s without, 4 s with.
    text = page(examined("run", run, min_speedup=3.0))
    assert "Do not speculate" in text
    assert "below the asked 3×" in text


def test_names_from_files_stay_text(hand):
    records = hand.perfect(HOSTILE)
    records += [hand.trajectory("r2", segment=HOSTILE), hand.failure(HOSTILE, HOSTILE)]
    run = run_of(hand.manifest(target=HOSTILE, traffic=HOSTILE), records)
    read = Read(page(examined(HOSTILE, run)))
    assert not [tag for tag, _ in read.tags if tag in ("script", "img", "iframe", "object")]
    assert not [name for _, found in read.tags for name in found if name.startswith("on")]
    assert read.text.count(HOSTILE) > 5


def test_a_name_cannot_end_the_style_or_turn_the_text_around(hand):
    records = hand.perfect("</style>\u202eevil\x1b[31m")
    text = page(examined("run", run_of(hand.manifest(), records)))
    assert text.count("</style>") == 1
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_the_page_loads_nothing_and_styles_itself_by_hash_only(text, read):
    policy = next(found["content"] for tag, found in read.tags if "http-equiv" in found)
    digest = base64.b64encode(hashlib.sha256(read.style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert not read.all("src")
    assert not read.all("style")
    assert all(link.startswith("#") for link in read.all("href") + read.all("xlink:href"))
    assert not re.search(r"url\((?!#)|@import", text)


def test_ids_are_unique_and_links_lead_somewhere(reference):
    read = Read(reference)
    ids = read.all("id")
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in read.all("href") + read.all("xlink:href")} <= set(ids)


def test_what_was_not_measured_is_a_line_and_no_section(hand):
    records = [r for n in "01" for r in (hand.trajectory(n), hand.replay(n, (1.0,) * 8))]
    read = Read(page(examined("run", run_of(hand.manifest(), records))))
    assert "times" not in read.all("id")
    assert "time per output token: the best candidate was not decoded" in read.text
    assert "No candidate's speed is known" in read.text


def test_the_same_run_gives_the_same_page(run, text):
    assert page(examined("run", run)) == text


def test_neither_torch_nor_matplotlib_is_imported_before_something_is_drawn():
    code = (
        "import sys, draftbench.cli.report, draftbench.report.page; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_provisional_decision_says_so_below_the_headline(run, text, monkeypatch):
    assert '</h1><p class="provisional">Provisional: only 2 requests were replayed' in text
    monkeypatch.setattr("draftbench.report.page.drawings", lambda answer, figures: NOTHING)
    monkeypatch.setattr("draftbench.planner.recommend.caveats", lambda field, standing: ())
    assert "Provisional" not in page(examined("run", run))


def test_a_k_that_was_not_decoded_has_no_expected_speed_up_on_the_page(read):
    # Of `small` k = 2 was decoded.
    assert ("small", "none", "1", "speedup_predicted") in read.numbers
    assert ("small", "none", "1", "speedup_expected") not in read.numbers
    assert ("small", "none", "2", "speedup_expected") in read.numbers
