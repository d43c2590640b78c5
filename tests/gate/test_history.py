"""A chain of small drops, each inside the margin, is seen; noise and a settled level are not."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from draftbench.errors import RunFolderError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.comparison import compare
from draftbench.gate.history import fitted_change, read_history, record_verdict
from draftbench.gate.result import GateResult

Chain = Callable[..., list[GateResult]]


@pytest.fixture
def chain(
    tmp_path: Path,
    baseline: Callable[..., Baseline],
    counts: Callable[..., RequestCounts],
) -> Chain:
    """chain(figures, k=4): each run gated against the run before, as if always re-baselined."""

    def run(accepted: float, k: int) -> Baseline:
        return baseline([counts(f"r{i:02}", accepted + i % 3) for i in range(40)], k=k)

    def go(figures: list[float], k: int = 4) -> list[GateResult]:
        pairs = zip(figures[:1] + figures[:-1], figures, strict=True)
        results = [compare(run(before, k), run(now, k)) for before, now in pairs]
        path = tmp_path / "history.jsonl"
        return [record_verdict(path, r, f"2026-01-{d:02}") for d, r in enumerate(results, 1)]

    return go


def drifting(result: GateResult) -> list[str]:
    return [note for note in result.notes if note.startswith("slow drift")]


def test_small_drops_that_each_passed_are_said_together(chain: Chain) -> None:
    # -0.8 % each, of 2.6 tokens: every gate passes.
    results = chain([15.0, 14.8, 14.6, 14.4, 14.2, 14.0])
    assert [result.exit_code for result in results] == [0] * 6
    said = drifting(results[-1])
    assert said[0].startswith("slow drift: mean_accepted_length changed by -3.8")
    assert "over 6 passing runs since 2026-01-01, against a limit of 2% for one" in said[0]
    assert "alpha changed by -0.025 [" in said[2]


def test_four_runs_inside_one_limit_are_no_trend(chain: Chain) -> None:
    assert not any(map(drifting, chain([15.0, 14.9, 14.8, 14.7])))


def test_a_chain_longer_than_one_limit_is_said_before_there_is_a_trend(chain: Chain) -> None:
    # 2.5975 → 2.55 → 2.5025: -1.8 % each, -3.66 % together.
    results = chain([15.0, 14.525, 14.05])
    assert [result.exit_code for result in results] == [0, 0, 0]
    said = drifting(results[-1])
    assert said[0].startswith("slow drift: mean_accepted_length changed by -3.66% over 3 passing")
    assert not drifting(results[1])


@pytest.mark.parametrize(
    "figures",
    [
        [15.0] * 8,
        [15.0, 15.2, 15.4, 15.6, 15.8, 16.0],
        [15.0, 14.9, 15.1, 15.0, 14.9, 15.1, 15.0],
        [15.0, 14.99, 14.98, 14.97, 14.96, 14.95],
    ],
    ids=["constant", "rising", "noise", "immaterial"],
)
def test_what_is_no_harm_is_not_called_drift(chain: Chain, figures: list[float]) -> None:
    assert not any(map(drifting, chain(figures)))


def test_failed_runs_are_not_part_of_the_trend(chain: Chain) -> None:
    results = chain([15.0, 14.8, 14.6, 14.4, 12.0, 14.2])
    assert [result.exit_code for result in results] == [0, 0, 0, 0, 1, 0]
    assert "over 5 passing runs" in drifting(results[-1])[0]


def test_another_question_begins_another_series(chain: Chain) -> None:
    chain([15.0, 14.8, 14.6])
    assert not any(map(drifting, chain([14.4, 14.2, 14.0], k=5)))


def test_a_straight_line_has_a_trend_without_width() -> None:
    total = fitted_change([3.0, 2.5, 2.0, 1.5], relative=False)
    assert (total.value, total.low, total.high) == pytest.approx((-1.5, -1.5, -1.5))


def test_a_relative_trend_compounds() -> None:
    assert fitted_change([1.0, 0.9, 0.81], relative=True).value == pytest.approx(-0.19)


def test_the_interval_of_a_trend_is_that_of_the_regression_line() -> None:
    # y = 0 1 0 1 0: slope 0; residual sum of squares 1.2, over 3, over Σx² = 10: error 0.2 a run.
    total = fitted_change([0.0, 1.0, 0.0, 1.0, 0.0], relative=False)
    assert total.value == pytest.approx(0.0)
    assert total.high == pytest.approx(4 * 0.2 * 3.182, rel=0.02)


def test_entries_are_read_back_in_their_order(chain: Chain, tmp_path: Path) -> None:
    chain([15.0, 15.3])
    entries = read_history(tmp_path / "history.jsonl")
    assert [entry.created for entry in entries] == ["2026-01-01", "2026-01-02"]
    assert entries[1].figures["mean_accepted_length"].value == pytest.approx(
        1 + (15.3 * 40 + 39) / 400
    )
    assert read_history(tmp_path / "none.jsonl") == ()


@pytest.mark.parametrize("line", [b"{}\n", b"not json\n", b"\n", b"[1]\n", b"a text", b"{}"])
def test_a_line_that_is_no_verdict_is_named(chain: Chain, tmp_path: Path, line: bytes) -> None:
    chain([15.0])
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes() + line)
    before = path.read_bytes()
    with pytest.raises(RunFolderError, match="line 2 is no verdict"):
        chain([15.0])
    assert path.read_bytes() == before


def test_a_line_that_was_cut_short_gives_way_to_the_next(chain: Chain, tmp_path: Path) -> None:
    chain([15.0])
    path = tmp_path / "history.jsonl"
    whole = path.read_bytes()
    for size in (1, 10, 18, 30, len(whole) - 2):
        path.write_bytes(whole + whole[:size])
        assert len(read_history(path)) == 1
        chain([15.0])
        assert path.read_bytes() == whole * 2


def test_a_line_that_lost_only_its_newline_is_kept(chain: Chain, tmp_path: Path) -> None:
    chain([15.0])
    path = tmp_path / "history.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole.rstrip())
    assert len(read_history(path)) == 2
    chain([15.0])
    assert path.read_bytes() == whole * 3


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_verdict_of_a_newer_draftbench_asks_for_an_update(chain: Chain, tmp_path: Path) -> None:
    chain([15.0])
    path = tmp_path / "history.jsonl"
    edited(path, '"schema_version":1', '"schema_version":2,"other":0')
    with pytest.raises(RunFolderError, match="line 1 has schema 2, newer than") as caught:
        read_history(path)
    assert caught.value.hint == "update draftbench"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "null", "1e16", "-1e300"])
def test_a_figure_that_no_run_has_is_refused(chain: Chain, tmp_path: Path, number: str) -> None:
    result = chain([15.0])[0]
    path = tmp_path / "history.jsonl"
    line = path.read_text()
    start = line.index('"value":') + len('"value":')
    end = min(place for place in (line.find(",", start), line.find("}", start)) if place > 0)
    path.write_text(line[:start] + number + line[end:])
    with pytest.raises(RunFolderError, match=r"line 1.*(is no verdict|no run has)"):
        record_verdict(path, result, "2026-01-02")


def test_a_trend_without_bounds_overflows_nothing() -> None:
    total = fitted_change([1e-300, 1e15, 1e-300, 1e15, 1e-300], relative=True)
    assert total.low == pytest.approx(-1.0)
    assert 1e300 < total.high < math.inf


def test_a_link_and_a_pipe_are_no_history(chain: Chain, tmp_path: Path) -> None:
    result = chain([15.0])[0]
    (tmp_path / "link").symlink_to(tmp_path / "history.jsonl")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(RunFolderError, match="cannot read the history"):
            record_verdict(tmp_path / name, result, "2026-01-01")


def test_a_history_that_cannot_be_kept_is_refused(tmp_path: Path, chain: Chain) -> None:
    result = chain([15.0])[0]
    with pytest.raises(RunFolderError, match="cannot read the history"):
        record_verdict(tmp_path, result, "2026-01-01")
    with pytest.raises(RunFolderError, match="cannot"):
        record_verdict(tmp_path / "history.jsonl" / "x", result, "2026-01-01")
