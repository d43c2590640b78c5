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

import pytest
from msgspec.structs import replace
from scenes import BIG, INT4, Scene, manifest, replay, trajectory

from draftbench.acceptance.breakdown import Breakdown, GroupRounds
from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.summary import AcceptanceReport, CandidateAcceptance, acceptance_report
from draftbench.cli.acceptance import csv_of, every_section, one_screen
from draftbench.planner.doubts import about_acceptance
from draftbench.records import Sampling
from draftbench.report.text import render_sections
from draftbench.run_folder.folder import RunFolder

NAME = "small:int4"


def made(*, everything: bool = True) -> AcceptanceReport:
    scene = Scene()
    for at in range(40):
        heat = Sampling(temperature=0.7 * (at % 2))
        scene.request(f"r{at}", segment="chat\x1b[31m", sampling=heat)
        scene.replay(f"r{at}", (1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0), INT4)
        scene.replay(f"r{at}", (0.0,) * 8, BIG)
    run = scene.observed(1, 2)
    doubts = tuple(doubt.text for doubt in about_acceptance(run))
    return acceptance_report(run, [INT4, BIG], (1, 2), 0.02, everything=everything, doubts=doubts)


REPORT = made()
SMALL = REPORT.candidates[0]
CHAT = SMALL.breakdown.groups[0]


def changed(**fields: Any) -> AcceptanceReport:
    return replace(REPORT, candidates=(replace(SMALL, **fields),))


def split(**fields: Any) -> Breakdown:
    return replace(SMALL.breakdown, **fields)


def whole(report: AcceptanceReport, style: str = "table") -> str:
    return render_sections(every_section(report), style, 100)


def screen(report: AcceptanceReport) -> str:
    return render_sections(one_screen(report), "table", 88, "--all")


def test_the_table_says() -> None:
    lines = [line.strip() for line in whole(REPORT).splitlines()]
    for line in (
        "small:int4: greedy drafting, 40 requests, 40 responses",
        "α 0.75 ±0.00, mean of requests 0.75 ±0.00 (acceptance rate (emitted tokens), greedy",
        "big: suspected fault: not one token in 320 positions was accepted; compare the tokenizers",
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
    ):
        assert any(each.startswith(line) for each in lines), line


def test_lost_parts_leave_no_empty_tables() -> None:
    lost: dict[str, Any] = {"mode": None, "alpha": None, "breakdown": None}
    shown = whole(changed(**lost, rounds_by_group=(), trees=()))
    assert "small:int4: a draft model, 40 requests" in shown
    assert "No α" in shown
    assert "small:int4: no α: what it proposes depends on where" in screen(changed(**lost))
    assert "no α" not in screen(REPORT)
    for title in ("where tokens are accepted", "by group", "best trees"):
        assert title not in shown


def by_segment(name: str, *equal: float, **fields: Any) -> CandidateAcceptance:
    """A draft with α by segment s0, s1, …, each of so many requests of equal length."""
    groups = tuple(
        replace(CHAT, name=f"s{at}", equal_requests=count, requests=int(count))
        for at, count in enumerate(equal)
    )
    breakdown = split(groups=groups, reading=None)
    return replace(SMALL, candidate=name, breakdown=breakdown, **fields)


ROUNDS = (
    GroupRounds(by="segment", name="s0", k=2, requests=40, equal_requests=9, tokens_per_round=None),
)


@pytest.mark.parametrize(
    ("candidates", "named"),
    [
        ([by_segment("a", 31, 32)], None),
        ([by_segment("a", 31, 32, equal_requests=29.0)], "all 29"),
        ([by_segment("a", 14, 31), by_segment("b", 12, 29)], "s0 12, s1 29"),
        ([by_segment("a", 31, 32), by_segment("b", 3, 4, equal_requests=7.0)], "all 7"),
        # Prompt lookup has no α: its segments are counted by rounds.
        ([replace(SMALL, candidate="ngram", breakdown=None, rounds_by_group=ROUNDS)], "s0 9"),
    ],
)
def test_few_or_unequal_requests_are_warned_of_once_by_the_fewest(candidates, named) -> None:
    shown = screen(replace(REPORT, candidates=tuple(candidates)))
    assert re.findall(r"counted as if equally long\): (.*)", shown) == ([named] if named else [])


def test_csv_has_a_line_for_each_figure_and_each_difference() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(REPORT))))
    # α, five figures at each k, hazards and survivals; α and tokens per round compared.
    assert len(rows) == 2 * (1 + 2 * 5 + 2 + 2) + 3
    assert (rows[0]["figure"], rows[0]["k"]) == ("acceptance rate (emitted tokens)", "")
    assert (rows[2]["k"], rows[2]["pooled"], rows[2]["requests_needed"]) == ("1", "1.6", "")
    (never,) = [r for r in rows if r["candidate"] == "big" and r["figure"].endswith("position 2")
                and r["figure"].startswith("hazard")]  # fmt: skip
    assert never["pooled"] == ""
    assert (rows[-3]["against"], rows[-3]["pooled"], rows[-3]["requests"]) == ("big", "0.75", "40")


def test_one_screen_names_every_candidate_the_faults_and_the_way_to_the_rest() -> None:
    """Known fault: of many candidates prompt lookup, the last, was not shown."""
    names = [f"{'long-' * 20}{at}" for at in range(12)]
    drafts = [replace(SMALL, candidate=name) for name in names]
    lines = screen(replace(REPORT, candidates=(*drafts, REPORT.candidates[1]))).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    assert len([line for line in lines if line.startswith(("long-", "big "))]) == 13
    shown = screen(REPORT)
    assert "suspected fault: not one token in 320 positions" in shown.replace("\n    ", " ")
    assert "Everything: --all." in shown


def test_one_screen_shows_the_least_the_usual_and_the_largest_k() -> None:
    length = next(each for each in SMALL.at_each_k if each.symbol == "τ")
    ks = tuple(replace(length, k=k, pooled=Estimate(k, k, k)) for k in range(1, 9))
    _, head, row, *_ = screen(changed(at_each_k=ks)).splitlines()
    assert "τ k=1       τ k=4       τ k=8" in head
    assert "1.00 ±0.00  4.00 ±0.00  8.00 ±0.00" in row


def test_a_k_of_which_nothing_is_known_is_said_to_be_unknown() -> None:
    nothing = tuple(replace(each, pooled=None, k=20) for each in SMALL.at_each_k)
    assert f"{NAME}: unknown at these k" in screen(changed(at_each_k=nothing))
    assert "Unknown at these k" in whole(changed(at_each_k=()))
    # Prompt lookup that found nothing has rounds, and no mean of those that drafted.
    undrafted = tuple(
        replace(each, pooled=None) if each.symbol == "τ" else each for each in SMALL.at_each_k
    )
    for text in (screen(REPORT), whole(REPORT), screen(changed(at_each_k=undrafted))):
        assert "nknown at these k" not in text


def test_one_screen_has_the_groups_of_requests_of_which_something_is_known() -> None:
    groups = [replace(CHAT, name=name) for name in ("chat", "code")]
    unknown = replace(CHAT, name="few", alpha=None)
    third = [replace(CHAT, by="third", name=name) for name in ("early", "late")]
    shown = screen(changed(breakdown=split(groups=(*groups, unknown, *third))))
    rows = [line.split()[:2] for line in shown.partition("α by group of requests")[2].splitlines()]
    assert rows[2:] == [["segment", "chat"], ["segment", "code"]]
    assert "α by group" not in screen(changed(breakdown=split(groups=(CHAT,))))


PREDICTED = tuple(replace(each, k=1, per_request=None) for each in SMALL.at_each_k if each.k == 2)
AT_TWO = {"at_each_k": tuple(each for each in SMALL.at_each_k if each.k == 2), "counted": True}


def test_what_was_predicted_is_said_to_be_everywhere() -> None:
    report = changed(**AT_TWO, predicted=PREDICTED)
    assert re.search(r"±0\.00 predicted +\d", screen(report))
    shown = " ".join(whole(report).split())
    assert "1, predicted" in shown
    assert "predicted, not measured, at k's that were not decoded" in shown
    rows = csv.DictReader(io.StringIO(csv_of(report)))
    (length,) = [row for row in rows if row["k"] == "1" and row["figure"].startswith("mean")]
    assert (length["figure"], length["per_request"]) == ("mean accepted length, predicted", "")


def test_one_screen_explains_only_the_figures_that_it_has() -> None:
    """Of a server that reports nothing of its drafting, none."""
    nothing = tuple(replace(each, pooled=None) for each in SMALL.at_each_k)
    figures = {"alpha": None, "hazards": (), "survivals": (), "breakdown": None}
    shown = screen(changed(at_each_k=nothing, counted=True, **figures))
    assert shown.splitlines()[1:3] == ["candidate", NAME]
    assert "α" not in shown
    assert "its drafting\n" in shown
    assert shown.endswith("\n  Everything: --all.")


def test_what_trees_reach_is_not_shown_of_the_control() -> None:
    for name, count in ((NAME, 1), ("self", 0)):
        assert whole(changed(candidate=name)).count(f"{name}: best trees, at most") == count


def test_one_screen_is_the_same_where_only_what_it_shows_was_computed():
    assert screen(made(everything=False)) == screen(REPORT)


def test_one_request_is_one_request() -> None:
    alone = tuple(replace(c, requests=1, responses=1) for c in REPORT.candidates)
    report = replace(REPORT, candidates=alone)
    for text in (screen(report), whole(report)):
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
            folder.note_sweep(folder.manifest, None)
        return folder.path

    return make


def test_all_candidates_or_those_that_flags_name_are_printed_with_the_definitions(
    command, failing, make_run
):
    run = make_run()
    outcome = command("acceptance", run, "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert [each["candidate"] for each in found["candidates"]] == ["small", "big"]
    assert {reading["k"] for reading in found["candidates"][0]["at_each_k"]} == {1, 2}
    # At k = 1 small's wrong token is never tried; at k = 2 it takes two rounds where big takes one.
    tokens = [d for d in found["differences"] if d["figure"] == "tokens per round"]
    assert [(d["k"], d["value"]["value"]) for d in tokens] == [(1, 0.0), (2, 3 / 2 - 3)]
    assert found["definitions"][4]["sglang"] == "spec_accept_length of the server's metrics"
    assert found["definitions"][4]["vllm"] is None  # counts another figure under its name
    flags = ["--candidate", "big", "--k", "1-3"]
    (only,) = json.loads(command("acceptance", run, "--format", "json", *flags).out)["candidates"]
    assert only["candidate"] == "big"
    assert {reading["k"] for reading in only["at_each_k"]} == {1, 2, 3}
    said = failing(2, "acceptance", run, "--candidate", "tiny")
    assert "no candidate `tiny`" in said
    assert "small, big" in said


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_of_too_few_requests_for_an_interval_the_values_stand_alone(command, make_run, words):
    """Known fault: of one request nothing was shown. `small` is right at 2 of 3 positions."""
    said = command("acceptance", make_run(requests="a"), *words).out
    assert "0.67" in said
    assert "±0" not in said
    assert "structured" not in said


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_where_alpha_stands_it_is_said_which_requests_had_a_grammar(command, make_run, words):
    outcome = command("acceptance", make_run(constrained=2), *words)
    said = " ".join(outcome.out.split())
    assert "small, big: 2 requests with structured output replayed without the grammar" in said
