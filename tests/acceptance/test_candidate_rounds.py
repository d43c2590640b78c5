"""How far the rounds of a candidate are known, and along which responses."""

import pytest
from scenes import SMALL, lookup, manifest, replay, replayed, served, trajectory

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds, served_rounds
from draftbench.acceptance.rounds import expected_rounds
from draftbench.acceptance.summary import acceptance_report
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Slo
from draftbench.records import Candidate
from draftbench.run_folder.run import run_of

INT8 = Candidate(draft="small", quant="int8")


def test_a_model_is_known_at_every_k_and_prompt_lookup_as_far_as_it_looked_up():
    assert CandidateRounds.of([replayed([1.0, 0.0])]).reaches(64)
    looked_up = CandidateRounds.of([(trajectory(length=3), lookup((4, 0), (1, 0), window=4))])
    assert (looked_up.reaches(4), looked_up.reaches(5)) == (True, False)
    assert not CandidateRounds.of([]).reaches(1)


def test_rounds_have_a_row_for_each_replayed_response():
    # One round each at k = 1: an accepted token, in `a` with one of the target's after it.
    along = CandidateRounds.of([replayed([1.0, 0.0], "a"), replayed([1.0], "b", limit=9)])
    assert [t.request for t in along.trajectories] == ["a", "b"]
    assert along.at(1) is along.at(1)
    assert along.at(1).target_passes.tolist() == [1.0, 1.0]


def test_replays_are_paired_in_the_order_of_the_responses_without_those_of_other_candidates():
    responses = [trajectory("a", 3, limit=9), trajectory("b", 2), trajectory("a", 2, sample=1)]
    others = [replay([1.0], other, request="b") for other in (Candidate(draft="big"), INT8)]
    replays = [replay([0.1], request="a", sample=1), replay([0.5, 0.25], request="a", draftable=7)]
    run = run_of(manifest(), [*responses, *others, *replays])
    along = candidate_rounds(run, SMALL)
    assert [t.key for t in along.trajectories] == [("a", 0), ("a", 1)]
    law = along.laws[0]
    assert (law.length, law.limit, law.draftable) == (3, 9, 7)
    assert law.accept.tolist() == [0.5, 0.25]
    assert [t.key for t in candidate_rounds(run, INT8).trajectories] == [("b", 0)]


# Of 400 tokens after the first so many were drafted, at one a round: 320 to 240 rounds.
KEPT = {"a": 80, "b": 100, "c": 120, "d": 140, "e": 160}
ONE_A_ROUND = {name: {"accepted": kept, "drafted": 400 - kept} for name, kept in KEPT.items()}
# Two tokens in each of 100 rounds: 60 accept the first and 15 both, in 175 tokens after the first.
SUMS = {"rounds": 100, "accepted": 75, "drafted": 200}
POSITIONS = SUMS | {"by_position": (60, 15)}


def run(counted, k, length, *, plain=True, load=1, weights=(1,) * 6, ks=None):
    """Requests answered with a draft, by what the engine counted of each, and without one."""
    rows = []
    for (name, counts), weight in zip(counted.items(), weights, strict=False):
        rows.append(trajectory(name, length, origin="engine", margins=(), argmax=(), weight=weight))
        seconds = [0.1 * (n + 1) for n in range(length)]
        same = {"request": name, "digest": name, "concurrency": load}
        if plain:
            rows.append(served(None, 0, *seconds, **same))
        rows.append(served(SMALL, k, *seconds, **same | counts))
    return run_of(manifest(engine="vllm", ks=ks or (k,), concurrency=(load,)), rows)


def of_each(counts):
    return dict.fromkeys(KEPT, counts)


def test_sums_alone_mean_the_same_hazard_unless_requests_alone_give_the_positions_of_all():
    """Of 100 rounds of two tokens 75 were accepted: a half of the first, half of those of the
    second. Spread evenly over the rounds they would be 3 of 4 of the first and none of the second.
    The same server, asked for one request at a time, tells that it accepts .6 and .25 of those.
    """
    together = run(of_each(SUMS), 2, 176, load=4)
    assert served_rounds(together, SMALL).hazards == pytest.approx([0.5, 0.5])
    alone = run(of_each(POSITIONS), 2, 176, plain=False)
    rows = [*alone.trajectories, *alone.served, *together.served]
    both = run_of(manifest(engine="vllm", ks=(2,), concurrency=(1, 4)), rows)
    assert served_rounds(both, SMALL).hazards == pytest.approx([0.6, 0.25])


def test_each_request_has_the_rounds_that_were_counted_of_it():
    # To first order; a last token that cannot be drafted is the rest.
    rounds = candidate_rounds(run(ONE_A_ROUND, 1, 401), SMALL).at(1)
    assert rounds.target_passes == pytest.approx([320, 300, 280, 260, 240], rel=0.01)
    assert rounds.tokens == pytest.approx([400] * 5)


def test_what_requests_shift_the_hazards_by_adds_up_to_nothing():
    responses = candidate_rounds(run(ONE_A_ROUND, 1, 401, weights=(3, 1, 1, 1, 2)), SMALL)
    by_hazards = expected_rounds(responses.laws, 1)
    for name in ("with_draft", "accepted", "survived"):
        shifted, shared = (
            responses.weights @ each.counts[name] for each in (responses.at(1), by_hazards)
        )
        assert shifted == pytest.approx(shared)


def test_a_server_without_a_baseline_has_its_accepted_length_and_says_what_is_missing():
    alone = run(ONE_A_ROUND, 1, 401, plain=False)
    answer = recommend(alone, DecisionOptions(slo=Slo(ttft=0.2)))
    # 2000 tokens in 1400 rounds.
    assert answer.evaluations[0].mean_accepted_length.value == pytest.approx(2000 / 1400, rel=0.01)
    assert "no server without speculation" in answer.evaluations[0].reason
    assert answer.settled_by == "baseline"
    # Each first token comes after .1 s.
    assert (answer.slo_kept.plain, answer.slo_kept.speculative.value) == (None, 1.0)


def test_a_k_that_the_engine_was_not_started_with_has_the_accepted_length_of_its_positions():
    """1 + .6 at k = 1, 1 + .6 + .15 at 2."""
    answer = recommend(run(of_each(POSITIONS), 2, 176, ks=(1, 2)))
    one, two = sorted(answer.evaluations, key=lambda each: each.k)
    assert (one.k, one.mean_accepted_length.value) == (1, pytest.approx(1.6, rel=0.01))
    assert (two.k, two.mean_accepted_length.value) == (2, pytest.approx(1.75, rel=0.01))
    assert one.speedup_predicted is not None
    # It did not run: nothing was counted.
    assert one.mean_accepted_length_measured is None


def test_a_server_that_reports_no_rounds_has_no_accepted_length():
    answer = recommend(run(of_each({}), 2, 176, ks=(1, 2)))
    assert [e.mean_accepted_length for e in answer.evaluations] == [None, None]


def test_below_the_largest_k_that_an_engine_ran_with_figures_are_predicted_from_its_positions():
    """Of six requests every second one accepts more. Of 720 rounds 270 accepted the first token and
    60 both: 1 + 270 / 720 at k = 1. At 3 nothing is known.
    """
    poor, good = (
        {"rounds": rounds, "accepted": a + b, "drafted": 2 * rounds, "by_position": (a, b)}
        for rounds, a, b in ((140, 30, 5), (100, 60, 15))
    )
    counted = {name: good if at % 2 else poor for at, name in enumerate("abcdef")}
    observed = run(counted, 2, 176, plain=False, ks=(1, 2, 3))
    (card,) = acceptance_report(observed, [SMALL], (1, 2, 3), 0.02).candidates
    ((k, started),) = [(each.k, each) for each in card.at_each_k if each.symbol == "τ"]
    assert (k, started.pooled.value) == (2, pytest.approx(1 + 330 / 720))
    ((k, other),) = [(each.k, each) for each in card.predicted if each.symbol == "τ"]
    assert (k, other.pooled.value) == (1, pytest.approx(1 + 270 / 720, rel=0.005))
    # As uncertain over requests as what was counted: these would be at 1 + 30 / 140 and 1 + .6.
    assert 1.2 < other.pooled.low < other.pooled.value - 0.1
    assert other.pooled.value + 0.1 < other.pooled.high < 1.6
    assert other.per_request is None


def test_rounds_of_the_same_records_are_computed_once_and_of_others_anew():
    responses, replays = [trajectory(name) for name in "ab"], [replay((1,) * 8, request="a")]
    first = run_of(manifest(), [*responses, *replays])
    known = candidate_rounds(first, SMALL)
    again = run_of(manifest(), [*responses, *replays], first.rounds)
    assert candidate_rounds(again, SMALL) is known
    more = [*responses, *replays, replay((0,) * 8, request="b")]
    found = candidate_rounds(run_of(manifest(), more, first.rounds), SMALL)
    assert found.at(1).target_passes.tolist() == [4, 8]
    other = run_of(manifest(), [*responses, replay((0,) * 8, request="a")], again.rounds)
    assert candidate_rounds(other, SMALL).at(1).target_passes.tolist() == [8]
    assert known.at(1).target_passes.tolist() == [4]
