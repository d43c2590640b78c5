"""Rounds of drafts that only an engine runs: of their counts, by request, at any k."""

import pytest
from scenes import SMALL, manifest, served, trajectory

from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.intervals import estimate
from draftbench.acceptance.rounds import expected_rounds
from draftbench.planner.options import DecisionOptions
from draftbench.planner.predict import predictor_of
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Slo
from draftbench.report.answer import reasons
from draftbench.report.terminal.recommendation import render
from draftbench.run_folder.run import run_of

TOKENS = 400
# Of the tokens after the first so many were drafted, at one a round: 320 to 240 rounds.
KEPT = {"a": 80, "b": 100, "c": 120, "d": 140, "e": 160}


def run(kept=KEPT, weights=(1, 1, 1, 1, 1)):
    """A server that drafts one token a round, without a baseline."""
    rows = []
    for weight, (request, count) in zip(weights, kept.items(), strict=True):
        same = {"request": request, "digest": request}
        length = TOKENS + 1
        rows.append(
            trajectory(request, length, origin="engine", margins=(), argmax=(), weight=weight)
        )
        for draft, k, sums in (
            (None, 0, {}),
            (SMALL, 1, {"kept": count, "drafted": TOKENS - count}),
        ):
            seconds = (0.1 * (n + 1) for n in range(length))
            rows.append(served(draft, k, *seconds, **same, **sums))
    return run_of(manifest(engine="vllm", ks=(1,)), rows)


def test_each_request_has_the_rounds_that_were_counted_of_it():
    # To first order; a last token that cannot be drafted is the rest.
    rounds = predictor_of(run(), SMALL).rounds(1)
    assert rounds.rounds + rounds.plain == pytest.approx([320, 300, 280, 260, 240], rel=0.01)
    assert rounds.tokens == pytest.approx([TOKENS] * 5)


def test_what_requests_change_the_hazards_by_adds_up_to_nothing():
    predictor = predictor_of(run(weights=(3, 1, 1, 1, 2)), SMALL)
    by_hazards = expected_rounds(predictor.laws, 1)
    for name in ("rounds", "accepted", "survived"):
        sums = (
            predictor.weights @ getattr(each, name) for each in (predictor.rounds(1), by_hazards)
        )
        assert next(sums) == pytest.approx(next(sums))


def test_a_figure_by_hazards_is_as_uncertain_over_requests_as_the_counts_are():
    predictor = predictor_of(run(), SMALL)
    found = estimate(tokens_per_round(predictor.trajectories, predictor.rounds(1)))
    # 2000 tokens in 1400 rounds; 400 / 320 to 400 / 240 of one request.
    assert found.value == pytest.approx(2000 / 1400, rel=0.01)
    assert found.high - found.low > 0.1


def test_nothing_is_said_of_replay_where_nothing_was_replayed():
    text = render(recommend(run()), "markdown", 200, everything=True)
    assert "only 5 requests were decoded" in text
    assert "replay" not in text


def alone():
    """As `run`, where no server without speculation was asked."""
    rows = [trajectory(name, TOKENS + 1, origin="engine", margins=(), argmax=()) for name in KEPT]
    for request, count in KEPT.items():
        seconds = (0.1 * (n + 1) for n in range(TOKENS + 1))
        sums = {"kept": count, "drafted": TOKENS - count}
        rows.append(served(SMALL, 1, *seconds, request=request, digest=request, **sums))
    return run_of(manifest(engine="vllm", ks=(1,)), rows)


def test_a_server_without_a_baseline_has_its_accepted_length_and_says_what_is_missing():
    answer = recommend(alone())
    # 2000 tokens in 1400 rounds.
    assert answer.evaluations[0].mean_accepted_length.value == pytest.approx(2000 / 1400, rel=0.01)
    assert "no server without speculation" in answer.evaluations[0].reason
    text = next(caveat.text for caveat in answer.caveats if caveat.kind == "no-speed")
    assert text.startswith("no candidate's speed is known: no server without speculation")
    assert reasons(answer)[-1] == (
        "Next: the same sweep with --baseline-server URL, in another --out."
    )


def test_limits_are_counted_on_a_server_without_a_baseline():
    # Each first token comes after .1 s.
    kept = recommend(alone(), DecisionOptions(slo=Slo(ttft=0.2))).slo_kept
    assert (kept.plain, kept.speculative.value) == (None, 1.0)


def at_two(**told):
    """Two drafted tokens a round, 100 rounds of 176 tokens each, beside a plain server."""
    rows = [trajectory(name, 176, origin="engine", margins=(), argmax=()) for name in KEPT]
    for name in KEPT:
        for draft, k, sums in ((None, 0, {}), (SMALL, 2, told)):
            seconds = (0.1 * (n + 1) for n in range(176))
            rows.append(served(draft, k, *seconds, request=name, digest=name, **sums))
    return run_of(manifest(engine="vllm", ks=(1, 2)), rows)


def test_a_k_that_the_engine_was_not_started_with_has_the_accepted_length_of_its_positions():
    """Of 100 rounds 60 accept the first token and 15 both: 1 + .6 at k = 1, 1 + .6 + .15 at 2."""
    told = {"rounds": 100, "kept": 75, "drafted": 200, "by_position": (60, 15)}
    one, two = sorted(recommend(at_two(**told)).evaluations, key=lambda each: each.k)
    assert (one.k, one.mean_accepted_length.value) == (1, pytest.approx(1.6, rel=0.01))
    assert (two.k, two.mean_accepted_length.value) == (2, pytest.approx(1.75, rel=0.01))
    assert one.speedup_predicted is not None
    # It did not run: nothing was counted.
    assert one.mean_accepted_length_measured is None


def test_of_a_server_that_tells_nothing_no_accepted_length_is_made_up():
    assert [e.mean_accepted_length for e in recommend(at_two()).evaluations] == [None, None]
