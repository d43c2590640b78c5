import shlex

import pytest

from draftbench.engines.client import AnswerError, Fault, failure
from draftbench.engines.secrets import (
    form_of,
    hidden_in,
    on_one_line,
    secrets_of,
    values_of,
    without_values,
)
from draftbench.sweep.failures import reason_of


@pytest.mark.parametrize(
    ("command", "form"),
    [
        (
            "env PGPASSWORD=hunter2 MYTOKEN=x llama-server {args}",
            "… PGPASSWORD=… MYTOKEN=… … {args}",
        ),
        ("serve --api-key X Y --port 1", "… --api-key … --port …"),
        ("serve --api_key=X -hft abc -pX -e", "… --api_key=… -h… … -p… -e"),
        ("ssh g 'cd m; KEY=abc serve {args}'", "…"),
        (
            "serve --header 'Authorization: Bearer abc' --enforce-eager",
            "… --header … --enforce-eager",
        ),
        ("https://me:word@host/?key=abc --x={model}", "… --x=…"),
        # Padding is no assignment, and what follows a flag is its value.
        ("run --api-token c2VjcmV0== --x YQ=b {args}", "… --api-token … --x … {args}"),
        ("run c2VjcmV0==", "…"),
        ("docker run -e HF_TOKEN=abc image", "… -e HF_TOKEN=… …"),
        ("", ""),
    ],
)
def test_the_form_of_a_command_holds_names_and_no_value(command, form):
    assert " ".join(form_of(shlex.split(command))) == form


def test_a_kept_command_holds_no_value_of_what_it_adds_to_a_start():
    given = "draftbench sweep --engine-args '--api-key X -c 1' --engine-command='A=b run' --k 2"
    kept = "draftbench sweep --engine-args '--api-key … -c …' '--engine-command=A=… …' --k 2"
    assert without_values(given) == kept


def test_secrets_are_those_that_an_environment_names():
    environment = {"HF_TOKEN": "hidden-in-environment", "HOME": "/home/me", "DB_PASSWORD": "short"}
    assert secrets_of(environment) == {"hidden-in-environment"}


def test_every_value_that_a_user_adds_may_be_secret():
    words = shlex.split("env PGPASSWORD=hunter2 run --zeta abcdefg --x=hijklmn -c 1 {args}")
    assert {"hunter2", "abcdefg", "hijklmn"} <= values_of(words)
    assert not values_of(["-c", "1", "{args}", "--enforce-eager"])


@pytest.mark.parametrize(
    "word",
    [
        "X=hunter22; echo hunter22 ; exit 3",
        '{"pin":"hunter22"}',
        "X-Pin: hunter22",
        "-hunter22",
        "-phunter22",
        "--x=hunter22,other",
        "{model}:hunter22",
    ],
)
def test_a_part_of_a_value_may_be_secret_too(word):
    assert "hunter22" in values_of([word])


def test_a_known_secret_is_hidden_wherever_it_stands():
    text = "user=me said long-enough-too and long-enough"
    assert on_one_line(text, ["long-enough", "long-enough-too"]) == "user=me said *** and ***"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("args: {'api_key': ['X'], 'port': 1}", "args: {'api_key': ['***'], 'port': 1}"),
        ("Bearer abc was refused", "Bearer *** was refused"),
        ("key sk-abcdefghijklmnop here", "key *** here"),
        ("5 tokens per second, token 7 of 9", "5 tokens per second, token 7 of 9"),
    ],
)
def test_what_looks_like_a_secret_in_a_log_is_hidden(line, shown):
    assert hidden_in(line) == shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a\x1b[31m b\x07", "a\ufffd[31m b\ufffd"),
        ("key of-the-command, api_key=X", "key ***, api_key=***"),
        ("x" * 301, "x" * 300 + "…"),
        ("bearer " + "y" * 10**6, "bearer ***"),
    ],
)
def test_what_a_server_says_is_one_short_line_without_controls_and_secrets(said, shown):
    assert on_one_line(said, ["of-the-command"]) == shown


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("cannot read `zebra-quartz`", "/completion answers 400"),
        (
            "zebra exceeds the available context size, try increasing it",
            "/completion answers 400: exceeds the available context size",
        ),
        (
            "This model's maximum context length is 512 tokens; zebra",
            "/completion answers 400: maximum context length is 512 tokens",
        ),
    ],
)
def test_only_what_servers_say_of_themselves_may_be_recorded(said, kept):
    error = AnswerError(Fault.REFUSED, "/completion answers 400", hint="see its log", said=said)
    assert error.message == f"/completion answers 400: {said}"
    assert reason_of(error) == (kept, "see its log")


def test_a_token_that_a_server_quotes_in_its_answer_is_not_repeated(monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_API_KEY", "topsecret")
    error = failure({"message": "the key topsecret is not known"})
    assert "topsecret" not in error.message
    assert "the key *** is not known" in error.message
