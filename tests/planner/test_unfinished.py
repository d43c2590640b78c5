"""An answer on a sweep that has not ended says so, and how far the sweep came."""

from scenes import ALL, INT4, SMALL

from draftbench.planner.recommend import recommend
from draftbench.planner.unfinished import unfinished
from draftbench.records import Candidate

BIG = Candidate(draft="big")


def test_responses_and_candidates_are_counted(scene):
    scene.requests(2, ALL)
    scene.replay("r0", ALL, INT4)
    run = scene.observed(1, requests=5, under_way=(SMALL, INT4, BIG))
    assert "not finished (cut off at candidate 2 of 3, with 2 of 5 responses)" in unfinished(run)


def test_what_failed_is_not_waited_for_and_what_is_not_under_way_does_not_count(scene):
    scene.requests(3, ALL, SMALL)
    scene.failure("big", "another vocabulary")
    run = scene.observed(1, requests=3, under_way=(BIG,))
    assert "cut off at candidate 1 of 1, with 3 of 3 responses" in unfinished(run)


def test_a_sweep_may_end_while_it_writes_responses(scene):
    scene.requests(2, ALL)
    run = scene.observed(1, requests=5, under_way=(BIG,))
    assert "(cut off before the first candidate, with 2 of 5 responses)" in unfinished(run)


def test_it_is_a_caveat_of_the_answer(scene):
    scene.requests(3, ALL, SMALL)
    run = scene.observed(1, under_way=(SMALL,))
    assert unfinished(run) in [caveat.text for caveat in recommend(run).caveats]


def test_a_sweep_that_ended_without_some_responses_is_not_finished(scene):
    scene.requests(2, ALL)
    assert "not finished (2 of 9 responses):" in unfinished(scene.observed(1, requests=9))
    assert unfinished(scene.observed(1, requests=2)) is None
