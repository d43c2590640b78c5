"""Every table of the reference run's page, cell by cell, against the JSON of `recommend` and
`acceptance`, and where neither has a figure, against the run's own records.
"""

import json
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

import pytest
from draftbench.report.figures import figures_of
from draftbench.report.html.page import page

from draftbench.cli import main
from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

REFERENCE = Path(__file__).parents[3] / "results/reference/qwen2.5-coder"
FORMAT = ("--format", "json")
PERCENTILES = ("p50", "p90", "p99", "largest")
FIGURES = (
    "alpha",
    "accepted_per_drafted",
    "mean_accepted_length",
    "tokens_per_round",
    "draft_cost_ratio",
    "verify_ratio",
    "speedup_predicted",
    "speedup_measured",
    "speedup_expected",
    "speedup_end_to_end",
    "speedup_end_to_end_expected",
    "mean_accepted_length_measured",
    "accepted_per_drafted_measured",
)


class Tables(HTMLParser):
    """Tables by section: rows of cells, each its text and the exact numbers behind it."""

    def __init__(self, text):
        super().__init__()
        self.found, self._section, self._cell = defaultdict(list), None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "section":
            self._section = found["id"]
        elif tag == "table":
            self.found[self._section].append([])
        elif tag == "tr":
            self.found[self._section][-1].append([])
        elif tag in ("td", "th"):
            self._cell = ["", ()]
        elif tag == "data" and self._cell:
            ends = [found[end] for end in ("value", "data-low", "data-high") if end in found]
            self._cell[1] = tuple(map(float, ends))

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.found[self._section][-1][-1].append(tuple(self._cell))
            self._cell = None

    def handle_data(self, data):
        if self._cell:
            self._cell[0] += data


class Known:
    """What the two commands print of the run, and its records of models."""

    def __init__(self, folder):
        def printed(*words):
            path = folder / "answer.json"
            assert main([*words[:1], str(REFERENCE), *words[1:], *FORMAT, "-o", str(path)]) == 0
            return json.loads(path.read_text())

        self.answer = printed("recommend")
        self.cards = {
            card["candidate"]: card for card in printed("acceptance", "--all")["candidates"]
        }
        best = [each for each in self.answer["evaluations"] if each["best"]]
        # The choice has no reason against it; the others follow by what they are ranked by.
        self.best = sorted(
            best, key=lambda c: (c["reason"] is not None, -c["speedup_expected"]["value"])
        )
        self.drafts = [each for each in self.best if each["draft"] != "self"]
        self.facts = records("modelfacts")

    def of(self, draft):
        return [each for each in self.answer["evaluations"] if each["draft"] == draft]


def records(kind):
    """A line holds one record, or a list of those that belong together."""
    path = REFERENCE / "observations" / f"{kind}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for line in lines for record in (line if isinstance(line, list) else [line])]


def name(cell):
    return cell["draft"] if cell["quant"] == "none" else f"{cell['draft']}:{cell['quant']}"


def words(*texts):
    return [(str(text), ()) for text in texts]


def figure(estimate):
    """The cell of a figure: two digits of it and of its interval, all of them behind it."""
    if estimate is None:
        return ("–", ())
    value, low, high = exact = tuple(estimate[end] for end in ("value", "low", "high"))
    short = "<0.01" if 0 < value < 0.005 else f"{value:.2f}"
    return (f"{short} {low:.2f}–{high:.2f}", exact)


def size(count):
    unit, scale = ("GB", 1e9) if count >= 1e9 else ("MB", 1e6) if count >= 1e6 else ("kB", 1e3)
    return (f"{count / scale:.3g} {unit}", ())


def candidates(known):
    return [
        [
            [
                *words(name(each), each["k"]),
                *(
                    figure(each[key])
                    for key in ("speedup_expected", "alpha", "tokens_per_round", "draft_cost_ratio")
                ),
                size(each["memory_bytes"]),
            ]
            for each in known.best
        ]
    ]


def acceptance(known):
    survivals = [
        [*words(name(each)), *(figure(s["pooled"]) for s in known.cards[name(each)]["survivals"])]
        for each in known.drafts
    ]
    tokens = []
    for each in known.drafts:
        rows = [one for one in known.of(each["draft"]) if one["quant"] == each["quant"]]
        tokens.append([*words(name(each)), *(figure(row["tokens_per_round"]) for row in rows)])
    return [survivals, tokens]


def by_k(known):
    def row(each):
        error = each["prediction_error"]
        return [
            *words(name(each), each["k"]),
            figure(each["speedup_predicted"]),
            figure(each["speedup_measured"]),
            *words("–" if error is None else f"{error:+.1%}"),
            figure(each["speedup_expected"]),
        ]

    drafts = dict.fromkeys(each["draft"] for each in known.drafts)
    return [[row(each) for each in known.of(draft)] for draft in drafts]


def load(known):
    levels = known.answer["levels"]
    rates = [
        words(
            level["concurrency"],
            f"{level['tokens_per_second_plain']:.3g}",
            f"{level['tokens_per_second']:.3g}",
        )
        for level in levels
    ]
    said = [
        "qwen0.5:int4, k = 5",
        "qwen0.5:int8, k = 3",
        "inconclusive (best: qwen0.5:int8, k = 1)",
    ]
    answers = [
        [
            *words(level["concurrency"], answer),
            figure(level["speedup_expected"]),
            *words(
                f"{milliseconds(level['seconds_per_token_plain'])} → "
                f"{milliseconds(level['seconds_per_token'])}"
            ),
        ]
        for level, answer in zip(levels, said, strict=True)
    ]
    waits = []
    keys = ("time_per_output_token", "chunk_gap", "time_to_first_token")
    titles = ("per output token", "between chunks of a stream", "first token")
    for key, title in zip(keys, titles, strict=True):
        for word, side in (("without", "plain"), ("with", "speculative")):
            times = known.answer["latency"][side][key]
            shown = ["–" if times[p] is None else milliseconds(times[p]) for p in PERCENTILES]
            waits.append(words(title if word == "without" else "", word, *shown, times["values"]))
    return [rates, answers, waits]


def milliseconds(seconds):
    return f"{1000 * seconds:.3g}" if seconds < 0.1 else f"{1000 * seconds:.0f}"


def segments(known):
    found, k = [], known.best[0]["k"]
    for by in ("segment", "temperature"):
        rows = []
        for each in known.drafts:
            card = known.cards[name(each)]
            parts = card["breakdown"] or {"groups": []}
            alphas = {g["name"]: g["alpha"] for g in parts["groups"] if g["by"] == by}
            for group in card["rounds_by_group"]:
                if (group["by"], group["k"]) == (by, k):
                    rate = figure(alphas.get(group["name"]))
                    first = words(group["name"], group["requests"], name(each))
                    rows.append([*first, rate, figure(group["tokens_per_round"])])
        found.append(rows)
    return found


def method(known):
    every = [
        [*words(name(each), each["k"]), *(figure(each[key]) for key in FIGURES)]
        for each in known.answer["evaluations"]
    ]
    models = [
        [
            *words(facts["draft"] or "target", facts["quant"], facts["dtype"]),
            *words(facts["fingerprint"], facts["runner"], f"{facts['parameters']:,}"),
            size(facts["weight_bytes"]),
            *words(f"{facts['context_length']:,}"),
        ]
        for facts in known.facts
    ]
    return [every, models]


EXPECTED = {
    "candidates": candidates,
    "acceptance": acceptance,
    "k": by_k,
    "load": load,
    "segments": segments,
    "method": method,
}


@pytest.fixture(scope="module")
def tables():
    run = read_run(RunFolder(REFERENCE))
    answer = recommend(run)
    return Tables(page("reference", run, answer, figures_of(run, answer))).found


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return Known(tmp_path_factory.mktemp("json"))


def test_no_table_of_the_page_goes_unchecked(tables):
    assert set(tables) == set(EXPECTED)


@pytest.mark.parametrize("section", EXPECTED)
def test_every_cell_of_a_table_is_what_json_and_records_say(section, tables, known):
    shown = [rows[1:] for rows in tables[section]]
    assert shown == EXPECTED[section](known)
