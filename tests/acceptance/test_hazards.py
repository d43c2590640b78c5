"""Rounds that a serving engine counted → hazards, and figures at smaller k's by these."""

import pytest
from scenes import SMALL, manifest, served, trajectory

from draftbench.acceptance.hazards import served_rounds
from draftbench.acceptance.summary import acceptance_report
from draftbench.run_folder.run import run_of


def test_a_server_that_tells_sums_alone_accepts_alike_at_every_position():
    """Of 100 rounds of two tokens 75 were accepted: a half of the first, half of those of the
    second. Spread evenly over the rounds they would be 3 of 4 of the first and none of the second.
    """
    rows = []
    for request in "abcde":
        same = {"request": request, "digest": request, "concurrency": 4}
        rows.append(trajectory(request, 176, origin="engine", margins=(), argmax=()))
        for draft, k, sums in (
            (None, 0, {}),
            (SMALL, 2, {"rounds": 100, "kept": 75, "drafted": 200}),
        ):
            seconds = (0.1 * (n + 1) for n in range(176))
            rows.append(served(draft, k, *seconds, **same, **sums))
    observed = run_of(manifest(engine="llama.cpp", ks=(2,), batches=(4,)), rows)
    assert served_rounds(observed, SMALL).hazards == pytest.approx([0.5, 0.5])


def test_requests_that_were_asked_one_by_one_tell_the_positions_of_all():
    """The same server, which accepts .6 and .25 of those; at four in flight it tells sums alone."""
    rows = []
    for request in "abcde":
        rows.append(trajectory(request, 176, origin="engine", margins=(), argmax=()))
        for load, told in ((1, {"by_position": (60, 15)}), (4, {})):
            seconds = (0.1 * (n + 1) for n in range(176))
            sums = {"rounds": 100, "kept": 75, "drafted": 200, "concurrency": load} | told
            rows.append(served(SMALL, 2, *seconds, request=request, digest=request, **sums))
    observed = run_of(manifest(engine="llama.cpp", ks=(2,), batches=(1, 4)), rows)
    assert served_rounds(observed, SMALL).hazards == pytest.approx([0.6, 0.25])


def at_two():
    """Two tokens drafted a round, of 176 tokens each; every second request accepts more."""
    rows = []
    for at, request in enumerate("abcdef"):
        rounds, first, both = (100, 60, 15) if at % 2 else (140, 30, 5)
        rows.append(trajectory(request, 176, origin="engine", margins=(), argmax=()))
        seconds = (0.1 * (n + 1) for n in range(176))
        sums = {"rounds": rounds, "kept": first + both, "drafted": 2 * rounds}
        sums["by_position"] = (first, both)
        rows.append(served(SMALL, 2, *seconds, request=request, digest=request, **sums))
    return run_of(manifest(engine="vllm", ks=(1, 2, 3)), rows)


def lengths(figures):
    return {each.k: each.pooled.value for each in figures if each.symbol == "τ"}


def test_below_the_largest_k_that_an_engine_ran_with_figures_are_predicted_from_its_positions():
    """Of 720 rounds 270 accepted the first token and 60 both: 1 + 270 / 720 at k = 1. At 3 nothing
    is known.
    """
    (card,) = acceptance_report(at_two(), [SMALL], (1, 2, 3), 0.02).candidates
    assert lengths(card.at_each_k) == {2: pytest.approx(1 + 330 / 720)}
    assert lengths(card.predicted) == {1: pytest.approx(1 + 270 / 720, rel=0.005)}


def test_a_predicted_figure_is_as_uncertain_over_requests_as_what_the_engine_counted():
    (card,) = acceptance_report(at_two(), [SMALL], (1, 2), 0.02).candidates
    (found,) = [each for each in card.predicted if each.symbol == "τ"]
    # Requests alone would be at 1 + 30 / 140 and at 1 + 60 / 100.
    assert 1.2 < found.pooled.low < found.pooled.value - 0.1
    assert found.pooled.value + 0.1 < found.pooled.high < 1.6
    assert found.per_request is None
