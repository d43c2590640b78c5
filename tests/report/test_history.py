"""Verdicts over time are shown on one scale, with their intervals and a trend in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftbench.gate.history import HistoryEntry
from draftbench.gate.limits import Limit
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import Check, GateResult, Level
from draftbench.report.history import draw, text

LIMIT = Limit(metric="alpha", value=0.02, relative=False)


def entry(day: int, alpha: float, verdict: str = "pass", question: str = "q") -> HistoryEntry:
    return HistoryEntry(
        schema_version=1,
        created=f"2026-01-{day:02}T08:15:00Z",
        candidate="small",
        question=question,
        verdict=Verdict(verdict),
        figures={"alpha": Level(value=alpha, low=alpha - 0.1, high=alpha + 0.1)},
    )


@pytest.fixture
def result() -> GateResult:
    check = Check(
        metric="alpha",
        segment=None,
        sample=40,
        old=Level(value=0.5),
        new=Level(value=0.5),
        difference=None,
        limit=LIMIT,
        verdict=Verdict.PASS,
        improved=False,
        requests_needed=None,
        smallest_detectable_drop=None,
    )
    return GateResult(
        schema_version=1,
        verdict=Verdict.PASS,
        exit_code=0,
        old="small",
        new="small",
        mode="greedy",
        k=4,
        question="q",
        requests=40,
        checks=(check,),
        changes=(),
        faults=(),
        notes=(),
    )


def test_every_verdict_is_a_line_with_its_interval_on_the_scale_of_them_all(
    result: GateResult,
) -> None:
    lines = text([entry(1, 0.4), entry(2, 0.6, "fail")], result, 80).splitlines()
    assert lines[0] == "History: the last 2 of 2 verdicts on this question"
    # The scale runs from 0.3 to 0.7 over 31 places: 0.4 ± 0.1 takes the first 16, its dot is the
    # eighth or ninth.
    first, second = lines[3], lines[4]
    assert first.startswith("2026-01-01 08:15  pass     0.400 ±0.100  ─")
    assert second.startswith("2026-01-02 08:15  fail     0.600 ±0.100  ")
    strip = first.split("±0.100  ")[1]
    assert (len(strip), strip.index("●")) == (16, 8)
    assert len(second.split("±0.100  ")[1]) == 31


def test_only_the_last_ten_of_this_question_are_shown(result: GateResult) -> None:
    other = [entry(day, 0.9, question="another") for day in (1, 2)]
    shown = text([*other, *(entry(day, 0.5) for day in range(3, 16))], result, 80)
    assert shown.startswith("History: the last 10 of 13 verdicts")
    assert "2026-01-05" not in shown.split("trend")[0]
    assert "2026-01-06" in shown


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (-0.01, "trend: slow drift, alpha changed by -0.04 [-0.04, -0.04] over 5 passing"),
        (-0.001, "trend: falling, alpha changed by -0.004 "),
        (0.01, "trend: rising, alpha changed by 0.04 "),
        (0.0, "trend: none that stands out, alpha changed by 0 "),
    ],
)
def test_the_trend_is_said_in_words(result: GateResult, step: float, words: str) -> None:
    assert words in text([entry(d, 0.5 + step * d) for d in range(1, 6)], result, 200)


def test_four_runs_have_no_trend(result: GateResult) -> None:
    shown = text([entry(d, 0.5) for d in range(1, 5)], result, 80)
    assert "trend: unknown, under 5 passing runs" in shown


def test_the_series_is_drawn_as_svg_with_a_png_beside_it(tmp_path: Path) -> None:
    draw([entry(1, 0.4), entry(2, 0.6, "fail")], tmp_path / "trend.svg")
    assert "<svg" in (tmp_path / "trend.svg").read_text()
    assert (tmp_path / "trend.png").read_bytes().startswith(b"\x89PNG")


def test_control_characters_of_a_file_do_not_reach_the_terminal(result: GateResult) -> None:
    odd = HistoryEntry(
        schema_version=1,
        created="\x1b[31mnow",
        candidate="small",
        question="q",
        verdict=Verdict.PASS,
        figures={"alpha": Level(value=0.5)},
    )
    assert "\x1b" not in text([odd], result, 80)
