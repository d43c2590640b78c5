"""Seconds of an engine's rounds between and beyond the k's that it was started with."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import count

import msgspec
import numpy as np
import pytest
from draftbench.planner.engine_costs import START_NOISE, RoundCosts, Start, round_costs
from draftbench.planner.predict import predict, predictor_of
from hypothesis import given
from hypothesis import strategies as st
from planner.engine_run import in_pieces, replayed_run
from scenes import BIG, SMALL, manifest, replay, served, trajectory

from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.rounds import Rounds
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, EngineFacts
from draftbench.report.terminal.recommendation import render
from draftbench.run_folder.run import run_of

COUNTS = [field.name for field in fields(Rounds) if field.name != "k"]


def costs_of(seconds):
    """Rounds whose starts took so many seconds, by k; one number is one start."""
    starts = {k: each if isinstance(each, tuple) else (each,) for k, each in seconds.items()}
    places = count()
    return RoundCosts(
        {k: [Start(next(places), np.log(one)) for one in each] for k, each in starts.items()}
    )


def costs_at_one(run):
    """The rounds of the small draft with one request in flight."""
    return round_costs(run, [SMALL])[SMALL][1]


def spread(costs, k):
    """Half of what the middle two thirds of the draws at k span."""
    return np.ptp(drawn(costs, k, 0.16, 0.84)) / 2


def drawn(costs, k, *shares):
    """Quantiles of the logarithm of the draws at k."""
    rounds = Rounds(k, **dict.fromkeys(COUNTS, np.zeros(1)) | {"tokens": np.ones(1), "rounds": 1})
    return np.quantile(np.log(costs.decoding_redrawn(rounds)[..., 1 if k else 0]), shares)


COSTS = costs_of({0: 1.0, 2: 1.4, 6: 2.2})


def test_two_started_ks_take_what_was_measured():
    assert [COSTS.at(k) for k in (0, 2, 6)] == pytest.approx([1.0, 1.4, 2.2])


@pytest.mark.parametrize(("k", "seconds"), [(1, 1.2), (4, 1.8), (8, 2.6)])
def test_others_lie_on_the_line_through_two_started_ones(k, seconds):
    assert COSTS.at(k) == pytest.approx(seconds)


def test_the_first_drafted_token_may_cost_more_than_each_further_one():
    # 1.6 + (k - 2) · .1, where a line from the target step would say 1.3 at k = 1.
    costs = costs_of({0: 1.0, 2: 1.6, 6: 2.0})
    assert costs.at(1) == pytest.approx(1.5)
    assert costs.at(4) == pytest.approx(1.8)


def test_no_round_takes_less_than_a_target_step():
    assert costs_of({0: 1.0, 4: 1.1, 8: 2.1}).at(1) == pytest.approx(1.0)


def test_a_single_started_k_is_on_a_line_from_the_target_step():
    assert costs_of({0: 1.0, 4: 1.4}).at(2) == pytest.approx(1.2)


def test_no_round_is_known_where_nothing_with_a_draft_was_started():
    assert costs_of({0: 1.0}).at(3) is None


def test_a_started_k_is_predicted_without_itself():
    # Between the plain step and k = 6: 1.0 + 2/6 · 1.2.
    assert COSTS.without(2).at(2) == pytest.approx(1.4)
    assert COSTS.without(6).at(6) == pytest.approx(1.4 + 4 * 0.2)


def test_a_start_off_the_line_is_believed_the_more_the_oftener_it_was_repeated():
    # The line through the others says 1.7 at k = 4.
    alone, thrice = (
        costs_of({0: 1.0, 1: 1.1, 4: (1.5,) * often, 8: 2.5, 10: 2.9}).at(4) for often in (1, 3)
    )
    assert 1.5 < thrice < alone < 1.7


@pytest.mark.parametrize(
    ("two", "four", "words"),
    [
        (0.14, 0.25, "k = 2 took less time"),  # from .13 s at k = 1 the line says .17
        (0.15, 0.19, None),
        (0.12, 0.19, "k = 4 took more time"),
    ],
)
def test_what_is_put_down_to_luck_of_a_start_is_said(two, four, words):
    rows = [
        *in_pieces(0, 0.5, 0.1, (1,) * 9),
        *in_pieces(1, 0.5, 0.13, (1, 2, 2, 2, 2)),
        *in_pieces(2, 0.5, two, (1, 3, 3, 2)),
        *in_pieces(4, 0.5, four, (1, 5, 3)),
    ]
    found = [c.text for c in recommend(replayed_run(*rows)).caveats if c.kind == "lucky-start"]
    assert [words in text for text in found] == ([] if words is None else [True])


@pytest.mark.parametrize(
    ("other", "share"),
    [(None, 0.0), (0.12, 1.0), (0.3, 0.0)],  # s of a round of another draft, as .12 s of the first
    ids=["alone", "two equals", "far ahead"],
)
def test_the_best_of_several_drafts_of_an_engine_loses_its_luck_of_starts(other, share):
    pieces, facts = (1, 2, 2, 2, 2), []
    rows = [*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, pieces)]
    if other:
        own = in_pieces(1, 0.5, other, pieces, server="s2", process="p2")
        rows += [msgspec.structs.replace(row, candidate=BIG) for row in own]
        facts = [replay((1.0,) * 8, BIG, request=request) for request in "abcde"]
    answer = recommend(replayed_run(*facts, *rows))
    # The higher of two equal ones is 1 / sqrt(pi) of the noise of a start too high, by the prior.
    noise = START_NOISE / np.abs(np.random.default_rng(0).standard_normal(400_000))
    luck = share * noise[noise < 0.1].mean() / np.pi**0.5
    leader = max(each.speedup_expected.value for each in answer.evaluations if each.k == 1)
    found = np.log(leader / answer.speedup_deciding.value)
    assert found == pytest.approx(luck, rel=0.1, abs=1e-4)


@pytest.mark.parametrize("drafts", [1, 2])
def test_the_interval_of_the_leader_of_several_drafts_reaches_further(drafts):
    pieces = (1, 2, 2, 2, 2)
    rows = [*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, pieces)]
    other = in_pieces(1, 0.5, 0.12, pieces, server="s2", process="p2") if drafts > 1 else []
    rows += [msgspec.structs.replace(row, candidate=BIG) for row in other]
    facts = [replay((1.0,) * 8, BIG, request=request) for request in "abcde"] if other else []
    deciding = recommend(replayed_run(*facts, *rows)).speedup_deciding
    # One start of two servers, by the prior of the noise alone.
    generator = np.random.default_rng(0)
    noise = START_NOISE / np.abs(generator.standard_normal(400_000))
    errors = (noise * generator.standard_normal(400_000) * 2**0.5)[noise < 0.1]
    reach = np.quantile(errors, 1 - 0.025 / drafts**0.5)
    assert half(deciding) == pytest.approx(reach, rel=0.08)


def test_rounds_that_got_quicker_with_k_are_taken_to_be_equal():
    # Both geometric means: √(1.3 · 1.2).
    costs = costs_of({0: 1.0, 1: 1.3, 8: 1.2})
    assert [costs.at(k) for k in (1, 4, 8)] == pytest.approx([1.56**0.5] * 3)


def test_a_k_that_was_not_started_moves_none_that_was():
    # The line from the target step would fall: .95, .9, .85 s.
    costs = costs_of({0: 1.0, 4: 0.8})
    assert [costs.at(k) for k in (1, 4, 8)] == pytest.approx([0.8, 0.8, 1.0])
    assert costs.put_down_to_luck(4) == pytest.approx(0.0)


@given(
    seconds=st.lists(st.floats(0.01, 100), min_size=2, max_size=6),
    k=st.integers(1, 12),
)
def test_no_round_takes_less_than_one_with_a_smaller_k(seconds, k):
    costs = costs_of({2 * at: float(value) for at, value in enumerate(np.cumsum(seconds))})
    assert costs.at(k) <= costs.at(k + 1) * (1 + 1e-9)


def test_starts_that_were_not_repeated_differ_as_those_of_other_machines():
    """The prior of the noise: 3 % over the root of a chi-square of one degree, none over 10 %."""
    generator = np.random.default_rng(0)
    noise = START_NOISE / np.abs(generator.standard_normal(400_000))
    error = (noise * generator.standard_normal(400_000))[noise < 0.1]
    for share in (0.75, 0.9, 0.975):
        expected = np.quantile(error, share)
        assert drawn(COSTS, 6, share)[0] - np.log(2.2) == pytest.approx(expected, rel=0.15)


def test_two_starts_of_the_plain_server_tell_the_noise_by_students_t_of_two_degrees():
    # ln 1.21 between the two, beside the prior's 3 %; 1.321 is that t's quantile at .84. No noise
    # over 50 % makes it a little less.
    costs = costs_of({0: (0.1, 0.121), 1: 0.12})
    low, high = drawn(costs, 0, 0.16, 0.84)
    scale = np.sqrt((START_NOISE**2 + np.log(1.21) ** 2 / 2) / 2) / 2**0.5
    assert costs.at(0) == pytest.approx(0.11)
    assert (high - low) / 2 == pytest.approx(1.321 * scale, rel=0.15)


def test_a_k_that_was_not_started_may_also_bend_off_the_line():
    # Halfway between k = 2 and 6 of slope .2: (.28 · .2)² · 2² · 2² / (3 · 4) of 1.8.
    bend = 0.056 * (16 / 12) ** 0.5 / 1.8
    middle, ends = (np.diff(drawn(COSTS, k, 0.16, 0.84))[0] / 2 for k in (4, 6))
    assert middle**2 == pytest.approx(bend**2 + ends**2 / 2, rel=0.4)


def test_speed_is_predicted_from_rounds_of_replay_and_seconds_of_whole_rounds():
    plain = in_pieces(0, 0.5, 0.1, (1,) * 9)  # 8 steps of 0.1 s
    at_one = in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2))  # 4 rounds of 0.12 s
    run = replayed_run(*plain, *at_one)
    costs = costs_at_one(run)
    assert [costs.at(k) for k in (0, 1)] == pytest.approx([0.1, 0.12])
    # k = 4 accepts everything: rounds of 5 and 3 tokens, each 0.1 + 4 · 0.02 s.
    prediction = predict(predictor_of(run, SMALL), 4)
    assert prediction.speedup().value == pytest.approx(0.8 / (2 * 0.18))


def of_visit(process, **changes):
    """What a server told of itself when it was visited."""
    fields = {
        "server": "s1", "process": process, "engine": "vllm", "version": "0.32.0", "model": "m",
        "candidate": None, "k": 0, "started": True, "command": None, "settings": {},
        "context_length": 512, "prefix_cache": False, "ready_seconds": 29.0,
    }  # fmt: skip
    return EngineFacts(**fields | changes)


def test_visits_of_one_running_server_are_one_start():
    """Eight steps of .1 s in the first visit and of .12 s in the second, beside speculation."""
    rows = [
        *in_pieces(0, 0.5, 0.1, (1,) * 9),
        *in_pieces(0, 0.5, 0.12, (1,) * 9, repeat=1, server="s2", process="p2"),
        *in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2), process="p2"),
    ]
    given = [of_visit(process, started=False) for process in ("p1", "p2")]
    costs = costs_at_one(replayed_run(*rows, *given))
    assert [costs.at(k) for k in (0, 1)] == pytest.approx([0.11, 0.12])
    assert [costs.starts_at(k) for k in (0, 1)] == [1, 1]


@pytest.mark.parametrize("started", [True, False])
def test_only_what_a_sweep_can_do_is_advised_of_starts(started):
    """Twenty requests of 0.8 s without speculation and of 0.72 or 0.84 s with it: 1.03×."""
    names = [f"r{n:02}" for n in range(20)]
    rows = []
    for at, name in enumerate(names):
        one = in_pieces(1, 0.5, 0.21 - 0.03 * (at % 2), (1, 2, 2, 2, 2), process="p2")[0]
        plain = in_pieces(0, 0.5, 0.1, (1,) * 9)[0]
        rows += [msgspec.structs.replace(row, request=name) for row in (plain, one)]
    along = [trajectory(name, 9, origin="engine", margins=(), argmax=()) for name in names]
    replays = [replay((1.0,) * 8, request=name) for name in names]
    facts = [of_visit(process, started=started) for process in ("p1", "p2")]
    answer = recommend(
        run_of(manifest(engine="vllm", ks=(1,)), [*along, *replays, *facts, *rows]),
    )
    text = " ".join(render(answer, "table", 88, everything=True).split())
    assert answer.decision == "inconclusive"
    assert (answer.larger_sweep.processes > 1) is started
    assert ("--restarts" in text) is started
    assert ("start both again and sweep in another --out" in text) is not started


@pytest.mark.parametrize(("ks", "few"), [((1,), True), ((1, 2, 4, 5, 6, 7, 8), False)])
def test_two_starts_of_many_servers_show_how_much_starts_differ(ks, few):
    rows, ran = [], [(0, 0), *((k, 0) for k in ks), (0, 1), *((k, 1) for k in ks), (0, 2)]
    for place, (k, repeat) in enumerate(ran):
        own = {"repeat": repeat, "server": f"s{place}", "process": f"p{place}"}
        rows += in_pieces(k, 0.5, 0.1 + 0.02 * k, (1, 2, 2, 2, 2) if k else (1,) * 9, **own)
    found = [caveat.kind for caveat in recommend(replayed_run(*rows)).caveats]
    assert ("few-starts" in found) is few


def test_a_k_that_joined_in_a_later_turn_is_not_advised_the_starts_that_the_sweep_had():
    """Twenty requests: k = 1 in the last of three turns, 1.03×, and k = 4 in each of them, .8×."""
    rows, ran = [], [(0, turn) for turn in range(4)] + [(4, turn) for turn in range(3)] + [(1, 0)]
    for place, (k, repeat) in enumerate(ran):
        for at in range(20):
            shown = {
                0: (0.1, (1,) * 9),
                1: (0.21 - 0.03 * (at % 2), (1, 2, 2, 2, 2)),
                4: (0.5, (1, 5, 3)),
            }
            own = {"repeat": repeat, "server": f"s{place}", "process": f"p{place}"}
            one = in_pieces(k, 0.5, *shown[k], **own)[0]
            rows.append(msgspec.structs.replace(one, request=f"r{at:02}"))
    along = [trajectory(f"r{at:02}", 9, origin="engine", margins=(), argmax=()) for at in range(20)]
    replays = [replay((1.0,) * 8, request=f"r{at:02}") for at in range(20)]
    answer = recommend(run_of(manifest(engine="vllm", ks=(1, 4)), [*along, *replays, *rows]))
    assert (answer.decision, answer.leader.k) == ("inconclusive", 1)
    # Three turns gave it one start; three starts are tried next, which may take five.
    assert answer.larger_sweep.processes == 5
    # How much starts differ is shown by those of k = 4.
    assert "few-starts" not in [caveat.kind for caveat in answer.caveats]


def test_a_load_that_was_not_served_is_unknown_in_words():
    run = replayed_run(*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2)))
    predictor = predictor_of(run, SMALL, batch=4)
    assert predictor.round_costs is None
    assert predictor.note == "4 requests in flight were not served, only 1"


def test_the_answer_of_an_engine_names_it_and_measures_its_speed():
    """Ten requests alike: 0.8 s without, 0.48 s with k = 1, so 1.67×."""
    names = [f"r{n}" for n in range(10)]
    plain = [
        msgspec.structs.replace(in_pieces(0, 0.5, 0.1, (1,) * 9)[0], request=name) for name in names
    ]
    at_one = [
        msgspec.structs.replace(in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2))[0], request=name)
        for name in names
    ]
    responses = [trajectory(name, 9, origin="engine", margins=(), argmax=()) for name in names]
    replays = [replay((1.0,) * 8, request=name) for name in names]
    facts = of_visit("p1", candidate=SMALL, k=1)
    run = run_of(
        manifest(engine="vllm", ks=(1, 2, 4)), [*responses, *replays, facts, *plain, *at_one]
    )
    answer = recommend(run)
    assert answer.runner == "vllm 0.32.0"
    assert answer.leading_evaluation.speedup_measured.value == pytest.approx(0.8 / 0.48)
    assert answer.leading_evaluation.draft_cost_ratio is None
    # Requests alike leave one start of each server in doubt: their quotient varies by √2 as much as
    # a start, whose 95 % interval by the prior alone is 9.8 %.
    deciding = next(each for each in answer.evaluations if each.k == 1).speedup_expected
    ends = np.log([deciding.value / deciding.low, deciding.high / deciding.value])
    assert ends == pytest.approx(0.098 * 2**0.5, rel=0.1)
    text = render(answer, "table", 88)
    assert "over 10 requests, all decoded in vllm 0.32.0" in " ".join(text.split())
    assert "memory" not in text
    assert answer.leading_evaluation.mean_accepted_length_measured.value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("accepted", "words"),
    [(1, None), (0, "small: decoding gave 50% fewer tokens per round than replay")],
)
def test_an_engine_that_accepts_other_than_replay_says_is_judged_by_what_it_counted(
    accepted, words
):
    """Replay says that all is accepted at k = 1: 8 tokens in 4 rounds; with none it is 8 rounds."""
    names, pieces = [f"r{n}" for n in range(6)], (1,) + (1 + accepted,) * (8 // (1 + accepted))
    rounds = len(pieces) - 1
    told = {"proposed": (1,) * rounds, "accepted": (accepted,) * rounds, "chunks": pieces}
    rows = [
        row
        for name in names
        for row in (
            served(None, 0, *(0.1 * at for at in range(1, 10)), request=name),
            served(SMALL, 1, *(0.1 * at for at in range(1, rounds + 2)), request=name, **told),
        )
    ]
    along = [trajectory(name, 9, origin="engine", margins=(), argmax=()) for name in names]
    replays = [replay((1.0,) * 8, request=name) for name in names]
    answer = recommend(run_of(manifest(engine="vllm", ks=(1,)), [*along, *replays, *rows]))
    found = [c.text for c in answer.caveats if c.decisive and c.kind == "contradiction"]
    assert [text.partition(",")[0] for text in found] == ([] if words is None else [words])
    assert answer.evaluations[0].tokens_per_round.value == pytest.approx(1 + accepted)


def test_a_draft_that_was_replayed_beside_timed_ones_is_said_not_to_be_timed():
    timed = [*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.2, (1, 2, 2, 2, 2))]
    alone = recommend(replayed_run(*timed))
    other = [replay((0.0,) * 8, BIG, request=request) for request in "ab"]
    answer = recommend(replayed_run(*timed, *other))
    said = "big: replayed but not timed in vllm, so whether it pays there is unknown"
    assert [c.text for c in answer.caveats if c.kind == "not-timed"] == [said]
    assert said in " ".join(render(answer, "table", 88).split())
    assert "not-timed" not in {caveat.kind for caveat in alone.caveats}


def test_what_only_an_engine_drafts_has_the_accepted_length_that_its_starts_counted():
    """At k = 1 three requests accept all of 4 rounds, three none of 8: 1 + 12 / 36 in all."""
    eagle, names = Candidate(draft="eagle3:head"), [f"r{n}" for n in range(6)]
    rows = [served(None, 0, *(0.1 * at for at in range(1, 10)), request=name) for name in names]
    for at, name in enumerate(names):
        accepted = at % 2
        pieces = (1,) + (1 + accepted,) * (8 // (1 + accepted))
        moments = [0.1 * (n + 1) for n in range(len(pieces))]
        told = {"proposed": (1,) * (len(pieces) - 1), "accepted": (accepted,) * (len(pieces) - 1)}
        rows.append(served(eagle, 1, *moments, request=name, chunks=pieces, **told))
    along = [trajectory(name, 9, origin="engine", margins=(), argmax=()) for name in names]
    answer = recommend(run_of(manifest(engine="vllm", ks=(1,)), [*along, *rows]))
    (found,) = answer.evaluations
    length = found.mean_accepted_length
    assert length.value == pytest.approx(1 + 12 / 36)
    assert length.low < length.value < length.high


def test_a_k_that_was_not_started_may_be_the_best_and_says_how_sure_that_is():
    # With .30 s at k = 4 the line says .187 at k = 2: 8 tokens in .56 s, in .52 s at k = 1. A bend
    # may be .0106 s (5.7 %), and starts differ: k = 2 is better by 2 % in about one of fifteen.
    one, dear = in_pieces(1, 0.5, 0.13, (1, 2, 2, 2, 2)), in_pieces(4, 0.5, 0.30, (1, 5, 3))
    answer = recommend(replayed_run(*in_pieces(0, 0.5, 0.1, (1,) * 9), *one, *dear))
    assert (answer.leader.k, answer.decision) == (1, "speculate")
    assert 0.9 < answer.probability_best < 0.97
    at_two = next(each for each in answer.evaluations if each.k == 2).speedup_expected
    assert at_two.value == pytest.approx(0.8 / (3 * (0.13 + 0.17 / 3)))
    assert at_two.low < 0.8 / 0.6 < 0.8 / 0.5 < at_two.high


def asked(
    seconds, *, pieces=lambda at: (1, 2, 2, 2, 2), plain=lambda at: 0.1, replayed=0, often=()
):
    """A run of requests that take so many seconds a round at k = 1 (None: not answered), all of
    eight steps without a draft; those up to `replayed` were only replayed. Request `at` stands for
    `often[at]` rows of the log.
    """
    observations = []
    for at in range(max(len(seconds), replayed)):
        name, chunks = f"r{at:02}", pieces(at)
        weight = float(often[at]) if often else 1.0
        observations += [
            trajectory(name, 9, origin="engine", margins=(), argmax=(), weight=weight),
            replay((float(chunks[1] - 1),) * 8, request=name),
        ]
        if at >= len(seconds):
            continue
        rows = in_pieces(0, 0.5, plain(at), (1,) * 9)[:1]
        if seconds[at] is not None:
            accepted = (chunks[1] - 1,) * (len(chunks) - 1)
            rows += in_pieces(1, 0.5, seconds[at], chunks, accepted=accepted)[:1]
        observations += [msgspec.structs.replace(row, request=name) for row in rows]
    return run_of(manifest(engine="vllm", ks=(1,)), observations)


def at_one(run):
    return next(each for each in recommend(run).evaluations if each.k == 1)


def half(interval):
    return np.log(interval.high / interval.low) / 2


# Of one start of each server by the prior alone, as of its quotient.
OF_STARTS = 0.098 * 2**0.5


def test_a_started_k_is_as_sure_as_its_requests_are_alike_in_speed():
    """Ten requests of eight steps of .1 s and four rounds: of .08 s for five, of .16 s for five."""
    found = at_one(asked([0.08, 0.16] * 5))
    assert found.speedup_expected.value == pytest.approx(0.8 / 0.48)
    # Shares of .32 or .64 of 4.8 s against a tenth of the rounds: a third of a tenth, ten times.
    # By t of nine degrees of freedom.
    requests = 2.262 * np.sqrt(10 / 9) * (1 / 30) * 10**0.5
    assert half(found.speedup_measured) == pytest.approx(requests, rel=0.12)
    assert half(found.speedup_expected) == pytest.approx(np.hypot(requests, OF_STARTS), rel=0.12)


def test_requests_that_take_longer_in_fewer_rounds_leave_little_doubt():
    """Half of ten requests have eight rounds of .1 s, half four of .2 s: all take .8 s."""
    rounds = asked([0.1, 0.2] * 5, pieces=lambda at: (1,) + (1 + at % 2,) * (8 // (1 + at % 2)))
    found = at_one(rounds)
    assert found.speedup_expected.value == pytest.approx(1.0)
    assert half(found.speedup_expected) == pytest.approx(OF_STARTS, rel=0.1)


def test_few_answered_requests_leave_the_doubt_of_few_however_many_were_replayed():
    """Twelve of 120 answered: half in rounds of .08 s, half of .16 s."""
    found = at_one(asked([0.08, 0.16] * 6, replayed=120))
    assert found.speedup_expected.value == pytest.approx(0.8 / 0.48)
    # A third of a twelfth, twelve times; by t of eleven degrees of freedom.
    requests = 2.201 * np.sqrt(12 / 11) * (1 / 36) * 12**0.5
    assert half(found.speedup_expected) > 0.97 * np.hypot(requests, OF_STARTS)


def test_requests_count_as_often_as_the_log_has_them():
    """One of ten stands for 91 rows and takes twice as long: .92 s in the mean of 100."""
    found = at_one(asked([0.24] + [0.12] * 9, often=[91] + [1] * 9))
    mean = (91 * 0.96 + 9 * 0.48) / 100
    assert found.speedup_measured.value == pytest.approx(0.8 / mean)
    assert found.speedup_expected.value == pytest.approx(0.8 / mean)


def test_a_slow_request_that_was_not_answered_with_the_draft_does_not_make_it_fast():
    """One of ten takes four times as long both ways and failed with the draft: the others say 2."""
    found = at_one(asked([None] + [0.1] * 9, plain=lambda at: 0.1 if at else 0.4))
    assert found.speedup_expected.value == pytest.approx(2.0)


def test_requests_differ_at_a_k_that_was_not_started_as_at_the_nearest_started():
    predictor = predictor_of(asked([0.08, 0.16] * 5), SMALL)
    along = tokens_per_round(predictor.along.trajectories, predictor.along.at(2))
    at_two, whole = predictor.round_costs.speedups(along, 2)
    # From a step of .1 s through .12 s to .14 s; 8 tokens in three rounds.
    assert at_two.value == pytest.approx(0.8 / (3 * 0.14))
    # Half a second until the first token, with a draft and without.
    assert whole.value == pytest.approx((0.5 + 0.8) / (0.5 + 3 * 0.14))
    seconds = at_two.addends[:, 6]
    assert seconds / seconds.sum() == pytest.approx([1 / 15, 2 / 15] * 5)


def test_starts_of_another_draft_tell_how_much_starts_differ_on_this_machine():
    costs = costs_of({0: 1.0, 2: 1.4, 6: 2.2})
    calm = costs_of({0: 1.0, **{k: 1 + 0.1 * k for k in range(1, 9)}})
    wild = costs_of({0: 1.0, **{k: (1 + 0.1 * k) * 1.1 ** (-1) ** k for k in range(1, 9)}})
    quiet, loud = (spread(replace(costs, others=(other,)), 2) for other in (calm, wild))
    assert quiet < spread(costs, 2) < loud


def test_starts_of_the_plain_server_are_counted_once_for_all_drafts():
    # A draft that was started once shows nothing of the noise.
    plain = (1.0, 1.1, 1.21)
    costs, other = (costs_of({0: plain, 4: each}) for each in (1.4, 2.0))
    assert spread(replace(costs, others=(other,)), 4) == pytest.approx(spread(costs, 4))


def slowing(*ks, each=1.1):
    """Starts at these k's one after the other, each by a tenth slower than the last: a step of 0.1
    s and a round of 0.12 s at k = 1.
    """
    counts = {k: iter(range(len(ks))) for k in ks}
    pieces = {0: (1,) * 9, 1: (1, 2, 2, 2, 2)}
    return [
        row
        for place, k in enumerate(ks)
        for row in in_pieces(
            k,
            0.5,
            (0.12 if k else 0.1) * each**place,
            pieces[k],
            repeat=next(counts[k]),
            server=f"s{place}",
            process=f"p{place}",
        )
    ]


@pytest.mark.parametrize(
    ("ks", "middle", "squares"),
    [
        # Plain starts at 0, 2 and 4 about 2, the others at 1 and 3: squares of 8 and 2.
        ((0, 1, 0, 1, 0), 2, 10),
        # Plain starts at 0, 4 and 5 about 3, the others at 1, 2 and 3 about 2: squares of 14 and 2.
        ((0, 1, 1, 1, 0, 0), 3, 16),
    ],
    ids=["in turns", "plain ones last"],
)
def test_what_all_starts_lose_alike_from_one_to_the_next_is_taken_out(ks, middle, squares):
    """Least squares with a drift as large as the noise: as if there were one square more."""
    costs = costs_at_one(replayed_run(*slowing(*ks)))
    taken = (middle - 2) * squares / (squares + 1)
    assert costs.at(0) == pytest.approx(0.1 * 1.1**middle)
    assert costs.at(1) == pytest.approx(0.12 * 1.1 ** (2 + taken))
    assert costs.slowed == pytest.approx({0: 0, 1: -taken * np.log(1.1)})


def test_one_odd_start_is_hardly_a_trend():
    """A plain start that took a tenth longer, one place after the middle of the plain ones."""
    odd = [
        msgspec.structs.replace(row, arrivals=tuple(0.5 + 0.11 * at for at in range(9)))
        if row.process == "p4"
        else row
        for row in slowing(0, 1, 1, 1, 0, 0, each=1.0)
    ]
    costs = costs_at_one(replayed_run(*odd))
    assert costs.at(0) == pytest.approx(0.1 * 1.1 ** (1 / 3))
    assert costs.at(1) == pytest.approx(0.12 * 1.1 ** (1 / 17))


def test_what_changed_between_two_plain_starts_alone_is_doubt():
    costs, steady = (
        costs_at_one(replayed_run(*slowing(0, 1, 0, each=each))) for each in (1.1, 1.0)
    )
    assert [costs.at(k) for k in (0, 1)] == pytest.approx([0.11, 0.12 * 1.1])
    assert costs.slowed == {0: 0, 1: 0}
    assert np.ptp(drawn(costs, 1, 0.16, 0.84)) > 2 * np.ptp(drawn(steady, 1, 0.16, 0.84))


def test_each_k_counts_its_own_starts():
    """As where a later turn began with another k."""
    rows = slowing(0, 1, 0, 1, 0)
    late = in_pieces(4, 0.5, 0.3, (1, 5, 3), repeat=1, server="late", process="late")
    costs = costs_at_one(replayed_run(*rows, *late))
    assert [costs.starts_at(k) for k in (0, 1, 4)] == [3, 2, 1]


def test_a_start_that_answered_few_requests_is_none():
    # One answer of a resumed arm, by another server and twice as slow.
    late = [
        row
        for row in in_pieces(1, 0.5, 0.24, (1, 2, 2, 2, 2), repeat=1, process="p2", server="s2")
        if row.request == "a"
    ]
    rows = [*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2)), *late]
    costs = costs_at_one(replayed_run(*rows))
    assert costs.at(1) == pytest.approx(0.12)
    assert costs.starts_at(1) == 1


def test_under_five_answered_requests_tell_no_costs():
    few = [
        row
        for row in (*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2)))
        if row.request != "e"
    ]
    run = replayed_run(*few)
    assert round_costs(run, [SMALL]) == {SMALL: {}}
    assert predictor_of(run, SMALL).note == "fewer than 5 requests were timed with it"
