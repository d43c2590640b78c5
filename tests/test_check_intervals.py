"""`scripts/check_intervals.py`: runs of known truth, and how often `recommend` is right."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from draftbench.acceptance.rounds import counted_rounds, expected_rounds
from draftbench.drafts.laws import law_of
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def check_intervals():
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield import_module("check_intervals")
        for name in ("check_intervals", "simulated_engines", "simulated_runs"):
            sys.modules.pop(name, None)


def world(check_intervals, name, **changes):
    cell = replace(check_intervals.CELLS[name], **changes)
    kind = (
        check_intervals.EngineWorld
        if isinstance(cell, check_intervals.EngineCell)
        else check_intervals.World
    )
    return kind(cell, np.random.default_rng(0))


def test_48_independent_requests_of_like_length_are_covered(check_intervals):
    trials = [check_intervals.simulate("figures-48-mild", number) for number in range(30)]
    speedups = [each for trial in trials for each in trial.intervals if each.of == "S"]
    hits = sum(each.interval[0] <= each.true <= each.interval[1] for each in speedups)
    assert hits >= 24  # of 30: at 94% fewer come once in 2,000 times


@pytest.mark.parametrize(
    "cell", ["figures-5-mild", "figures-12-heavy", "timing-stops-2", "engine-4"]
)
def test_few_unequal_and_briefly_timed_requests_are_covered(check_intervals, cell):
    trials = [check_intervals.simulate(cell, number) for number in range(20)]
    rows = [each for trial in trials for each in trial.intervals]
    hits = sum(each.interval[0] <= each.true <= each.interval[1] for each in rows)
    assert hits >= 0.75 * len(rows)  # at 90%, all of a trial together, fewer come once in 25 times


@pytest.mark.parametrize(
    ("cell", "verdict"), [("gate-3-one-process", "fail"), ("gate-1.6-drop-15", "pass")]
)
def test_the_gate_does_not_judge_times_wrongly(check_intervals, cell, verdict):
    assert verdict not in [check_intervals.simulate(cell, number).verdict for number in range(10)]


def test_a_decoded_cell_without_noise_has_a_leader_that_pays(check_intervals):
    (trial,) = check_intervals.simulated("noise-0", 1, None, [])
    (decided,) = trial.decisions
    assert [each.true for each in trial.expected if each.of == "leader"] == [decided.leader]
    assert decided.decision == "speculate"
    assert decided.best == pytest.approx(1.3, rel=0.15)  # in the decoder ± 4%


def test_the_best_k_is_truly_worth_what_its_cell_names(check_intervals):
    assert world(check_intervals, "advised-1.10").best(1) == pytest.approx(1.10)
    assert world(check_intervals, "figures-48-heavy").best(1) == pytest.approx(1.3)


def test_simulated_decoding_has_the_rounds_that_its_replay_expects(check_intervals):
    run = world(check_intervals, "noise-0").run(12, (12, 12))
    laws = {
        (r.request, r.candidate): law_of(t, r)
        for t in run.trajectories
        for r in run.replays
        if r.request == t.request
    }
    for decode in run.decodes:
        if decode.k:
            expected = expected_rounds([laws[decode.request, decode.candidate]], decode.k)
            found = counted_rounds([decode])
            for name in ("tokens", "with_draft", "accepted", "cut"):
                assert getattr(found, name) == pytest.approx(getattr(expected, name)), name


def test_a_quiet_engine_takes_the_true_seconds_for_every_round_and_step(check_intervals):
    of = world(check_intervals, "engine-0", answer=0)
    run = of.run(12, (12,))
    for cell in Evaluator(run, DecisionOptions()).effects.cells:
        k = cell.configuration.k
        expected = of.round_seconds(0, k, 1) if k else 1
        assert np.exp(cell.log_slowdown) == pytest.approx(expected)


def test_an_engine_answers_without_a_draft_first_and_last_and_at_the_ends_of_k_in_between(
    check_intervals,
):
    run = world(check_intervals, "engine-4", restarts=2).run(12, (12,))
    first, second = (
        [k for k, repeat in starts if repeat == turn]
        for starts in [list(dict.fromkeys((row.k, row.repeat) for row in run.served))]
        for turn in (0, 1)
    )
    assert first[:3] == [0, 1, 8]
    # Backwards, after the plain server.
    assert second[: len(first)] == [0, *sorted(first[1:], reverse=True)]
    assert list(dict.fromkeys((row.k, row.repeat) for row in run.served))[-1] == (0, 2)


def test_an_engines_rounds_are_those_that_its_replay_expects(check_intervals):
    run = world(check_intervals, "engine-0").run(12, (12,))
    responses, replays = ({r.request: r for r in each} for each in (run.trajectories, run.replays))
    for row in run.decodes:
        if row.k:
            law = law_of(responses[row.request], replays[row.request])
            expected, found = expected_rounds([law], row.k), counted_rounds([row])
            assert found.with_draft == pytest.approx(expected.with_draft)
            assert found.accepted == pytest.approx(expected.accepted)


def test_a_machine_that_drifts_is_slower_by_as_much_at_every_start(check_intervals):
    of = world(check_intervals, "engine-drift", start=0, answer=0, drift=0.5)
    first, *_, last = of.run(12, (12,)).served
    steps = [
        (row.arrivals[-1] - row.arrivals[0]) / (row.output_tokens - 1) for row in (first, last)
    ]
    assert steps[1] / steps[0] == pytest.approx(1.5 ** (of.starts - 1))


def test_with_prefills_the_true_speed_up_counts_both(check_intervals):
    of = world(check_intervals, "latency", prefills=False)
    decoding, (rounds, _) = of.speedup(0, 4, 1), of.population.rounds(0, 4)
    of = world(check_intervals, "latency")
    tokens, each = of.population.tokens, of.round_seconds(0, 4, 1)
    assert decoding == pytest.approx(tokens / (rounds * each))
    # 4,000 prompts of one target step, a tenth more with a draft.
    assert of.speedup(0, 4, 1) == pytest.approx((4000 + tokens) / (4400 + rounds * each))


def test_as_many_runs_stall_as_asked_for(check_intervals):
    run = world(check_intervals, "stalls", noise=0, stalls=0.5).run(48, (48, 48))
    plain = [row for row in run.decodes if row.k == 0]
    stalled = [row.verify_seconds[-1] > row.verify_seconds[0] + 4.9 for row in plain]
    assert sum(stalled) / len(stalled) == pytest.approx(0.5, abs=0.1)


def test_the_prediction_of_the_whole_population_is_the_truth(check_intervals):
    of = world(check_intervals, "figures-48-mild")
    run = of.run(3000, (0,))
    prediction = check_intervals.recommend(run).evaluations[0].speedup_predicted
    assert prediction.value == pytest.approx(of.speedup(0, 4, 1), rel=0.01)


def test_a_file_that_was_cut_short_is_completed_to_the_same_trials(
    check_intervals, tmp_path, capsys
):
    out = tmp_path / "trials.jsonl"
    asked = ("--out", str(out), "--cell", "figures-5-mild", "--trials", "2")
    check_intervals.main(asked)
    whole, shown = out.read_bytes(), capsys.readouterr().out.split("interval ")[-1]
    out.write_bytes(whole[:-20])
    check_intervals.main(asked)
    assert out.read_bytes() == whole
    assert capsys.readouterr().out.split("interval ")[-1] == shown


@pytest.mark.parametrize(
    ("hits", "verdict"),
    [(90, "yes"), (84, "yes"), (83, "NO")],  # Wilson: 84 of 100 is 75.6–89.9, 85 is 76.7–90.7
)
def test_a_cell_holds_where_the_interval_of_its_share_reaches_the_aim(
    check_intervals, hits, verdict
):
    inside, outside, unknown = (
        check_intervals.Covered("S", 1.0, interval, true)
        for interval, true in (((0.9, 1.1), 1.05), ((0.9, 1.1), 1.2), (None, 1.0))
    )
    trials = [inside] * hits + [outside] * (100 - hits) + [unknown]  # which is counted apart
    (line,) = check_intervals.interval_lines("cell", trials, 0.899)
    assert line.split()[1:5] == ["S", "101", "1", f"{hits}.0%"]
    assert f" {verdict} " in line


@pytest.mark.parametrize(
    ("wrong", "verdict"), [(5, "yes"), (8, "NO")]
)  # 5 of 100: from 2.2%, 8: 4.1
def test_speculating_where_it_costs_may_happen_in_three_of_a_hundred(
    check_intervals, wrong, verdict
):
    slow, fast = (check_intervals.Decided("S", "speculate", true, 1.2) for true in (0.9, 1.2))
    trials = [
        check_intervals.Trial(
            cell="no-gain", number=at, intervals=(), decisions=(slow if at < wrong else fast,)
        )
        for at in range(100)
    ]
    (line,) = check_intervals.decision_lines("no-gain", trials)
    assert line.split()[3] == f"{wrong}.0%"
    assert line.split()[5] == verdict


def test_wilsons_interval_is_that_of_the_literature(check_intervals):
    # Newcombe 1998, table I: 81 of 263.
    assert check_intervals.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
