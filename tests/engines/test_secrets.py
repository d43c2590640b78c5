import shlex

import pytest
from engines.scripted_server import QUOTES, ScriptedServer

from draftbench.engines.drive import drive
from draftbench.engines.faults import AnswerError, Fault
from draftbench.engines.secrets import (
    form_of,
    hidden_in,
    kept_in,
    on_one_line,
    secrets_of,
    values_of,
    without_values,
)
from draftbench.engines.server import Ask
from draftbench.records import Sampling
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
    ("said", "phrases"),
    [
        ("cannot read `zebra-quartz`", ""),
        (
            "zebra exceeds the available context size, try increasing it",
            "exceeds the available context size",
        ),
        (
            "This model's maximum context length is 512 tokens; zebra; unknown field top_k",
            "maximum context length is 512 tokens, unknown field, top_k",
        ),
    ],
)
def test_of_what_a_server_says_only_known_phrases_are_shown(said, phrases, tmp_path):
    reason, file = "/completion answers 400", tmp_path / "private" / "said.log"
    known = f"{reason}: {phrases}".removesuffix(": ")
    where = f"({len(said)} characters, kept in {file})"
    with kept_in(file):
        error = AnswerError(Fault.REFUSED, reason, hint="see its log", said=said)
    assert error.message == f"{reason}: {f'{phrases} {where}'.strip()}"
    assert reason_of(error) == (known, "see its log")
    assert file.read_text() == f"{said}\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)

    nowhere = AnswerError(Fault.REFUSED, reason, hint="see its log", said=said)
    assert "not shown, since they may quote a prompt" in nowhere.message
    (tmp_path / "link").symlink_to(file)
    with kept_in(tmp_path / "link"):  # somebody else's file
        assert "not shown" in AnswerError(Fault.REFUSED, reason, hint="x", said=said).message


def test_a_message_that_is_a_known_phrase_is_shown_whole():
    error = AnswerError(Fault.FAILED, "the server reports an error", hint="x", said="Out of memory")
    assert error.message == "the server reports an error: Out of memory"


MARKER = "zebra-quartz-4711"


@pytest.mark.parametrize("shape", QUOTES)
def test_a_prompt_that_a_server_quotes_is_in_no_error_and_in_no_record(connected, shape, tmp_path):
    prompt = f'{MARKER} lives at "12 Elm Street"'
    server = connected(ScriptedServer("openai", faults={0: shape}))
    ask = Ask(("r", 0), prompt, 5, Sampling())
    with kept_in(tmp_path / "said.log"):
        (answer,) = drive(server, [ask], concurrency=1)
    recorded = answer.finish + answer.reason
    assert "zebra" not in recorded
    assert "Elm" not in recorded
    assert "\\u" not in recorded
    if shape == "finish":
        assert (answer.error, answer.finish) == (None, "other")
        return
    assert answer.error in (Fault.FAILED, Fault.REFUSED)
    kept = (tmp_path / "said.log").read_text()
    assert (f"\\u{ord('z'):04x}" if shape == "escaped" else MARKER) in kept
