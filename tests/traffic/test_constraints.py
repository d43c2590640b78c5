"""What an answer is held to, by whichever field of whichever API."""

import json

import pytest
from log_shapes import CHAT, SAMPLED, USER
from traffic.asked import FUNCTION, asked

SCHEMA = {"type": "object", "properties": {}}


STRUCTURED = [
    ("regex", "a+", {"regex": "a+"}),
    ("format", "json", {"json_object": True}),
    ("format", SCHEMA, {"json": SCHEMA}),
    ("guided_json", json.dumps(SCHEMA), {"json": SCHEMA}),
    ("guided_json", {}, {"json": {}}),
    ("guided_regex", "12", {"regex": "12"}),
    ("guided_choice", ["a", "b"], {"choice": ["a", "b"]}),
    ("guided_grammar", "root ::= x", {"grammar": "root ::= x"}),
    ("guided_json_object", True, {"json_object": True}),
    ("ebnf", "root ::= x", {"grammar": "root ::= x"}),
    ("json_schema", SCHEMA, {"json": SCHEMA}),
    ("grammar", {"type": "json", "value": SCHEMA}, {"json": SCHEMA}),
    ("grammar", "root ::= x", {"grammar": "root ::= x"}),  # llama.cpp's, as the next
    ("response_format", {"type": "json_object", "schema": SCHEMA}, {"json": SCHEMA}),
    ("structured_outputs", {"json": SCHEMA, "regex": None}, {"json": SCHEMA}),
    ("response_format", {"type": "json_object"}, {"json_object": True}),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        {"json": SCHEMA},
    ),
]


@pytest.mark.parametrize(("name", "value", "constraint"), STRUCTURED)
def test_structured_output_is_the_same_constraint_whatever_names_and_wraps_it(
    name, value, constraint
):
    body = CHAT | {name: value}
    inside = {"messages": [USER], "model_parameters": SAMPLED | {name: value}}
    for row in (body, {"body": body}, {"request_body": json.dumps(body)}, inside):
        assert asked(row).constraint == constraint
        assert asked(row).id != asked(CHAT).id
    for none in (None, ""):
        assert asked(CHAT | {name: none}) == asked(CHAT)


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "schema"),
    [
        (NAMED, {"type": "object"}),
        ({"type": "tool", "name": "f"}, {"type": "object"}),
        ({"tool": {"name": "f"}}, {"type": "object"}),  # Bedrock's
        (
            "required",
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {
                                "name": {"enum": ["f"]},
                                "parameters": {"type": "object"},
                            },
                            "required": ["name", "parameters"],
                        }
                    ]
                },
            },
        ),
    ],
)
def test_a_tool_that_must_be_called_holds_the_answer_to_its_arguments(choice, schema):
    found = asked(CHAT | {"tools": [FUNCTION], "tool_choice": choice})
    assert (found.constraint, found.tools) == ({"tool": schema}, (FUNCTION,))
