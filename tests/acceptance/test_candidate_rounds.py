"""How far the rounds of a candidate are known, and along which responses."""

from scenes import lookup, replayed, trajectory

from draftbench.acceptance.candidate_rounds import CandidateRounds


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
