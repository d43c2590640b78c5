"""What passes promise of one row and of several that go together, each counted by hand, and what
cells of an engine's starts are worth.
"""

import math

import numpy as np
import pytest
from msgspec import structs
from planner.engine_run import answers, in_rounds, run
from scenes import ALL, BIG, CHEAP, INT4, NGRAM, NONE, SMALL, TARGET, engine_facts

from draftbench.planner.caveat_kinds import DRIFT
from draftbench.planner.caveats import beyond_timed
from draftbench.planner.cells import (
    DrawnRequests,
    Drift,
    baseline_drift,
    cells_of,
    measurements,
    steady,
)
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration
from draftbench.records import Decode, StopRule

TWO, DRAFT_TWO = {1: 1.0, 2: 1.2, 3: 1.5}, {1: 0.1, 2: 0.16}
# k = 2 on 8 accepted tokens: rounds propose 2, 2 and 1, and two of the three follow a full one. The
# verify pass of two rows is 1 + 5/3 tokens wide, the first draft pass 1 + 2/3; the second happens
# unless both rows are at their limit, 1 - (1/3)².
ROUND = (1.2 + 2 / 3 * 0.3) + (0.1 + 2 / 3 * 0.06) + (8 / 9) * 0.1


def evidence(scene, k, candidate=SMALL, concurrency=1):
    evaluator = Evaluator(scene.observed(1, 2, k), DecisionOptions())
    return evaluator.evidence(Configuration.of(candidate, k, concurrency))


def speedup(scene, k, candidate=SMALL, concurrency=1):
    found = evidence(scene, k, candidate, concurrency)
    plain, rounds = found.seconds_by_response
    return found.rounds.weights @ plain / (found.rounds.weights @ rounds)


def whole(scene):
    """The speed-up at k = 2 with both prefills."""
    evaluator = Evaluator(scene.observed(1, 2), DecisionOptions())
    return evaluator.table(1, "end_to_end").value(Configuration.of(SMALL, 2, 1))


@pytest.fixture
def timed(scene):
    """Two requests that accept everything, timed with one row and with two."""
    scene.timed(2)
    scene.times(TWO, DRAFT_TWO, concurrency=2)
    return scene


def one_heavy(scene):
    """Of 8 accepted tokens "a" takes 4 rounds at k = 1, three of them after a full one; "b" is one
    plain step and stands for three.
    """
    scene.request("a", 9)
    scene.request("b", 2, weight=3.0)
    scene.replay("a", ALL)
    scene.replay("b", [1.0])
    scene.times(TARGET, CHEAP)
    scene.times(TWO, DRAFT_TWO, concurrency=2)


def test_two_requests_that_accept_everything(timed):
    # Rounds start at 1, 4 and 7, the last proposes one token. Plain 8 · 1.0. Passes 1.2 + 1.2 +
    # 1.1, five draft steps of 0.1, and two rounds follow a full one, whose first step reads two
    # tokens: 2 · 0.05. Together 4.1.
    assert speedup(timed, 2) == pytest.approx(8 / 4.1)


def test_a_draft_that_is_never_right_costs_its_steps_and_longer_passes(scene):
    # 8 rounds; at k = 1 the first seven propose one token, the last position proposes none.
    scene.requests(2, NONE)
    scene.times(TARGET, CHEAP)
    assert speedup(scene, 1) == pytest.approx(8 / (7 * (1.1 + 0.1) + 1.0))


def test_the_long_request_weighs_by_its_seconds_and_a_heavy_one_by_its_weight(scene):
    one_heavy(scene)
    assert speedup(scene, 1) == pytest.approx((8 + 3) / (4 * 1.2 + 3 * 0.05 + 3))


def test_each_request_pays_at_its_own_context(scene):
    # prompt + L/2 is 90 + 2 / 2 = 91 and 10 + 2 / 2 = 11; a step takes a second per 100 tokens.
    for name, prompt in (("far", 90), ("near", 10)):
        scene.request(name, 2, prompt_tokens=prompt, limit=9)
        scene.replay(name, [0.0])
    for context in (0, 100):
        scene.times(dict.fromkeys((1, 2, 3), context / 100), {1: 0.1, 2: 0.1}, contexts=(context,))
    plain, rounds = evidence(scene, 1).seconds_by_response
    assert plain == pytest.approx([0.91, 0.11])
    assert rounds == pytest.approx([1.01, 0.21])


def test_prompt_lookup_pays_one_proposal_a_round_whatever_it_finds(scene):
    # Starts 1 (two found, both match), 4 (nothing found), 5 (one found, wrong), 6, 7, 8 (nothing).
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2, 0, 0, 0, 1, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0])
    scene.times(TARGET, None, NGRAM)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    rounds = 1.2 + 1.0 + 1.1 + 3 * 1.0 + 6 * 0.01
    assert speedup(scene, 2, NGRAM) == pytest.approx(8 / rounds)


def test_end_to_end_adds_both_prefills(timed):
    assert whole(timed) is None
    timed.prefills(2.0, 0.5)
    assert whole(timed) == pytest.approx((8 + 2) / (4.1 + 2.5))


def test_costs_asked_beyond_the_timed_points_are_named(scene):
    def beyond(largest_k):
        found = evidence(scene, 2)
        return beyond_timed(found.rounds, found.block, largest_k)

    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP, contexts=(0, 14))
    rest = "at the size or context of 2 of 2 responses; the nearest timed ones are used"
    assert beyond(3) == tuple(
        f"{what} were not timed {rest}" for what in ("target passes", "draft steps")
    )
    scene.times(TARGET, CHEAP, contexts=(15,))
    assert [len(beyond(k)) for k in (2, 3)] == [0, 1]


def test_rows_of_a_batch_go_through_rounds_of_their_mean_width(timed):
    assert speedup(timed, 2, concurrency=2) == pytest.approx(8 / (3 * ROUND))


def test_with_many_rows_somebody_always_drafts_to_the_end(timed):
    timed.times(TWO, DRAFT_TWO, concurrency=64)
    assert speedup(timed, 2, concurrency=64) == pytest.approx(8 / (3 * (1.4 + 0.14 + 0.1)))


def test_a_heavy_request_fills_the_rows_by_its_weight(scene):
    # "b", three times as often as "a", takes one plain step: 4/7 of all rounds propose a token,
    # 3/7 follow a full one.
    one_heavy(scene)
    width = 1.0 + 4 / 7 * 0.2
    drafting = (1 - (3 / 7) ** 2) * (0.1 + 3 / 7 * 0.06)
    assert speedup(scene, 1, concurrency=2) == pytest.approx(
        (8 + 3) / ((4 + 3) * (width + drafting))
    )


def test_lookups_of_a_batch_are_paid_in_every_round(scene):
    # Two found at starts 1 and 4, one at 7: three rounds of 1 + 5/3 tokens, two lookups each.
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2] * 8, [2] * 8)
    scene.times(TARGET, None, NGRAM)
    scene.times(TWO, None, NGRAM, concurrency=2)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    assert speedup(scene, 2, NGRAM, concurrency=2) == pytest.approx(8 / (3 * (1.4 + 0.02)))


def test_a_batch_played_round_by_round_takes_what_is_predicted(scene):
    # Four rows, refilled from 60 responses of 5 to 40 tokens over and over; seconds are linear in
    # the tokens of a pass, as the costs say. Counted over the rounds of the middle.
    rng = np.random.default_rng(7)
    tracks = [(rng.random(rng.integers(4, 40)) < 0.7).astype(float) for _ in range(60)]
    for i, track in enumerate(tracks):
        scene.request(f"r{i}", len(track) + 1)
        scene.replay(f"r{i}", track)
    scene.times({1: 1.0, 5: 1.8}, {1: 0.1, 2: 0.14}, concurrency=4)
    plain, speculative = played([track for _ in range(40) for track in tracks], rows=4, k=4)
    assert plain / speculative == pytest.approx(speedup(scene, 4, concurrency=4), rel=0.01)


def played(tracks, rows, k):
    """Seconds a token of plain decoding and of rounds in lockstep; a row that ends is refilled."""
    waiting = iter(tracks)
    active = [[next(waiting), 0, False] for _ in range(rows)]
    seconds, tokens = 0.0, 0
    while True:
        widths = [min(k, len(track) - at - 1) for track, at, _ in active]
        firsts = [1 + full for _, _, full in active]
        seconds += 1.0 + 0.2 * np.mean(widths)
        if max(widths):
            seconds += 0.1 + 0.04 * (np.mean(firsts) - 1) + 0.1 * (max(widths) - 1)
        for row, width in zip(active, widths, strict=True):
            track, at, _ = row
            tried = track[at : at + width]
            accepted = width if tried.all() else int(np.argmin(tried))
            row[1:] = [at + accepted + 1, width > 0 and accepted == width]
            tokens += accepted + 1
            if row[1] >= len(track):
                fresh = next(waiting, None)
                if fresh is None:
                    return 1.0, seconds * rows / tokens
                row[:] = [fresh, 0, False]


def test_tokens_per_second_are_compared_and_requests_pooled_as_ratios_of_sums(scene):
    # 8 tokens in 8 s against 4 in 2 s at k = 1: the shorter output does not make it faster than
    # 2 ×. At k = 2 16 tokens in 8 + 12 s against 16 in 3 + 2 s.
    for name in ("a", "b"):
        scene.request(name)
    scene.decode("a", 0, 8.0)
    scene.decode("a", 1, 2.0, verify_seconds=(1.0, 1.0))
    scene.decode("a", 2, 3.0)
    scene.decode("b", 0, 12.0)
    scene.decode("b", 2, 2.0)
    found = measurements(scene.observed(1, 2))
    assert found[Configuration.of(SMALL, 1, 1)].speedup.value == pytest.approx(2.0)
    assert found[Configuration.of(SMALL, 2, 1)].speedup.value == pytest.approx((16 / 5) / (16 / 20))


def test_only_requests_with_a_baseline_of_the_same_block_count_and_repeats_are_averaged(scene):
    # The baseline of "a" took 3 and 5 s, that of "b" belongs to another block.
    for name in ("a", "b"):
        scene.request(name)
        scene.decode(name, 1, 2.0)
    for repeat, seconds in enumerate((3.0, 5.0)):
        scene.decode("a", 0, seconds, repeat=repeat)
    scene.decode("b", 0, 400.0, INT4)
    ((at, found),) = measurements(scene.observed(1, 2)).items()
    assert at == Configuration.of(SMALL, 1, 1)
    assert (found.speedup.requests, found.keys) == (("a",), {("a", 0)})
    assert found.speedup.value == pytest.approx(2.0)


def test_batches_are_measured_apart_and_by_their_steady_rounds(scene):
    # 2 + 2 tokens in 3 s against 4 in 4 s; the rounds that one row ran alone took 99 s.
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.batch_run("a", 1, (1, 1, 1), (1.5, 1.5, 99.0), active=(2, 2, 1))
    assert measurements(scene.observed(1), 2) == {}  # its baseline ran alone
    scene.batch_run("a", 0, (0,) * 5, (1.0,) * 4 + (99.0,), active=(2,) * 4 + (1,))
    assert measurements(scene.observed(1)) == {}
    (found,) = measurements(scene.observed(1), 2).values()
    assert found.speedup.value == pytest.approx((4 / 3) / (4 / 4))
    assert [each.row.k for each in found.baseline] == [0]


def test_end_to_end_counts_the_prefills_by_the_steady_share(scene):
    # Alone: 8 tokens in 8 + 1 s against 8 in 4 + 1 + 1 s.
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.decode("a", 2, 4.0)
    found = measurements(scene.observed(1, 2))
    assert found[Configuration.of(SMALL, 2, 1)].end_to_end.value == pytest.approx(9 / 6)
    # Of 4 tokens 2 are steady: half of the prefills beside 1.5 s, the baseline all steady.
    scene.batch_run("a", 0, (0,) * 4, (1.0,) * 4)
    scene.batch_run("a", 1, (1, 1), (1.5, 99.0), active=(2, 1))
    whole = measurements(scene.observed(1), 2)[Configuration.of(SMALL, 1, 2)].end_to_end
    assert whole.value == pytest.approx((2 / (1.5 + 1)) / (4 / 5))


@pytest.mark.parametrize(
    ("accepted", "cut", "active", "kept", "tokens"),
    [
        ((2, 0, 1), (0, 0, 0), (2, 2, 1), (2, 0), 4),  # of 3 + 1 + 2 tokens; the last round alone
        # The last round proposed two tokens, of which the first ended the response: 3 + 1 tokens.
        ((2, 1), (0, 1), (2, 2), (2, 1), 4),
        ((2, 1), (0, 1), (1, 2), (1,), 1),
        ((2,), (0,), (1,), None, 0),  # never full
    ],
)
def test_only_rounds_without_an_empty_row_are_steady(scene, accepted, cut, active, kept, tokens):
    seconds = (1.5, 1.4, 1.1)[: len(accepted)]
    length = 1 + sum(accepted) + cut.count(0)
    scene.batch_run("r", 2, accepted, seconds, cut=cut, active=active, output_tokens=length)
    found = steady(scene.records[-1])
    assert (found and found.accepted) == kept
    if found:
        assert found.output_tokens - 1 == tokens
        assert found.decode_seconds == pytest.approx(sum(found.verify_seconds))


def test_what_a_rule_drafted_in_vain_is_of_its_round(scene):
    """Of two rounds with a second row and one without; the middle one drafted two in vain."""
    scene.batch_run("a", 3, (1, 1, 0), (1.0, 1.0, 1.0), active=(2, 2, 1))
    row = scene.records[-1]
    drafted = tuple(each + vain for each, vain in zip(row.proposed, (0, 2, 1), strict=True))
    row = structs.replace(
        row, k=9, drafted=drafted, stop=StopRule(kind="confidence", threshold=0.5)
    )
    assert steady(row).drafted == drafted[:2]


def test_a_run_alone_is_all_steady(scene):
    scene.decode("r", 2, 4.0, concurrency=1)
    assert steady(scene.records[-1]) is scene.records[-1]


@pytest.mark.parametrize(("started", "starts"), [(True, 2), (False, 1)])
def test_a_server_that_was_running_was_started_once_and_its_baseline_serves_every_draft(
    started, starts
):
    """Asked in two turns, without a draft and with each of two."""
    rows = [
        structs.replace(row, candidate=candidate, server=f"{candidate} {repeat}")
        for repeat in (0, 1)
        for candidate in (None, SMALL, BIG)
        for row in answers(int(candidate is not None), repeat=repeat)
    ]
    made = run(*rows, engine_facts(None, 0, started=started))
    cells = cells_of(made, (SMALL, BIG), {}, DrawnRequests("abcde"))
    assert sorted(cell.configuration.k for cell in cells) == [0] * starts + [1] * 2 * starts
    # Nor does what is asked twice of one start drift from itself.
    plain = [row for row in made.decodes if not row.k and row.block == "small"]
    assert baseline_drift(plain, by_start=True) is None


def in_turn(process, k, step, seconds, number):
    """Five requests, answered in one session without a draft and with one at k."""
    of_session = [(in_rounds(0, step), number), (in_rounds(k, seconds), 0)]
    return [
        structs.replace(row, process=process, server=f"{process} {row.k}", repeat=repeat)
        for rows, repeat in of_session
        for row in rows
    ]


def test_servers_that_took_turns_are_compared_with_each_other_alone():
    """Eight steps against four rounds at k = 1 and, in a session in which the machine was slower,
    two at k = 4. The server that wrote the responses had the machine to itself.
    """
    ends = []
    for slower in (1.0, 5.0):
        made = run(
            *(structs.replace(row, process="w", server="w") for row in in_rounds(0, 0.03)),
            *in_turn("p1", 1, 0.1, 0.12, 1),
            *in_turn("p2", 4, 0.1 * slower, 0.25 * slower, 2),
            ks=(1, 4),
            servers="started side by side",
        )
        found = {each.k: each for each in recommend(made).evaluations}
        for k, speedup in ((1, 0.8 / 0.48), (4, 0.8 / 0.5)):
            assert found[k].speedup_measured.value == pytest.approx(speedup)
            assert found[k].speedup_expected.value == pytest.approx(speedup, rel=2e-3)
        ends.append(
            [x for e in found.values() for x in (e.speedup_expected.low, e.speedup_expected.high)]
        )
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)


def test_an_answer_of_another_session_is_no_baseline():
    """A session was cut after "a" was asked without a draft; the next asked all of both."""
    cut = [structs.replace(row, process="p0", repeat=1) for row in in_rounds(0, 0.5)[:1]]
    made = run(*cut, *in_turn("p1", 1, 0.1, 0.1, 1), servers="started side by side")
    assert measurements(made)[Configuration.of(SMALL, 1, 1)].speedup.value == pytest.approx(2.0)


def drift(scene, *paces):
    """Of (request, seconds per token) of baseline runs of 8 tokens after the first, in order."""
    for request, pace in paces:
        scene.decode(request, 0, 8 * pace)
    return baseline_drift([record for record in scene.records if isinstance(record, Decode)])


STEADY = [("a" if i % 2 else "b", 1.01**i) for i in range(11)]
DISTURBED = [("a", 20.0 if at == 3 else 1.0) for at in range(10)]


@pytest.mark.parametrize(
    ("paces", "change", "doubt"),
    [
        ([("a", 1.0), ("b", 3.0)] * 4, 0.0, 0.0),  # requests differ, the machine does not
        # A step halfway is as large as it is.
        ([("a", 1.0), ("b", 3.0)] * 4 + [("a", 1.6), ("b", 4.8)] * 4, 0.6, 0.0),
        # A steady change is half as large between halves, without the run in the middle. Half of
        # the logarithms lie one step from their half's center: 1.4826 · .00995 · √(10 / 8), over
        # √(2 · 2 / 4 + 3 · 3 / 6).
        (STEADY, 1.01**6 - 1, math.expm1(2 * 0.01649 / 2.5**0.5)),
        # One run is no change, though the mean of its request moves by a tenth of ln 20: 1.4826 ·
        # .29957 · √(10 / 9) over √(5 · 5 / 10).
        (DISTURBED, 0.0, math.expm1(2 * 0.46817 / 2.5**0.5)),
        # Logarithms ± .095 about the middle: 1.4826 · .095 · √(40 / 39) over √(20 · 20 / 40).
        ([("a", 1.0), ("a", 1.21)] * 20, 0.0, math.expm1(2 * 0.1431 / 10**0.5)),
    ],
)
def test_the_drift_is_each_requests_change_between_halves_with_its_doubt(
    scene, paces, change, doubt
):
    scene.decode("a", 2, 100.0)
    found = drift(scene, *paces)
    assert found.change == pytest.approx(change, abs=1e-9)
    assert found.doubt == pytest.approx(doubt, rel=0.02, abs=1e-9)


def test_many_runs_show_a_drift_that_is_smaller_than_the_scatter_of_one(scene):
    # 6% slower in the second half, where one run is 15% off: ten times less in 400 runs.
    paces = [1.12 ** (i / 399) * (0.85, 1.15, 1.0, 1.15, 0.85)[i % 5] for i in range(400)]
    found = drift(scene, *(("a", pace) for pace in paces))
    assert found.change == pytest.approx(1.12**0.5 - 1, abs=0.01)
    assert found.doubt < DRIFT < found.change


def test_rounds_of_a_batch_with_empty_rows_show_no_drift(scene):
    # Full rounds take 1 s in every run; the second ran on for six alone, at a quarter of that.
    for alone in (0, 6):
        active, seconds = (2,) * 4 + (1,) * alone, (1.0,) * 4 + (0.25,) * alone
        scene.batch_run("a", 0, (0,) * len(active), seconds, active=active)
    scene.batch_run("a", 0, (0,), (9.0,), active=(1,))
    assert drift(scene) == Drift(0.0, 0.0)


@pytest.mark.parametrize("paces", [[], [("a", 1.0)], [("a", 1.0), ("b", 2.0)]])
def test_without_a_repeated_request_no_drift_is_known(scene, paces):
    assert drift(scene, *paces) is None
