"""Rows of every form, read by hand."""

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from log_shapes import CALLED, CHAT, USER
from traffic.asked import FUNCTION, QUERY, asked

from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    UnknownFormError,
)
from draftbench.traffic.rows import read_request

SECRET = "SECRET-TEXT"


def test_fields_are_dotted_paths_or_dotted_columns():
    row = {"in": {"text": "Hello"}, "out.text": "Hi", "who": {"team": 3}}
    query = replace(QUERY, prompt_field="in.text", response_field="out.text", segment_by="who.team")
    form, request, *_ = read_request(row, "f:1", query)
    assert (form, request.prompt) == ("--prompt-field", "Hello")
    assert (request.response, request.segment) == ("Hi", "3")


def test_the_segment_named_by_the_user_replaces_the_usual_places():
    assert asked({"prompt": "a", "segment": "s", "team": "t"}, segment_by="team").segment == "t"
    assert asked({"prompt": "a", "segment": "s"}, segment_by="team").segment is None
    assert asked({"prompt": "a", "category": "c"}).segment == "c"
    assert asked({"body": {"prompt": "a"}, "tags": {"segment": "code"}}).segment == "code"
    assert asked({"prompt": "a", "segment.version": 2, "category": "c"}).segment == "c"
    assert asked({"prompt": "a", "segment": "\x1b[31mred"}).segment == "\ufffd[31mred"  # a label


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
    assert read_request(row, "t:1", QUERY)[1].timestamp == text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1], "not an object"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"prompt": 5}, "no prompt or messages found; its fields are `prompt`"),
        ({"messages": []}, "no prompt or messages found; its fields are `messages`"),
        ({"messages": [{"role": "user", "content": ""}]}, "the messages are empty"),
        *(
            ({"messages": said}, "no prompt or messages found; its fields are `messages`")
            for said in (["SECRET-TEXT"], {"SECRET-TEXT": 1}, "[{'role': SECRET-TEXT")
        ),
        ({"messages": [USER, "SECRET-TEXT"]}, "messages[1] is not an object"),
        (
            {"prompt": "[{'role': 'user', 'content': SECRET-TEXT}]"},
            "the prompt looks like messages, but cannot be read as such",
        ),
        ({"messages": [{"content": "SECRET-TEXT"}]}, "messages[0] has no `role`"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0] has no text as `content`"),
        ({"conversations": [{"from": "gpt", "value": "a"}]}, "the messages ask nothing"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "the messages ask nothing"),
        ({"prompt": "a", "segment": ["SECRET-TEXT"]}, "the segment is not a text"),
        ({"prompt": "a", "segment": "s" * 201}, "the segment is longer than 200 characters"),
        ({"prompt": "a" * 1048577}, "the request is longer than 1 MiB"),
        ({"prompt": "a", "output": "b" * 1048577}, "the logged response is longer than 1 MiB"),
    ],
)
def test_a_bad_row_says_why_and_not_what(row, reason):
    with pytest.raises(BadRowError) as raised:
        asked(row)
    assert str(raised.value) == reason


def test_a_setting_that_cannot_be_read_is_named_and_not_quoted():
    with pytest.raises(NotRepresentableError) as raised:
        asked({"body": {"messages": [USER], "temperature": "SECRET-TEXT"}})
    assert str(raised.value) == "`temperature`: expected a number, got text"


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
        read_request(data, "f:1", QUERY)
    assert str(raised.value) == reason


def test_the_hint_for_an_unknown_form_is_one_line_of_a_terminal():
    with pytest.raises(UnknownFormError) as raised:
        asked({"question": SECRET})
    assert "--prompt-field" in raised.value.hint
    assert len(f"hint: {raised.value.hint}") <= 88


def test_the_id_is_a_keyed_hash_of_what_was_asked_and_of_nothing_else():
    row = {"prompt": "Hello", "temperature": 0.5, "max_tokens": 9, "stop": "."}
    question = (
        b'{"max_tokens":9,"prompt":"Hello","sampling":{"temperature":0.5},'
        b'"stop":["."],"template":{}}'
    )
    same = row | {"segment": "s", "response": "r", "timestamp": "t", "top_p": 1.0, "n": 2}
    expected = hmac.new(b"key", question, hashlib.sha256).hexdigest()[:16]
    assert asked(row).id == asked(same).id == expected
    changes = ({"prompt": "Hallo"}, {"temperature": 0.6}, {"seed": 1})
    ids = {expected, *(asked(row | change).id for change in changes)}
    ids.add(read_request(row, "f:1", replace(QUERY, key=b"other key"))[1].id)
    assert len(ids) == 5


CUT, REDACTED = "cut by the logger", "redacted by the logger"
MARKERS = [
    ("aa... (litellm_truncated skipped 81 chars. It is a DB storage safeguard.) ...z", CUT),
    ("aa... (litellm_truncated 12982 chars)", CUT),
    ("<truncated due to size exceeding limit>", CUT),
    ("[This value has been dropped because this span's size exceeds the 1MB size limit.]", CUT),
    ("Summarise: aaaa... [truncated]", CUT),
    ("aaaa[truncated]", CUT),
    ("Long <truncated 1200 chars>", CUT),
    ("Long [1,200 chars truncated]\n", CUT),
    ("Hello... (truncated 350 characters)", CUT),
    ("aaaa...truncated", CUT),
    ("redacted-by-litellm", REDACTED),
    ("Hello\nredacted-by-litellm", REDACTED),
    ("__REDACTED__", REDACTED),
    ("[REDACTED]", REDACTED),
    ("[PROMPT REDACTED]", REDACTED),
    ("<redacted by policy>", REDACTED),
    ("Once upon... 12,345 more characters", CUT),
    ("Once upon… [+9321 chars]", CUT),
    ("[object Object]", CUT),
    ("[Circular]", CUT),
    ("[Scrubbed due to 'password']", REDACTED),
    ("[removed]", REDACTED),
    ("REDACTED", REDACTED),
    ("********", REDACTED),
    ("sha256:" + "9f86d081" * 8, REDACTED),
]


@pytest.mark.parametrize(("text", "reason"), MARKERS)
def test_a_text_that_the_logger_cut_or_redacted_is_no_traffic(text, reason):
    called = {"function": {"name": "f", "arguments": {"a": [text]}}}
    for row in (
        {"prompt": text},
        {"messages": [USER, {"role": "user", "content": text}]},
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [called]}, USER]},
    ):
        with pytest.raises(NoTrafficError, match=f"^{reason}$"):
            asked(row)
    assert asked({"prompt": "a", "response": text}).response is None


@pytest.mark.parametrize(
    "text",
    [
        *("Why was it [REDACTED] here?", "redacted", "[Output truncated: 9 lines] and more"),
        *("(some steps omitted)", "[some lines omitted]", "Is it... truncated"),
        *("It has... 5 more", "[Object] is what?", "**bold**", "sha256:abc", "Was it removed?"),
    ],
)
def test_a_prompt_that_speaks_of_markers_is_a_prompt(text):
    assert asked({"prompt": text}).prompt == text


CUT_BEFORE = "a.txt\nb.txt\n[truncated]"
OBSERVED = USER | {"content": CUT_BEFORE}


@pytest.mark.parametrize(
    ("messages", "traffic"),
    [
        # The program that asked may cut what a tool wrote, which the model then read so.
        ([*CALLED[:2], {"role": "tool", "content": CUT_BEFORE}], True),
        ([*CALLED[:2], {"role": "tool", "content": "[truncated]"}], False),
        # Agents say what a program wrote as the user. A logger cuts the longest text.
        ([{"role": "system", "content": "x" * 40}, USER, OBSERVED], True),
        ([{"role": "system", "content": "x" * 10}, USER, OBSERVED], False),
        # A text that is itself cut is no measure.
        ([USER | {"content": "x" * 40 + "[truncated]"}, USER, OBSERVED], False),
    ],
)
def test_a_text_that_was_cut_before_the_model_read_it_is_traffic(messages, traffic):
    if traffic:
        assert asked({"messages": messages}).messages == tuple(messages)
    else:
        with pytest.raises(NoTrafficError):
            asked({"messages": messages})


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("text", "Hello world\n"),
        ("inputs", [{"role": "user", "content": "Hello world", "id": "m1"}]),
        ("context", '["Hello world"]'),
        ("turns", 3),  # a count
        ("turns", " 3.0"),
        ("text", "### Instruction:\nHello world\n### Response:\nHi"),  # both, as rendered
    ],
)
def test_a_field_that_repeats_the_prompt_is_no_part_of_its_own(part, text):
    row = {"prompt": "Hello world", "completion": "Hi"}
    assert asked(row | {part: text}) == asked(row)
    with pytest.raises(NotRepresentableError, match=f"^{part}$"):
        asked(row | {part: "Goodbye"})
    with pytest.raises(NotRepresentableError, match=f"^{part}$"):
        asked(row | {part: "world"})


def test_messages_that_are_logged_twice_are_asked_once():
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
    messages = [{"role": "user", "content": parts}, *CALLED]
    row = {"messages": messages, "request": {"messages": messages}}
    assert asked(row).messages == (USER | {"content": "Hello\nworld"}, *CALLED)


@pytest.mark.parametrize(
    "row",
    [
        {"model": "m", "input": "Hello 2 you", "prompt": {"id": "pmpt_1", "version": "2"}},
        {"model": "m", "input": "Hello", "prompt": {"id": "pmpt_1"}},
        {"model": "m", "input": "Hello", "conversation": {"id": "conv_1"}},
        {"model": "m", "prompt": "Tell 1 2 3", "context": [1, 2, 3], "options": {}},
    ],
)
def test_what_a_server_keeps_of_a_prompt_leaves_the_row_out(row):
    name = [*row][2]
    with pytest.raises(NotRepresentableError, match=f"^{name}$"):
        asked({"body": row} if "options" not in row else row)


def test_a_context_of_ids_labels_the_call_and_one_of_texts_is_read_by_the_model():
    row = {"messages": [USER], "context": {"trace_id": "0x1", "attempt": 2, "tags": ["a", "b"]}}
    read = read_request(row, "log:1", QUERY)
    assert (read.request, [*read.unread]) == (asked({"messages": [USER]}), ["context"])
    for context in ({"sentences": ["Bob did it."]}, ["Paris"], "Paris"):
        with pytest.raises(NotRepresentableError, match=r"^context$"):
            asked({"messages": [USER], "context": context})


@pytest.mark.parametrize("mark", ["@@@langfuseMedia:type=image/jpeg|id=a-1|source=bytes@@@"])
def test_a_text_that_holds_only_the_mark_of_an_image_is_no_traffic(mark):
    for text in (mark, f"What is {mark}?"):
        with pytest.raises(NoTrafficError, match="kept elsewhere by the logger"):
            asked({"messages": [USER | {"content": text}]})


@pytest.mark.parametrize("word", ["nan", "NaN", "None", "null"])
def test_a_cell_that_a_table_padded_is_absent_and_a_prompt_of_that_word_is_not(word):
    alpaca = {"instruction": "Say hi", "output": "hi"}
    names = ["input", "history", "system", "segment", "temperature", "context", "documents"]
    assert asked(alpaca | dict.fromkeys(names, word)) == asked(alpaca)
    names = ["messages", "conversations", "error", "stop", "user", "attachments"]
    row = {"model": "m", "prompt": word}
    assert asked(row | dict.fromkeys(names, word)) == asked(row)
    assert asked(row).prompt == word


def test_the_ids_of_calls_and_marks_of_caches_are_no_part_of_a_request():
    def row(name, **more):
        call = {"id": name, "function": {"name": "ls", "arguments": "{}"}}
        return {
            "tools": [FUNCTION | more],
            "messages": [
                USER | {"name": ""} | more,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "a.txt", "tool_call_id": name},
            ],
        }

    read = read_request(row("B", cache_control={"type": "ephemeral"}), "f:1", QUERY)
    assert (read.request.id, read.unread) == (asked(row("A")).id, {})
    assert read.request.tools == (FUNCTION,)
    assert read.request.messages[0] == USER


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_null(word):
    row = json.dumps(CHAT | {"score": 1, "top_p": 1}).replace(": 1,", f": {word},")
    assert asked(row.encode()) == asked(CHAT)


def test_what_a_plain_prompt_has_as_whole_lines_is_no_further_part():
    prompt = "### Instruction:\nSay it in German.\n\n### Input:\nyes\n\n### Response:"
    row = {"prompt": prompt, "instruction": "Say it in German.", "input": "yes", "output": "ja"}
    assert read_request(row, "log:1", QUERY).request.prompt == prompt
    with pytest.raises(NotRepresentableError, match="input"):
        read_request({"prompt": "Ja or Nein?", "input": "Nein"}, "log:1", QUERY)
