"""The output of `acceptance` in its forms, from figures made by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import msgspec
import pytest

from draftbench.acceptance.breakdown import Breakdown, Crossing, Disagreement, Group, GroupRounds
from draftbench.acceptance.faults import Fault
from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.stopping import Stopping
from draftbench.acceptance.summary import (
    AcceptanceReport,
    CandidateAcceptance,
    Difference,
    FigureEstimate,
)
from draftbench.acceptance.trees import TreeFigures
from draftbench.records import DraftingMode
from draftbench.report.terminal.acceptance import render

NAME = "small:int4"


def about(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value, value - half, value + half)


def reading(figure: str, symbol: str, k: int | None, value: float | None) -> FigureEstimate:
    pooled, mean = (None, None) if value is None else (about(value), about(value + 0.1))
    return FigureEstimate(
        figure=figure, symbol=symbol, k=k, pooled=pooled, per_request=mean, requests_needed=41
    )


def stopping(threshold: float | None, tokens: float, steps: float, share: float) -> Stopping:
    return Stopping(
        k=2,
        threshold=threshold,
        tokens_per_round=about(tokens),
        draft_steps_per_round=about(steps),
        accepted_per_drafted=about(share),
    )


CHAT = Group(
    by="segment",
    name="chat\x1b[31m",
    requests=40,
    equal_requests=40.0,
    positions=1234.0,
    confidence=0.81,
    alpha=about(0.7),
)
BREAKDOWN = Breakdown(
    groups=(CHAT,), late_less_early=about(-0.2), reading="the draft loses coherence"
)
CARD = CandidateAcceptance(
    candidate=NAME,
    mode=DraftingMode.GREEDY,
    requests=40,
    equal_requests=40.0,
    responses=80,
    alpha=reading("acceptance rate (emitted tokens)", "α", None, 0.7),
    at_each_k=(
        reading("tokens per round", "(L-1)/R", 1, 1.6),
        reading("mean accepted length", "τ", 1, 1.7),
        reading("tokens per round", "(L-1)/R", 2, 2.1),
        reading("mean accepted length", "τ", 2, None),
    ),
    hazards=tuple(
        reading(f"hazard at position {i}", f"h_{i}", 2, h) for i, h in ((1, 0.72), (2, 0.64))
    ),
    survivals=tuple(
        reading(f"survival at position {i}", f"s_{i}", 2, s) for i, s in ((1, 0.72), (2, 0.46))
    ),
    breakdown=BREAKDOWN,
    stopping=(stopping(None, 2.1, 1.9, 0.6), stopping(0.4, 2.0, 1.5, 0.8)),
    rounds_by_group=(
        GroupRounds(
            by="temperature",
            name="0.7",
            k=2,
            requests=20,
            equal_requests=20.0,
            tokens_per_round=about(1.8),
        ),
    ),
    trees=(
        TreeFigures(
            nodes=4,
            depth=2,
            tree=((0,), (0, 0), (0, 1), (1,)),
            tokens_per_round=about(2.4),
            accepted_length=about(2.5),
        ),
    ),
    faults=(Fault(NAME, "zero acceptance", "nothing was accepted", "look at it"),),
)
LESS = Difference(
    candidate=NAME,
    against="big",
    figure="tokens per round",
    k=2,
    requests=39,
    value=about(-0.1, 0.04),
)
REPORT = AcceptanceReport(width=0.02, candidates=(CARD,), differences=(LESS,))
WRONG = Disagreement(drafted=7, target=8, times=3, rounds_lost=2.5, share=0.25)
COSTLY = msgspec.structs.replace(REPORT, disagreements={NAME: (WRONG,)})


def changed(**fields: Any) -> AcceptanceReport:
    return msgspec.structs.replace(REPORT, candidates=(msgspec.structs.replace(CARD, **fields),))


@pytest.mark.parametrize(
    "line",
    [
        "small:int4: greedy drafting, 40 requests, 80 responses",
        "α 0.70 ±0.05, mean of requests 0.80 ±0.05 (acceptance rate (emitted tokens), greedy",
        "suspected fault: nothing was accepted; look at it",
        "2  2.10 ±0.05           –          41",
        "2  0.64 ±0.05  0.46 ±0.05",
        "segment  chat�[31m        40       1234        0.81  0.70 ±0.05",
        "late less early: -0.200 (-0.250 to -0.150)",
        "the draft loses coherence",
        "never                   2.10 ±0.05  1.90 ±0.05             0.60 ±0.05",
        "0.4                     2.00 ±0.05  ≥ 1.50 ±0.05           ≤ 0.80 ±0.05",
        "temperature    0.7        20  1.80 ±0.05",
        "4        2.40 ±0.05             2.50 ±0.05             2·2",
        "small:int4 − big  (L-1)/R  2        39  -0.100 (-0.140 to -0.060)",
        "τ, mean accepted length: 1 + accepted / rounds that drafted; SGLang: spec_accept_length",
    ],
)
def test_the_table_says(line: str) -> None:
    lines = [line.strip() for line in render(REPORT, "table", 100).splitlines()]
    assert any(each.startswith(line) for each in lines)


def test_lost_parts_leave_no_empty_tables() -> None:
    card: dict[str, Any] = {"mode": None, "alpha": None, "breakdown": None, "stopping": ()}
    shown = render(changed(**card, rounds_by_group=(), trees=()), "table", 100)
    assert "small:int4: prompt lookup, 40 requests" in shown
    assert "No α" in shown
    for title in ("where tokens are accepted", "stops when unsure", "by group", "best trees"):
        assert title not in shown


@pytest.mark.parametrize(
    ("requests", "equal", "warning"),
    [
        (29, 29.0, "here 29\n"),
        (40, 29.4, "here 40, of lengths so unequal that they say as much as 29\n"),
        (40, 30.0, None),
    ],
)
def test_few_or_unequal_requests_carry_a_warning(requests, equal, warning) -> None:
    shown = render(changed(requests=requests, equal_requests=equal), "table", 120)
    rough = "intervals over fewer than 30 requests are rough"
    assert (f"{rough}: {warning}" in shown) if warning else (rough not in shown)


def test_a_segment_of_few_requests_is_named() -> None:
    one = {"by": "segment", "k": 2, "requests": 40, "tokens_per_round": None}
    groups = tuple(
        GroupRounds(name=name, equal_requests=equal, **one)
        for name, equal in (("chat", 12.3), ("code", 31.0))
    )
    shown = render(changed(rounds_by_group=groups), "table", 120)
    assert "are rough; counted as requests of equal length: chat 12\n" in shown


def test_on_one_screen_few_requests_are_warned_of_once_by_the_fewest() -> None:
    one = {"by": "segment", "k": 2, "requests": 40, "tokens_per_round": None}
    (card,) = REPORT.candidates
    candidates = tuple(
        msgspec.structs.replace(
            card,
            candidate=name,
            rounds_by_group=(GroupRounds(name="chat", equal_requests=equal, **one),),
        )
        for name, equal in (("small", 14.0), ("tiny", 12.0))
    )
    report = msgspec.structs.replace(REPORT, candidates=candidates)
    shown = render(report, "table", 120, everything=False)
    assert re.findall(r"requests of equal length: (.*)", shown) == ["chat 12"]


def test_tokens_are_shown_only_where_asked_for_and_as_ids_where_unreadable() -> None:
    assert "disagreements" not in render(REPORT, "table", 100)
    assert "#7       #8          3          2.5  25.0%" in render(COSTLY, "table", 100)
    read = render(COSTLY, "table", 100, {7: "\n", 8: " the"}, everything=False)
    assert r"'\n'     ' the'      3          2.5  25.0%" in read


def test_markdown_escapes_what_came_from_files() -> None:
    group = msgspec.structs.replace(CHAT, name="c|d")
    broken = msgspec.structs.replace(BREAKDOWN, groups=(group,))
    shown = render(changed(candidate="a|b", breakdown=broken), "markdown", 100)
    assert "### a\\|b: greedy drafting" in shown
    assert "| segment | c\\|d | 40 |" in shown
    assert "| k | (L-1)/R | τ | n for ±2 % |" in shown
    assert "- the draft loses coherence" in shown


def test_json_holds_the_report_and_the_definitions() -> None:
    found = json.loads(render(COSTLY, "json", 100, {7: "x"}))
    card = found["candidates"][0]
    assert card["at_each_k"][0]["pooled"] == {"value": 1.6, "low": 1.55, "high": 1.6500000000000001}
    assert card["trees"][0]["tree"] == [[0], [0, 0], [0, 1], [1]]
    (wrong,) = found["disagreements"][NAME]
    assert (wrong["drafted_text"], wrong["target_text"]) == ("x", None)
    assert found["definitions"][4]["sglang"] == "spec_accept_length of the server's metrics"
    assert found["definitions"][4]["vllm"] is None  # counts another figure under its name
    assert json.loads(render(REPORT, "json", 100))["disagreements"] is None


def test_csv_has_a_line_for_each_figure_and_each_difference() -> None:
    rows = list(csv.DictReader(io.StringIO(render(REPORT, "csv", 100))))
    assert len(rows) == 1 + 4 + 2 + 2 + 1
    assert (rows[0]["figure"], rows[0]["k"]) == ("acceptance rate (emitted tokens)", "")
    assert (rows[1]["k"], rows[1]["pooled"], rows[1]["requests_needed"]) == ("1", "1.6", "41")
    assert rows[4]["pooled"] == ""
    assert (rows[-1]["against"], rows[-1]["pooled"], rows[-1]["requests"]) == ("big", "-0.1", "39")


def test_one_screen_names_the_faults_and_the_way_to_the_rest() -> None:
    shown = render(REPORT, "table", 80, everything=False)
    assert len(shown.splitlines()) <= 25
    assert "suspected fault: nothing was accepted; look at it" in shown.replace("\n    ", " ")
    assert "`--all`" in shown


def test_one_screen_shows_the_least_the_usual_and_the_largest_k() -> None:
    ks = tuple(reading("mean accepted length", "τ", k, float(k)) for k in range(1, 9))
    shown = render(changed(at_each_k=ks), "table", 80, everything=False)
    _, head, row, *_ = shown.splitlines()
    assert "τ k=1       τ k=4       τ k=8" in head
    assert "1.00 ±0.05  4.00 ±0.05  8.00 ±0.05  0.72 → 0.64" in row


def test_one_screen_has_room_for_many_candidates_and_groups() -> None:
    groups = tuple(
        msgspec.structs.replace(CHAT, by=by, name=f"{by} {n}")
        for by, count in (("segment", 20), ("third", 3))
        for n in range(count)
    )
    card = msgspec.structs.replace(
        CARD, breakdown=msgspec.structs.replace(BREAKDOWN, groups=groups), faults=()
    )
    crowded = msgspec.structs.replace(REPORT, candidates=(card,) * 9)
    lines = render(crowded, "table", 200, everything=False).splitlines()
    assert len(lines) <= 25
    assert "  1 more candidates: `--all` or `--candidate NAME`" in lines
    assert "  16 more by segment" in lines


def test_every_segment_at_every_temperature_is_shown_where_the_run_has_both() -> None:
    title = "small:int4: segment × temperature"
    assert title not in render(REPORT, "table", 100)
    crossings = tuple(
        Crossing(
            segment="chat",
            temperature=heat,
            requests=n,
            equal_requests=float(n),
            positions=40.0 * n,
            alpha=alpha,
        )
        for heat, n, alpha in ((0.0, 5, about(0.97)), (0.7, 1, None))
    )
    broken = msgspec.structs.replace(BREAKDOWN, crossings=crossings)
    lines = [line.strip() for line in render(changed(breakdown=broken), "table", 100).splitlines()]
    at = lines.index(title)
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["segment", "temperature", "requests", "positions", "α"],
        ["chat", "0", "5", "200", "0.97", "±0.05"],
        ["chat", "0.7", "1", "40", "–"],
    ]
    assert title not in render(changed(breakdown=broken), "table", 100, everything=False)
