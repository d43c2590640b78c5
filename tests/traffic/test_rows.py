"""Rows of every form, read by hand."""

import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest

from draftbench.traffic.errors import BadRowError, NotRepresentableError, UnknownFormError
from draftbench.traffic.rows import Fields, read_request

HELLO = [{"role": "user", "content": "Hello"}]
SECRET = "SECRET-TEXT"


def read(row, **fields):
    return read_request(json.dumps(row).encode(), "f.jsonl:1", Fields(**fields), b"key")[:2]


def request(row, **fields):
    return read(row, **fields)[1]


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"prompt": "Once"}, "prompt"),
        ({"messages": HELLO}, "messages"),
        ({"body": {"messages": HELLO}}, "OpenAI request"),
        ({"request": {"prompt": "Once"}}, "OpenAI request"),
        ({"conversations": [{"from": "human", "value": "One"}]}, "ShareGPT"),
    ],
)
def test_a_row_names_its_form(row, form):
    assert read(row)[0] == form


def test_the_last_message_of_a_request_body_is_never_taken_as_the_answer():
    messages = [*HELLO, {"role": "assistant", "content": "Hi"}]
    assert request({"body": {"messages": messages}}).messages == tuple(messages)


def test_sharegpt_asks_up_to_the_last_human_turn():
    said = [("system", "Be brief"), ("human", "One"), ("gpt", "1"), ("human", "Two"), ("gpt", "2")]
    asked = request({"conversations": [{"from": who, "value": text} for who, text in said]})
    assert [(m["role"], m["content"]) for m in asked.messages or ()] == [
        ("system", "Be brief"),
        ("user", "One"),
        ("assistant", "1"),
        ("user", "Two"),
    ]
    assert asked.response == "2"
    assert request({"conversations": [{"from": "human", "value": "One"}]}).response is None


def test_the_logged_response_is_the_first_choice():
    choices = [{"message": {"content": "Hi"}}, {"message": {"content": "Ho"}}]
    assert request({"prompt": "Hello", "choices": choices}).response == "Hi"
    assert request({"prompt": "Hello", "choices": [{"text": "Hi"}]}).response == "Hi"


def test_a_system_text_beside_a_prompt_makes_it_a_chat():
    row = {"model": "llama3", "prompt": "Hello", "system": "Be brief", "stream": False}
    for asked in (request(row), request({"body": row})):
        assert [(m["role"], m["content"]) for m in asked.messages or ()] == [
            ("system", "Be brief"),
            ("user", "Hello"),
        ]
    assert request(row | {"raw": True}).prompt == "Hello"


def test_the_choices_of_a_question_are_no_answer():
    said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "four"}]
    assert request({"messages": said, "choices": "A) three B) four"}).response == "four"


def test_fields_are_dotted_paths_or_dotted_columns():
    row = {"in": {"text": "Hello"}, "out.text": "Hi", "who": {"team": 3}}
    form, asked = read(row, prompt="in.text", response="out.text", segment="who.team")
    assert (form, asked.prompt) == ("--prompt-field", "Hello")
    assert (asked.response, asked.segment) == ("Hi", "3")


def test_the_segment_named_by_the_user_replaces_the_usual_places():
    assert request({"prompt": "a", "segment": "s", "team": "t"}, segment="team").segment == "t"
    assert request({"prompt": "a", "segment": "s"}, segment="team").segment is None
    assert request({"prompt": "a", "category": "c"}).segment == "c"
    assert request({"body": {"prompt": "a"}, "tags": {"segment": "code"}}).segment == "code"
    assert request({"prompt": "a", "segment.version": 2, "category": "c"}).segment == "c"


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00:00+00:00"),
        (1700000000, "1700000000"),
        ({}, None),
        ([1], None),
        (True, None),
        ("t" * 201, None),
        ("\ud800", "?"),  # half a character
    ],
)
def test_a_timestamp_is_text_or_unknown_and_refuses_nothing(time, text):
    row = {"prompt": "a", "timestamp": time}
    assert read_request(row, "t:1", Fields(), b"key")[1].timestamp == text


def test_text_parts_are_joined():
    content = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    asked = request({"messages": [{"role": "user", "content": content}]})
    assert asked.messages == ({"role": "user", "content": "One\nTwo"},)


def test_tool_call_arguments_become_objects_and_nulls_of_tables_go():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = request(
        {
            "messages": [
                {"role": "user", "content": "Hello", "tool_calls": None},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "2"},
            ]
        }
    )
    user, assistant, _ = asked.messages or ()
    assert user == {"role": "user", "content": "Hello"}
    assert assistant["content"] is None
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"body": {"prompt": [1, 2, 3]}}, "prompt as a list"),
        ({"body": {"model": "m", "input": [SECRET], "dimensions": 9}}, "input"),
        ({"conversations": [{"from": SECRET, "value": "a"}]}, "conversations.from"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "url": SECRET}]}]},
            "message content of type image_url",
        ),
    ],
)
def test_what_cannot_be_asked_of_a_text_model_is_not_representable(row, field):
    with pytest.raises(NotRepresentableError) as raised:
        read(row)
    assert str(raised.value) == field


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1], "not an object"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"prompt": 5}, "the prompt is not a text"),
        ({"messages": []}, "the messages are empty"),
        ({"messages": [{"role": "user", "content": ""}]}, "the messages are empty"),
        ({"messages": ["SECRET-TEXT"]}, "messages[0] is not an object"),
        ({"messages": {"SECRET-TEXT": 1}}, "`messages` is not a list"),
        ({"messages": "[{'role': SECRET-TEXT"}, "`messages` is not a list"),
        (
            {"prompt": "[{'role': 'user', 'content': SECRET-TEXT}]"},
            "the prompt looks like messages, but is no JSON and no Python literal",
        ),
        ({"messages": [{"content": "SECRET-TEXT"}]}, "messages[0] has no `role`"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0] has no text as `content`"),
        ({"conversations": [{"from": "gpt", "value": "a"}]}, "`conversations` has no human turn"),
        ({"conversations": "SECRET-TEXT"}, "`conversations` is not a list of objects"),
        ({"prompt": "a", "segment": ["SECRET-TEXT"]}, "the segment is not a text"),
        ({"prompt": "a", "segment": "s" * 201}, "the segment is longer than 200 characters"),
        ({"prompt": "a" * 1048577}, "the request is longer than 1 MiB"),
        ({"prompt": "a", "output": "b" * 1048577}, "the logged response is longer than 1 MiB"),
        (
            {"body": {"messages": HELLO, "temperature": "SECRET-TEXT"}},
            "`temperature`: expected `float`, got `str`",
        ),
    ],
)
def test_a_bad_row_says_why_and_not_what(row, reason):
    with pytest.raises(BadRowError) as raised:
        read(row)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"prompt": SECRET-TEXT}', "not JSON (invalid character (byte 11))"),
        (b'{"prompt": "SECRET-TEXT', "not JSON (Input data was truncated)"),
        (b'{"prompt": "\xff SECRET-TEXT"}', "not UTF-8"),
        (b'{"prompt": "a", "x": ' + b"[" * 100_000, "nested too deeply"),
        (b" " * ((16 << 20) + 1), "longer than 16 MiB"),
    ],
)
def test_broken_bytes_are_a_bad_row(data, reason):
    with pytest.raises(BadRowError) as raised:
        read_request(data, "f:1", Fields(), b"key")
    assert str(raised.value) == reason


def test_the_hint_for_an_unknown_form_is_one_line_of_a_terminal():
    with pytest.raises(UnknownFormError) as raised:
        read({"question": SECRET})
    assert "--prompt-field" in raised.value.hint
    assert len(f"hint: {raised.value.hint}") <= 88


def test_the_id_is_a_keyed_hash_of_what_was_asked():
    row = {"prompt": "Hello", "temperature": 0.5, "max_tokens": 9, "stop": "."}
    asked = (
        b'{"max_tokens":9,"prompt":"Hello","sampling":{"temperature":0.5},'
        b'"stop":["."],"template":{}}'
    )
    expected = hmac.new(b"key", asked, hashlib.sha256).hexdigest()[:16]
    assert request(row).id == expected


def test_the_id_depends_on_the_key_and_the_question_and_on_nothing_else():
    row = {"prompt": "Hello", "temperature": 0.5}
    same = row | {"segment": "s", "response": "r", "timestamp": "t", "top_p": 1.0, "n": 2}
    assert request(same).id == request(row).id
    others = [row | change for change in ({"prompt": "Hallo"}, {"temperature": 0.6}, {"seed": 1})]
    ids = {request(other).id for other in others} | {request(row).id}
    ids.add(read_request(row, "f:1", Fields(), b"other key")[1].id)
    assert len(ids) == 5
