"""An engine's answers as decoding runs: what it counts past the end is taken off."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from scenes import BIG, NGRAM, SMALL, served

from draftbench.acceptance.rounds import counted_rounds
from draftbench.records import Served
from draftbench.run_folder.served import (
    chunk_gaps,
    clock_contradicts,
    counts_contradict,
    decodes_of,
    not_answered,
    rounds_of,
    shared_answers,
)


def runs(*rows: Served, k: int):
    return [row for row in decodes_of(rows) if row.k == k]


@pytest.mark.parametrize(
    ("arrivals", "chunks"),
    [
        ((0.5, 0.7, 0.8, 1.1), (1, 3, 1, 2)),
        # A server with a piece for each token sends those of a round at once.
        ((0.5, 0.7, 0.7, 0.7, 0.8, 1.1, 1.1), (1,) * 7),
    ],
)
def test_a_round_of_a_stream_takes_as_long_as_its_piece_was_waited_for(arrivals, chunks):
    # The first token after 0.5 s, then three rounds: 1 + 2, 1 + 0, 1 + 1 tokens.
    row = served(SMALL, 2, *arrivals, chunks=chunks, by_round=((2, 2), (2, 0), (2, 1)))
    (decode,) = runs(row, k=2)
    assert decode.proposed == (2, 2, 2)
    assert decode.accepted == (2, 0, 1)
    assert decode.cut == (0, 0, 0)
    assert decode.verify_seconds == pytest.approx((0.2, 0.1, 0.3))
    assert chunk_gaps(row) == pytest.approx((0.2, 0.1, 0.3))
    assert decode.prefill_seconds == 0.5
    assert decode.decode_seconds == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("reasons", "requests", "words"),
    [
        (["cut"], 1, "1 of 1 request was not answered: cut"),
        (["cut", "cut"], 9, "2 of 9 requests were not answered: cut"),
        (["cut", "timeout", "cut"], 9, "3 of 9 requests were not answered: cut (2), timeout (1)"),
    ],
)
def test_what_was_not_answered_is_counted_by_reason(reasons, requests, words):
    assert not_answered(reasons, requests) == words


def test_pieces_that_a_client_saw_late_and_at_once_take_what_the_server_says():
    """Of 1.1 s in all the first token took .5 s by the server, whose pieces came at 1.1 s all."""
    late = {"chunks": (1, 3, 1, 2), "by_round": ((2, 2), (2, 0), (2, 1))}
    row = served(SMALL, 2, 1.1, 1.1, 1.1, 1.1, decode_seconds=0.6, **late)
    (decode,) = runs(row, k=2)
    assert (decode.decode_seconds, decode.prefill_seconds) == pytest.approx((0.6, 0.5))
    assert decode.verify_seconds == pytest.approx((0.2, 0.2, 0.2))


@pytest.mark.parametrize("other", [None, 9.0])
def test_where_one_answer_lacks_the_servers_clock_or_cannot_be_the_client_is_believed(other):
    timed = {"chunks": (1, 3), "by_round": ((2, 2),)}
    one = served(SMALL, 2, 0.5, 1.0, decode_seconds=0.3, **timed)
    two = served(SMALL, 2, 0.5, 1.0, decode_seconds=other, request="s", **timed)
    assert [row.decode_seconds for row in runs(one, two, k=2)] == [0.5, 0.5]


def test_tokens_accepted_past_the_limit_are_cut():
    # A limit of 4 tokens: one of the prefill, then 3 of which the first round brings 3 of its 5.
    row = served(SMALL, 4, 0.5, 0.7, chunks=(1, 3), by_round=((4, 4),))
    (decode,) = runs(row, k=4)
    assert (decode.accepted, decode.cut) == ((3,), (1,))


def test_an_end_that_the_target_adds_itself_cuts_nothing():
    row = served(SMALL, 4, 0.5, 0.7, chunks=(1, 3), by_round=((4, 2),))
    (decode,) = runs(row, k=4)
    assert (decode.accepted, decode.cut) == ((2,), (0,))


@pytest.mark.parametrize(
    ("tokens", "counted", "rounds"),
    [
        # Steps without a proposal are rounds that the engine does not list: 1 + 3, and two alone.
        (6, {"by_round": ((3, 3),)}, [(3, 3), (0, 0), (0, 0)]),
        # Sums alone, as llama.cpp gives: 6 of 10 tokens accepted are 4 rounds; as even as can be.
        (10, {"drafted": 12, "accepted": 6}, [(3, 1), (3, 1), (3, 2), (3, 2)]),
        # What was accepted past the end is in the sums: no round drafts more than 3.
        (3, {"drafted": 6, "accepted": 5}, [(3, 2), (3, 3)]),
        # A step without a proposal is in no sum either: three rounds, and one token alone.
        (11, {"rounds": 3, "drafted": 9, "accepted": 7}, [(3, 2), (3, 2), (3, 3), (0, 0)]),
        # Of 4 rounds 3 accepted the first token, 2 the second, 1 the third.
        (
            10,
            {"rounds": 4, "drafted": 12, "accepted": 6, "by_position": (3, 2, 1)},
            [(3, 0), (3, 1), (3, 2), (3, 3)],
        ),
    ],
)
def test_rounds_have_the_sums_that_the_engine_counted(tokens, counted, rounds):
    row = served(SMALL, 3, 0.5, 1.0, chunks=(1, tokens), **counted)
    assert rounds_of(row) == rounds
    (decode,) = runs(row, k=3)
    assert sum(decode.verify_seconds) == pytest.approx(0.5)
    assert len(set(decode.verify_seconds)) == 1


@pytest.mark.parametrize(
    ("k", "counted", "summed"),
    [
        (3, {"rounds": 4, "drafted": 12, "accepted": 6}, True),
        (3, {"rounds": 4, "drafted": 12, "accepted": 6, "by_position": (3, 2, 1)}, False),
        (3, {"by_round": ((3, 0), (3, 1), (3, 2), (3, 3))}, False),
        # One token a round is accepted or not.
        (1, {"rounds": 4, "drafted": 4, "accepted": 2}, False),
    ],
)
def test_sums_alone_do_not_tell_at_which_positions_tokens_were_accepted(k, counted, summed):
    row = served(SMALL, k, 0.5, 1.0, chunks=(1, 10), **counted)
    (decode,) = runs(row, k=k)
    assert decode.summed == summed
    reached = counted_rounds([decode]).reached
    assert bool(np.isnan(reached).all()) == summed


@pytest.mark.parametrize(
    ("candidate", "others", "rounds"),
    [
        (SMALL, {}, 0),
        (SMALL, {"drafted": 6, "accepted": 0}, 2),  # it tells, in another answer
        (NGRAM, {}, 2),  # which may have found nothing
    ],
)
def test_of_a_server_that_tells_nothing_of_its_drafting_no_rounds_are_known(
    candidate, others, rounds
):
    rows = [
        served(candidate, 3, 0.5, 0.6, 0.7, request=name, **reported)
        for name, reported in (("a", {}), ("b", others))
    ]
    (first, _) = decodes_of(rows)
    assert (len(first.proposed), first.output_tokens) == (rounds, 3)
    assert first.decode_seconds == pytest.approx(0.2)


def test_candidates_share_the_baseline_that_was_served_once():
    plain = served(None, 0, 0.5, 0.6, 0.7)
    rows = [plain, *(served(c, 1, 0.5, 0.6, 0.7, by_round=((1, 0), (1, 0)))
                     for c in (SMALL, BIG))]  # fmt: skip
    blocks = [(row.block, row.k) for row in decodes_of(rows)]
    assert blocks == [("small", 0), ("small", 1), ("big", 0), ("big", 1)]
    assert next(row.proposed for row in decodes_of(rows)) == (0, 0)


@pytest.mark.parametrize(("concurrency", "active"), [(1, ()), (4, (4, 4))])
def test_as_many_rows_are_active_as_were_in_flight(concurrency, active):
    row = served(SMALL, 1, 0.5, 0.6, 0.7, by_round=((1, 0), (1, 0)), concurrency=concurrency)
    assert [decode.active for decode in runs(row, k=1)] == [active]


def test_answers_that_ended_in_an_error_are_no_decoding_runs():
    broken = served(SMALL, 1, 0.5, error="timeout", by_round=())
    assert decodes_of([served(None, 0, 0.5, 0.6), broken]) == []


def test_requests_at_their_times_of_arrival_are_one_load_and_leave_out_those_written_before():
    alone = served(None, 0, 0.5, 0.6)
    opened = [served(None, 0, 0.9, 1.1, load="open", concurrency=n, request=f"r{n}")
              for n in (2, 5)]  # fmt: skip
    drafted = [served(SMALL, 1, 0.9, 1.0, load="open", concurrency=3, by_round=((1, 0),))]
    found = decodes_of([alone, *opened, *drafted])
    assert {row.concurrency for row in found} == {1}
    assert [row.prefill_seconds for row in found] == [0.9, 0.9, 0.9]


def test_rounds_make_the_answer_although_positions_and_sums_disagree():
    # Four rounds that accepted 0, 0, 1 and 2 make seven of the nine tokens after the first.
    answer = served(
        SMALL,
        2,
        *(0.1 * n for n in range(1, 11)),
        rounds=4,
        drafted=8,
        accepted=5,
        by_position=(2, 1),
    )
    assert [accepted for _, accepted in rounds_of(answer)] == [0, 0, 1, 2, 0, 0]
    (_, found) = decodes_of([served(None, 0, 0.1, 0.2), answer])
    assert found.accepted == (0, 0, 1, 2, 0, 0)


@pytest.mark.parametrize(
    ("counted", "what"),
    [
        ({"rounds": 2, "drafted": 2, "accepted": 3}, "accepted than drafted"),
        ({"rounds": 3, "drafted": 6, "accepted": 6, "by_position": (1, 5)}, "the one before it"),
        ({"rounds": 10**9, "drafted": 10, "accepted": 3}, "more rounds than tokens"),
        ({"drafted": 10**9, "accepted": 3}, "more drafted tokens than rounds hold"),
        ({"by_round": ((2, 3),)}, "more tokens accepted than proposed"),
        ({"rounds": 1, "accepted": 10}, "in a round than k"),
        # Of these rounds the last ten begin past the end of eleven tokens.
        ({"by_round": ((2, 2),) * 14}, "more rounds than the answer has room for"),
    ],
)
def test_rounds_that_no_answer_can_have_are_refused(counted, what):
    with pytest.raises(ValueError, match=what):
        served(SMALL, 2, *(0.1 * n for n in range(1, 12)), **counted)


def streams(claims: float, *, pieces=(1,) * 21, gap=0.05, k=2, first=1.0):
    """Twenty tokens after the first, as a client saw them, and what the server claims."""
    times = [first + gap * at for at in range(len(pieces))]
    return [
        served(SMALL, k, *times, chunks=pieces, request=name, decode_seconds=claims)
        for name in "abcde"
    ]


@pytest.mark.parametrize(
    ("rows", "factor"),
    [
        (streams(1.0), None),
        (streams(0.96), None),  # its last piece was late
        (streams(1.04), None),  # its first piece was
        (streams(0.45), 0.45),
        (streams(1.6), 1.6),
        # Three quarters were written while the first piece was on its way, or all of it.
        (streams(1.0, pieces=(16, 1, 1, 1, 1, 1)), None),
        (streams(0.9, pieces=(21,)), None),
        (streams(1.5, pieces=(16, 1, 1, 1, 1, 1), first=2.0), 1.5),
        # One server of two, one answer without the server's time, and a server that is impossible.
        ([*streams(1.0, k=0), *streams(0.5)], 0.5),
        ([*streams(0.5), served(SMALL, 2, 1.0, 2.0, request="f")], None),
        (streams(2.5), None),
    ],
)
def test_a_server_s_clock_is_contradicted_by_what_late_delivery_cannot_explain(rows, factor):
    found = clock_contradicts(rows)
    assert found == (factor and pytest.approx(factor, rel=0.01))


def test_where_one_server_s_clock_is_contradicted_all_times_are_the_client_s():
    rows = [*streams(1.02, k=0), *streams(0.45)]
    assert {round(row.decode_seconds, 6) for row in decodes_of(rows)} == {1.0}
    fair = [*streams(1.02, k=0), *streams(1.03)]
    assert sorted({row.decode_seconds for row in decodes_of(fair)}) == [1.02, 1.03]


def test_equal_texts_with_unequal_counts_contradict_each_other():
    def texts(k, counts):
        return [
            served(SMALL, k, 1.0, 2.0, chunks=(1, n - 1), request=r, digest=f"text of {r}")
            for r, n in zip("abc", counts, strict=True)
        ]

    plain = texts(0, (20, 30, 40))
    assert counts_contradict([*plain, *texts(2, (20, 30, 40))]) is None
    assert counts_contradict([*plain, *texts(2, (10, 15, 40))]) == (4, 6)
    # One token of 900 that is split otherwise, another text, and an answer that broke off.
    long = texts(0, (200, 300, 400)) + texts(2, (200, 300, 401))
    assert counts_contradict(long) is None
    other = [replace(row, digest="another") for row in texts(2, (10, 15, 20))]
    cut = [replace(row, error="cut") for row in texts(2, (10, 15, 20))]
    assert counts_contradict([*plain, *other, *cut]) is None


def test_another_user_is_counted_over_the_answers_whose_server_tells():
    rows = streams(1.0)
    assert shared_answers(rows) is None
    alone = [replace(row, shared=False) for row in rows]
    assert shared_answers([*rows, *alone]) is None
    assert shared_answers([*rows, *alone[1:], replace(rows[0], shared=True)]) == (1, 5)
