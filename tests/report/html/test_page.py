import base64
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from draftbench.report.figures import figures_of
from draftbench.report.html.page import page

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run, run_of

REFERENCE = Path(__file__).parents[3] / "results/reference/qwen2.5-coder"
HOSTILE = '<script>alert(1)</script>" onload="x'


def page_of(name, run, **options):
    answer = recommend(run, DecisionOptions(**options))
    return page(name, run, answer, figures_of(run, answer))


class Read(HTMLParser):
    """Tags with their attributes, text and style sheet."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.style = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags[-1:] and self.tags[-1][0] == "style" and not self.style:
            self.style = data
        self.text += data

    def all(self, name):
        return [found[name] for _, found in self.tags if name in found]

    def headings(self, level):
        return [at for at, (tag, _) in enumerate(self.tags) if tag == level]


@pytest.fixture(scope="module")
def run(hand):
    return run_of(hand.manifest(), hand.perfect())


@pytest.fixture(scope="module")
def text(run):
    return page_of("run", run)


@pytest.fixture(scope="module")
def read(text):
    return Read(text)


@pytest.fixture(scope="module")
def reference():
    return page_of("reference", read_run(RunFolder(REFERENCE)))


def test_the_decision_stands_first_and_then_its_one_figure(run, read):
    assert next(tag for tag, _ in read.tags if tag in ("h1", "h2")) == "h1"
    assert "Speculate: small, k = 2" in read.text
    speed = recommend(run).speedup_deciding
    first = next(found for tag, found in read.tags if tag == "data")
    assert float(first["value"]) == speed.value
    assert [float(first["data-low"]), float(first["data-high"])] == [speed.low, speed.high]


def test_the_page_has_six_sections(read):
    assert len(read.headings("h2")) == 6


def test_every_chart_has_words_and_a_table_for_who_cannot_see_it(reference):
    read = Read(reference)
    drawings = [found for tag, found in read.tags if tag == "svg"]
    assert len(drawings) > 8
    assert all(found["role"] == "img" and len(found["aria-label"]) > 40 for found in drawings)
    charts = reference.split("<figure>")[1:]
    without = [chart for chart in charts if "<table>" not in chart.split("</figure>")[0]]
    # These two have their table beside them.
    assert [re.search("<h3>(.*?)</h3>", chart)[1] for chart in without] == [
        "Each candidate at its best k",
        "Speed-up by concurrency",
    ]


def test_a_speed_up_below_the_asked_one_is_no_reason_to_speculate(run):
    # 8 s without, 4 s with.
    text = page_of("run", run, min_speedup=3.0)
    assert "Do not speculate" in text
    assert "does not reach the asked 3×" in text


def test_an_open_decision_says_what_the_requests_cannot_tell():
    # The deciding speed-up is 2.10× (1.88–2.36).
    text = page_of("reference", read_run(RunFolder(REFERENCE)), min_speedup=2.0)
    assert "Inconclusive" in text
    assert (
        "cannot tell whether qwen0.5:int4 at k = 5, the best candidate, is above the asked 2×"
        in text
    )


def test_without_any_speed_the_head_says_so(hand):
    records = [r for n in "01" for r in (hand.trajectory(n), hand.replay(n, (1.0,) * 8))]
    assert "No candidate&#x27;s speed is known." in page_of("run", run_of(hand.manifest(), records))


def test_names_from_files_stay_text(hand):
    records = hand.perfect(HOSTILE)
    records += [hand.trajectory("r2", segment=HOSTILE), hand.failure(HOSTILE, HOSTILE)]
    run = run_of(hand.manifest(target=HOSTILE, traffic=HOSTILE), records)
    read = Read(page_of(HOSTILE, run))
    assert not [tag for tag, _ in read.tags if tag in ("script", "img", "iframe", "object")]
    assert not [name for _, found in read.tags for name in found if name.startswith("on")]
    assert read.text.count(HOSTILE) > 5


def test_a_name_cannot_end_the_style_or_turn_the_text_around(hand):
    records = hand.perfect("</style>\u202eevil\x1b[31m")
    text = page_of("run", run_of(hand.manifest(), records))
    assert text.count("</style>") == 1
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_the_page_loads_nothing_and_styles_itself_by_hash_only(text, read):
    policy = next(found["content"] for tag, found in read.tags if "http-equiv" in found)
    digest = base64.b64encode(hashlib.sha256(read.style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert not read.all("src")
    assert not read.all("style")
    assert not read.all("href")
    assert not re.search(r"url\(|@import", text)


def test_ids_are_unique(reference):
    ids = Read(reference).all("id")
    assert len(set(ids)) == len(ids) == 6


def test_what_was_not_measured_says_so_in_its_section(hand):
    records = [r for n in "01" for r in (hand.trajectory(n), hand.replay(n, (1.0,) * 8))]
    read = Read(page_of("run", run_of(hand.manifest(), records)))
    assert "No pass was timed, so no candidate's speed is known." in read.text
    assert "Only concurrency 1 was timed" in read.text
    assert "All requests belong to one segment" in read.text


def test_the_same_run_gives_the_same_page(run, text):
    assert page_of("run", run) == text


def test_importing_the_page_loads_neither_torch_nor_matplotlib():
    code = (
        "import sys, draftbench.cli.report, draftbench.report.html.page; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_provisional_decision_says_so_below_its_figure(run, text):
    answer = recommend(run)
    doubts = "; ".join(caveat.text for caveat in answer.decisive_caveats)
    assert f'<p class="provisional">Provisional: {doubts}.</p>' in text
    sure = msgspec.structs.replace(answer, caveats=())
    assert "Provisional" not in page("run", run, sure, figures_of(run, sure))


@pytest.mark.slow
def test_a_page_of_the_reference_run_takes_under_four_seconds_of_processor_time(tmp_path):
    code = (
        "import sys, time; from draftbench.cli import main; "
        f"main(['report', {str(REFERENCE)!r}, '--html', {str(tmp_path / 'x.html')!r}]); "
        "sys.exit(time.process_time() > 4)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
