import pytest
from draftbench.report.figures import figures_of

from draftbench.planner.recommend import recommend
from draftbench.records import Sampling
from draftbench.run_folder.run import run_of


def figures(hand, records, **question):
    run = run_of(hand.manifest(**question), records)
    return figures_of(run, recommend(run))


def test_survival_is_followed_to_the_largest_k_of_the_run(hand):
    # A perfect draft at k = 2 on 8 tokens: rounds of 2, 2 and, at the limit, 1 accepted token.
    found = figures(hand, hand.perfect()).survival
    assert [e.value for e in found["small"]] == pytest.approx([1, 2 / 3])


def test_segments_are_sorted_and_counted_and_leave_the_control_out(hand):
    own = hand.replay("r0", (1.0,) * 8, "self")
    found = figures(hand, [*hand.perfect(), own])
    assert [(p.by, p.name, p.requests, p.candidate) for p in found.parts] == [
        ("segment", "chat", 1, "small"),
        ("segment", "code", 1, "small"),
    ]
    assert found.k == 2


def test_prompt_lookup_has_tokens_per_round_by_segment_but_no_alpha(hand):
    records = [*hand.perfect()]
    records += [hand.trajectory(f"r{n}", segment="code") for n in (2, 3)]
    records += [hand.lookup(f"r{n}") for n in range(4)]
    own = [p for p in figures(hand, records).parts if p.candidate == "ngram"]
    assert [p.alpha for p in own] == [None, None]
    assert own[1].tokens_per_round.value == 1


def test_traffic_of_one_segment_and_one_temperature_is_not_split(hand):
    records = [r for r in hand.perfect() if getattr(r, "request", "r0") == "r0"]
    assert figures(hand, records).parts == ()


def test_alpha_of_a_part_is_that_of_its_own_requests(hand):
    hot = Sampling(temperature=0.7)
    records = [hand.facts(None)]
    for at, (segment, sampling) in enumerate(
        [("chat", Sampling()), ("chat", Sampling()), ("code", hot), ("code", hot), ("code", hot)]
    ):
        accept = (1.0,) * 8 if segment == "chat" else (0.5,) * 8
        records += [
            hand.trajectory(f"q{at}", segment=segment, sampling=sampling),
            hand.replay(f"q{at}", accept),
        ]
    found = {p.name: (p.requests, p.alpha.value) for p in figures(hand, records).parts}
    assert found == {"chat": (2, 1.0), "code": (3, 0.5), "0": (2, 1.0), "0.7": (3, 0.5)}
