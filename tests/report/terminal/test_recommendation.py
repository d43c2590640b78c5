"""`recommend` on one screen: one decision, one speed-up, one table, and what to run next."""

import csv
import json
from pathlib import Path

import msgspec
import pytest

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Caveat
from draftbench.report.terminal.recommendation import FIGURES, headline, render, speed_up
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run, run_of

REFERENCE = Path(__file__).parents[3] / "results/reference"
LONG = "an-organisation/a-model-with-a-very-long-name-that-goes-on-and-on-Instruct-GPTQ-Int4"
COMMANDS = ["draftbench recommend runs/R --all", "draftbench report runs/R --html report.html"]


def lines_of(answer, width=100):
    return render(answer, "table", width, commands=COMMANDS).splitlines()


def assert_one_screen(answer):
    for width in (88, 100, 250):
        lines = lines_of(answer, width)
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 88
        assert lines[-2:] == ["next: draftbench recommend runs/R --all", f"      {COMMANDS[1]}"]


@pytest.fixture(scope="module")
def kept():
    return {run.name: recommend(read_run(RunFolder(run))) for run in REFERENCE.iterdir()}


@pytest.fixture
def run(hand):
    return run_of(hand.manifest(), hand.perfect())


@pytest.fixture
def clean(hand):
    """Thirty requests, all decoded, with all their candidates."""
    records = hand.perfect()
    for name in (f"r{at}" for at in range(2, 30)):
        records += [hand.trajectory(name), hand.replay(name, (1.0,) * 8)]
        records += [hand.decode(name, k, seconds) for k, seconds in ((0, 8.0), (2, 4.0))]
    traffic = {"requests": 30, "form": "messages"}
    return run_of(hand.manifest(**traffic), records)


def undecoded(records):
    return [r for r in records if type(r).__name__ != "Decode"]


@pytest.mark.parametrize("name", ["qwen2.5-coder", "tinyllama-stories", "tinyllama-gsm8k"])
def test_a_kept_run_fits_one_screen(kept, name):
    assert_one_screen(kept[name])


def test_the_screen_of_a_kept_run(kept):
    assert lines_of(kept["qwen2.5-coder"]) == [
        "Speculate at concurrency 1: qwen0.5:int4, k = 5",
        "Provisional: only 16 requests were decoded; the machine became 16% slower during the",
        "  run.",
        "Speed-up 2.10× (1.88–2.36), decode only, measured on 16 of 48 requests",
        "",
        "   draft         k           α           τ           c    speed-up ×   memory",
        "→  qwen0.5:int4  5  0.87 ±0.03  4.05 ±0.34  0.20 ±0.01  2.10 ±0.23     584 MB",
        "   qwen0.5:int8  3  0.88 ±0.03  3.20 ±0.16  0.30 ±0.01  1.64 ±0.11     771 MB",
        "   ngram         7           –  4.06 ±0.64  0.00 ±0.00  1.46 ±0.19       0 kB",
        "   qwen0.5       2  0.88 ±0.03  2.61 ±0.10  0.39 ±0.01  1.45 ±0.05    1.26 GB",
        "   self          1  0.95 ±0.03  1.94 ±0.03  1.00 ±0.00  0.96 ±0.02 *  6.94 MB",
        "± half a 95% interval; τ accepted length; c draft step / target step; * predicted only",
        "",
        "Runner-up: qwen0.5:int8, k = 3, slower: 1.64×, 3.16 tokens per round at the cost of 1.93",
        "  target steps.",
        "k by concurrency with qwen0.5:int4: 1 → 5, 4 → 2, 16 → 0 (0: do not speculate)",
        "",
        "next: draftbench recommend runs/R --all",
        "      draftbench report runs/R --html report.html",
    ]


def test_many_candidates_and_long_names_fit_one_screen(kept):
    answer = kept["qwen2.5-coder"]
    named = [
        msgspec.structs.replace(each, draft=f"{LONG}-{at}" * (at != 2) or each.draft)
        for at in range(12)
        for each in answer.evaluations[:8]
    ]
    crowded = msgspec.structs.replace(
        answer,
        choice=msgspec.structs.replace(answer.choice, draft=LONG),
        leader=msgspec.structs.replace(answer.leader, draft=f"{LONG}-0", quant="none"),
        runner_up=msgspec.structs.replace(answer.runner_up, draft=f"{LONG}-1", quant="none"),
        evaluations=tuple(named),
        caveats=tuple(
            Caveat(kind=kind, text="why this could be otherwise " * 12, decisive=decisive, short="")
            for kind in ("output-differs", "suspected-fault", "looping", "drift")
            for decisive in (True, False)
        ),
    )
    assert_one_screen(crowded)
    lines = lines_of(crowded)
    assert "   and 6 more: --all" in lines
    assert sum("an-o" in line for line in lines) > 6


@pytest.mark.parametrize("case", ["slower", "open", "untimed", "undecoded", "one", "limited"])
def test_an_odd_case_fits_one_screen(hand, run, case):
    records, options = hand.perfect(), DecisionOptions()
    if case == "slower":
        options = DecisionOptions(min_speedup=3.0)
    elif case == "open":
        options = DecisionOptions(min_speedup=2.0)
    elif case == "untimed":
        records = [r for r in undecoded(records) if type(r).__name__ != "CostPoint"]
    elif case == "undecoded":
        records = undecoded(records)
    elif case == "one":
        records = [r for r in records if getattr(r, "request", None) in (None, "r0")]
    elif case == "limited":
        options = DecisionOptions(max_memory=1)
    assert_one_screen(recommend(run_of(hand.manifest(), records), options))


def test_where_no_draft_pays_the_best_one_is_named_with_the_speed_up_asked_for(hand):
    answer = recommend(
        run_of(hand.manifest(), hand.perfect(requests=5)), DecisionOptions(min_speedup=3.0)
    )
    assert headline(answer) == "Do not speculate"
    assert speed_up(answer) == (
        "Best: small, k = 2, 2.00× (2.00–2.00), decode only, measured on 5 requests; 3× is asked "
        "for"
    )


def test_what_was_never_decoded_is_called_predicted_and_starred(hand):
    answer = recommend(run_of(hand.manifest(), undecoded(hand.perfect())))
    assert speed_up(answer) == (
        "Speed-up 2.29× (2.29–2.29), decode only, predicted for 2 requests, never decoded"
    )
    text = render(answer, "table", 88)
    assert "2.29 ±0.00 *" in text
    assert "* predicted only" in text


def test_a_measured_part_of_the_requests_is_counted(hand):
    records = [
        r for r in hand.perfect() if getattr(r, "request", "r0") == "r0" or not hasattr(r, "k")
    ]
    answer = recommend(run_of(hand.manifest(), records))
    assert speed_up(answer).endswith(
        "predicted for 2 requests, 1 decoded request too few to correct it"
    )


def test_nothing_timed_is_told_instead_of_a_speed_up(hand):
    records = [r for r in undecoded(hand.perfect()) if type(r).__name__ != "CostPoint"]
    answer = recommend(run_of(hand.manifest(), records))
    assert speed_up(answer).startswith("No candidate's speed is known: nothing was timed")


def test_one_request_has_a_speed_up_without_an_interval(hand):
    records = [r for r in hand.perfect() if getattr(r, "request", None) in (None, "r0")]
    one = recommend(run_of(hand.manifest(), records))
    assert headline(one) == "Inconclusive: 2.29×, but too few requests for an interval"
    assert "unknown (too few requests for an interval)" in speed_up(one)


def test_an_open_decision_names_what_would_settle_it(hand):
    # Two of five requests accept nothing: 40 s against 29.7 as predicted, four of them decoded.
    records = [
        r
        for r in hand.perfect(requests=5)
        if not (type(r).__name__ == "Decode" and r.request == "r4")
    ]
    records += [hand.replay(name, (0.0,) * 8) for name in ("r1", "r3")]
    options = DecisionOptions(min_speedup=1.3)
    lines = lines_of(recommend(run_of(hand.manifest(), records), options))
    assert any("the same sweep with --measure-requests 5" in line for line in lines)


def test_ranked_by_latency_the_speed_up_includes_the_prefills(hand):
    prefills = [
        msgspec.structs.replace(hand.cost(model, 10, 1.0), what="prefill")
        for model in (None, "small")
    ]
    run = run_of(hand.manifest(), [*hand.perfect(requests=5), *prefills])
    answer = recommend(run, DecisionOptions(objective="latency"))
    # 9 s without speculation, 6 s with it.
    assert speed_up(answer).startswith("Speed-up 1.50× (1.50–1.50), prefills included")
    (row,) = [line for line in lines_of(answer) if line.startswith("→")]
    assert "1.50 ±0.00" in row


def test_the_decision_of_a_clean_run_stands_without_a_proviso(clean):
    answer = recommend(clean)
    assert lines_of(answer)[:2] == [
        "Speculate: small, k = 2",
        "Speed-up 2.00× (2.00–2.00), decode only, measured on 30 requests",
    ]
    assert "rovisional" not in render(answer, "markdown", 80)


def test_reasons_of_a_provisional_decision_are_not_repeated_as_caveats(run):
    answer = recommend(run)
    lines = lines_of(answer)
    assert lines[1].startswith("Provisional: only 2 requests were replayed; only 2 requests were")
    assert not any(line.startswith("Caveat: only") for line in lines)


def test_drafts_stand_in_the_order_of_their_expected_speed_up(hand):
    # All are predicted alike; they took 4, 8 and 5 s.
    records = []
    for draft, seconds in (("a", 4.0), ("b", 8.0), ("c", 5.0)):
        records += [
            hand.decode(r.request, 2, seconds, draft) if getattr(r, "k", 0) else r
            for r in hand.perfect(draft, 5)
        ]
    answer = recommend(run_of(hand.manifest(drafts=("a", "b", "c")), records))
    lines = lines_of(answer)
    at = next(at for at, line in enumerate(lines) if line.split()[:1] == ["draft"])
    assert [line.strip("→ ")[0] for line in lines[at + 1 : at + 4]] == ["a", "c", "b"]


def test_json_and_csv_hold_every_figure_by_the_same_name(hand):
    answer = recommend(run_of(hand.manifest(), hand.perfect(requests=5)))
    (best, *_) = [e for e in json.loads(render(answer, "json", 80))["evaluations"] if e["best"]]
    rows = csv.DictReader(render(answer, "csv", 80).splitlines())
    (row, *_) = [row for row in rows if row["best"] == "1"]
    for name in FIGURES:
        value = None if best[name] is None else best[name]["value"]
        assert row[name] == ("" if value is None else str(value))
    assert best["speedup_expected"]["value"] == pytest.approx(2.0)


def test_markdown_is_as_short_unless_everything_is_asked_for(kept):
    answer = kept["qwen2.5-coder"]
    short = render(answer, "markdown", 80)
    assert short.startswith("## Speculate at concurrency 1: qwen0.5:int4, k = 5\n\nProvisional: ")
    assert "| → | qwen0.5:int4 | 5 |" in short
    assert "### Checks" not in short
    assert "### Checks" in render(answer, "markdown", 80, everything=True)
