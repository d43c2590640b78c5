"""Every shape of log is read as what was asked: its prompt, its settings and its answer."""

import ast
import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from log_shapes import ANSWER, CALLED, CHAT, HUMAN, SHAPES, SPAN, SYSTEM, TOLD, USER, page
from traffic.asked import asked, read

from draftbench.records import Sampling
from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    UnknownFormError,
)
from draftbench.traffic.request_formats import BLOCKS
from draftbench.traffic.request_settings import PADDING
from draftbench.traffic.rows import Fields, read_request


@pytest.mark.parametrize(("row", "content", "answer", "asks"), SHAPES.values(), ids=SHAPES)
def test_a_log_is_read_as_what_was_asked(row, content, answer, asks):
    if isinstance(content, type):
        with pytest.raises(content) as raised:
            asked(row)
        assert str(raised.value) == answer
        return
    found = asked(row)
    sampling = Sampling(temperature=asks["temperature"])
    assert (found.prompt or list(found.messages), found.response) == (content, answer)
    assert (found.sampling, found.max_tokens) == (sampling, asks.get("max_tokens"))
    assert found.stop == asks.get("stop", ())
    assert (found.constraint, found.template) == (asks.get("constraint"), asks.get("template", {}))


def test_the_page_of_logs_says_what_becomes_of_each_shape():
    written = (Path(__file__).parents[2] / "docs/logs.md").read_text()
    assert written == page(), "run scripts/log_shapes.py"
    assert len(SHAPES) >= 40
    assert all(f"\n| {name} | " in written for name in SHAPES)


@pytest.mark.parametrize(
    "text", ["[1, [2]]", '{"a": 1}', '[{"content": 1}]', "{'value': 1}", '"quoted"']
)
def test_a_text_that_happens_to_be_json_stays_a_text(text):
    assert asked({"prompt": text}).prompt == text
    assert asked({"question": text}, prompt="question").prompt == text
    assert asked({"modelParameters": {}, "input": text}).prompt == text
    said = {"role": "user", "content": text}
    for row in ({"model": "m", "input": text}, {"messages": [said]}, CHAT | {"messages": [said]}):
        assert asked(row).messages == (said,)
    for row in (CHAT | {"system": text}, {"model": "m", "input": "Hello", "instructions": text}):
        assert asked(row).messages == ({"role": "system", "content": text}, USER)


@pytest.mark.parametrize("write", [json.dumps, str])
@pytest.mark.parametrize(
    "held",
    [
        {"messages": [USER]},
        USER,
        [USER],
        [{"from": "human", "value": "Hello"}],
        [{"type": "human", "content": "Hello"}],
        [HUMAN],
    ],
)
def test_a_prompt_that_is_a_structure_of_messages_is_read_as_one(held, write):
    assert asked({"prompt": write(held)}) == asked({"messages": [USER]})


@pytest.mark.parametrize(
    "text",
    [
        "array([{'role': 'user', 'content': 'Hi'}], dtype=object)",
        "({'role': 'user', 'content': 'Hi'},)",
        "[HumanMessage(content='Hi'), AIMessage(content='x')]",
        "[{'name': 'Bob', 'role': 'user', 'content': 'Hi'}\n {'role': 'assistant'}]",
        "{'messages': [{'role': 'user', 'content': nan}]}",
        "[{'type': 'text', 'text': 'Hi'}]",
    ],
)
def test_a_text_that_looks_like_messages_is_never_a_prompt(text):
    with pytest.raises(BadRowError, match="the prompt looks like messages"):
        asked({"prompt": text})
    said = {"role": "user", "content": text}
    if "'type'" in text:  # the parts of a message
        assert asked({"messages": [said]}).messages == ({"role": "user", "content": "Hi"},)
    else:
        with pytest.raises(NotRepresentableError, match="messages as the text of a message"):
            asked({"messages": [said]})
    # What a tool wrote is what the model read.
    said = {"role": "tool", "content": text}
    assert asked({"messages": [*CALLED[:2], said]}).messages[2] == said


def test_a_conversation_that_a_user_sends_to_be_judged_is_a_text():
    said = {"role": "user", "content": json.dumps([USER, ANSWER])}
    assert asked({"messages": [said]}).messages == (said,)


def test_a_text_of_token_ids_or_half_a_body_is_no_prompt():
    with pytest.raises(NotRepresentableError, match="prompt as a list"):
        asked({"prompt": "[15496, 995]"})
    with pytest.raises(BadRowError, match="the prompt looks like messages"):
        asked({"log": json.dumps(CHAT)[:-2]}, prompt="log")


@pytest.mark.parametrize(("raw", "prompt"), [("True", "Once"), ("true", "Once"), ("False", None)])
def test_a_table_says_in_text_that_ollama_applies_no_template(raw, prompt):
    row = {"model": "m", "prompt": "Once", "system": "Be brief", "raw": raw, "options": "{}"}
    assert asked(row).prompt == prompt


def test_a_plain_prompt_can_be_a_message():
    row = {"prompt": "Hello", "output_tokens": 9}
    form, found, *_ = read(row, as_chat=True)
    assert (form, found.messages, found.max_tokens) == ("prompt as chat", (USER,), 9)
    assert read({"messages": TOLD}, as_chat=True)[:2] == ("messages", asked({"messages": TOLD}))


TURNS = [{"role": "user", "parts": [{"text": "Hello"}]}]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"model": "m", "input": [USER], "previous_response_id": "r"}, "previous_response_id"),
        ({"input": [USER], "text": {"format": {"type": "json_schema"}}}, "response_format"),
        (
            {"input": [USER, {"type": "computer_call", "name": "f"}]},
            "input items of type computer_call",
        ),
        (
            {"input": [USER, {"type": "reasoning", "encrypted_content": "x"}]},
            "reasoning that is not in the log",
        ),
        ({"messages": [USER], "system": "a", "system_prompt": "b"}, "several system texts"),
        (
            {"messages": [CALLED[1] | {"role": "system"}, USER], "system": "a"},
            "several system texts",
        ),
        ({"messages": [USER | {"images": ["a"]}]}, "messages.images"),
        ({"messages": [USER], "history": [["a", "b"]]}, "history"),
        ({"instruction": "a", "output": "b", "history": [["a", "b"]]}, "history"),
        ({"messages": [USER], "toolConfig": {"tools": [{"name": "f"}]}}, "toolConfig"),
        ({"prompt": "Once", "contents": TURNS}, "contents"),
        ({"prompt": "a", "inputs": "b"}, "inputs"),
        (CHAT | {"model_parameters": {"temperature": 0.7, "frobnicate": 1}}, "frobnicate"),
        (CHAT | {"model_parameters": {"temperature": 1}}, "several values of temperature"),
        ({"max_tokens": 8, "request": CHAT}, "several values of max_tokens"),
        ({"messages": [USER], "max_new_tokens": 8, "n_predict": 9}, "several values of max_tokens"),
        (
            {"text": "Once", "sampling_params": {"regex": "a+", "json_schema": "{}"}},
            "json_schema and regex",
        ),
        (SPAN | {"gen_ai.output.type": "json"}, "gen_ai.output.type"),
        ({"attributes": SPAN | {"gen_ai.request.odd": 1}}, "odd"),
        (
            {"prompt": "a", "options": {"num_predict": 5, "repeat_penalty": 1.1}},
            "repetition_penalty",
        ),
        ({"prompt": ["a", "b"]}, "prompt as a list"),
        ({"prompt": "Sum up {x}", "variables": {"x": "Once"}}, "variables"),
        ({"prompt": "Who did it?", "retrieved_context": "Bob did."}, "retrieved_context"),
        ({"body": {"prompt": [1, 2, 3]}}, "prompt as a list"),
        ({"body": {"model": "m", "input": ["a"], "dimensions": 9}}, "input"),
        ({"conversations": [{"from": "somebody", "value": "a"}]}, "conversations.from"),
        ({"body": CHAT | {"parameters": {"odd": 1}}}, "parameters"),
        ({"body": CHAT | {"conversation": "c"}}, "conversation"),
    ],
)
def test_what_cannot_be_applied_is_named_wherever_it_stands(row, field):
    with pytest.raises(NotRepresentableError) as raised:
        asked(row)
    assert str(raised.value) == field


NAMES = st.sampled_from(
    [
        *("messages", "prompt", "conversations", "conversation", "input", "inputs", "text"),
        *("turns", "instruction", "output", "options", "parameters", "sampling_params", "request"),
        *("attributes", "gen_ai.input.messages", "parts", "role", "content", "type", "model"),
        *("tools", "system", "response", "choices", "temperature", "num_predict", "output_tokens"),
        *("contents", "toolConfig", "from", "value", "lc", "kwargs", "prompts", "raw"),
    ]
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 0.5, "", "Hello", "user", "message", "inf", "[", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.none() | NAMES)
def test_whatever_stands_where_a_request_could_is_read_or_refused(row, path):
    try:
        found = read_request(row, "log:1", Fields(prompt=path), b"key").request
    except (BadRowError, NotRepresentableError, NoTrafficError):
        return
    assert found.prompt or found.messages


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a story"},
        {"inputs": "a", "parameters": {"temperature": 0.7}},
        {"contents": TURNS, "generationConfig": {"temperature": 0.7}},
        {"conversations": "a"},
        {"attributes": {"llm.input_messages.0.message.role": "user"}},
        {"messages.0.role": "user", "messages.0.content": "a"},
        {"attributes": [{"key": "gen_ai.input.messages", "value": {"stringValue": "[]"}}]},
        {"instruction": "a"},
        {"conversation": "a"},
        {"input": "a"},
        {"model": "BAAI/bge-m3", "input": "a"},
        {"model": "m", "input": "a", "encoding_format": "float"},
        {"model": "m", "input": ["a", "b"]},
    ],
)
def test_a_text_that_may_be_anything_is_no_request(row):
    with pytest.raises(UnknownFormError):
        asked(row)


@pytest.mark.parametrize(
    ("row", "form", "prompt", "temperature"),
    [
        ({"prompt": "Once"}, "prompt", "Once", 0.0),
        ({"body": {"prompt": "Once"}}, "OpenAI request", "Once", 1.0),
        ({"messages": [USER]}, "messages", None, 0.0),
        ({"messages": [USER], "options": {"num_ctx": 9}, "model": "m"}, "messages", None, 1.0),
        ({"body": {"messages": [USER]}}, "OpenAI request", None, 1.0),
        ({"conversations": [{"from": "human", "value": "Hello"}]}, "ShareGPT", None, 0.0),
        ({"text": "Once", "sampling_params": {}}, "SGLang", "Once", 1.0),
        ({"model": "gpt-5", "input": "Hello"}, "Responses or Langfuse", None, 1.0),
    ],
)
def test_the_shortest_row_of_a_form_names_it_and_has_its_default(row, form, prompt, temperature):
    found = read(row)
    assert (found.form, found.request.prompt) == (form, prompt)
    assert found.request.messages == (None if prompt else (USER,))
    assert found.request.sampling == Sampling(temperature=temperature)


SAID = SYSTEM["content"]


@pytest.mark.parametrize(
    "system",
    [
        {"system": SAID},
        {"system_prompt": SAID},
        {"systemPrompt": [SAID]},
        {"system_message": SYSTEM},
        {"system": [SYSTEM]},
        {"system": [{"type": "text", "text": SAID}]},
        {"system": SAID, "system_prompt": [f"{SAID}\n"]},
    ],
)
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": USER["content"]}]},
        {"conversation": [USER]},
        {"prompt": USER["content"]},
        {"text": USER["content"], "sampling_params": {}},
        {"instruction": USER["content"], "output": "Rain falls."},
        {"request": {"messages": [USER]}},
        {"request": {"body": {"messages": [SYSTEM, USER]}}},
    ],
)
def test_a_system_text_beside_any_form_or_wrapper_is_the_system_message(system, row):
    assert asked(row | system).messages == (SYSTEM, USER)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "system", "content": SAID},
        {"role": "system", "content": [{"type": "text", "text": SAID}]},
        {"type": "system", "content": SAID},
        {"type": "system", "data": {"content": SAID}},
        {"lc": 1, "id": ["langchain", "SystemMessage"], "kwargs": {"content": SAID}},
    ],
)
def test_a_system_text_that_the_messages_repeat_is_read_once(turn):
    assert asked({"messages": [turn, USER], "system": SAID}).messages == (SYSTEM, USER)
    with pytest.raises(NotRepresentableError, match="several system texts"):
        asked({"messages": [turn, USER], "system": "Be long"})


# Half a character is no text, a text that is only blanks is no message, one with which a table pads
# no system text, and one in which a logger speaks (Hypothesis knows the words of the source) is no
# traffic.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: (
        text.strip()
        and text not in PADDING
        and not re.search("litellm|langfuse|truncated|redacted", text, re.IGNORECASE)
    )
)
READ = {name: shape for name, shape in SHAPES.items() if not isinstance(shape[1], type)}


def saying(thing, text):
    """A row in which the user says this text, also where it is kept as JSON or a Python literal."""
    match thing:
        case "Hello":
            return text
        case str() if "Hello" in thing:
            try:
                return json.dumps(saying(json.loads(thing), text))
            except ValueError:
                return str(saying(ast.literal_eval(thing), text))
        case list():
            return [saying(each, text) for each in thing]
        case dict():
            return {name: saying(each, text) for name, each in thing.items()}
    return thing


@given(TEXTS, st.sampled_from(sorted(READ)))
def test_whatever_a_user_says_is_read_in_every_shape(text, name):
    row, content, *_ = READ[name]
    found = asked(saying(row, text))
    assert (found.prompt or list(found.messages)) == saying(content, text)


# Parts of a prompt, as they may stand in any object of a row; each holds a word of its own.
PART = {
    **dict.fromkeys(["system", "instructions", "context", "text", "input", "prompt"], "PIRATE"),
    **dict.fromkeys(["system_prompt", "instruction"], "Talk like a PIRATE."),
    "system_message": {"role": "system", "content": "PIRATE"},
    "system_instruction": {"parts": [{"text": "PIRATE"}]},
    "contents": [{"parts": [{"text": "PIRATE"}]}],
    "inputs": "PIRATE",
    "systemPrompt": ["PIRATE"],
    "messages": [{"role": "user", "content": "PIRATE"}],
    "conversations": [{"from": "human", "value": "PIRATE"}],
    "tools": [{"type": "function", "function": {"name": "PIRATE", "parameters": {}}}],
    "functions": [{"name": "PIRATE"}],
    "documents": [{"text": "PIRATE"}],
    "chat_history": [{"role": "USER", "message": "PIRATE"}],
    **dict.fromkeys(["preamble", "image_url", "files", "attachments"], "PIRATE.png"),
    "experimental_attachments": [{"url": "PIRATE.png"}],
    "promptVariables": {"who": "PIRATE"},
    "choices": ["PIRATE"],
    "images": ["PIRATE.png"],
    "history": [["PIRATE", "Ahoy"]],
    "stop": ["PIRATE"],
    "frequency_penalty": 0.5,
    "chat_template_kwargs": {"PIRATE": True},
}


def objects(thing):
    """The objects in which a row keeps its request, the row first."""
    yield thing
    places = ("params", "input", "inputBodyJson", "request", "body", "attributes", "inputs")
    for name in (*places, *BLOCKS):
        if isinstance(thing.get(name), dict):
            yield from objects(thing[name])


# Ollama reads no system text beside a raw prompt.
@given(st.sampled_from(sorted({*READ} - {"Ollama, raw"})), st.sampled_from(sorted(PART)), st.data())
def test_a_part_of_a_prompt_beside_any_shape_is_read_or_its_row_is_left_out_by_name(
    name, part, data
):
    row = json.loads(json.dumps(READ[name][0]))
    place = data.draw(st.sampled_from(list(objects(row))))
    assume(part not in place)
    place[part] = PART[part]
    try:
        outcome, expected = repr(asked(row)), {"PIRATE"}
    except (BadRowError, NotRepresentableError) as error:
        # Of two prompts either may be the one that is left.
        outcome, expected = str(error), {part, "several system texts", *row, *place}
    assert any(name in outcome for name in expected)


def test_the_last_message_of_a_body_is_never_its_answer_and_anthropics_is_not_finished():
    messages = [USER, {"role": "assistant", "content": "{"}]
    assert asked({"body": {"messages": messages}}).messages == tuple(messages)
    for mark in (
        {"anthropic_version": "bedrock-2023-05-31"},
        {"stop_sequences": ["."]},
        {"inferenceConfig": {}},
        {"model": "claude-5"},
    ):
        with pytest.raises(NotRepresentableError, match="an assistant message for the model"):
            asked({"request": {"model": "m", "messages": messages} | mark})


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        (
            {"id": "r", "request": {"url": "u", "body": {
                "model": "m", "input": "Hello", "text": {"verbosity": "low"}}}},
            {"id", "request.url", "request.body.text.verbosity"},
        ),
        ({"prompt": "Write to him.", "details": "It was late."}, {"details"}),
        ({"instruction": "Sum it up.", "user": "Dear Bob, …", "output": "x"}, {"user"}),
        ({"request": CHAT, "metadata": {"tools": []}, "model": "m"}, {"metadata"}),
        ({"request": CHAT | {"metadata": {"a": 1}, "user": "u"}}, set()),
        (CHAT | {"metadata": {"a": 1}, "user": "u"}, set()),
        # A data set's count; of a request it is how many answers were asked for.
        ({"prompt": "Once", "n": 3}, {"n"}),
    ],
)  # fmt: skip
def test_every_object_on_the_way_to_a_request_is_accounted_for(row, unread):
    assert set(read(row).unread) == unread


def test_columns_that_only_begin_like_messages_are_none():
    assert asked({"prompt": "Once", "messages.count": 3}).prompt == "Once"


def test_with_a_path_to_the_prompt_other_parts_of_it_are_named_only():
    row = {"prompt": "Once", "text": "Twice", "context": "Thrice"}
    found = read(row, prompt="prompt")
    assert (found.request.prompt, set(found.unread)) == ("Once", {"text", "context"})


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (
            {"properties": {"requestBody": json.dumps(CHAT)}, "time": "8 am"},
            "properties.requestBody",
        ),
        ({"meta": {"output": {"messages": [ANSWER]}, "input": CHAT}}, "meta.input"),
        ({"items": [{"from": "human", "value": "Hello"}]}, "items"),
        ({"data": {"prompt": "Once", "parameters": {}}, "more": {"said": [USER]}}, "more.said"),
        ({"data": {"prompt": "Once", "parameters": {}}}, "data"),
        ({"sent by": {"us": CHAT}}, "'sent by.us'"),
        ({"inputs": {"chat_history": [USER], "input": "And now?"}}, None),
        ({"a": {"Hello there, how are you today?": CHAT}}, None),
        ({"data": [ANSWER], "id": "7"}, None),
        ({"data": {"messages": [{"type": "image_generation_call"}, USER]}}, None),
    ],
)
def test_a_request_at_an_unknown_place_is_pointed_at(row, path):
    with pytest.raises(UnknownFormError) as raised:
        asked(row)
    if path is None:
        assert "--prompt-field" not in raised.value.hint
        return
    assert raised.value.hint == f"a request stands in one of its fields: --prompt-field {path}"
    request = asked(row, prompt=path.strip("'"))
    assert request.prompt == "Once" or request.messages == (USER,)


def test_a_body_that_a_column_was_too_short_for_is_cut():
    whole = json.dumps(CHAT)
    for end in (1, 20, len(whole) - 1):
        with pytest.raises(NoTrafficError, match=r"^cut by the logger$"):
            asked({"request": whole[:end]})


@pytest.mark.parametrize("row", [USER, USER | {"id": 7}, {"type": "user", "message": USER}])
def test_a_row_that_is_one_message_of_a_conversation_is_no_request(row):
    with pytest.raises(UnknownFormError) as raised:
        asked(row)
    assert raised.value.hint.startswith("a row is one message: put those of a conversation into")
