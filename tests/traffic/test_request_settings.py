"""Request parameters: what is applied, what is neutral, what cannot be expressed."""

from typing import Any

import pytest

from draftbench.records import Sampling
from draftbench.traffic.request_settings import (
    BadRowError,
    NotRepresentableError,
    request_fields,
)


def test_every_sampling_parameter_is_taken() -> None:
    fields = request_fields(
        {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "seed": 7,
            "max_tokens": 64,
            "stop": ["\n", "END"],
        },
        openai=True,
    )
    assert fields["sampling"] == Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, seed=7)
    assert fields["max_tokens"] == 64
    assert fields["stop"] == ("\n", "END")
    assert fields["weight"] == 1.0


def test_neutral_and_null_values_are_the_same_as_none_at_all() -> None:
    neutral: dict[str, Any] = {
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0,
        "seed": None,
        "stop": None,
        "tools": [],
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tool_choice": "none",
        "min_tokens": 0,
        "best_of": 1,
        "n": 1,
        "guided_json": None,
    }
    assert request_fields(neutral, openai=True) == request_fields({}, openai=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"50256": -100}),
        ("min_tokens", 8),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("grammar", "root ::= x"),
        ("best_of", 4),
        ("use_beam_search", True),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("ignore_eos", True),
    ],
)
@pytest.mark.parametrize("openai", [True, False])
def test_what_changes_the_distribution_is_named(field: str, value: Any, openai: bool) -> None:
    asked = {field: value, "tools": [{"type": "function"}]}
    with pytest.raises(NotRepresentableError, match=rf"^{field}$"):
        request_fields(asked, openai=openai)


def test_an_unknown_field_of_a_request_body_is_never_ignored() -> None:
    with pytest.raises(NotRepresentableError, match=r"^frobnicate$"):
        request_fields({"frobnicate": 1}, openai=True)
    assert request_fields({"frobnicate": 1}, openai=False)["weight"] == 1.0


def test_an_unknown_field_is_named_only_if_it_is_a_name() -> None:
    with pytest.raises(NotRepresentableError, match=r"^an unreadable field name$"):
        request_fields({"some \x1b[31m text": 1}, openai=True)


def test_fields_that_do_not_change_the_distribution_are_harmless() -> None:
    harmless = {"model": "m", "user": "u", "metadata": {"a": 1}, "stream": True, "logprobs": True}
    assert request_fields(harmless, openai=True) == request_fields({}, openai=True)


def test_tools_and_template_switches_are_kept() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    fields = request_fields(
        {
            "tools": [tool],
            "tool_choice": "auto",
            "chat_template_kwargs": {"enable_thinking": True, "style": "x"},
            "enable_thinking": False,
            "reasoning_effort": "low",
        },
        openai=True,
    )
    assert fields["tools"] == (tool,)
    assert fields["template"] == {"enable_thinking": False, "style": "x", "reasoning_effort": "low"}


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "return_tensors"])
def test_a_log_cannot_set_the_arguments_of_the_renderer(name: str) -> None:
    with pytest.raises(NotRepresentableError, match=r"^chat_template_kwargs$"):
        request_fields({"chat_template_kwargs": {name: "x"}}, openai=False)


def test_n_samples_weigh_n() -> None:
    assert request_fields({"n": 3}, openai=True)["weight"] == 3.0


def test_the_newer_name_of_the_limit_wins() -> None:
    asked = {"max_tokens": 10, "max_completion_tokens": 20}
    assert request_fields(asked, openai=True)["max_tokens"] == 20


def test_whole_numbers_may_come_as_floats_from_tables() -> None:
    assert request_fields({"max_tokens": 320.0}, openai=False)["max_tokens"] == 320


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"temperature": "0.7"}, "`temperature` is not a number"),
        ({"temperature": True}, "`temperature` is not a number"),
        ({"temperature": -0.1}, "`temperature` is out of range"),
        ({"temperature": float("nan")}, "`temperature` is out of range"),
        ({"temperature": float("inf")}, "`temperature` is out of range"),
        ({"top_p": 1.5}, "`top_p` is out of range"),
        ({"top_p": 0}, "`top_p` is 0"),
        ({"top_k": -2}, "`top_k` is out of range"),
        ({"min_p": 2}, "`min_p` is out of range"),
        ({"max_tokens": 0}, "`max_tokens` is out of range"),
        ({"max_tokens": 1.5}, "`max_tokens` is not a whole number"),
        ({"seed": 10**30}, "`seed` is out of range"),
        ({"n": 0}, "`n` is out of range"),
        ({"stop": 5}, "`stop` is not a text or a list of texts"),
        ({"stop": [""]}, "`stop` is not a text or a list of texts"),
        ({"tools": "f"}, "`tools` is not a list of objects"),
        ({"chat_template_kwargs": []}, "`chat_template_kwargs` is not an object"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_a_bad_row(
    asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadRowError) as raised:
        request_fields(asked, openai=True)
    assert str(raised.value) == reason
