"""What engines have in common."""

from draftbench.engines.engine import Counters


def test_counters_are_subtracted_one_by_one():
    before = Counters(rounds=10, drafted=40, kept=20, by_position=(9, 7, 4), generated=31)
    after = Counters(rounds=13, drafted=52, kept=26, by_position=(12, 9, 4, 1), generated=40)
    expected = Counters(rounds=3, drafted=12, kept=6, by_position=(3, 2, 0, 1), generated=9)
    assert after.since(before) == expected


def test_a_counter_that_fell_is_unknown_since_the_server_restarted():
    before = Counters(rounds=10, by_position=(9, 7), generated=31)
    after = Counters(rounds=3, by_position=(3, 8), generated=40)
    assert after.since(before) == Counters(rounds=None, by_position=None, generated=9)


def test_positions_that_a_server_names_from_its_first_draft_on_began_at_nothing():
    before = Counters(rounds=0, drafted=0, kept=0)
    after = Counters(rounds=2, drafted=8, kept=5, by_position=(2, 2, 1))
    assert after.since(before).by_position == (2, 2, 1)
    assert after.since(Counters()).by_position is None
