"""Requests go out at the stated load, pieces are timed, and what goes wrong is told by kind."""

import time

import pytest
from engines.scripted_server import SHAPES, ScriptedServer
from engines.virtual_time import virtual_server

from draftbench.engines import client
from draftbench.engines import drive as drive_module
from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.faults import Fault
from draftbench.engines.server import Ask
from draftbench.records import RoundCounts, Sampling


def asks(count: int, limit: int = 11, **fields) -> list[Ask]:
    return [Ask((f"r{i}", 0), [7, i], limit, Sampling(seed=i), **fields) for i in range(count)]


def filler(limit: int = 100) -> Ask:
    return Ask(("filler", 0), [9, 9], limit, Sampling())


@pytest.fixture
def virtual():
    servers = []

    def make(schedules):
        servers.append(virtual_server(schedules))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def test_pieces_are_timed_from_when_the_request_was_sent(virtual):
    server = virtual([[(0.3, 1), (0.04, 3), (0.05, 2)]])
    (answer,) = drive(server, asks(1, limit=6), concurrency=1)
    assert answer.arrivals == pytest.approx([0.3, 0.34, 0.39])
    assert answer.chunks == [1, 3, 2]
    assert answer.tokens == [0, 1, 2, 3, 4, 5]
    assert (answer.sent, answer.in_flight, answer.error) == (0.0, 1, None)


def test_one_at_a_time_the_next_goes_out_when_the_last_ended(virtual):
    server = virtual([[(1.0, 1)], [(2.0, 1)], [(1.0, 1)]])
    answers = list(drive(server, asks(3), concurrency=1))
    assert [answer.sent for answer in answers] == pytest.approx([0.0, 1.0, 3.0])


def test_a_closed_loop_keeps_its_load_until_the_last_measured_answer(virtual):
    # Four measured requests of 1, 1, 1 and 5 seconds at two in flight: while the long one goes on,
    # fillers of 1.5 seconds each take the other place, and are ended with it.
    server = virtual([[(5.0, 1)], [(1.0, 1)], [(1.0, 1)], [(1.0, 1)], [(1.5, 1)]])
    answers = list(drive(server, asks(4), concurrency=2, fillers=[filler()]))
    assert [answer.ask.key[0] for answer in answers] == ["r1", "r2", "r3", "r0"]
    assert [answer.in_flight for answer in answers] == [2, 2, 2, 2]
    assert [sent for sent, prompt in server.seen["sent"] if prompt == [9, 9]] == [3.0, 4.5]
    assert max(server.seen["in_flight"]) == 2
    assert server.seen["now"] == 0


def test_fillers_take_the_places_that_too_few_requests_leave(virtual):
    server = virtual([[(1.0, 1)]])
    (answer,) = drive(server, asks(1), concurrency=3, fillers=[filler()])
    assert answer.in_flight == 3


def test_an_open_loop_sends_at_the_times_of_arrival_whatever_is_in_flight(virtual):
    server = virtual([[(2.0, 1)]])
    arrivals = (0.25, 1.0, 1.5, 4.0)
    given = [Ask((f"r{t}", 0), [7, 1], 5, Sampling(), arrival=t) for t in reversed(arrivals)]
    answers = list(drive(server, given))
    assert [answer.sent for answer in answers] == pytest.approx(arrivals)
    assert [answer.in_flight for answer in answers] == [3, 3, 3, 1]


def test_an_answer_that_takes_too_long_is_a_timeout_and_keeps_what_came(virtual, monkeypatch):
    monkeypatch.setattr(client, "STREAM_SECONDS", 4.0)
    server = virtual([[(1.0, 1), (2.0, 2), (9.0, 1)], [(1.0, 1)]])
    late, good = drive(server, asks(2), concurrency=1)
    assert (late.error, late.chunks, late.tokens) == (Fault.TIMEOUT, [1, 2], [0, 1, 2])
    assert (good.error, good.sent) == (None, pytest.approx(4.0))


@pytest.mark.parametrize("concurrency", [1, 2, None])
def test_what_is_in_flight_ends_when_the_time_is_up(virtual, concurrency):
    server = virtual([[(1.0, 1)], [(50.0, 1)]])
    answers, given = [], asks(4, arrival=0.0)
    with pytest.raises(TimeoutError):
        answers.extend(drive(server, given, concurrency=concurrency, seconds=5.0))
    assert server.seen["now"] == 0
    assert server.http.loop.time() == pytest.approx(1000.0 + 5.0)


def test_leaving_the_loop_ends_what_is_in_flight(virtual):
    server = virtual([[(1.0, 1)], [(50.0, 1)]])
    for _ in drive(server, asks(4), concurrency=2):
        break
    assert server.seen["now"] == 0


@pytest.mark.parametrize("engine", SHAPES)
def test_every_engine_is_driven_to_the_same_answer(connected, engine):
    server = connected(ScriptedServer(engine, k=4, accepts=(2, 0, 4), end=14))
    (answer,) = drive(server, [Ask(("r", 0), [3, 4], 50, Sampling())], concurrency=1)
    # 5 … 14 is ten tokens, the end token counted: 1, then rounds of 2 + 1, 0 + 1, 4 + 1.
    assert answer.error is None
    assert (answer.output_tokens, answer.finish, answer.prompt_tokens) == (10, "stop", 2)
    if engine == "openai":
        assert answer.tokens is None
        assert answer.chunks == [2, 3, 2, 3]  # four pieces of text: spread evenly
        return
    assert answer.tokens == list(range(5, 15))
    assert answer.chunks == ([1] * 10 if engine == "llama.cpp" else [1, 3, 1, 5])
    assert answer.counts == RoundCounts(
        rounds=3,
        drafted=12,
        accepted=6,
        by_position=(2, 2, 1, 1),
        by_round=((4, 2), (4, 0), (4, 4)) if engine == "vllm" else None,
    )


@pytest.mark.parametrize(
    ("fault", "kind", "tokens"),
    [
        ("hang", Fault.TIMEOUT, 5),
        ("refuse", Fault.REFUSED, 0),
        ("garbage", Fault.GARBAGE, 0),
        ("half", Fault.CUT, 5),
        ("early", Fault.CUT, 5),
        ("wrong ids", Fault.OTHER_IDS, 0),
        ("too many", Fault.GARBAGE, 12),
        ("failed", Fault.FAILED, 0),
    ],
)
def test_a_fault_is_told_by_kind_once_and_the_next_request_is_sent(
    connected, monkeypatch, fault, kind, tokens
):
    # Pieces of 1, 3, 1, 5 and 1 tokens and two more events: half of them are the first three.
    play = ScriptedServer(k=4, accepts=(2, 0, 4), faults={0: fault})
    monkeypatch.setattr(client, "STREAM_SECONDS", 2.0)
    server = connected(play)
    bad, good = drive(server, asks(2), concurrency=1)
    assert (bad.error, bad.output_tokens) == (kind, tokens)
    assert bad.reason
    assert "\x1b" not in bad.reason
    assert (good.error, good.output_tokens) == (None, 11)
    assert len(play.bodies) == 2


def test_an_answer_without_end_is_too_large(connected):
    server = connected(ScriptedServer("openai", faults={0: "giant"}))
    begun = time.monotonic()
    (answer,) = drive(server, asks(1, limit=2), concurrency=1)
    assert answer.error is Fault.TOO_LARGE
    assert time.monotonic() - begun < 10


def test_a_server_that_died_is_unreachable_for_all_that_come_after(connected):
    server = connected(ScriptedServer(faults={1: "die"}))
    answers = list(drive(server, asks(4), concurrency=1))
    assert answers[0].error is None
    assert {answer.error for answer in answers[1:]} == {Fault.UNREACHABLE}


def with_another_client(play):
    """A server that answers another client's request between its first and its second."""
    answer, count = play.answer, 0

    def beside(body):
        nonlocal count
        count += 1
        if count == 2:
            answer({"prompt": [1], "n_predict": 5, "max_tokens": 30})
        return answer(body)

    play.answer = beside
    return play


def test_rounds_that_vllms_answers_do_not_tell_are_those_of_its_counters(connected):
    """Before 0.29. Tokens 1, then rounds of 2 + 1, 0 + 1 and 4 + 1, of which the last four are past
    the end.
    """
    play = ScriptedServer("vllm", k=4, accepts=(2, 0, 4), version="0.28.1")
    server = connected(with_another_client(play))
    assert server.facts().k == 4
    alone, crowded = drive(server, asks(2, limit=6), concurrency=1)
    assert alone.counts == RoundCounts(rounds=3, drafted=12, accepted=6, by_position=(2, 2, 1, 1))
    assert (crowded.counts, crowded.error) == (None, None)
    for answer in drive(server, asks(2, limit=6), concurrency=2):
        assert (answer.counts, answer.error) == (None, None)


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize(
    ("engine", "version"), [("vllm", "0.29.0"), ("vllm", "0.28.1"), ("llama.cpp", "b1")]
)
def test_another_user_is_one_whose_tokens_the_server_counts_beside_an_answers(
    connected, engine, version, k
):
    """The other one asked for 30 tokens while the second request was answered."""
    server = connected(with_another_client(ScriptedServer(engine, k=k, version=version)))
    server.facts()  # which asks llama-server for a first token
    answers = list(drive(server, asks(3), concurrency=1))
    crowded = 0 if engine == "llama.cpp" else 1
    assert [answer.shared for answer in answers] == [n == crowded for n in range(3)]


def test_who_else_is_served_is_unknown_without_counters_and_beside_own_requests(connected):
    for play in (ScriptedServer("openai"), ScriptedServer("llama.cpp", counts=False)):
        (answer,) = drive(connected(play), asks(1), concurrency=1)
        assert (answer.error, answer.shared) == (None, None)
    for answer in drive(connected(ScriptedServer("llama.cpp")), asks(2), concurrency=2):
        assert answer.shared is None


@pytest.mark.parametrize(
    ("factor", "at_hand", "written"),
    [(2, True, 10), (0.5, True, 10), (1, True, 10), (2, False, 20), (0, True, 10)],
)
def test_tokens_of_a_text_are_counted_here_whatever_the_server_states(
    connected, factor, at_hand, written
):
    """Nine letters and the token that ended them; without a tokenizer the server is believed."""
    server = connected(ScriptedServer("openai", end=14, states=lambda n: int(factor * n)))
    if at_hand:
        server.tokens_in = lambda text: len(text) - 1  # the end token is a letter here
    (answer,) = drive(server, [Ask(("r", 0), [3, 4], 50, Sampling())], concurrency=1)
    assert (answer.error, answer.output_tokens, len(answer.text)) == (None, written, 10)
    assert answer.miscounted == (at_hand and factor != 1)


def test_an_answer_whose_text_is_far_longer_than_its_limit_is_refused(connected):
    server = connected(ScriptedServer("openai"))
    server.tokens_in = lambda text: 2 * len(text)
    (answer,) = drive(server, asks(1, limit=20), concurrency=1)
    assert answer.error is Fault.GARBAGE
    assert "its text has 40 tokens by the tokenizer here, and its limit is 20" in answer.reason
    server.tokens_in = lambda text: len(text) + 1  # one text may be several rows of tokens
    (answer,) = drive(server, asks(1, limit=20), concurrency=1)
    assert (answer.error, answer.output_tokens) == (None, 20)


def test_a_stream_of_nothing_but_signs_of_life_gets_a_line_and_an_end(connected, monkeypatch):
    monkeypatch.setattr(client, "STREAM_SECONDS", 3.0)
    monkeypatch.setattr(drive_module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(drive_module, "SECONDS_BETWEEN_LINES", 1.0)
    server, lines = connected(ScriptedServer("vllm", faults={0: "alive"})), []
    bad, good = drive(server, asks(2), concurrency=1, note=lines.append)
    assert (bad.error, good.error) == (Fault.TIMEOUT, None)
    assert 2 <= len(lines) <= 4
    assert lines[0].startswith("no token for ")
    assert "(1 request in flight): each is given up after 3 s" in lines[0]


def test_a_stream_of_tokens_that_lasts_gets_no_line(virtual, monkeypatch):
    monkeypatch.setattr(drive_module, "SILENT_SECONDS", 0.05)
    lines, play = [], ScriptedServer("vllm", pace=0.02)
    with play:
        server = connect(play.url)
        (answer,) = drive(server, asks(1), concurrency=1, note=lines.append)
        server.close()
    assert (answer.error, lines) == (None, [])


def test_positions_are_left_out_where_somebody_else_was_served_too(connected):
    server = connected(with_another_client(ScriptedServer("llama.cpp", k=2, accepts=(1,))))
    alone, crowded = drive(server, asks(2, limit=5), concurrency=1)
    assert (alone.counts.rounds, alone.counts.by_position) == (2, (2, 0))
    assert crowded.counts == RoundCounts(drafted=4, accepted=2)


def test_rounds_that_cannot_be_are_garbage_and_are_not_kept():
    with ScriptedServer("vllm", k=4) as play:
        play.rounds_of = lambda count: [(2, 4)]  # four of two
        server = connect(play.url)
        (answer,) = drive(server, asks(1, limit=8), concurrency=1)
        server.close()
    assert answer.error is Fault.GARBAGE
    assert "more tokens accepted than" in answer.reason
    assert answer.counts is None
