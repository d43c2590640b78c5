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
