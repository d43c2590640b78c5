"""Messages of every API: their texts, tools and reasoning, and what of them is not read."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_shapes import CALL, CALLED, CHAT, USER
from scenes import query
from traffic.asked import QUERY, asked

from draftbench.traffic import load
from draftbench.traffic.errors import BadRowError, NotRepresentableError
from draftbench.traffic.rows import read_request


@pytest.mark.parametrize("text", ["[{'role': 'user'}\n {'role': 'user'}]", "hello", "{'a': 1}"])
def test_messages_that_are_no_list_are_a_bad_row(text):
    with pytest.raises(BadRowError, match="no prompt or messages found; its fields are `messages`"):
        asked({"messages": text})


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"content": [7]}, "has a part without text"),
        ({"content": [{}]}, "has a part without text"),
        ({"content": [{"type": "text", "text": 7}]}, "has a part without text"),
    ],
)
def test_a_turn_that_says_nothing_that_can_be_read_is_a_bad_row(turn, said):
    with pytest.raises(BadRowError, match=said):
        asked({"messages": [USER, {"role": "assistant", **turn}, USER]})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"id": "a"}, "a tool call without `function`"),
        ({"function": {"name": "f", "arguments": "{"}}, "tool call arguments that are not JSON"),
        ({"name": "f", "args": '{"a": 1}}'}, "tool call arguments that are not JSON"),
    ],
)
def test_an_odd_call_of_a_tool_costs_its_own_row_and_no_other(call, reason, tmp_path):
    odd = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, USER]}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [CHAT, odd])))
    traffic = load(query(tmp_path / "a.jsonl"))
    assert (len(traffic.requests), traffic.bad) == (1, 0)
    assert traffic.summary.left_out == {f"not representable: {reason}": 1}


@pytest.mark.parametrize("empty", [None, "", " ", "null", {}, "{}"])
@pytest.mark.parametrize("name", ["arguments", "input", "args"])
def test_a_call_without_arguments_has_none(empty, name):
    turn = {"role": "assistant", "content": None, "tool_calls": [CALL | {"function": {
        "name": "ls", name: empty}}]}  # fmt: skip
    assert asked({"messages": [USER, turn, CALLED[2]]}).messages == tuple(CALLED)


def test_nulls_with_which_a_table_pads_are_not_in_the_prompt_and_those_of_a_log_are(tmp_path):
    called = {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": None}}}
    padded = {
        "messages": [
            {**USER, "tool_calls": None},
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "content": "x", "tool_calls": None},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"a": "int", "b": None}}},
            {"type": "function", "function": {"name": "g", "parameters": {"a": None, "b": "str"}}},
        ],
    }
    pq.write_table(pa.Table.from_pylist([padded]), tmp_path / "a.parquet")
    (request,) = load(query(tmp_path / "a.parquet")).requests
    assert [tool["function"]["parameters"] for tool in request.tools] == [
        {"a": "int"},
        {"b": "str"},
    ]
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    (meant,) = asked(padded).messages[1]["tool_calls"]
    assert meant["function"]["arguments"] == {"a": 1, "b": None}


def test_what_a_log_notes_on_messages_changes_no_identity_and_is_named(tmp_path):
    rows = [
        {"conversation": [{**USER, "hashed_ip": f"ip{n}", "turn_identifier": n, "state": None}]}
        for n in range(2)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    traffic = load(query(tmp_path / "a.jsonl"))
    assert (len(traffic.requests), traffic.summary.merged) == (1, 1)
    assert traffic.summary.unread == {"messages.hashed_ip": 2, "messages.turn_identifier": 2}


@pytest.mark.parametrize("parts", [None, [], "", [{"type": "text", "text": "Hello"}], "Hello\n"])
@pytest.mark.parametrize("name", ["parts", "contents"])
def test_a_text_under_two_names_is_read_once_and_two_texts_leave_the_row_out(name, parts):
    assert asked({"messages": [USER | {name: parts}]}).messages[0]["content"].strip() == "Hello"
    for empty in (None, "", []):
        assert asked(
            {"messages": [{"role": "user", "content": empty, name: "Hello"}]}
        ).messages == (USER,)
    with pytest.raises(NotRepresentableError, match="several texts of a message"):
        asked({"messages": [USER | {name: [{"type": "text", "text": "short"}]}]})


def test_a_null_turn_is_an_empty_one():
    said = [USER, {"role": "assistant", "content": None}, {"role": "user", "content": "Hello?"}]
    assert asked({"messages": said}).messages[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "row",
    [
        # Arguments as text, and a null with which a table pads.
        {"messages": [
            USER | {"tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [
                CALL | {"function": {"name": "ls", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "a.txt"}]},
        {"messages": [
            USER,
            {"role": "assistant",
             "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c",
                 "content": [{"type": "text", "text": "a.txt"}]}]}]},
        {"messages": [
            {"role": "user", "content": [{"text": USER["content"]}]},
            {"role": "assistant",
             "content": [{"toolUse": {"toolUseId": "c", "name": "ls", "input": {}}}]},
            {"role": "user", "content": [
                {"toolResult": {"toolUseId": "c", "content": [{"text": "a.txt"}]}}]}],
         "inferenceConfig": {}},
        {"gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": USER["content"]}]},
            {"role": "assistant",
             "parts": [{"type": "tool_call", "id": "c", "name": "ls", "arguments": {}}]},
            {"role": "tool",
             "parts": [{"type": "tool_call_response", "id": "c", "response": "a.txt"}]}]},
        {"messages": [
            {"type": "human", "content": USER["content"]},
            {"type": "ai", "content": None, "tool_calls": [{"name": "ls", "args": {}, "id": "c"}]},
            {"type": "tool", "content": "a.txt", "tool_call_id": "c"}]},
        {"contents": [
            {"parts": [{"text": USER["content"]}]},
            {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "ls", "args": {}},
                                         "thoughtSignature": "x"}]},
            {"role": "user", "parts": [{"functionResponse": {"id": "c", "response": "a.txt"}}]}]},
        {"llm.input_messages": [
            {"message.role": "user", "message.content": USER["content"]},
            {"message.role": "assistant",
             "message.tool_calls": [{"tool_call": {"id": "c", "function": {
                 "name": "ls", "arguments": "{}"}}}]},
            {"message.role": "tool", "message.content": "a.txt", "message.tool_call_id": "c"}]},
    ],
)  # fmt: skip
def test_calls_of_tools_and_their_results_are_the_same_messages_in_every_api(row):
    assert asked(row).messages == tuple(CALLED)


def test_items_of_one_answer_are_one_message():
    items = [
        USER,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So"}],
        },
        {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "a.txt"},
    ]
    assert asked({"model": "m", "input": items}).messages[1] == {
        "role": "assistant",
        "content": "So",
        "reasoning_content": "hm",
        "tool_calls": [CALL],
    }


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "image_url"),
        ({"type": "input_audio", "input_audio": {}}, "input_audio"),
        ({"image": {"format": "png"}}, "image"),
        ({"type": "document", "source": {}}, "document"),
    ],
)
def test_a_part_that_is_no_text_leaves_its_row_out_by_name(part, name):
    said = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}
    with pytest.raises(NotRepresentableError, match=f"^message content of type {name}$"):
        asked({"messages": [said]})


def test_text_parts_are_joined():
    content = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    found = asked({"messages": [{"role": "user", "content": content}]})
    assert found.messages == ({"role": "user", "content": "One\nTwo"},)


@pytest.mark.parametrize("mark", ["cache_control", "cachePoint"])
def test_a_text_part_is_read_whatever_stands_beside_it(mark):
    content = [{"text": "A long document", mark: {"type": "default"}}, {"text": "Summarise it"}]
    found = asked({"messages": [{"role": "user", "content": [*content, {mark: {}}]}]})
    assert found.messages[0]["content"] == "A long document\nSummarise it"
    for name in ("image", "file", "document"):
        for kind in ({}, {"type": "text"}):
            part = kind | {"text": "What?", name: {"id": "x"}}
            with pytest.raises(NotRepresentableError, match=rf"^message content of type {name}$"):
                asked({"messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "text", "text": "a.txt", "annotations": ["x"], "logprobs": []}, "annotations"),
        ({"type": "tool_result", "content": "a.txt", "is_error": True}, "is_error"),
        ({"type": "tool_result", "content": "a.txt", "is_error": False}, None),
    ],
)
def test_what_a_part_says_beside_its_text_is_named(part, named):
    row = {"messages": [{"role": "user", "content": [part]}]}
    read = read_request(row, "log:1", QUERY)
    assert read.request.messages[0]["content"] == "a.txt"
    assert [*read.unread] == [f"messages.content.{named}"] * (named is not None)


def test_the_result_of_a_tool_is_what_is_not_null():
    part = {"type": "tool_result", "tool_use_id": "c", "content": None}
    for given, text in (({}, ""), ({"output": "a.txt"}, "a.txt")):
        said = {"role": "user", "content": [part | given]}
        assert asked({"messages": [*CALLED[:2], said]}).messages[2]["content"] == text


def test_gemini_ties_a_result_to_its_call_by_the_name_of_the_function():
    part = {"functionResponse": {"name": "ls", "response": {"files": ["a.txt"]}}}
    turns = [{"role": "user", "parts": [{"text": "Hello"}]}, {"role": "user", "parts": [part]}]
    assert asked({"contents": turns}).messages[1] == {
        "role": "tool",
        "content": '{"files":["a.txt"]}',
        "name": "ls",
    }


@pytest.mark.parametrize(
    "field",
    [
        {"reasoning_content": "hm"},
        {"reasoning": [{"type": "text", "text": "hm"}]},
        {"reasoning": {"text": "hm"}},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        {"additional_kwargs": {"reasoning_content": "hm"}},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hi"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                     {"type": "text", "text": "Hi"}]},
        {"content": "", "parts": [{"text": "hm", "thought": True}, {"text": "Hi"}]},
        {"content": "", "parts": [{"type": "step-start"}, {"type": "reasoning", "text": "hm"},
                                  {"type": "step-start"}, {"type": "text", "text": "Hi"}]},
    ],
)  # fmt: skip
def test_reasoning_is_read_wherever_a_message_keeps_it(field):
    said = [USER, {"role": "assistant", "content": "Hi"} | field, USER]
    assert asked({"messages": said}).messages[1] == {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "hm",
    }


@pytest.mark.parametrize(
    "field",
    [
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "x"}]},
        {"content": [{"type": "redacted_thinking", "data": "x"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ],
)
def test_reasoning_whose_text_is_not_logged_leaves_its_row_out(field):
    said = [USER, {"role": "assistant", "content": "Hi"} | field, USER]
    if "type" in field:
        said[1] = field
    with pytest.raises(NotRepresentableError, match=r"^reasoning that is not in the log$"):
        asked({"model": "m", "input": said})


def test_a_plan_before_calls_of_tools_is_the_reasoning_before_them():
    plan = {"role": "assistant", "tool_plan": "hm", "tool_calls": [CALL]}
    read = read_request({"messages": [USER, plan, CALLED[2]]}, "log:1", QUERY)
    thought = {"content": None, "reasoning_content": "hm"}  # as most templates call it
    assert read.request.messages[1] == plan | thought
    assert read.unread == {}
    assert asked(CHAT | {"response": {"message": plan}}).response == plan | thought


def test_gemini_calls_the_assistant_a_model():
    said = [USER, {"role": "model", "content": "Hi"}, USER]
    assert asked({"messages": said}).messages[1] == {"role": "assistant", "content": "Hi"}


def test_langchain_keeps_calls_apart():
    call = CALL | {"function": {"name": "ls", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": []}
    said |= {"additional_kwargs": {"tool_calls": [call], "refusal": None}}
    assert asked({"messages": [USER, said, CALLED[2]]}).messages == tuple(CALLED)


@pytest.mark.parametrize("part", ["tools", "functions", "images", "context", "instructions"])
def test_a_part_of_a_prompt_inside_a_message_leaves_its_row_out_by_name(part):
    with pytest.raises(NotRepresentableError, match=rf"^messages\.{part}$"):
        asked({"messages": [{"role": "system", "content": "x", part: ["y"]}, USER]})


@pytest.mark.parametrize("name", ["assistant", "Assistant", "CHATBOT", "bot", "ChatGPT", "gpt"])
def test_roles_in_capitals_or_under_other_names_are_those_of_templates(name):
    """Known fault: an answer under such a name was taken for a part of the prompt."""
    said = {"role": name, "content": "Hi"}
    request = asked({"messages": [USER | {"role": "User"}, said]})
    assert (request.messages, request.response) == ((USER,), "Hi")
    shared = [{"from": "Human", "value": USER["content"]}, {"from": name, "value": "Hi"}]
    assert asked({"conversations": shared}) == request


def test_a_role_that_no_one_knows_is_left_to_the_template():
    said = {"role": "Critic", "content": "No."}
    assert asked({"messages": [said, USER]}).messages == (said, USER)


def test_what_a_model_says_to_itself_in_another_channel_leaves_its_row_out():
    thought = {"role": "assistant", "channel": "analysis", "content": "hm"}
    said = {"role": "assistant", "channel": "final", "content": "Hi"}
    with pytest.raises(NotRepresentableError, match=r"^messages\.channel$"):
        asked({"messages": [USER, thought, said, USER]})
    assert len(asked({"messages": [USER, said, USER]}).messages) == 3
