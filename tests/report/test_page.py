"""The page of a run: safe, self-contained, readable without seeing, and every number of its tables
that of the JSON of `recommend` and `acceptance`.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import hand
import msgspec
import pytest
from scenes import failure, trajectory

from draftbench.cli import main
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Caveat
from draftbench.report.answer import provisional
from draftbench.report.page import page
from draftbench.report.plot import STYLE

REFERENCE = Path(__file__).parents[2] / "results/reference/qwen2.5-coder"
HOSTILE = '<script>alert(1)</script>" onload="x'


def page_of(run, name="run", **options):
    return page(name, run, recommend(run, DecisionOptions(**options)))


class Read(HTMLParser):
    """Tags with their attributes, text, style sheet, and tables by section: rows of cells, each its
    text and the exact numbers behind it.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.style = [], "", ""
        self.tables, self._section, self._cell = defaultdict(list), None, None
        self.feed(text.replace("\N{NO-BREAK SPACE}", " "))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "section":
            self._section = found["id"]
        elif tag == "table":
            self.tables[self._section].append([])
        elif tag == "tr":
            self.tables[self._section][-1].append([])
        elif tag in ("td", "th"):
            self._cell = ["", ()]
        elif tag == "data" and self._cell:
            self._cell[1] = tuple(float(found[end]) for end in ("value", "data-low", "data-high"))

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[self._section][-1][-1].append(tuple(self._cell))
            self._cell = None

    def handle_data(self, data):
        if self.tags[-1:] and self.tags[-1][0] == "style" and not self.style:
            self.style = data
        self.text += data
        if self._cell:
            self._cell[0] += data

    def all(self, name):
        return [found[name] for _, found in self.tags if name in found]


@pytest.fixture(scope="module")
def run():
    return hand.run(hand.perfect())


@pytest.fixture(scope="module")
def text(run):
    return page_of(run)


@pytest.fixture(scope="module")
def read(text):
    return Read(text)


@pytest.fixture(scope="module")
def whole(reference, answers):
    return page("run", reference, answers["qwen2.5-coder"])


def section(text, key):
    return text.partition(f'id="{key}"')[2].partition("</section>")[0]


def words_of(text, key=None):
    """What a reader sees of a page, or of one of its sections."""
    return " ".join(Read(section(text, key) if key else text).text.split())


def grouped(accept):
    """Requests of two segments in turn, each accepting everything or nothing."""
    records = []
    for at in range(12):
        records.append(trajectory(f"q{at}", segment=("chat", "code")[at % 2]))
        records.append(hand.replay(f"q{at}", (float(accept(at)),) * 8))
    return hand.run(records)


def with_settled(run, after):
    effort = msgspec.structs.replace(run.manifest.effort, settled_after=after)
    return replace(run, manifest=msgspec.structs.replace(run.manifest, effort=effort))


def test_the_decision_stands_first_and_then_its_one_figure(run, read):
    assert next(tag for tag, _ in read.tags if tag in ("h1", "h2")) == "h1"
    assert "Speculate (provisional): small, k = 2" in read.text
    speed = recommend(run).speedup_deciding
    first = next(found for tag, found in read.tags if tag == "data")
    exact = [float(first[end]) for end in ("value", "data-low", "data-high")]
    assert exact == [speed.value, speed.low, speed.high]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        # A target that is called target is named once.
        (
            lambda: hand.run(hand.perfect("a_b"), target="/models/target"),
            ["draftbench · target · traffic", "model a_b"],
        ),
        (
            lambda: hand.run(hand.perfect(), target="/models/big", command="d sweep --k 1-8"),
            ["draftbench · target big · traffic", "d sweep --k 1-8"],
        ),
        (
            lambda: hand.run(hand.untimed()),
            [
                "No candidate's speed is known (small: step times were not measured)",
                "No pass was timed, so no speed-up is known.",
                "No configuration was both predicted and decoded, so the predictions are un",
                "Other loads and waits: --concurrency 1,4,16 measures them.",
                "Acceptance by segment and by temperature: that takes two of either",
            ],
        ),
        (
            lambda: hand.run(
                hand.one_request(),
                command="draftbench sweep --target ./big --sample 1 --out runs/one --k 1-8",
                rows=40,
            ),
            [
                "one request is too few to decide by",
                "Fewer than 5 requests have no interval",
                "draftbench sweep --target ./big --k 1-8 --sample 30",
            ],
        ),
        # Of either segment, every other request accepts everything, the others nothing.
        (
            lambda: grouped(lambda at: at % 4 < 2),
            ["The intervals of all groups overlap: none is known to differ from another."],
        ),
        (
            lambda: with_settled(hand.run(hand.perfect()), 64),
            ["settled after 64, the others were not measured"],
        ),
    ],
)
def test_what_is_known_and_unknown_of_a_run_is_said(run, said):
    text = words_of(page_of(run()))
    assert [words for words in said if words not in text] == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"min_speedup": 3.0},
            [
                "Do not speculate",
                "Best: qwen0.5:int4, k = 5",
                "3× is asked for",
                "Serve the target without a draft.",
                "draftbench suggest --target ./qwen1.5",
            ],
        ),
        # The deciding speed-up is 2.10× (1.88–2.36).
        ({"min_speedup": 2.0}, ["Inconclusive", "Best: qwen0.5:int4, k = 5", "2× is asked for"]),
    ],
)
def test_without_a_choice_the_page_names_the_best_and_what_was_asked(reference, asked, said):
    text = words_of(page_of(reference, **asked))
    assert [words for words in said if words not in text] == []
    assert "Serve qwen" not in text


def test_the_row_of_the_control_is_no_candidate_that_is_counted(read, whole):
    found = words_of(whole, "candidates")
    assert "4 of 4 candidates are clearly faster" in found
    assert "The row of self is a check: the target as its own draft." in found
    assert "The row of self" not in read.text


def test_a_draft_that_may_be_slower_is_not_called_clearly_faster(run, text):
    lead, answer = "The one candidate is not clearly faster", recommend(run)
    open_ones = [msgspec.structs.replace(e, clearly_faster=False) for e in answer.evaluations]
    assert lead not in text
    assert lead in page("run", run, msgspec.structs.replace(answer, evaluations=tuple(open_ones)))


def test_a_provisional_decision_says_so_below_its_figure_and_before_it_is_served(run, text):
    """Known fault: "Serve small" stood right below "Provisional"."""
    answer = recommend(run)
    assert provisional(answer).replace("`", "") in words_of(text)
    first = "Clear up what makes the decision provisional, then serve small, k = 2"
    assert first in words_of(text, "next")
    sure = page("run", run, msgspec.structs.replace(answer, caveats=()))
    assert "Provisional" not in sure
    assert "Serve small, k = 2: the configuration is below." in words_of(sure, "next")


def test_what_to_do_next_has_the_configuration_of_every_engine_that_can_serve_it(whole):
    found = words_of(whole, "next")
    assert [name in found for name in ("vLLM", "SGLang", "llama.cpp")] == [True] * 3
    # As it stands, without a file to save first.
    given = """'{"method": "draft_model", "model": "./qwen0.5", "num_speculative_tokens": 5"""
    assert f"vllm serve ./qwen1.5 --speculative-config {given}" in found
    assert "draftbench gate --save baseline.json run" in found


def test_a_name_with_a_blank_is_quoted_in_the_commands(run):
    assert "gate --save baseline.json 'my run'" in words_of(page_of(run, "my run"), "next")


def test_where_one_concurrency_was_timed_the_section_says_what_to_run_and_shows_the_waits(kept):
    """Known fault: it had neither a drawing nor a table in the open."""
    load = section(page_of(kept["tinyllama-gsm8k"]), "load")
    assert "Only concurrency\u00a01 was timed; sweep with" in load
    assert '<span class="flag">--concurrency</span> <span class="flag">1,4,16</span>' in load
    assert "<table>" in load
    assert "<details>" not in load
    (rows, *_) = Read(f'<section id="load">{load}').tables["load"]
    slowest = [row[-1][0] for row in rows[1:3]]  # without speculation and with it
    assert slowest == ["218", "186"]


def test_the_segments_begin_with_the_worst_and_the_best_whose_intervals_part(whole):
    """Temperature 1 has fewer tokens, but not surely fewer than temperature 0."""
    said = "Tokens per round at k = 5: from 3.44 (chat) to 5.17 (code). An average"
    assert said in words_of(whole, "segments")


def test_the_whole_page_can_be_read_seen_or_not(reference, whole):
    read = Read(whole)
    assert read.all("id") == ["next", "candidates", "k", "load", "segments", "method"]
    drawings = [found for tag, found in read.tags if tag == "svg"]
    assert len(drawings) == 8
    assert all(found["role"] == "img" and len(found["aria-label"]) > 40 for found in drawings)
    assert whole.count("Prediction error over") == 1
    names = ("lookup longest", "key id", "digest", "None")  # of fields
    assert [name for name in names if name in read.text] == []
    assert [f for f in reference.facts if f"fingerprint {f.fingerprint}" not in read.text] == []


def test_names_from_files_stay_text():
    records = hand.perfect(HOSTILE)
    records += [trajectory("r2", segment=HOSTILE), failure(HOSTILE, HOSTILE)]
    run = hand.run(records, target=HOSTILE, traffic=HOSTILE)
    read = Read(page_of(run, HOSTILE))
    assert not [tag for tag, _ in read.tags if tag in ("script", "img", "iframe", "object")]
    assert not [name for _, found in read.tags for name in found if name.startswith("on")]
    assert read.text.count(HOSTILE) > 5
    text = page_of(hand.run(hand.perfect("</style>\u202eevil\x1b[31m")))
    assert text.count("</style>") == 1
    assert not {"\u202e", "\x1b"} & set(text)


def test_the_page_loads_nothing_and_styles_itself_by_hash_only(text, read):
    policy = next(found["content"] for tag, found in read.tags if "http-equiv" in found)
    digest = base64.b64encode(hashlib.sha256(read.style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert [name for name in ("src", "style", "href") if read.all(name)] == []
    assert not re.search(r"url\(|@import", text)


def test_neither_a_draft_length_nor_a_flag_breaks_across_lines_and_a_name_at_its_level(run, whole):
    body = whole.partition("<body>")[2]
    assert "k\u00a0=\u00a05" in body
    assert not re.search(r"\bk = \d|[^-]\bconcurrency \d", body)
    assert "qwen0.5:<wbr>int4" in section(whole, "candidates")
    said = "sweep there (`--concurrency 1,4`) or see `a b`; --measure-requests decodes more"
    answer = msgspec.structs.replace(recommend(run), caveats=(Caveat(kind="model", text=said),))
    assert (
        'sweep there (<code><span class="flag">--concurrency</span> <span class="flag">1,4</span>'
        '</code>) or see <code><span class="flag">a</span> <span class="flag">b</span></code>; '
        '<code><span class="flag">--measure-requests</span></code> decodes more'
    ) in page("run", run, answer)
    assert "code .flag { white-space: nowrap; }" in STYLE


def test_the_same_run_gives_the_same_page(run, text):
    assert page_of(run) == text


def test_importing_the_page_loads_neither_torch_nor_matplotlib():
    code = (
        "import sys, draftbench.cli.report, draftbench.report.page; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_figure_of_a_table_is_that_of_the_json(whole, tmp_path):
    def printed(command):
        path = tmp_path / f"{command}.json"
        assert main([command, str(REFERENCE), "--format", "json", "-o", str(path)]) == 0
        return json.loads(path.read_text())

    answer, cards = printed("recommend"), printed("acceptance")["candidates"]
    best = [each for each in answer["evaluations"] if each["best"]]
    best.sort(key=lambda e: (e["draft"] == "self", -e["speedup_expected"]["value"]))
    names = [e["draft"] + f":{e['quant']}" * (e["quant"] != "none") for e in best]
    groups = {card["candidate"]: card["rounds_by_group"] for card in cards}
    figures = ("speedup_expected", "alpha", "tokens_per_round", "draft_cost_ratio")
    by_k = ("tokens_per_round", "speedup_predicted", "speedup_measured", "speedup_expected")
    expected = {
        "candidates": [[each[figure] for figure in figures] for each in best],
        "k": [[each[figure] for figure in by_k] for each in answer["evaluations"]],
        "load": [[level["speedup_deciding"]] for level in answer["by_concurrency"]],
        "segments": [
            [group["tokens_per_round"]]
            for name in names
            for group in groups[name]
            if group["k"] == answer["leader"]["k"] and name != "self"
        ],
    }
    tables = Read(whole).tables
    assert [row[0][0] for row in tables["candidates"][0][1:]] == names
    for section, rows in expected.items():
        shown = [[figure for _, figure in row if figure] for row in tables[section][0][1:]]
        exact = [
            [tuple(figure[end] for end in ("value", "low", "high")) for figure in row if figure]
            for row in rows
        ]
        assert shown == exact, section


def test_a_figure_is_rounded_for_the_eye_alone(whole):
    (_, leader, *_) = Read(whole).tables["candidates"][0]
    assert [text for text, _ in leader] == [
        *("qwen0.5:int4", "5", "2.03 1.82–2.25", "0.87 0.83–0.90", "3.96 3.59–4.26"),
        *("0.20 0.19–0.23", "584 MB"),
    ]


def test_the_lines_of_a_command_are_lines_on_the_page_too(whole):
    """What is copied would otherwise be one comment: SGLang's command has some before it."""
    assert '</span>\n<span class="flag">' in whole
    assert '<span class="flag">\n' not in whole
