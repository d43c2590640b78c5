"""The output of `acceptance` in its forms, from a run made by hand; then the command.

Forty responses of nine tokens, half of them at temperature 0.7. Of the eight after the first the
draft has two right, one wrong, two right, one wrong, two right. At k = 2 it is asked in three
rounds for 2, 2 and 1 tokens, all of them right; at k = 1 in five, of which two are wrong. A second
draft is never right: it has seven rounds, and a target step at the end.
"""

import csv
import io
import json
import re
from typing import Any

import msgspec
import pytest
from scenes import BIG, INT4, Scene, manifest, replay, trajectory

from draftbench.acceptance.breakdown import Breakdown, GroupRounds
from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.summary import AcceptanceReport, CandidateAcceptance, acceptance_report
from draftbench.cli.acceptance import render
from draftbench.records import Sampling
from draftbench.run_folder.folder import RunFolder

NAME = "small:int4"


def made(*, everything: bool = True) -> AcceptanceReport:
    scene = Scene()
    for at in range(40):
        heat = Sampling(temperature=0.7 * (at % 2))
        scene.request(f"r{at}", segment="chat\x1b[31m", sampling=heat)
        scene.replay(f"r{at}", (1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0), INT4)
        scene.replay(f"r{at}", (0.0,) * 8, BIG)
    return acceptance_report(scene.observed(1, 2), [INT4, BIG], (1, 2), 0.02, everything=everything)


REPORT = made()
CARD = REPORT.candidates[0]
CHAT = CARD.breakdown.groups[0]


def changed(**fields: Any) -> AcceptanceReport:
    return msgspec.structs.replace(REPORT, candidates=(msgspec.structs.replace(CARD, **fields),))


def split(**fields: Any) -> Breakdown:
    return msgspec.structs.replace(CARD.breakdown, **fields)


@pytest.mark.parametrize(
    "line",
    [
        "small:int4: greedy drafting, 40 requests, 40 responses",
        "α 0.75 ±0.00, mean of requests 0.75 ±0.00 (acceptance rate (emitted tokens), greedy",
        "suspected fault: not one token in 320 positions was accepted; compare the tokenizers",
        # 5 of 5, 8 / 3, 1 + 5 / 3, 5 / 3 and 1 + 1 + 1; equal requests do not say how many are
        # needed.
        "2        1.00 ±0.00  2.67 ±0.00  2.67 ±0.00  1.67 ±0.00  3.00 ±0.00          –",
        "2  1.00 ±0.00  0.67 ±0.00",
        "segment      chat�[31m                40        320        0.90  0.75 ±0.00",
        # 2 of 2 less 2 of 3.
        "α late in responses minus α early: +0.333 (+0.333 to +0.333)",
        "acceptance rises over the course of a response",
        "temperature    0.7        20  1.60 ±0.00  2.67 ±0.00",
        # The target's token is always the draft's best: a chain of two.
        "4        2.67 ±0.00             3.00 ±0.00             1·1",
        "small:int4 − big  tok/round  2        40  +1.667 (+1.667 to +1.667)",
        "τ, mean accepted length: 1 + accepted / rounds that drafted; SGLang: spec_accept_length",
    ],
)
def test_the_table_says(line: str) -> None:
    lines = [line.strip() for line in render(REPORT, "table", 100).splitlines()]
    assert any(each.startswith(line) for each in lines)


def test_lost_parts_leave_no_empty_tables() -> None:
    card: dict[str, Any] = {"mode": None, "alpha": None, "breakdown": None}
    shown = render(changed(**card, rounds_by_group=(), trees=()), "table", 100)
    assert "small:int4: a head, 40 requests" in shown
    assert "No α" in shown
    for title in ("where tokens are accepted", "by group", "best trees"):
        assert title not in shown


@pytest.mark.parametrize(
    ("requests", "equal", "warning"),
    [
        (29, 29.0, "here 29\n"),
        (40, 29.4, "here 40, of lengths so unequal that they count as 29\n"),
        (40, 30.0, None),
    ],
)
def test_few_or_unequal_requests_carry_a_warning(requests, equal, warning) -> None:
    table = render(changed(requests=requests, equal_requests=equal), "table", 120)
    shown = table.replace("\n    ", " ")
    rough = "rough intervals (effective sample under 30)"
    assert (f"{rough}: {warning}" in shown) if warning else (rough not in shown)


def test_a_segment_of_few_requests_is_named_with_the_count_of_the_first_screen() -> None:
    """By positions of α; of prompt lookup, which has none, by rounds."""
    one = {"by": "segment", "k": 2, "requests": 40, "tokens_per_round": None}
    groups = tuple(
        GroupRounds(name=name, equal_requests=equal, **one)
        for name, equal in (("s0", 12.3), ("s1", 31.0))
    )
    card = by_segment("small", 14.0, 31.0, rounds_by_group=groups)
    for breakdown, count in ((card.breakdown, 14), (None, 12)):
        each = msgspec.structs.replace(card, breakdown=breakdown)
        shown = render(msgspec.structs.replace(REPORT, candidates=(each,)), "table", 120)
        assert f"rough intervals (effective sample under 30): s0 {count}\n" in shown


def by_segment(name: str, *equal: float, **fields: Any) -> CandidateAcceptance:
    """A draft with α by segment s0, s1, …, each of so many requests of equal length."""
    groups = tuple(
        msgspec.structs.replace(CHAT, name=f"s{at}", equal_requests=count, requests=int(count))
        for at, count in enumerate(equal)
    )
    return msgspec.structs.replace(
        CARD, candidate=name, breakdown=split(groups=groups, reading=None), **fields
    )


def on_one_screen(*candidates: CandidateAcceptance) -> str:
    report = msgspec.structs.replace(REPORT, candidates=candidates)
    return render(report, "table", 120, everything=False)


def test_on_one_screen_few_requests_are_warned_of_once_by_the_fewest() -> None:
    shown = on_one_screen(by_segment("small", 14.0, 31.0), by_segment("tiny", 12.0, 33.0))
    assert re.findall(r"effective sample under 30\): (.*)", shown) == ["s0 12"]


def test_only_candidates_of_the_table_are_warned_of() -> None:
    few = {"requests": 7, "equal_requests": 7.0}
    seven = [by_segment(f"d{at}", 31.0, 32.0) for at in range(7)]
    assert "rough intervals" not in on_one_screen(*seven, by_segment("d7", 3.0, 4.0, **few))
    assert "sample under 30): d6 has 7" in on_one_screen(
        *seven[:6], by_segment("d6", 3.0, 4.0, **few)
    )
    # Segments are shown of model drafts alone: prompt lookup has no α.
    one = {"by": "segment", "k": 2, "requests": 40, "tokens_per_round": None}
    rounds = (GroupRounds(name="s0", equal_requests=9.0, **one),)
    ngram = msgspec.structs.replace(CARD, candidate="ngram", breakdown=None, rounds_by_group=rounds)
    assert "rough intervals" not in on_one_screen(seven[0], ngram)


def test_segments_of_too_few_requests_are_one_sentence_and_no_table() -> None:
    shown = on_one_screen(by_segment("small", 4.0, 3.0))
    assert "no α by segment: no group has the 5 requests an interval needs" in shown
    assert "s0" not in shown
    assert re.search("segment +s1", on_one_screen(by_segment("small", 4.0, 5.0)))


def test_markdown_escapes_what_came_from_files() -> None:
    group = msgspec.structs.replace(CHAT, name="c|d")
    shown = render(changed(candidate="a|b", breakdown=split(groups=(group,))), "markdown", 100)
    assert "### a\\|b: greedy drafting" in shown
    assert "| segment | c\\|d | 40 |" in shown
    assert "| k | accepted/drafted | tok/round | τ | τ-1 | 1\\+Σ Πh | n for ±2% |" in shown
    assert "- acceptance rises over the course" in shown


def test_json_holds_the_report_and_the_definitions() -> None:
    found = json.loads(render(REPORT, "json", 100))
    card = found["candidates"][0]
    assert card["at_each_k"][1]["pooled"] == {"value": 1.6, "low": 1.6, "high": 1.6}
    assert card["trees"][0]["tree"] == [[0], [0, 0]]
    assert found["definitions"][4]["sglang"] == "spec_accept_length of the server's metrics"
    assert found["definitions"][4]["vllm"] is None  # counts another figure under its name


def test_csv_has_a_line_for_each_figure_and_each_difference() -> None:
    rows = list(csv.DictReader(io.StringIO(render(REPORT, "csv", 100))))
    # α, five figures at each k, hazards and survivals; α and tokens per round compared.
    assert len(rows) == 2 * (1 + 2 * 5 + 2 + 2) + 3
    assert (rows[0]["figure"], rows[0]["k"]) == ("acceptance rate (emitted tokens)", "")
    assert (rows[2]["k"], rows[2]["pooled"], rows[2]["requests_needed"]) == ("1", "1.6", "")
    (never,) = [r for r in rows if r["candidate"] == "big" and r["figure"].endswith("position 2")
                and r["figure"].startswith("hazard")]  # fmt: skip
    assert never["pooled"] == ""
    assert (rows[-3]["against"], rows[-3]["pooled"], rows[-3]["requests"]) == ("big", "0.75", "40")


def test_one_screen_names_the_faults_and_the_way_to_the_rest() -> None:
    shown = render(REPORT, "table", 80, everything=False)
    assert len(shown.splitlines()) <= 25
    assert "suspected fault: not one token in 320 positions" in shown.replace("\n    ", " ")
    assert shown.endswith("Everything: --all.")


def test_one_screen_shows_the_least_the_usual_and_the_largest_k() -> None:
    length = next(each for each in CARD.at_each_k if each.symbol == "τ")
    ks = tuple(msgspec.structs.replace(length, k=k, pooled=Estimate(k, k, k)) for k in range(1, 9))
    shown = render(changed(at_each_k=ks), "table", 80, everything=False)
    _, head, row, *_ = shown.splitlines()
    assert "τ k=1       τ k=4       τ k=8" in head
    assert "1.00 ±0.00  4.00 ±0.00  8.00 ±0.00  1.00 → 1.00" in row


PREDICTED = tuple(
    msgspec.structs.replace(each, k=1, per_request=None) for each in CARD.at_each_k if each.k == 2
)
AT_TWO = {"at_each_k": tuple(each for each in CARD.at_each_k if each.k == 2), "counted": True}


def test_what_was_predicted_is_said_to_be_everywhere() -> None:
    report = changed(**AT_TWO, predicted=PREDICTED)
    assert re.search(r"±0\.00 predicted +\d", render(report, "table", 120, everything=False))
    whole = " ".join(render(report, "table", 120).split())
    assert "1, predicted" in whole
    assert "predicted, not measured, at k's that were not decoded" in whole
    card = json.loads(render(report, "json", 100))["candidates"][0]
    assert {each["k"] for each in card["at_each_k"]} == {2}
    assert {each["k"] for each in card["predicted"]} == {1}
    rows = csv.DictReader(io.StringIO(render(report, "csv", 100)))
    (length,) = [row for row in rows if row["k"] == "1" and row["figure"].startswith("mean")]
    assert (length["figure"], length["per_request"]) == ("mean accepted length, predicted", "")


def test_where_an_engine_reports_no_positions_a_prediction_says_what_it_assumes() -> None:
    assumed = "as if every position were accepted alike"
    for positions, said in ((CARD.hazards, False), ((), True)):
        report = changed(**AT_TWO, predicted=PREDICTED, hazards=positions, survivals=positions)
        assert (assumed in " ".join(render(report, "table", 120).split())) == said


def test_one_screen_explains_only_the_figures_that_it_has() -> None:
    """Of a server that reports nothing of its drafting, none."""
    nothing = tuple(msgspec.structs.replace(each, pooled=None) for each in CARD.at_each_k)
    figures = {"alpha": None, "hazards": (), "survivals": (), "breakdown": None}
    report = changed(at_each_k=nothing, counted=True, **figures)
    shown = render(report, "table", 88, everything=False)
    assert shown.splitlines()[1:3] == ["candidate", NAME]
    assert "α" not in shown
    assert "its drafting\n" in shown
    assert shown.endswith("\n  Everything: --all.")


def test_one_screen_has_room_for_many_candidates_and_groups() -> None:
    groups = tuple(
        msgspec.structs.replace(CHAT, by=by, name=f"{by} {n}")
        for by, count in (("segment", 20), ("third", 3))
        for n in range(count)
    )
    card = msgspec.structs.replace(CARD, breakdown=split(groups=groups))
    crowded = msgspec.structs.replace(REPORT, candidates=(card,) * 9)
    lines = render(crowded, "table", 200, everything=False).splitlines()
    assert len(lines) <= 25
    assert "  2 more candidates: `--all` or `--candidate NAME`" in lines
    # 14 rows: 7 candidates, 2 findings, 2 segments, 3 thirds.
    assert lines[-1].endswith("18 more segments: --all.")


def test_what_trees_reach_is_not_shown_of_the_control() -> None:
    for name, count in ((NAME, 1), ("self", 0)):
        shown = render(changed(candidate=name), "table", 100)
        assert shown.count(f"{name}: best trees, at most") == count


def test_one_screen_is_the_same_where_only_what_it_shows_was_computed():
    few, whole = (
        render(made(everything=each), "table", 100, everything=False) for each in (False, True)
    )
    assert few == whole


def test_one_request_is_one_request() -> None:
    alone = [msgspec.structs.replace(c, requests=1, responses=1) for c in REPORT.candidates]
    report = msgspec.structs.replace(REPORT, candidates=tuple(alone))
    for everything in (True, False):
        text = render(report, "table", 88, everything=everything)
        assert "1 request" in text
        assert not re.search(r"\b1 (requests|responses)\b", text)


@pytest.fixture
def make_run(tmp_path):
    """Six requests of four tokens, two drafts; `small` is wrong at the second position."""

    def make(constrained=0, requests="abcdef"):
        folder = RunFolder.create(tmp_path / "run", manifest(constrained=constrained))
        with folder.writer() as writer:
            for each in requests:
                responses = {"request": each, "finish": "stop", "limit": 20}
                writer.append([trajectory(length=4, **responses)])
                writer.append([replay((1.0, 0.0, 1.0), request=each)])
                writer.append([replay((1.0,) * 3, BIG, request=each)])
        return folder.path

    return make


def test_all_candidates_at_the_runs_own_draft_lengths(command, make_run):
    outcome = command("acceptance", make_run(), "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert [each["candidate"] for each in found["candidates"]] == ["small", "big"]
    assert {reading["k"] for reading in found["candidates"][0]["at_each_k"]} == {1, 2}
    # At k = 1 small's wrong token is never tried; at k = 2 it takes two rounds where big takes one.
    tokens = [d for d in found["differences"] if d["figure"] == "tokens per round"]
    assert [(d["k"], d["value"]["value"]) for d in tokens] == [
        (1, 0.0),
        (2, 3 / 2 - 3),
    ]


def test_candidates_lengths_and_width_are_chosen_by_flags(command, make_run, tmp_path):
    words = ["--candidate", "big", "--k", "1-3", "--width", "0.1", "-o", tmp_path / "out.json"]
    outcome = command("acceptance", make_run(), "--format", "json", *words)
    assert (outcome.code, outcome.out) == (0, "")
    found = json.loads((tmp_path / "out.json").read_text())
    assert [each["candidate"] for each in found["candidates"]] == ["big"]
    assert found["width"] == 0.1
    assert {reading["k"] for reading in found["candidates"][0]["at_each_k"]} == {1, 2, 3}


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_of_too_few_requests_for_an_interval_the_values_stand_alone(command, make_run, words):
    """Known fault: of one request nothing was shown. `small` is right at 2 of 3 positions."""
    said = command("acceptance", make_run(requests="a"), *words).out
    assert "0.67" in said
    assert "±0" not in said


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_where_alpha_stands_it_is_said_which_requests_had_a_grammar(command, make_run, words):
    outcome = command("acceptance", make_run(constrained=2), *words)
    said = " ".join(outcome.out.split())
    assert "small, big: 2 requests with structured output counted here as if without it" in said


def test_without_structured_output_nothing_is_said_of_it(command, make_run):
    assert "structured" not in command("acceptance", make_run()).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--candidate", "tiny"], "the run has no candidate `tiny`"),
        (["--width", "2"], "--width 2: expected a share"),
        (["--k", "0"], "--k 0"),
    ],
)
def test_mistakes_are_named(failing, make_run, words, said):
    assert said in failing(2, "acceptance", make_run(), *words)
