import pytest

from draftbench.planner.recommend import recommend
from draftbench.records import Sampling
from draftbench.report.figures import figures_of
from draftbench.run_folder.run import run_of


def figures(hand, records, **question):
    run = run_of(hand.manifest(**question), records)
    return figures_of(run, recommend(run))


def test_the_falls_of_survival_are_the_shares_of_accepted_lengths(hand):
    # A perfect draft at k = 2 on 8 tokens: rounds of 2, 2 and, at the limit, 1 accepted token.
    (found,) = figures(hand, hand.perfect()).lengths
    assert (found.candidate, found.k, found.rounds) == ("small", 2, 6)
    assert found.expected == pytest.approx((0, 1 / 3, 2 / 3))
    assert found.rounds_counted == 6
    assert found.counted == pytest.approx((0, 1 / 3, 2 / 3))


def test_positions_are_followed_at_the_largest_k_of_the_run(hand):
    (found,) = figures(hand, hand.perfect()).positions
    assert found.k == 2
    assert [e.value for e in found.survival] == pytest.approx([1, 2 / 3])
    assert [e.value for e in found.hazard] == pytest.approx([1, 1])


def test_segments_are_sorted_and_counted_and_leave_the_control_out(hand):
    own = hand.replay("r0", (1.0,) * 8, "self")
    found = figures(hand, [*hand.perfect(), own]).segments
    assert found.candidates == ("small",)
    assert (found.groups, found.requests) == (("chat", "code"), (1, 1))


def test_prompt_lookup_has_tokens_per_round_by_segment_but_no_alpha(hand):
    records = [*hand.perfect()]
    records += [hand.trajectory(f"r{n}", segment="code") for n in (2, 3)]
    records += [hand.lookup(f"r{n}") for n in range(4)]
    found = figures(hand, records).segments
    row = found.candidates.index("ngram")
    assert found.alpha[row] == (None, None)
    assert found.tokens_per_round[row][1].value == 1


def test_traffic_of_one_segment_and_one_temperature_is_not_split(hand):
    records = [r for r in hand.perfect() if getattr(r, "request", "r0") == "r0"]
    found = figures(hand, records)
    assert found.segments is None
    assert found.temperatures is None


def test_token_times_are_of_requests_that_ran_both_ways(hand):
    only_plain = [hand.trajectory("r2"), hand.decode("r2", 0, 80.0)]
    other_block = hand.decode("r0", 0, 800.0, draft="other")
    found = figures(hand, [*hand.perfect(), *only_plain, other_block]).times
    # 8 tokens after the first.
    assert found.plain == (1.0, 1.0)
    assert found.speculative == (0.5, 0.5)


def test_repeats_of_a_request_are_averaged(hand):
    found = figures(hand, [*hand.perfect(), hand.decode("r0", 2, 6.0, repeat=1)]).times
    assert found.speculative == (0.625, 0.5)


def test_nothing_is_made_up_for_a_run_without_times(hand):
    records = [r for n in "01" for r in (hand.trajectory(n), hand.replay(n, (1.0,) * 8))]
    found = figures(hand, records)
    assert (found.times, found.target_bytes) == (None, None)
    assert found.lengths[0].counted is None
    assert len(found.positions) == 1


def test_accepted_lengths_are_those_of_every_draft_but_the_control(hand):
    records = hand.perfect()
    records += [hand.replay(r, (1.0,) * 8, d) for d in ("self", "other") for r in ("r0", "r1")]
    found = {each.candidate: each for each in figures(hand, records).lengths}
    assert set(found) == {"small", "other"}
    # Without decoding runs of its own there is nothing to count.
    assert found["other"].counted is None


def test_segments_at_temperatures_are_a_table_of_the_first_model_draft(hand):
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
    found = figures(hand, records).crossed
    assert (found.candidate, found.segments, found.temperatures) == (
        "small",
        ("chat", "code"),
        (0.0, 0.7),
    )
    assert found.requests == ((2, 0), (0, 3))
    (chat, nothing), (absent, code) = found.alpha
    assert (chat.value, nothing, absent, code.value) == (1.0, None, None, 0.5)
