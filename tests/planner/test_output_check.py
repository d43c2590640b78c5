"""Outputs with speculation compared with those without, by cause and by load."""

import pytest
from msgspec import structs
from planner.engine_run import answers, run
from scenes import SMALL

from draftbench.planner.output_check import (
    audit,
    matches_with_draft,
    matches_without_draft,
    texts_at,
)
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Audit
from draftbench.records import Sampling
from draftbench.run_folder.run import run_of


def test_the_audit_counts_each_request_once_by_its_worst_difference(scene):
    for name in ("same", "tie", "fault", "hot", "logged"):
        changes = {"hot": {"sampling": Sampling(temperature=1.0)}}.get(name, {})
        scene.request(name, origin="log" if name == "logged" else "target", **changes)
        scene.decode(name, 1, 1.0)
    scene.decode("tie", 2, 1.0, first_difference=3, tie=True)
    scene.decode("fault", 1, 1.0, first_difference=3, tie=True)
    scene.decode("fault", 2, 1.0, first_difference=5, tie=False)
    scene.decode("logged", 2, 1.0, first_difference=0, tie=False)
    scene.decode("same", 0, 1.0, first_difference=0, tie=False)
    assert audit(scene.observed(1, 2)) == Audit(requests=3, identical=1, near_ties=1, faults=1)


@pytest.mark.parametrize(("wrong", "decisive"), [(2, False), (3, True)])
def test_where_most_texts_differ_without_a_near_tie_the_answer_is_provisional(
    scene, wrong, decisive
):
    for at, name in enumerate("abcd"):
        scene.request(name)
        scene.decode(name, 0, 8.0)
        other = {"first_difference": 3, "tie": False} if at < wrong else {}
        scene.decode(name, 1, 8.0, **other)
    (caveat,) = [c for c in recommend(scene.observed(1)).caveats if c.kind == "output-differs"]
    assert caveat.decisive is decisive


def test_without_speculative_runs_there_is_nothing_to_audit(scene):
    scene.request("a")
    scene.decode("a", 0, 1.0)
    assert audit(scene.observed(1)) is None


@pytest.mark.parametrize(
    ("ties", "found", "decisive"),
    [
        ((None, None), (3, 0, 0, 2), False),
        ((True, False), (3, 1, 1, 0), False),
        ((False,) * 3, (2, 0, 3, 0), True),
    ],
)
def test_answers_that_differ_from_the_plain_servers_are_counted_by_cause(ties, found, decisive):
    """Of five requests; those with several in flight are computed in other batches."""
    rows = answers(1)
    for at, tie in enumerate(ties):
        rows[at] = structs.replace(rows[at], first_difference=3, tie=tie)
    made = run(*answers(0), *rows, *answers(1, "abcde", concurrency=4))
    seen = audit(made)
    assert (seen.requests, seen.identical) == (5, found[0])
    assert (seen.near_ties, seen.faults, seen.unknown) == found[1:]
    (caveat,) = [c for c in recommend(made).caveats if c.kind == "output-differs"] or [None]
    assert (caveat.decisive if caveat else False) == decisive


def test_the_worst_of_several_starts_counts_and_only_the_plain_servers_later_ones():
    made = run(
        *answers(0),
        *answers(0, "d", repeat=1, server="p2"),
        *answers(1, "a"),
        *answers(1, repeat=1, server="s2"),
        *answers(2, "b"),
    )
    with_draft = matches_with_draft(made)
    assert {r for (r, _), match in with_draft.items() if match != "same"} == {"a", "b"}
    at_one = matches_with_draft(made, SMALL, 1)
    assert {r: match for (r, _), match in at_one.items()} == dict.fromkeys("bcde", "same") | {
        "a": "unknown"
    }
    again = matches_without_draft(made)
    assert {r for (r, _), match in again.items() if match != "same"} == {"d"}


def test_a_server_that_drafts_is_not_compared_with_itself():
    assert audit(run(*answers(1))) is None
    assert texts_at(run(*answers(1)), 1) is None


def test_a_server_that_returns_texts_alone_shows_that_they_differ_and_not_why():
    rows = [structs.replace(row, digest="else") for row in answers(1)]
    seen = audit(run(*answers(0), *rows, engine="openai"))
    assert (seen.identical, seen.unknown) == (0, 5)


def test_logged_and_sampled_responses_are_not_compared():
    made = run(*answers(0), *answers(1, "a"))
    scored = {"margins": (5.0,) * 9, "argmax": (1,) * 9}
    logged = [structs.replace(t, origin="log", **scored) for t in made.trajectories]
    assert audit(run_of(made.manifest, [*logged, *made.served])) is None
    warm = structs.replace(made.trajectories[0].sampling, temperature=0.7)
    sampled = [structs.replace(t, sampling=warm) for t in made.trajectories]
    assert audit(run_of(made.manifest, [*sampled, *made.served])) is None


def test_at_a_load_both_shares_are_beside_the_texts_written_one_by_one():
    made = run(
        *answers(0),
        *answers(0, "e", repeat=1, server="p2"),
        *answers(0, "ab", concurrency=4),
        *answers(1, "abc", concurrency=4),
        *answers(2, "d", concurrency=4),
        concurrency=(1, 4),
    )
    four = texts_at(made, 4)
    assert (four.differ, four.answers, four.plain_differ, four.plain_answers) == (4, 10, 2, 5)
    assert texts_at(made, 1) is None  # nothing was asked there with speculation
    assert texts_at(made, 8) is None


def test_one_by_one_the_answer_that_is_the_text_is_not_compared_with_itself():
    made = run(*answers(0), *answers(0, "a", repeat=1, server="p2"), *answers(1, "bc"))
    one = texts_at(made, 1)
    assert (one.differ, one.answers, one.plain_differ, one.plain_answers) == (2, 5, 1, 5)


def test_answers_at_their_times_of_arrival_are_a_load_of_their_own():
    opened = {"load": "open", "concurrency": 3}
    made = run(*answers(0), *answers(0, "a", **opened), *answers(1, "ab", **opened), arrivals="log")
    assert audit(made) is None
    found = texts_at(made, 1)
    assert (found.load, found.differ, found.plain_differ) == ("open", 2, 1)


def test_the_shares_stand_among_the_checks_and_in_json():
    rows = answers(0, "e", concurrency=4), answers(1, "abc", concurrency=4)
    answer = recommend(run(*answers(0), *answers(1), *rows[0], *rows[1], concurrency=(1, 4)))
    (said,) = [each for each in answer.checks if "requests in flight" in each]
    assert said.startswith("At temperature 0, with 4 requests in flight, 3 of 5 answers with ")
    assert "and 1 of 5 without it differ" in said
    (one, four) = (at.texts for at in answer.by_concurrency)
    assert (four.differ, four.plain_differ, one.differ) == (3, 1, 0)
