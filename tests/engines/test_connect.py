"""From an address to the right adapter, within limits, and with a token that nobody sees."""

import asyncio
import json

import httpx2
import pytest
from engines.scripted_server import SHAPES, ScriptedServer

from draftbench.engines import client
from draftbench.engines.client import MOST_BYTES, Http
from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.faults import AnswerError, Fault
from draftbench.engines.secrets import kept_in
from draftbench.engines.server import Ask
from draftbench.errors import EngineError
from draftbench.records import Sampling


@pytest.fixture
def play():
    with ScriptedServer() as server:
        yield server


@pytest.mark.parametrize("engine", SHAPES)
def test_the_engine_is_found_out_by_who_owns_the_model(connected, engine):
    server = connected(ScriptedServer(engine))
    assert (server.engine, server.model) == (engine, "org/target")


@pytest.mark.parametrize(("engine", "stated"), [("openai", "vllm"), ("vllm", "openai")])
def test_a_stated_engine_is_believed_where_the_server_does_not_name_another(
    connected, engine, stated
):
    """Any server is one of OpenAI's kind."""
    assert connected(ScriptedServer(engine), stated).engine == stated


def test_another_engine_than_the_stated_one_is_an_error(play):
    with pytest.raises(EngineError, match=r"is a server of kind `vllm`, not `llama\.cpp`"):
        connect(play.url, "llama.cpp")


def transport_of(answer) -> httpx2.MockTransport:
    return httpx2.MockTransport(lambda request: answer)


CARDS = [
    {"id": "a", "owned_by": "vllm"},
    {"id": "lora", "owned_by": "vllm", "parent": "a"},
    {"id": "b", "owned_by": "vllm"},
]


@pytest.mark.parametrize(
    ("served", "target", "asked"),
    [(2, None, "a"), (2, "org/a", "a"), (3, "b", "b"), (0, "org/a", None)],
)
def test_of_several_models_the_target_is_asked_and_adapters_are_none(served, target, asked):
    cards = transport_of(httpx2.Response(200, json={"data": CARDS[:served]}))
    server = connect("http://x", target=target, transport=cards)
    assert server.model == asked
    server.close()


@pytest.mark.parametrize("target", [None, "org/a"])
def test_several_models_need_a_name(target):
    cards = transport_of(httpx2.Response(200, json={"data": CARDS}))
    with pytest.raises(EngineError, match="serves 2 models") as caught:
        connect("http://x", target=target, transport=cards)
    assert caught.value.hint == "name one of them with --target: `a`, `b`"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://host/behind/proxy/v1", "https://host/behind/proxy"),
    ],
)
def test_an_address_is_the_server_s_root(given, url):
    http = Http(given)
    assert http.url == url
    http.close()


@pytest.mark.parametrize("given", ["", "host:8000", "ftp://host", "http://", "/a/file"])
def test_what_is_no_address_is_an_error_with_an_example(given):
    with pytest.raises(EngineError, match="is not the address of a server") as caught:
        Http(given)
    assert "http://127.0.0.1:8000" in caught.value.hint


@pytest.mark.parametrize("given", ["http://me:secret@host", "http://host/?key=secret"])
def test_an_address_with_a_secret_is_refused_without_repeating_it(given):
    with pytest.raises(EngineError) as caught:
        Http(given)
    assert "secret" not in caught.value.message + caught.value.hint
    assert "DRAFTBENCH_API_KEY" in caught.value.hint


def test_a_token_from_the_environment_goes_out_and_into_no_error(monkeypatch, tmp_path):
    with ScriptedServer(token="sesame") as play:
        with pytest.raises(AnswerError, match=r"answers 401: \(") as caught:
            connect(play.url)
        assert "DRAFTBENCH_API_KEY" in caught.value.hint
        monkeypatch.setenv("DRAFTBENCH_API_KEY", "sesame")
        server = connect(play.url)
        server.close()
    assert play.headers[-1]["Authorization"] == "Bearer sesame"
    said = httpx2.Response(401, json={"error": {"message": "sesame opens nothing"}})
    with (
        kept_in(tmp_path / "said.log"),
        pytest.raises(AnswerError, match=r"401: \(44 characters, kept in "),
    ):
        connect("http://x", transport=transport_of(said))
    kept = (tmp_path / "said.log").read_text()
    assert "*** opens nothing" in kept
    assert "sesame" not in kept


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel"])
def test_a_token_that_cannot_be_sent_is_refused_without_repeating_it(monkeypatch, token):
    monkeypatch.setenv("DRAFTBENCH_API_KEY", token)
    with pytest.raises(EngineError, match="holds no token that can be sent") as caught:
        Http("http://127.0.0.1:9")
    assert token not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (httpx2.Response(200, content=b" " * (MOST_BYTES + 1)), Fault.TOO_LARGE),
        (httpx2.Response(200, content=b'{"data":' + b"[" * 100_000), Fault.GARBAGE),
        (httpx2.Response(200, content=b"<html>"), Fault.GARBAGE),
        (httpx2.Response(200, content=b"\xff\xfe"), Fault.GARBAGE),
        (httpx2.Response(200, json={"data": [{"id": 5}]}), Fault.GARBAGE),
        (httpx2.Response(307, headers={"Location": "http://elsewhere/"}), Fault.REDIRECTED),
        (httpx2.Response(500, content=b"\x1b[2Jboom" + b"x" * 200_000), Fault.FAILED),
    ],
)
def test_a_hostile_answer_is_an_error_of_its_kind_that_can_be_printed(answer, fault):
    with pytest.raises(AnswerError) as caught:
        connect("http://x", transport=transport_of(answer))
    assert caught.value.fault is fault
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()


def test_nobody_at_the_address_is_an_error_with_a_hint():
    with pytest.raises(AnswerError, match=r"cannot reach http://127.0.0.1:9") as caught:
        connect("http://127.0.0.1:9")
    assert caught.value.fault is Fault.UNREACHABLE
    assert caught.value.hint == "see whether the server runs and listens at this address"


def test_a_server_that_does_not_speak_is_timed_out(monkeypatch):
    async def silent(request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(30)
        raise AssertionError

    monkeypatch.setattr(client, "SECONDS", 0.1)
    with pytest.raises(AnswerError, match="did not answer in time"):
        connect("http://x", transport=httpx2.MockTransport(silent))


def test_nothing_of_a_proxy_for_other_hosts_touches_a_server_on_this_machine(play, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server = connect(play.url)
    (answer,) = drive(server, [Ask(("r", 0), [1, 2], 3, Sampling())], concurrency=1)
    server.close()
    assert answer.error is None


def test_an_event_that_stands_for_no_record_is_garbage_and_nothing_else(play):
    body = b"data: " + json.dumps({"choices": [{"token_ids": [-5]}]}).encode() + b"\n\n"
    kind = {"Content-Type": "text/event-stream"}
    server = connect(play.url)
    server.http.close()
    answer = httpx2.Response(200, headers=kind, content=body)
    server.http = Http("http://x", transport=transport_of(answer))
    (told,) = drive(server, [Ask(("r", 0), [1, 2], 3, Sampling())], concurrency=1)
    server.close()
    assert (told.error, told.output_tokens) == (Fault.GARBAGE, 0)


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang"])
@pytest.mark.parametrize("fault", ["busy", "busy 429", "plain", "half"])
def test_what_is_not_timed_is_asked_again_where_a_server_is_busy_or_breaks_off(
    connected, monkeypatch, engine, fault
):
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))
    server = connected(play := ScriptedServer(engine, faults={0: fault, 1: fault}))
    server.echo([[7, 8, 9]])
    assert len(play.bodies) == 3


@pytest.mark.parametrize(("fault", "sent"), [("refuse", 1), ("busy", 3)])
def test_a_refusal_is_not_asked_again_and_a_busy_server_not_for_ever(
    connected, monkeypatch, fault, sent
):
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))
    server = connected(play := ScriptedServer("vllm", faults=dict.fromkeys(range(9), fault)))
    with pytest.raises(AnswerError):
        server.echo([[7, 8, 9]])
    assert len(play.bodies) == sent
