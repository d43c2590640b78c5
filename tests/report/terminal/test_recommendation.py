"""What `recommend` prints of an answer: one name, one figure; never one without its interval.

Plain decoding takes 8 s. Three passes of 1 s and five draft steps of 0.1 s are 3.5 s; decoding took
4 s.
"""

import csv
import json

import msgspec
import pytest

from draftbench.planner.checks import checks
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.report.terminal.recommendation import FIGURES, evidence, headline, render
from draftbench.run_folder.run import run_of


def of(records, *names):
    """Those records that are of these requests, or of none."""
    return [r for r in records if getattr(r, "request", None) in (None, *names)]


@pytest.fixture
def run(hand):
    return run_of(hand.manifest(), hand.perfect())


def test_the_speed_up_has_its_three_names_with_what_each_is_over(hand):
    records = hand.perfect()
    for name in (f"r{at}" for at in range(2, 9)):
        records += [hand.trajectory(name), hand.replay(name, (1.0,) * 8)]
        records += [hand.decode(name, k, s) for k, s in ((0, 8.0), (2, 4.0)) if name != "r8"]
    lines = evidence(recommend(run_of(hand.manifest(), records)))
    # 8 / 3.5 predicted, times (8 / 4) / (8 / 3.5) on those that were measured.
    assert lines[0] == (
        "Speed-up 2.00× (2.00–2.00) expected: 2.29× (2.29–2.29) predicted over 9 requests, "
        "2.00× (2.00–2.00) measured on 8, whose prediction was 14.3% too high."
    )
    assert lines[1] == (
        "Decided by 2.00× (2.00–2.00) expected, cross-fitted: from requests that did not choose it."
    )


def test_what_was_not_measured_is_predicted_in_every_line(hand):
    records = [r for r in hand.perfect() if type(r).__name__ != "Decode"]
    lines = evidence(recommend(run_of(hand.manifest(), records)))
    assert lines[0] == "Speed-up 2.29× (2.29–2.29) predicted over 2 requests, not measured."
    assert lines[1].startswith("Decided by 2.29× (2.29–2.29) predicted, cross-fitted")


def test_ranked_by_latency_the_deciding_speed_up_has_the_prefills_in_it(hand):
    prefills = [
        msgspec.structs.replace(hand.cost(model, 10, 1.0), what="prefill")
        for model in (None, "small")
    ]
    run = run_of(hand.manifest(), [*hand.perfect(), *prefills])
    lines = evidence(recommend(run, DecisionOptions(objective="latency")))
    # 9 s against 6 s, as measured on all requests; 9 / 5.5 by the passes.
    assert lines[1].startswith("Decided by 1.50× (1.50–1.50) expected with both prefills")
    assert lines[2] == (
        "With both prefills included: 1.50× (1.50–1.50) expected, 1.64× (1.64–1.64) predicted."
    )


def test_one_request_is_said_in_the_headline_to_be_too_few(hand):
    one = recommend(run_of(hand.manifest(), of(hand.perfect(), "r0")))
    assert headline(one) == (
        "Inconclusive: 2.00× expected, 1 of 1 request decoded: too few for an interval"
    )
    said = " ".join(evidence(one))
    assert "No interval of its speed-up: too few requests." in said
    assert "probability" not in said
    assert "×" not in said
    assert "may be lost" not in said
    assert "only 1 request was decoded; under 30, intervals are too narrow" in (
        caveat.text for caveat in one.caveats
    )
    assert checks(one)[-1].startswith("1 request, 9 output tokens; greedy drafting")


def test_one_measured_request_of_several_is_said_too(hand):
    records = [
        r for r in hand.perfect() if not (type(r).__name__ == "Decode" and r.request == "r1")
    ]
    found = recommend(run_of(hand.manifest(), records))
    assert headline(found).endswith(
        "2.00× expected, 1 of 2 requests decoded: too few for an interval"
    )
    assert "; measured on 1 request, too few for an interval." in evidence(found)[0]
    assert (
        "The same sweep with `--measure-requests 2` decodes all 2 requests" in evidence(found)[-1]
    )


def test_every_speed_up_of_the_table_is_in_json_and_csv_by_the_same_name(run):
    answer = recommend(run)
    (cell, *_) = [c for c in json.loads(render(answer, "json", 80))["evaluations"] if c["best"]]
    rows = csv.DictReader(render(answer, "csv", 80).splitlines())
    (row, *_) = [row for row in rows if row["best"] == "1"]
    for name in FIGURES:
        value = None if cell[name] is None else cell[name]["value"]
        assert row[name] == ("" if value is None else str(value))
    assert cell["speedup_expected"]["value"] == pytest.approx(2.0)


def test_drafts_stand_in_the_order_of_their_expected_speed_up(hand):
    # All are predicted alike; they took 4, 8 and 5 s.
    records = []
    for draft, seconds in (("a", 4.0), ("b", 8.0), ("c", 5.0)):
        records += [
            hand.decode(r.request, 2, seconds, draft) if getattr(r, "k", 0) else r
            for r in hand.perfect(draft)
        ]
    found = recommend(run_of(hand.manifest(drafts=("a", "b", "c")), records))
    assert [cell.draft for cell in found.by_candidate] == ["a", "c", "b"]


def test_every_terminal_shows_what_candidates_are_ranked_by_and_wider_ones_the_prediction(run):
    answer = recommend(run)
    assert "expected ×" in render(answer, "table", 80)
    assert "predicted ×" in render(answer, "table", 100)
    assert "predicted ×" not in render(answer, "table", 99)
    assert "predicted ×" in render(answer, "markdown", 80)


def test_memory_is_said_to_be_weights_and_cache(run):
    # 40 bytes, and 19 tokens of a byte each.
    assert recommend(run).evaluations[0].memory_bytes == 59
    text = " ".join(render(recommend(run), "table", 100).split())
    assert "memory is a draft's weights and its cache for the longest request" in text


@pytest.fixture
def clean(hand):
    """Thirty requests, all decoded, with all their candidates."""
    records = hand.perfect()
    for name in (f"r{at}" for at in range(2, 30)):
        records += [hand.trajectory(name), hand.replay(name, (1.0,) * 8)]
        records += [hand.decode(name, k, seconds) for k, seconds in ((0, 8.0), (2, 4.0))]
    traffic = {"requests": 30, "form": "messages"}
    return run_of(hand.manifest(**traffic), records)


def test_a_decision_on_little_is_called_provisional_with_the_reason(run):
    answer = recommend(run)
    words = (
        "Provisional: only 2 requests were replayed; under 30, intervals are too narrow; only 2 "
        "requests were decoded; under 30, intervals are too narrow."
    )
    assert " ".join(render(answer, "table", 80).split()).startswith(
        f"Speculate: small, k = 2 {words}"
    )
    assert render(answer, "markdown", 80).splitlines()[:3] == [
        "## Speculate: small, k = 2",
        "",
        words,
    ]
    found = json.loads(render(answer, "json", 80))
    kinds = [caveat["kind"] for caveat in found["caveats"] if caveat["decisive"]]
    assert kinds == ["few-requests", "few-decoded"]


def test_the_headline_of_a_clean_run_stands_alone(clean):
    answer = recommend(clean)
    assert answer.decisive_caveats == ()
    assert render(answer, "table", 80).splitlines()[:2] == ["Speculate: small, k = 2", ""]
    assert "rovisional" not in render(answer, "markdown", 80)


def test_what_rounds_took_is_said_beside_what_plain_steps_took(run):
    # Eight steps of 1 s took 8 s; rounds of 3.5 s took 4.
    (line,) = [line for line in checks(recommend(run)) if "Rounds" in line]
    assert line == (
        "Rounds took 1.14 times as long as their passes timed in isolation (median; at most 1.14), "
        "target steps without speculation 1.00 times: only the difference between the two changes "
        "a speed-up."
    )


def test_tokens_of_a_round_have_one_name_which_the_legend_tells_from_tau(run):
    text = " ".join(render(recommend(run), "table", 100).split())
    assert "τ, the mean accepted length, is tokens per round that drafted" in text
    assert "tokens per round, which costs" not in text
    slower = recommend(run, DecisionOptions(min_speedup=3.0))
    text = " ".join(render(slower, "table", 100).split())
    # 8 / 3 tokens: three rounds of eight.
    assert "2.67 tokens per round, which costs 1.33 plain steps" in text
