"""Every table of the reference run's page, cell by cell, against the JSON of `recommend` and
`acceptance`, and where neither has a figure, against the run's own records.
"""

import json
from collections import defaultdict
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from draftbench.cli import main
from draftbench.planner.recommend import recommend
from draftbench.report.page import examine, page
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

REFERENCE = Path(__file__).parents[2] / "results/reference/qwen2.5-coder"
FORMAT = ("--format", "json")
PERCENTILES = ("p50", "p90", "p99", "largest")
FIGURES = (
    "alpha",
    "mean_accepted_length",
    "tokens_per_round",
    "accepted_per_drafted",
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
    """What the two commands print of the run, and its records of decoding and of models."""

    def __init__(self, folder):
        def printed(*words):
            path = folder / "answer.json"
            assert main([*words[:1], str(REFERENCE), *words[1:], *FORMAT, "-o", str(path)]) == 0
            return json.loads(path.read_text())

        self.answer = printed("recommend")
        self.cards = {card["candidate"]: card for card in printed("acceptance")["cards"]}
        best = [cell for cell in self.answer["evaluations"] if cell["best"]]
        # The choice has no reason against it; the others follow by what they are ranked by.
        self.best = sorted(
            best, key=lambda c: (c["reason"] is not None, -c["speedup_expected"]["value"])
        )
        ks = {cell["k"] for cell in self.best}
        self.at_k = {k: printed("acceptance", "--k", str(k))["cards"] for k in ks}
        self.decodes, self.trajectories = records("decode"), records("trajectory")
        self.facts = records("modelfacts")

    def breakdowns(self):
        """Those of the model drafts, in the order of the page."""
        found = {name(cell): self.cards[name(cell)]["breakdown"] for cell in self.best}
        return {draft: parts for draft, parts in found.items() if parts}

    def survivals(self, draft, k):
        (card,) = [card for card in self.at_k[k] if card["candidate"] == draft]
        return [reading["pooled"]["value"] for reading in card["survivals"]]


def records(kind):
    """A line holds one record, or a list of those that belong together."""
    path = REFERENCE / "observations" / f"{kind}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for line in lines for record in (line if isinstance(line, list) else [line])]


def name(cell):
    return cell["draft"] if cell["quant"] == "none" else f"{cell['draft']}:{cell['quant']}"


def words(*texts):
    return [(str(text), ()) for text in texts]


def figure(estimate, unit=""):
    """The cell of a figure: two digits of it and of its interval, all of them behind it."""
    if estimate is None:
        return ("–", ())
    value, low, high = exact = tuple(estimate[end] for end in ("value", "low", "high"))
    short = "<0.01" if 0 < value < 0.005 else f"{value:.2f}"
    return (f"{short}{unit} {low:.2f}–{high:.2f}", exact)


def size(count):
    unit, scale = ("GB", 1e9) if count >= 1e9 else ("MB", 1e6) if count >= 1e6 else ("kB", 1e3)
    return (f"{count / scale:.3g} {unit}", (count,))


def candidates(known):
    times = ("speedup_predicted", "speedup_measured", "speedup_expected")
    best = [
        [
            *words(name(cell), cell["k"]),
            *(figure(cell[key]) for key in ("alpha", "mean_accepted_length", "draft_cost_ratio")),
            *(figure(cell[key], "×") for key in times),
            size(cell["memory_bytes"]),
            *words(cell["reason"] or "the choice"),
        ]
        for cell in known.best
    ]
    every = [
        [*words(cell["draft"], cell["quant"], cell["k"]), *(figure(cell[key]) for key in FIGURES)]
        for cell in known.answer["evaluations"]
    ]
    return [best, every]


def economy(known):
    rows = []
    for cell in known.best:
        if cell["alpha"] and cell["draft"] != "self":
            passes = cell["k"] * cell["draft_cost_ratio"]["value"] + cell["verify_ratio"]["value"]
            needed = least_alpha(cell["k"], passes)
            figures = figure(cell["alpha"]), figure(cell["draft_cost_ratio"])
            rows.append([*words(name(cell), cell["k"]), *figures, *words(needed)])
    return [rows]


def least_alpha(k, passes):
    """From which (1 + α + … + α^k) / (k·c + v) is at least 1, in steps of a hundred-thousandth."""
    alphas = (step / 100_000 for step in range(100_001))
    least = next((a for a in alphas if sum(a**i for i in range(k + 1)) >= passes), None)
    return "none would do" if least is None else f"{least:.2f}"


def positions(known):
    rows = []
    for cell in known.best:
        card = known.cards[name(cell)]
        for what in ("survival", "hazard"):
            first = name(cell) if what == "survival" else ""
            values = [figure(reading["pooled"]) for reading in card[f"{what}s"]]
            rows.append([*words(first, what), *values])
    return [rows]


def lengths(known):
    rows = []
    shown = [cell for cell in known.best if cell["draft"] != "self"]
    for cell in shown:
        alive = [1.0, *known.survivals(name(cell), cell["k"]), 0.0]
        replay = [before - after for before, after in pairwise(alive)]
        counted = accepted_lengths(known, cell)
        rows.append((name(cell), str(cell["k"]), "replay", replay))
        if counted:
            rows.append(("", "", "measured", counted))
    most = max(len(shares) for *_, shares in rows)
    return [
        [
            [*words(*first), *map(share, shares), *words(*[""] * (most - len(shares)))]
            for *first, shares in rows
        ]
    ]


def share(value):
    return (f"{value:.1%}", (pytest.approx(value),))


def accepted_lengths(known, cell):
    """Share of a cell's decoded rounds that accept 0 … k tokens; requests count by their weight."""
    weight = {t["request"]: t["weight"] for t in known.trajectories}
    counts = [0.0] * (cell["k"] + 1)
    for row in known.decodes:
        own = all(row[key] == cell[key] for key in ("draft", "quant", "k"))
        if own and row["batch"] == known.answer["concurrency"]:
            for proposed, accepted in zip(row["proposed"], row["accepted"], strict=True):
                counts[accepted] += weight[row["request"]] if proposed else 0.0
    return [count / sum(counts) for count in counts] if sum(counts) else None


def crossed(known):
    draft, parts = next(iter(known.breakdowns().items()))
    assert draft == "qwen0.5:int4"
    return [
        [
            [*words(c["segment"], f"{c['temperature']:g}", c["requests"]), figure(c["alpha"])]
            for c in parts["crossings"]
        ]
    ]


def grouped(by):
    def build(known):
        rows, k = [], known.best[0]["k"]
        for cell in known.best:
            if cell["draft"] == "self":
                continue
            card = known.cards[name(cell)]
            groups = [g for g in card["rounds_by_group"] if (g["by"], g["k"]) == (by, k)]
            parts = card["breakdown"] or {"groups": []}
            alphas = {g["name"]: g["alpha"] for g in parts["groups"] if g["by"] == by}
            rates = [figure(alphas.get(group["name"])) for group in groups]
            rows.append([*words(name(cell), "α"), *rates])
            tokens = [figure(group["tokens_per_round"]) for group in groups]
            rows.append([*words("", "tokens per round"), *tokens])
        return [rows]

    return build


def response(known):
    thirds, tenths = [], []
    for draft, parts in known.breakdowns().items():
        rates = {g["name"]: g["alpha"] for g in parts["groups"] if g["by"] == "third"}
        thirds.append([*words(draft), *(figure(rates[t]) for t in ("early", "middle", "late"))])
        tenths.append([*words(draft), *map(figure, parts["rejections"])])
    return [thirds, tenths]


def prediction(known):
    return [
        [
            [
                *words(name(cell), cell["k"]),
                figure(cell["speedup_measured"], "×"),
                *words(f"{cell['prediction_error']:+.1%}"),
            ]
            for cell in known.answer["evaluations"]
            if cell["speedup_measured"]
        ]
    ]


def times(known):
    def row(word, side):
        shown = ["–" if side[p] is None else milliseconds(side[p]) for p in PERCENTILES]
        return words(word, side["values"], *shown)

    latency = known.answer["latency"]
    keys = ("time_per_output_token", "chunk_gap", "time_to_first_token")
    return [
        [row("without", latency["plain"][key]), row("with", latency["speculative"][key])]
        for key in keys
    ]


def milliseconds(seconds):
    return f"{1000 * seconds:.3g}" if seconds < 0.1 else f"{1000 * seconds:.0f}"


def load(known):
    """Rates of three digits, times of a token in milliseconds; an interval as half its width."""
    rows = []
    for level in known.answer["levels"]:
        expected = level["speedup_expected"]
        half = (expected["high"] - expected["low"]) / 2
        rates = level["tokens_per_second_plain"], level["tokens_per_second"]
        times = level["seconds_per_token_plain"], level["seconds_per_token"]
        rows.append(
            words(
                *(level["concurrency"], name(level["leader"]), level["k"] or "–"),
                f"{expected['value']:.2f} ±{half:.2f}",
                *(f"{rate:.3g}" for rate in rates),
                *map(milliseconds, times),
            )
        )
    return [rows]


def memory(known):
    return [[[*words(name(cell)), size(cell["memory_bytes"])] for cell in known.best]]


def origin(known):
    return [
        [
            [
                *words(facts["draft"] or "target", facts["quant"], facts["dtype"]),
                *words(facts["fingerprint"], facts["runner"], f"{facts['parameters']:,}"),
                size(facts["weight_bytes"]),
                *words(f"{facts['context_length']:,}"),
            ]
            for facts in known.facts
        ]
    ]


EXPECTED = {
    "candidates": candidates,
    "economy": economy,
    "positions": positions,
    "lengths": lengths,
    "crossed": crossed,
    "load": load,
    "segments": grouped("segment"),
    "temperatures": grouped("temperature"),
    "response": response,
    "prediction": prediction,
    "times": times,
    "memory": memory,
    "origin": origin,
}


@pytest.fixture(scope="module")
def tables():
    run = read_run(RunFolder(REFERENCE))
    return Tables(page(examine("reference", run, recommend(run)))).found


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return Known(tmp_path_factory.mktemp("json"))


def test_no_table_of_the_page_goes_unchecked(tables):
    assert set(tables) == set(EXPECTED)


@pytest.mark.parametrize("section", EXPECTED)
def test_every_cell_of_a_table_is_what_json_and_records_say(section, tables, known):
    shown = [rows[1:] for rows in tables[section]]
    assert shown == EXPECTED[section](known)
