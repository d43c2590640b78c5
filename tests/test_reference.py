"""What the kept runs of real models say: cases that no formula of a demo shows."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from draftbench.cli import main
from draftbench.planner.decide import HARDLY_MORE_LOSS
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, Replay
from draftbench.report.answer import speed_up

KEPT = Path(__file__).parents[1] / "results/reference"
CHANGELOG = (KEPT.parents[1] / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("limit", [0.95, 1.1, 1.2])
def test_what_a_limit_on_the_tail_refuses_at_a_load_it_refuses_at_every_larger_one(
    reference, limit
):
    found = recommend(reference, DecisionOptions(max_p99_ratio=limit))
    ks = [each.k for each in found.schedule]
    answers = ["speculate" if k else "open" if k is None else "no" for k in ks]
    assert answers == sorted(answers, key=["speculate", "open", "no"].index)


def test_the_method_states_these_errors(answers):
    error = answers["qwen2.5-coder"].prediction_error
    stated = (
        f"{error.configurations} measured configurations are predicted within {error.median:.1%}"
    )
    stated += f" (median; at most {error.worst:.1%})"
    assert stated in " ".join((KEPT.parents[1] / "docs/method.md").read_text().split())


@pytest.mark.parametrize("run", sorted(folder.name for folder in KEPT.iterdir()))
def test_no_replay_is_contradicted(answers, run):
    kinds = {caveat.kind for caveat in answers[run].caveats}
    assert not kinds & {"contradiction", "control-failed", "replay-disagreement"}


def test_replays_that_accept_half_of_what_was_rejected_do_not_count(answers, kept):
    """They promise 1.94 ×; the requests took 1.33 times as long without speculation."""
    run, sound = (each["tinyllama-stories-40"] for each in (kept, answers))
    generator = np.random.default_rng(0)
    planted = [
        msgspec.structs.replace(
            r, accept=tuple(a or float(generator.random() < 0.5) for a in r.accept)
        )
        if isinstance(r, Replay)
        else r
        for r in run.replays
    ]
    spoiled = recommend(replace(run, replays=tuple(planted)))
    assert (sound.provisional, spoiled.leader) == ("", sound.leader)
    interval = sound.speedup_deciding
    assert interval.low < spoiled.speedup_deciding.value < interval.high
    assert spoiled.provisional == (
        "decoding contradicts the replay of stories15M, so only what was decoded counts"
    )


@pytest.mark.parametrize("run", [run.name for run in KEPT.iterdir() if run.name in CHANGELOG])
def test_the_changelog_leads_to_todays_speed_up_of_the_runs_that_it_names(answers, run):
    deciding = answers[run].speedup_deciding
    assert f"| {deciding.value:.3f} ({deciding.low:.2f}–{deciding.high:.2f})" in CHANGELOG


@pytest.mark.parametrize("objective", ["speedup", "latency"])
@pytest.mark.parametrize("run", sorted(folder.name for folder in KEPT.iterdir()))
def test_the_leader_loses_hardly_more_than_the_best(kept, run, objective):
    evaluator = Evaluator(kept[run], DecisionOptions(objective=objective))
    for concurrency in evaluator.concurrencies():
        here = evaluator.at(concurrency)
        least = min(map(here.loss, here.competing), default=1.0)
        assert here.leader is None or here.loss(here.leader) <= least + HARDLY_MORE_LOSS


def test_with_costs_from_elsewhere_the_prefills_measured_here_say_nothing(tmp_path, capsys):
    file = tmp_path / "costs.yaml"
    file.write_text(
        "engine: fast\n"
        "concurrency: {1: {target_step_s: 0.001, verify: {2: 0.00102, 5: 0.00104},"
        " drafts: {stories15M: {step_s: 0.00003}}}}\n"
    )
    words = ["recommend", str(KEPT / "tinyllama-stories-40"), "--costs", str(file)]
    assert main([*words, "--objective", "latency"]) == 0
    assert "its prefill was not timed" in " ".join(capsys.readouterr().out.split())


def test_a_leader_that_was_replayed_on_fewer_responses_is_provisional_and_counts_these(reference):
    leader = Candidate(draft="qwen0.5", quant="int4")
    few = [row for row in reference.replays if row.candidate == leader][16:]
    replays = tuple(row for row in reference.replays if row not in few)
    answer = recommend(replace(reference, replays=replays))
    assert answer.leader.candidate == leader
    assert "qwen0.5:int4: replayed on only 16 of 48 responses" in answer.provisional
    assert "; 16 requests" in speed_up(answer)


def test_what_candidates_are_ranked_by_does_not_move_their_speed_ups(reference, answers):
    by_speed, by_latency = (
        [each.speedup_expected for each in answer.evaluations]
        for answer in (
            answers["qwen2.5-coder"],
            recommend(reference, DecisionOptions(objective="latency")),
        )
    )
    assert by_speed == by_latency
