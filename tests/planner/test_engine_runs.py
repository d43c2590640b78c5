"""Answers on a serving engine, from requests that took what can be added by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from planner.engine_run import in_pieces, replayed_run
from scenes import BIG, SMALL, manifest, replay, served, trajectory

from draftbench.cli.recommend import render
from draftbench.planner.decide import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, EngineFacts
from draftbench.run_folder.run import run_of

# Of one start of each server by the prior alone, as of its quotient.
OF_STARTS = 0.098 * 2**0.5


def of_visit(process, **changes):
    """What a server told of itself when it was visited."""
    fields = {
        "server": "s1", "process": process, "engine": "vllm", "version": "0.32.0", "model": "m",
        "candidate": None, "k": 0, "started": True, "command": None, "settings": {},
        "context_length": 512, "prefix_cache": False, "ready_seconds": 29.0,
    }  # fmt: skip
    return EngineFacts(**fields | changes)


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


def test_speed_is_predicted_from_rounds_of_replay_and_seconds_of_whole_rounds():
    plain = in_pieces(0, 0.5, 0.1, (1,) * 9)  # 8 steps of 0.1 s
    at_one = in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2))  # 4 rounds of 0.12 s
    run = replayed_run(*plain, *at_one)
    (small,) = [each for each in Evaluator(run, DecisionOptions()).alternatives(1) if each.k == 4]
    # k = 4 accepts everything: rounds of 5 and 3 tokens, each 0.1 + 4 · 0.02 s.
    assert small.value("expected") == pytest.approx(0.8 / (2 * 0.18), rel=1e-3)


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
    one = next(each for each in answer.evaluations if each.k == 1)
    assert one.speedup_measured.value == pytest.approx(0.8 / 0.48)
    assert one.draft_cost_ratio is None
    # Requests alike leave one start of each server in doubt: their quotient varies by √2 as much as
    # a start, whose 95 % interval by the prior alone is 10.9 %.
    deciding = next(each for each in answer.evaluations if each.k == 1).speedup_expected
    ends = np.log([deciding.value / deciding.low, deciding.high / deciding.value])
    assert ends == pytest.approx(0.109 * 2**0.5, rel=0.1)
    text = render(answer, "table", 88)
    assert "10 requests" in " ".join(text.split())
    assert "memory" not in text
    assert one.mean_accepted_length_measured.value == pytest.approx(2.0)


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
    assert half(found.speedup_expected) > 0.94 * np.hypot(requests, OF_STARTS)


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


def test_a_load_that_was_not_served_is_unknown_in_words():
    run = replayed_run(*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2)))
    found = recommend(run, DecisionOptions(concurrency=(4,)))
    assert found.levels[0].costs == "concurrency 4 was not served, only 1"


def test_under_five_answered_requests_tell_no_costs():
    few = [
        row
        for row in (*in_pieces(0, 0.5, 0.1, (1,) * 9), *in_pieces(1, 0.5, 0.12, (1, 2, 2, 2, 2)))
        if row.request != "e"
    ]
    run = replayed_run(*few)
    assert recommend(run).leader is None
    reasons = {each.reason for each in recommend(run).evaluations}
    assert reasons == {"its speed is unknown: fewer than 5 requests were timed with it"}
