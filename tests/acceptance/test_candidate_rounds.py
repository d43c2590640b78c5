"""How far the rounds of a candidate are known, and along which responses."""

from scenes import SMALL, lookup, manifest, replay, replayed, trajectory

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds
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
