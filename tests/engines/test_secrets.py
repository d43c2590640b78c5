import shlex

import pytest

from draftbench.engines.client import AnswerError, Fault, failure
from draftbench.engines.secrets import hidden_in, on_one_line, secrets_of, without_secrets
from draftbench.sweep.failures import describe


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("serve --api-key X --port 1", "serve --api-key *** --port 1"),
        ("serve --api-key X Y --port 1", "serve --api-key *** *** --port 1"),
        ("serve --api_key=X -hft abc", "serve --api_key=*** -hft ***"),
        ("serve --hf-token abc --tokenizer t", "serve --hf-token *** --tokenizer t"),
        ("serve --max-num-batched-tokens 5", "serve --max-num-batched-tokens 5"),
        ("serve --spec-tokens 5 --key v", "serve --spec-tokens 5 --key v"),
        ("docker run -e 'HF_TOKEN=a b'", "docker run -e HF_TOKEN=***"),
        ("docker run -e HF_TOKEN=abc -e A=b i", "docker run -e HF_TOKEN=*** -e A=b i"),
        (
            "ssh g 'cd m; OPENAI_API_KEY=abc serve --api-key X -c 1'",
            "ssh g 'cd m; OPENAI_API_KEY=*** serve --api-key *** -c 1'",
        ),
        ("serve --model https://me:word@host/m", "serve --model https://***@host/m"),
        (
            "serve --header 'Authorization: Bearer abc'",
            "serve --header 'Authorization: Bearer ***'",
        ),
        ("serve --model hf_abcdefghijklmnop", "serve --model ***"),
        (
            """serve --speculative-config '{"token": "abc", "k": 1}'""",
            """serve --speculative-config '{"token": "***", "k": 1}'""",
        ),
    ],
)
def test_values_of_secret_flags_and_variables_are_hidden_and_nothing_else(command, shown):
    assert without_secrets(shlex.split(command)) == shlex.split(shown)


def test_secrets_are_those_of_the_command_line_and_of_the_environment():
    words = ["serve", "--api-key", "long=enough==", "--hf-token=another-one", "--port", "8000"]
    environment = {"HF_TOKEN": "hidden-in-environment", "HOME": "/home/me", "DB_PASSWORD": "short"}
    expected = {"long=enough==", "another-one", "hidden-in-environment"}
    assert secrets_of(words, environment) == expected


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
    assert describe(error) == (kept, "see its log")


def test_a_token_that_a_server_quotes_in_its_answer_is_not_repeated(monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_API_KEY", "topsecret")
    error = failure({"message": "the key topsecret is not known"})
    assert "topsecret" not in error.message
    assert "the key *** is not known" in error.message
