"""Rounds counted one by one, to compare expected ones with."""

from dataclasses import fields

import numpy as np

from draftbench.acceptance.rounds import Rounds


def tally(rounds, k, tokens):
    """The fields of `Rounds` for one sequence of rounds, counted one by one."""
    count = {
        f.name: np.zeros(())
        for f in fields(Rounds)
        if f.name not in ("k", "tokens", "by_draft", "reads")
    }
    count |= {"by_draft_length": np.zeros(k + 1), "after_full": np.zeros(k + 1)}
    count |= {"reached": np.zeros(k), "survived": np.zeros(k)}
    before_full = False
    for proposed, accepted, cut in rounds:
        count["with_draft" if proposed else "without_draft"] += 1
        count["proposed"] += proposed
        count["accepted"] += accepted
        count["cut"] += cut
        count["by_draft_length"][proposed] += 1
        count["after_full"][proposed] += before_full
        before_full = proposed > 0 and accepted == proposed
        count["full"] += before_full
        for i in range(proposed - cut):
            count["reached"][i] += i <= accepted
            count["survived"][i] += i < accepted
    return count | {"tokens": np.array(float(tokens))}


def assert_same(rounds, row, wanted):
    for name, value in wanted.items():
        np.testing.assert_allclose(getattr(rounds, name)[row], value, atol=1e-12, err_msg=name)
