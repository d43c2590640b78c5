"""Waits with and without speculation, each percentile only where the sample supports it."""

import pytest
from scenes import ALL, SMALL, manifest, replay, served, trajectory

from draftbench.planner.evaluator import Evaluator
from draftbench.planner.latency import keeps, latency, slo_kept
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Slo
from draftbench.run_folder.run import run_of

TARGET, DRAFT = {1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15}


def waits(scene, requests, slowest=4.0):
    """Plain 1 s a token; speculation one round of 4 s for 8 tokens, on one request `slowest` s."""
    scene.timed(requests, DRAFT)
    for i in range(requests):
        scene.decode(f"r{i}", 0, 8.0)
        scene.decode(f"r{i}", 2, 4.0 if i else slowest, draft_prefill_seconds=0.5)
    found = recommend(scene.observed(2)).latency
    return found


def test_what_each_side_is_of(scene):
    found = waits(scene, 3)
    assert (found.draft, found.quant, found.k, found.concurrency) == ("small", "none", 2, 1)
    plain, speculative = found.plain, found.speculative
    assert plain.time_per_output_token.p50 == pytest.approx(1.0)
    assert speculative.time_per_output_token.p50 == pytest.approx(0.5)
    # 24 steps of a second, and 9 rounds that deliver 24 tokens in 12 s.
    assert (plain.chunk_gap.values, plain.chunk_gap.p50) == (24, pytest.approx(1.0))
    assert (speculative.chunk_gap.values, speculative.chunk_gap.p50) == (9, pytest.approx(4 / 3))
    assert plain.time_to_first_token.p50 == pytest.approx(1.0)
    assert speculative.time_to_first_token.p50 == pytest.approx(1.5)


def test_a_percentile_needs_a_value_beyond_it(scene):
    found = waits(scene, 9, slowest=12.0)
    times = found.speculative.time_per_output_token
    assert (times.p90, times.p99, times.largest) == (None, None, pytest.approx(1.5))
    assert (found.p99_ratio, found.p99_ratio_of) == (pytest.approx(1.5), "the largest of 9")


def test_with_a_hundred_requests_there_is_a_p99(scene):
    found = waits(scene, 100, slowest=12.0)
    times = found.speculative.time_per_output_token
    # Between the 99th and the 100th value, a hundredth of the way.
    assert times.p99 == pytest.approx(0.5 + 0.01 * 1.0)
    assert times.p90 == pytest.approx(0.5)
    assert (found.p99_ratio, found.p99_ratio_of) == (pytest.approx(0.51), "p99")


def test_rounds_of_a_batch_are_the_waits_of_each_of_its_rows(scene):
    scene.requests(2, ALL)
    scene.times(TARGET, DRAFT, concurrency=2)
    for name in ("r0", "r1"):
        scene.batch_run(name, 0, (0,) * 8, (1.0,) * 8)
        scene.batch_run(name, 2, (2, 2, 1), (1.5, 1.5, 9.0), active=(2, 2, 1))
    found = recommend(scene.observed(2), DecisionOptions(concurrency=(2,))).latency
    assert found.concurrency == 2
    assert found.speculative.time_per_output_token.largest == pytest.approx(3.0 / 6)
    assert found.speculative.chunk_gap.largest == pytest.approx(1.5)
    # Eight steps and two full rounds, which both rows recorded.
    assert (found.plain.chunk_gap.values, found.speculative.chunk_gap.values) == (8, 2)


def of_engine(**told):
    """Plain: a token a second. With a draft: four rounds of which one takes 4 s and the others 1 s,
    their tokens sent apart, 10 ms after one another.
    """
    moments = [1.0, *(after + 0.01 * token for after in (2.0, 6.0, 7.0, 8.0) for token in (0, 1))]
    run = run_of(
        manifest(engine="llama.cpp", ks=(2,)),
        [
            trajectory("r", 9, origin="engine", margins=(), argmax=()),
            replay((1.0, 0.0) * 4),
            served(None, 0, *map(float, range(1, 10))),
            served(SMALL, 2, *moments, **told),
        ],
    )
    evaluator = Evaluator(run, DecisionOptions())
    (configuration,) = evaluator.table(1).configurations
    return latency(evaluator.evidence(configuration), run)


def test_a_round_of_an_engine_is_not_as_long_as_their_mean():
    found = of_engine(rounds=4, drafted=8, accepted=4)
    assert found.plain.chunk_gap.largest == pytest.approx(1.0)
    # Until the second token of the round that began at 2.01 s: 6.01 - 2.01.
    assert (found.speculative.chunk_gap.values, found.speculative.chunk_gap.largest) == (
        4,
        pytest.approx(4.0),
    )


def test_gaps_of_an_engine_that_tells_no_rounds_are_unknown():
    found = of_engine()
    assert found.plain.chunk_gap is not None
    assert found.speculative.chunk_gap is None


def test_nothing_decoded_nothing_known(scene):
    scene.timed(2, DRAFT)
    assert recommend(scene.observed(2)).latency is None


LIMITS = Slo(ttft=0.3, tpot=0.04)
# Two pieces of 4 tokens in 0.16 s each: 40 ms a token.
IN_PIECES = served(SMALL, 4, 0.3, 0.46, 0.62, chunks=(1, 4, 4), by_round=((4, 3), (4, 3)))


@pytest.mark.parametrize(
    ("row", "limits", "kept"),
    [
        (served(None, 0, 0.30, 0.33, 0.37), LIMITS, True),
        (served(None, 0, 0.31, 0.34, 0.38), LIMITS, False),
        (served(None, 0, 0.30, 0.35, 0.39), LIMITS, False),
        (served(None, 0, 0.30, 0.33, 0.37, error="timeout"), LIMITS, False),
        (served(None, 0, 0.3), LIMITS, True),  # one piece has no time per token
        (served(None, 0), LIMITS, False),
        (IN_PIECES, Slo(tpot=0.041), True),
        (IN_PIECES, Slo(tpot=0.039), False),
        (IN_PIECES, Slo(e2e=0.6), False),
    ],
)
def test_requests_that_failed_or_took_longer_than_a_limit_did_not_keep_it(row, limits, kept):
    assert keeps(row, limits) is kept


def test_the_share_that_kept_has_wilsons_interval():
    """9 of 10: (0.596, 0.982), as in Brown, Cai and DasGupta (2001)."""
    rows = [served(None, 0, 0.1, 0.2, request=f"r{n}") for n in range(9)]
    rows.append(served(None, 0, 9.0, 9.1, request="late"))
    kept = slo_kept(run_of(manifest(engine="vllm"), rows), None, 1, Slo(ttft=1.0))
    assert kept.plain.value == pytest.approx(0.9)
    assert (kept.plain.low, kept.plain.high) == pytest.approx((0.596, 0.982), abs=1e-3)
    assert kept.speculative is None


def test_the_same_requests_asked_twice_are_no_more_requests():
    """8 requests asked twice, then one of them once more, late. Wilson's interval by hand."""

    def kept(rows):
        return slo_kept(run_of(manifest(engine="vllm"), rows), None, 1, Slo(ttft=1.0)).plain

    twice = [
        served(None, 0, 0.1, 0.2, request=f"r{n}", server=start, repeat=repeat)
        for repeat, start in enumerate(("a", "b"))
        for n in range(8)
    ]
    found = kept(twice)
    # z²/n = 3.8415 / 8 = 0.4802: from 1 / 1.4802 on.
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 0.6756, 1.0), abs=1e-4)
    late = served(None, 0, 9.0, 9.1, request="r0", server="c", repeat=2)
    found = kept([*twice, late])
    # (7 + 2/3) / 8 = 0.9583; (0.9583 + 0.2401 ± 1.96 √(0.0399 / 8 + 0.0150)) / 1.4802.
    assert (found.value, found.low, found.high) == pytest.approx((0.9583, 0.6224, 0.9969), abs=5e-4)
