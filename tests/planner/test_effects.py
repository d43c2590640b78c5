"""How much longer than promised decoding takes, by cells made by hand: the rounds of an engine
between and beyond the k's that it was started with, and effects of the built-in decoder.
"""

import math
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import BIG, NGRAM, SMALL

from draftbench.acceptance.intervals import RESAMPLES
from draftbench.planner.cells import Cell
from draftbench.planner.effects import START_NOISE, BuiltInDesign, Effects, EngineDesign, reshaped
from draftbench.planner.recommendation import Configuration

KS = tuple(range(1, 13))
KNOWN = [Configuration("small", "none", k) for k in KS]


def cell(k, seconds, candidate=SMALL, place=0, process="p", load=1, promise="rounds", step=0.5):
    """A cell whose seconds are the same whatever requests are drawn."""
    own = Configuration.of(candidate, k, load)
    log = np.full(RESAMPLES + 1, math.log(seconds))
    return Cell(own, f"{process} {place}", place, promise, step, 20.0, log)


def started(seconds, *others, candidate=SMALL):
    """The effects of starts of an engine that took so many seconds a round, by k; one number is one
    start. `others` are such starts of another draft.
    """
    places, cells = count(), []
    for of, each in ((candidate, seconds), *((BIG, other) for other in others)):
        for k, own in each.items():
            starts = own if isinstance(own, tuple) else (own,)
            cells += [cell(k, one, of, next(places)) for one in starts]
    return Effects(cells, EngineDesign(cells, KS), KNOWN)


def logs(effects, k):
    """The logarithm of a round's seconds: the estimate, and draws of it."""
    estimate, _, time = effects.longer(KNOWN, np.ones(len(KS)))
    at, side = (KS.index(k), 1) if k else (0, 0)
    return estimate[at, side], time[:, at, side]


def seconds(effects, k):
    return math.exp(logs(effects, k)[0])


def spread(effects, k):
    """Half of what the middle two thirds of the draws at k span."""
    return np.ptp(np.quantile(logs(effects, k)[1], (0.16, 0.84))) / 2


TWO = {0: 1.0, 2: 1.4, 6: 2.2}


@pytest.mark.parametrize(
    ("started_ks", "expected"),
    [
        (TWO, TWO),
        (TWO, {1: 1.2, 4: 1.8, 8: 2.6}),
        ({0: 1.0, 4: 1.4}, {2: 1.2}),
        # 1.6 + (k - 2) · .1, where a line from the target step would say 1.3 at k = 1.
        ({0: 1.0, 2: 1.6, 6: 2.0}, {1: 1.5, 4: 1.8}),
        ({0: 1.0, 4: 1.1, 8: 2.1}, {1: 1.0}),
        ({0: 1.0, 1: 1.3, 8: 1.2}, {1: 1.56**0.5, 4: 1.56**0.5, 8: 1.56**0.5}),
        # The line from the target step would fall: .95, .9, .85 s.
        ({0: 1.0, 4: 0.8}, {1: 0.8, 4: 0.8, 8: 1.0}),
    ],
    ids=[
        "as measured", "others on the line through two", "through the target step where one is",
        "the first token may cost more than each further one", "never under a target step",
        "rounds that got quicker with k are equal", "what was not started moves nothing",
    ],
)  # fmt: skip
def test_rounds_take_what_was_measured_and_others_lie_on_a_rising_line(started_ks, expected):
    effects = started(started_ks)
    assert {k: seconds(effects, k) for k in expected} == pytest.approx(expected, rel=2e-3)


def test_the_level_of_another_drafts_line_counts_for_a_single_started_k():
    # 1.4 + .15 k, where a line from the target step would say 1.5 at k = 2.
    other = {1: 1.6, 2: 1.8, 4: 2.2, 8: 3.0}
    assert seconds(started({0: 1.0, 4: 2.0}, other), 2) == pytest.approx(1.7, rel=0.02)


def test_a_draft_that_tells_no_rounds_shows_no_level():
    # The line from the target step through 1.4 at k = 4, whatever a token of the other takes.
    cells = [cell(0, 1.0), cell(4, 1.4, place=1)]
    cells += [cell(k, 0.7, BIG, k, promise="tokens") for k in (2, 8)]
    effects = Effects(cells, EngineDesign(cells, KS), KNOWN)
    assert seconds(effects, 2) == pytest.approx(1.2, rel=1e-3)


def test_a_bend_that_another_draft_shows_is_that_of_the_target():
    # The other's rounds are flat up to k = 4, and .3 longer with each token from there on.
    other = {1: 1.2, 2: 1.2, 3: 1.2, 4: 1.2, 6: 1.8, 8: 2.4}
    alone, beside = (
        seconds(started({0: 1.0, 1: 1.3, 8: 3.2}, *more), 4) for more in ((), (other,))
    )
    assert beside < 1.85 < 2.1 < alone


def test_a_started_k_is_predicted_without_itself():
    # On the line from k = 2 through 4 on.
    effects = started({0: 1.0, 2: 1.4, 4: 1.8, 6: 2.9})
    six = Configuration("small", "none", 6)
    slower = effects.slower(six, 1.0, six)
    assert math.exp(slower) == pytest.approx(2.2, rel=0.02)


def test_a_start_off_the_line_is_believed_the_more_the_oftener_it_was_repeated():
    # The line through the others says 1.7 at k = 4.
    alone, thrice = (
        seconds(started({0: 1.0, 1: 1.1, 4: (1.5,) * often, 8: 2.5, 10: 2.9}), 4)
        for often in (1, 3)
    )
    assert 1.5 < thrice < alone < 1.7


@settings(max_examples=20)
@given(steps=st.lists(st.floats(0.01, 100), min_size=2, max_size=6), k=st.integers(1, 11))
def test_in_no_draw_a_round_takes_less_than_one_with_a_smaller_k(steps, k):
    effects = started({2 * at: float(value) for at, value in enumerate(np.cumsum(steps))})
    assert (logs(effects, k)[1] <= logs(effects, k + 1)[1] + 1e-9).all()


def test_starts_that_were_not_repeated_differ_as_those_of_other_machines():
    """The prior of the noise: 3 % over the root of a chi-square of one degree, none over 10 %."""
    generator = np.random.default_rng(0)
    noise = START_NOISE / np.abs(generator.standard_normal(400_000))
    error = (noise * generator.standard_normal(400_000))[noise < 0.1]
    estimate, draws = logs(started(TWO), 6)
    for share in (0.75, 0.9, 0.975):
        found = np.quantile(draws, share) - estimate
        assert found == pytest.approx(np.quantile(error, share), rel=0.15)


def test_two_starts_of_the_plain_server_tell_the_noise_by_students_t_of_two_degrees():
    # ln 1.21 between the two, beside the prior's 3 %; 1.321 is that t's quantile at .84. No noise
    # over 50 % makes it a little less.
    effects = started({0: (0.1, 0.121), 1: 0.12})
    scale = np.sqrt((START_NOISE**2 + np.log(1.21) ** 2 / 2) / 2) / 2**0.5
    assert seconds(effects, 0) == pytest.approx(0.11, rel=1e-3)
    assert spread(effects, 0) == pytest.approx(1.321 * scale, rel=0.15)


def in_turn(*sessions):
    """The log speed-up's estimate and draws, of sessions with steps of so many seconds and rounds
    that took 1.5 of these and so much more (a logarithm).
    """
    cells = []
    for at, (pace, more) in enumerate(sessions):
        session = {"process": f"p{at}", "place": at}
        cells += [cell(0, pace, **session), cell(2, pace * 1.5 * math.exp(more), **session)]
    effects = Effects(cells, EngineDesign(cells, KS, in_turn=True), KNOWN)
    (rounds, drawn), (plain, drawn_plain) = logs(effects, 2), logs(effects, 0)
    return rounds - plain, drawn - drawn_plain


def test_servers_that_took_turns_differ_by_the_noise_of_both():
    """Of four sessions the mean of ±.1 has a standard error of .1155 / √4, by Student's t of about
    three degrees.
    """
    estimate, draws = in_turn((1.0, 0.1), (3.0, -0.1), (0.2, 0.1), (1.5, -0.1))
    assert math.exp(estimate) == pytest.approx(1.5, rel=5e-3)
    half = np.ptp(np.quantile(draws, (0.16, 0.84))) / 2
    assert half == pytest.approx(1.1 * 0.1155 / 2, rel=0.12)


def test_sessions_that_agree_tell_no_more_of_the_noise_than_as_many_starts_that_agree():
    """That plain servers agree once their sessions' paces are taken out tells nothing."""
    _, of_sessions = in_turn((1.0, 0.0), (1.0, 0.0))
    effects = started({0: (1.0, 1.0), 2: (1.5, 1.5)})
    of_starts = logs(effects, 2)[1] - logs(effects, 0)[1]
    one, other = (np.ptp(np.quantile(each, (0.025, 0.975))) for each in (of_sessions, of_starts))
    assert one > 0.85 * other


def test_a_k_that_was_not_started_may_also_bend_off_the_line():
    # Halfway between k = 2 and 6 of slope .2: (.28 · .2)² · 2² · 2² / (3 · 4) of 1.8.
    bend = 0.056 * (16 / 12) ** 0.5 / 1.8
    middle, ends = (spread(started(TWO), k) for k in (4, 6))
    assert middle**2 == pytest.approx(bend**2 + ends**2 / 2, rel=0.4)


def test_starts_of_another_draft_tell_how_much_starts_differ_on_this_machine():
    calm = {k: 1 + 0.1 * k for k in range(1, 9)}
    wild = {k: (1 + 0.1 * k) * 1.1 ** (-1) ** k for k in range(1, 9)}
    quiet, loud = (spread(started(TWO, other), 2) for other in (calm, wild))
    assert quiet < spread(started(TWO), 2) < loud


@pytest.mark.parametrize(
    ("ks", "each", "odd", "left"),
    [
        # Least squares with a drift as large as the noise, as if there were one square more. Plain
        # starts at 0, 2 and 4 about 2, the others at 1 and 3 about 2.
        ((0, 1, 0, 1, 0), 1.1, None, 0),
        # Plain starts at 0, 4 and 5 about 3, the others at 1, 2 and 3 about 2: squares of 14 and 2.
        ((0, 1, 1, 1, 0, 0), 1.1, None, 1 - 16 / 17),
        # One plain start took a tenth longer, one place after the middle of the plain ones.
        ((0, 1, 1, 1, 0, 0), 1.0, 4, 1 / 3 - 1 / 17),
    ],
    ids=["in turns", "plain ones last", "one odd start is hardly a trend"],
)
def test_what_all_starts_lose_alike_from_one_to_the_next_is_taken_out(ks, each, odd, left):
    """Steps of 0.1 s and rounds of 0.12 s, each start so many times slower than the last. A
    speed-up is what counts: the quotient of both.
    """
    took = [(0.12 if k else 0.1) * each**at * (1.1 if at == odd else 1) for at, k in enumerate(ks)]
    cells = [cell(k, one, place=at) for at, (k, one) in enumerate(zip(ks, took, strict=True))]
    effects = Effects(cells, EngineDesign(cells, KS), KNOWN)
    found = seconds(effects, 0) / seconds(effects, 1)
    assert found == pytest.approx(0.1 / 0.12 * 1.1**left, rel=0.003)


# The built-in decoder.


def decoded(*cells, ks=(1, 2), loads=(1,)):
    """The effects of cells (k, seconds over those of passes, load or draft)."""
    known = [
        Configuration(draft.draft, "none", k, load)
        for draft in (SMALL, BIG, NGRAM)
        for k in ks
        for load in loads
    ]
    return Effects(cells, BuiltInDesign(cells, loads), known)


def slower(effects, k, candidate=SMALL, load=1):
    """δ of a configuration, with the standard deviation of its draws."""
    own = [Configuration(candidate.draft, "none", k, load)]
    estimate, _, time = effects.longer(own, np.full(1, 0.5))
    draws = time[:, 0, 1] - time[:, 0, 0]
    return estimate[0, 1] - estimate[0, 0], draws.std()


def passes(k, over, candidate=SMALL, load=1, process="p"):
    return cell(k, over, candidate, process=process, load=load, promise="passes")


def test_what_decoding_took_longer_is_expected_of_others_in_part_and_less_surely():
    """Plain steps took as long as their passes, rounds at k = 1 a tenth longer."""
    effects = decoded(passes(0, 1.0), passes(1, 1.1))
    (own, sd), (other, doubt) = slower(effects, 1), slower(effects, 2)
    assert 0 < slower(effects, 1, BIG)[0] < other < own < math.log(1.1)
    assert doubt > sd
    # What plain steps took longer too says nothing of a draft.
    alike = decoded(passes(0, 1.3), passes(1, 1.3))
    assert slower(alike, 1)[0] == pytest.approx(0.0, abs=1e-3)


def test_rounds_longer_than_their_passes_are_believed_where_python_takes_a_share_of_a_step():
    """What it takes for a draft's round is 2/3 of a step of 0.3 ms, which one of 0.1 s hides."""

    def found(step_seconds, candidate):
        cells = [passes(0, 1.0), passes(1, 1.35)]
        cells = [each._replace(step_seconds=step_seconds) for each in cells]
        return slower(decoded(*cells), 1, candidate)[0] / math.log(1.35)

    assert found(3e-4, SMALL) > 0.9 > 0.75 > found(0.1, SMALL)
    assert 0.3 < found(3e-4, BIG) < 0.7  # another model is likely to take some of it
    assert found(3e-4, NGRAM) < 0.2  # prompt lookup has no passes between which it is taken
    assert found(0.1, SMALL) == found(0.004, SMALL)


def test_what_python_takes_is_as_many_seconds_at_every_load():
    """0.2 ms for a round of two steps, of 0.3 ms alone and of 1.2 ms at eight requests."""
    cells = []
    for load, step in ((1, 3e-4), (8, 1.2e-3)):
        over = 1 + 2e-4 / (2 * step)
        cells.append(passes(0, 1.0, load=load)._replace(step_seconds=step))
        if load == 1:
            cells += [passes(k, over)._replace(step_seconds=step) for k in (1, 2, 4)]
    effects = decoded(*cells, ks=(1, 2, 4), loads=(1, 8))
    expected = math.log(1 + 2e-4 / 2.4e-3)
    assert slower(effects, 2, load=8)[0] == pytest.approx(expected, abs=0.03)


def test_the_odd_one_of_four_ks_is_mostly_luck():
    cells = [passes(0, 1.0), *(passes(k, 1.1) for k in (1, 2, 3)), passes(4, 1.2)]
    effects = decoded(*cells, ks=(1, 2, 3, 4))
    assert slower(effects, 4)[0] < (math.log(1.1) + math.log(1.2)) / 2


def test_between_two_timed_loads_effects_are_linear_in_the_logarithm_of_rows():
    cells = [passes(0, 1.0, load=n) for n in (4, 16)]
    cells += [passes(1, 1.1, load=4), passes(1, 1.2, load=16)]
    four, eight, sixteen = (
        slower(decoded(*cells, loads=(4, 16)), 1, load=n)[0] for n in (4, 8, 16)
    )
    assert eight == pytest.approx((four + sixteen) / 2)


def test_cells_that_scatter_leave_more_doubt_and_more_processes_less():
    def doubt(*overs, processes=1):
        each = {0: 1.0, **dict(enumerate(overs, 1))}
        cells = [
            passes(k, over + 0.004 * k * n, process=str(n))
            for n in range(processes)
            for k, over in each.items()
        ]
        return slower(decoded(*cells, ks=(1, 2, 3)), 1)[1]

    assert doubt(1.0, 1.1, 0.95) > 1.5 * doubt(1.0, 1.0, 1.0)
    assert doubt(1.0, processes=3) < doubt(1.0)


def test_a_cell_of_tokens_alone_says_how_fast_its_own_configuration_was():
    cells = [cell(0, 0.1, promise="tokens"), cell(2, 0.05, promise="tokens")]
    own, sd = slower(decoded(*cells), 2)
    assert own == pytest.approx(math.log(0.5), abs=1e-3)
    assert sd < 0.2
    assert slower(decoded(*cells), 1)[0] == pytest.approx(0.0, abs=1e-3)


def test_reshaped_draws_have_the_other_covariance_and_are_moved_least():
    # Of independent figures each is scaled: 1 → 2 and 2 → 1 standard deviations.
    scaled = reshaped(np.diag([1.0, 4.0]), np.diag([4.0, 1.0]))
    assert scaled == pytest.approx(np.diag([2.0, 0.5]))


@given(st.lists(st.floats(-1, 1), min_size=18, max_size=18))
def test_reshaped_draws_are_not_turned(numbers):
    one, other = (half @ half.T + 0.1 * np.eye(3) for half in np.reshape(numbers, (2, 3, 3)))
    moved = reshaped(one, other)
    assert moved @ one @ moved.T == pytest.approx(other, abs=1e-8)
    assert moved == pytest.approx(moved.T, abs=1e-8)  # a turn would not be symmetric
    assert np.linalg.eigvalsh(moved).min() > 0
