"""Request parameters: what is applied, what is neutral, what cannot be expressed."""

from typing import Any

import pytest

from draftbench.records import Sampling
from draftbench.traffic.request_settings import (
    BadRowError,
    NotRepresentableError,
    request_fields,
)

TOOL = {"type": "function", "function": {"name": "f"}}
NOTHING = request_fields({}, server=True, api=())
# fmt: off
NEUTRAL: dict[str, Any] = {
    "top_p": 1.0, "top_k": -1, "min_p": 0, "seed": None, "stop": None, "tools": [], "n": 1,
    "frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1.0, "logit_bias": {},
    "response_format": {"type": "text"}, "tool_choice": "none", "min_tokens": 0, "best_of": 1,
    "guided_json": None,
}
HARMLESS = {"model": "m", "user": "u", "metadata": {"a": 1}, "stream": True, "logprobs": True}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7}
# fmt: on


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (SAMPLING, {"sampling": Sampling(**SAMPLING)}),
        ({"max_tokens": 64}, {"max_tokens": 64}),
        ({"max_tokens": 10, "max_completion_tokens": 20}, {"max_tokens": 20}),  # the newer name
        ({"max_tokens": 320.0}, {"max_tokens": 320}),  # as tables have it
        (
            {name: str(value) for name, value in SAMPLING.items()},
            {"sampling": Sampling(**SAMPLING)},
        ),
        (
            {"max_tokens": "320.0", "n": "2", "stop": '["a"]'},
            {"max_tokens": 320, "weight": 2.0, "stop": ("a",)},
        ),
        ({"stop": ["\n", "END"]}, {"stop": ("\n", "END")}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"n": 3}, {"weight": 3.0}),
        ({"tools": [TOOL], "tool_choice": "auto"}, {"tools": (TOOL,)}),
        (
            {
                "chat_template_kwargs": {"enable_thinking": True, "style": "x"},
                "enable_thinking": False,
                "reasoning_effort": "low",
            },
            {"template": {"enable_thinking": False, "style": "x", "reasoning_effort": "low"}},
        ),
        (NEUTRAL, {}),
        (HARMLESS, {}),
    ],
)
def test_what_a_request_can_hold_is_taken_and_nothing_else_changes(asked, fields):
    assert request_fields(asked, server=True, api=asked) == NOTHING | fields


def test_an_absent_temperature_is_the_default_of_the_api_or_greedy():
    assert NOTHING["sampling"] == Sampling(temperature=1.0)
    assert request_fields({}, server=False, api=())["sampling"] == Sampling(temperature=0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"50256": -100}),
        ("min_tokens", 8),
        ("best_of", 4),
        ("use_beam_search", True),
        ("tool_choice", "none"),
        ("tool_choice", {"type": "function", "function": {"name": "another"}}),
        ("ignore_eos", True),
        # A log cannot set the arguments of the renderer.
        ("chat_template_kwargs", {"chat_template": "x"}),
        ("chat_template_kwargs", {"tokenize": "x"}),
        ("chat_template_kwargs", {"return_tensors": "x"}),
    ],
)
@pytest.mark.parametrize("from_api", [True, False])
def test_what_changes_the_distribution_is_named(field, value, from_api):
    with pytest.raises(NotRepresentableError, match=rf"^{field}$"):
        request_fields(
            {field: value, "tools": [TOOL]}, server=True, api=[field] if from_api else []
        )


@pytest.mark.parametrize(
    ("field", "name"),
    [("frobnicate", "frobnicate"), ("some \x1b[31m text", "an unreadable field name")],
)
def test_an_unknown_field_of_a_request_body_is_never_ignored(field, name):
    with pytest.raises(NotRepresentableError, match=rf"^{name}$"):
        request_fields({field: 1}, server=True, api=[field])
    assert request_fields({field: 1}, server=False, api=()) == request_fields(
        {}, server=False, api=()
    )


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"temperature": "warm"}, "`temperature`: expected `float`, got `str`"),
        ({"temperature": "true"}, "`temperature`: expected `float`, got `bool`"),
        ({"temperature": True}, "`temperature`: expected `float`, got `bool`"),
        ({"temperature": -0.1}, "`temperature`: expected `float` >= 0.0"),
        ({"temperature": float("nan")}, "`temperature`: expected `float` >= 0.0"),
        ({"temperature": float("inf")}, "`temperature`: expected `float` < 9.223372036854776e+18"),
        ({"top_p": 1.5}, "`top_p`: expected `float` <= 1.0"),
        ({"top_p": 0}, "`top_p`: expected `float` > 0.0"),
        ({"top_k": -2}, "`top_k`: expected `int` >= -1"),
        ({"min_p": 2}, "`min_p`: expected `float` <= 1.0"),
        ({"max_tokens": 0}, "`max_tokens`: expected `int` >= 1"),
        ({"max_tokens": 1.5}, "`max_tokens`: expected `int`, got `float`"),
        ({"seed": 10**30}, "`seed`: expected `int` <= 9223372036854775807"),
        ({"n": 0}, "`n`: expected `int` >= 1"),
        ({"stop": 5}, "`stop`: expected `str | array`, got `int`"),
        ({"stop": [""]}, "`stop[0]`: expected `str` of length >= 1"),
        ({"tools": "f"}, "`tools`: expected `array`, got `str`"),
        ({"chat_template_kwargs": []}, "`chat_template_kwargs`: expected `object`, got `array`"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_a_bad_row(asked, reason):
    with pytest.raises(BadRowError) as raised:
        request_fields(asked, server=True, api=asked)
    assert str(raised.value) == reason
