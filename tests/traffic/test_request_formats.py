"""Every shape of log is read as what was asked: its prompt, its settings and its answer."""

import base64
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from log_shapes import ANSWER, CALLED, CHAT, HUMAN, RECIPES, SHAPES, SPAN, SYSTEM, TOLD, USER, page
from traffic.asked import QUERY, asked

from draftbench.records import Sampling
from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    UnknownFormError,
)
from draftbench.traffic.request_formats import BLOCKS
from draftbench.traffic.request_formats import FORMS as KNOWN_FORMS
from draftbench.traffic.rows import read_request
from draftbench.traffic.setting_names import PADDING


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


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_a_row_that_is_read_as_what_was_asked(name):
    query, row, content, asks = RECIPES[name]
    made = subprocess.run(
        ["jq", "-c", query], input=json.dumps(row).encode(), stdout=-1, check=True
    )
    found = read_request(made.stdout, name, QUERY).request
    assert (found.prompt or list(found.messages)) == content
    assert found.sampling.temperature == asks.get("temperature", 0)
    assert found.response == asks.get("answer")


def test_the_page_of_logs_says_what_becomes_of_each_shape():
    written = (Path(__file__).parents[2] / "docs/logs.md").read_text()
    assert written == page(), "run scripts/log_shapes.py"
    assert len(SHAPES) >= 40
    read = [name for name, (_, content, *_) in SHAPES.items() if not isinstance(content, type)]
    assert all(name in written for name in read)


def test_every_form_has_a_row_on_the_page_of_logs():
    rows = [row for row, content, *_ in SHAPES.values() if not isinstance(content, type)]
    read = [read_request(json.dumps(row).encode(), "log", QUERY) for row in rows]
    assert {each.form for each in read} >= {form.name for form in KNOWN_FORMS}


def test_a_path_to_turns_asks_the_first():
    assert asked({"turns": ["Hello", "Shorter"]}, prompt_field="turns").messages == (USER,)


@pytest.mark.parametrize("text", ["[1, [2]]", '{"a": 1}', '[{"content": 1}]', "{'value': 1}"])
def test_a_prompt_that_happens_to_be_json_stays_a_prompt(text):
    assert asked({"prompt": text}).prompt == text
    assert asked({"question": text}, prompt_field="question").prompt == text


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


def test_a_text_of_token_ids_is_no_prompt():
    with pytest.raises(NotRepresentableError, match="prompt as a list"):
        asked({"prompt": "[15496, 995]"})


def test_a_body_that_was_cut_is_no_prompt():
    with pytest.raises(BadRowError, match="the prompt looks like messages"):
        asked({"log": json.dumps(CHAT)[:-2]}, prompt_field="log")


@pytest.mark.parametrize("text", ["[1, [2]]", '{"a": 1}', '[{"a": 1}]', '"quoted"', "{'a': 1}"])
def test_what_a_user_or_a_system_says_may_be_json(text):
    said = {"role": "user", "content": text}
    for row in ({"model": "m", "input": text}, {"messages": [said]}, CHAT | {"messages": [said]}):
        assert asked(row).messages == (said,)
    assert asked({"modelParameters": {}, "input": text}).prompt == text
    for row in (CHAT | {"system": text}, {"model": "m", "input": "Hello", "instructions": text}):
        assert asked(row).messages == ({"role": "system", "content": text}, USER)


TURNS = [{"role": "user", "parts": [{"text": "Hello"}]}]


@pytest.mark.parametrize(("mode", "forced"), [("AUTO", False), ("ANY", True)])
def test_gemini_says_elsewhere_whether_a_tool_must_be_called(mode, forced):
    tools = [{"functionDeclarations": [{"name": "ls", "parameters": {"type": "OBJECT"}}]}]
    config = {"functionCallingConfig": {"mode": mode}}
    request = asked({"request": {"contents": TURNS, "tools": tools, "toolConfig": config}})
    function = {"name": "ls", "parameters": {"type": "object"}}
    plain = {"messages": [USER], "tools": [{"type": "function", "function": function}]}
    plain |= {"tool_choice": "required" if forced else "auto"}
    assert request.constraint == asked({"body": plain}).constraint
    assert (request.constraint is not None) is forced


@pytest.mark.parametrize(("raw", "prompt"), [("True", "Once"), ("true", "Once"), ("False", None)])
def test_a_table_says_in_text_that_ollama_applies_no_template(raw, prompt):
    row = {"model": "m", "prompt": "Once", "system": "Be brief", "raw": raw, "options": "{}"}
    assert asked(row).prompt == prompt


def test_a_plain_prompt_can_be_a_message():
    row = {"prompt": "Hello", "output_tokens": 9}
    form, found, *_ = read_request(row, "log:1", replace(QUERY, as_chat=True))
    assert (form, found.messages, found.max_tokens) == ("vLLM custom as chat", (USER,), 9)
    assert asked({"messages": TOLD}, as_chat=True) == asked({"messages": TOLD})


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
        (CHAT | {"model_parameters": {"temperature": 0.7, "frobnicate": 1}}, "frobnicate"),
        (CHAT | {"model_parameters": {"temperature": 1}}, "several values of temperature"),
        ({"max_tokens": 8, "request": CHAT}, "several values of max_tokens"),
        ({"messages": [USER], "max_new_tokens": 8, "n_predict": 9}, "several values of max_tokens"),
        (
            {"text": "Once", "sampling_params": {"regex": "a+", "json_schema": "{}"}},
            "json_schema and regex",
        ),
        ({"inputs": "Once", "parameters": {"do_sample": True, "truncate": 5}}, "truncate"),
        (SPAN | {"gen_ai.output.type": "json"}, "gen_ai.output.type"),
        ({"attributes": SPAN | {"gen_ai.request.odd": 1}}, "odd"),
        (
            {"prompt": "a", "options": {"num_predict": 5, "repeat_penalty": 1.1}},
            "repetition_penalty",
        ),
        ({"prompt": ["a", "b"]}, "prompt as a list"),
        ({"inputs": ["a"]}, "inputs as a list"),
        ({"model": "m", "input": ["a", "b"]}, "input as a list"),
        ({"prompt": "Sum up {x}", "variables": {"x": "Once"}}, "variables"),
        ({"prompt_template": "Sum up {x}", "inputs": {"text": "Once"}}, "prompt_template"),
        ({"prompt": "Who did it?", "retrieved_context": "Bob did."}, "retrieved_context"),
        ({"body": {"prompt": [1, 2, 3]}}, "prompt as a list"),
        ({"body": {"model": "m", "input": ["a"], "dimensions": 9}}, "input"),
        ({"conversations": [{"from": "somebody", "value": "a"}]}, "conversations.from"),
        ({"body": CHAT | {"parameters": {"odd": 1}}}, "parameters"),
        ({"body": CHAT | {"conversation": "c"}}, "conversation"),
        ({"request": {"contents": TURNS, "cachedContent": "c"}}, "cachedContent"),
        ({"contents": TURNS, "cachedContent": "c"}, "cachedContent"),
        (
            {"request": {"contents": [*TURNS, {"role": "model", "parts": [{"text": "Hi"}]}]}},
            "an assistant message for the model to continue",
        ),
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
        *("contents", "functionDeclarations", "functionResponse", "thought", "toolConfig"),
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
        found = read_request(row, "log:1", replace(QUERY, prompt_field=path)).request
    except (BadRowError, NotRepresentableError, NoTrafficError):
        return
    assert found.prompt or found.messages


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a story", "label": 1},
        {"inputs": "a", "normalize": True},
        {"instruction": "a"},
        {"conversation": "a"},
        {"input": "a"},
        {"model": "BAAI/bge-m3", "input": "a"},
        {"model": "m", "input": "a", "encoding_format": "float"},
    ],
)
def test_a_text_that_may_be_anything_is_no_request(row):
    with pytest.raises(UnknownFormError):
        asked(row)


@pytest.mark.parametrize(
    ("row", "prompt", "temperature"),
    [
        ({"text": "Once"}, "Once", 0.0),
        ({"body": {"text": "Once", "stream": True}}, "Once", 1.0),
        ({"body": {"prompt": "Once"}}, "Once", 1.0),
        ({"text": "Once", "sampling_params": {}}, "Once", 1.0),
        ({"inputs": "Once"}, "Once", 0.0),
        ({"request": {"inputs": "Once", "parameters": None}}, "Once", 1.0),
        ({"model": "gpt-5", "input": "Hello"}, None, 1.0),
    ],
)
def test_the_shortest_body_of_an_api_is_a_request(row, prompt, temperature):
    found = asked(row)
    assert (found.prompt, found.messages) == (prompt, None if prompt else (USER,))
    assert found.sampling == Sampling(temperature=temperature)


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
        {"system_instruction": {"parts": [{"text": SAID}]}},
        {"systemInstruction": {"text": SAID}},
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


def test_a_system_text_that_the_messages_repeat_is_read_once():
    for content in (SAID, [{"type": "text", "text": SAID}]):
        for turn in (
            {"role": "system", "content": content},
            {"type": "system", "content": content},
            {"type": "system", "data": {"content": content}},
            {"lc": 1, "id": ["langchain", "SystemMessage"], "kwargs": {"content": content}},
            {"message.role": "system", "message.content": content},
        ):
            assert asked({"messages": [turn, USER], "system": SAID}).messages == (SYSTEM, USER)
            with pytest.raises(NotRepresentableError, match="several system texts"):
                asked({"messages": [turn, USER], "system": "Be long"})


@pytest.mark.parametrize("beside", [{"context": "Bob did it."}, {"input": "Bob did it."}])
def test_what_stands_beside_an_instruction_is_read(beside):
    said = {"role": "user", "content": "Who did it?\nBob did it."}
    for answer in ("output", "response"):
        assert asked({"instruction": "Who did it?", answer: "Bob"} | beside).messages == (said,)


def chat(said):
    return [{"role": role, "content": text} for role, text in said]


def openai(said, settings):
    return {"model": "m", "messages": chat(said), **settings}


def with_system(said, rows):
    """The turns of a chat for an API that keeps the system text apart, and that text."""
    system = [text for role, text in said if role == "system"]
    return chat(said[len(system) :]), {"system": rows(system[0])} if system else {}


def anthropic(said, settings):
    messages, system = with_system(said, str)
    renamed = {{"stop": "stop_sequences"}.get(name, name): settings[name] for name in settings}
    return {"model": "m", "messages": messages, **system, **renamed}


def bedrock(said, settings):
    messages, system = with_system(said, lambda text: [{"text": text}])
    names = {"max_tokens": "maxTokens", "top_p": "topP", "stop": "stopSequences"}
    config = {names.get(name, name): settings[name] for name in settings}
    turns = [{"role": each["role"], "content": [{"text": each["content"]}]} for each in messages]
    body = {"messages": turns, **system, "inferenceConfig": config}
    return {"schemaType": "ModelInvocationLog", "input": {"inputBodyJson": body}}


def ollama(said, settings):
    options = {{"max_tokens": "num_predict"}.get(name, name): settings[name] for name in settings}
    return {"model": "m", "messages": chat(said), "options": options}


def responses(said, settings):
    renamed = {{"max_tokens": "max_output_tokens"}.get(n, n): settings[n] for n in settings}
    return {"body": {"model": "m", "input": chat(said), **renamed}}


def telemetry(said, settings):
    turns = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in said]
    names = {"stop": "stop_sequences"}
    request = {f"gen_ai.request.{names.get(name, name)}": settings[name] for name in settings}
    return {"attributes": {"gen_ai.input.messages": json.dumps(turns), **request}}


def openinference(said, settings):
    flat = {}
    for index, (role, text) in enumerate(said):
        flat[f"llm.input_messages.{index}.message.role"] = role
        flat[f"llm.input_messages.{index}.message.content"] = text
    return {"attributes": {**flat, "llm.invocation_parameters": json.dumps(settings)}}


def openllmetry(said, settings):
    flat = {f"gen_ai.prompt.{at}.role": role for at, (role, _) in enumerate(said)}
    flat |= {f"gen_ai.prompt.{at}.content": text for at, (_, text) in enumerate(said)}
    flat |= {f"gen_ai.request.{name}": settings[name] for name in settings}
    return {"attributes": flat}


def gemini(said, settings):
    messages, system = with_system(said, lambda text: {"parts": [{"text": text}]})
    roles = {"assistant": "model"}
    turns = [
        {"role": roles.get(each["role"], each["role"]), "parts": [{"text": each["content"]}]}
        for each in messages
    ]
    names = {"max_tokens": "maxOutputTokens", "top_p": "topP", "stop": "stopSequences"}
    config = {names.get(name, name): settings[name] for name in settings}
    told = {"systemInstruction": system.get("system")}
    return {"key": "a", "request": {"contents": turns, **told, "generationConfig": config}}


CLASSES = {"user": "HumanMessage", "assistant": "AIMessage", "system": "SystemMessage"}


def langsmith(said, settings):
    turns = [
        {"lc": 1, "type": "constructor", "id": ["langchain", CLASSES[role]],
         "kwargs": {"content": text}} for role, text in said
    ]  # fmt: skip
    return {"inputs": {"messages": [turns]}, "extra": {"invocation_params": settings}}


def sharegpt(said, settings):
    names = {"user": "human", "assistant": "gpt"}
    turns = [{"from": names.get(role, role), "value": text} for role, text in said]
    return {"conversations": turns, **settings}


def alpaca(said, settings):
    messages, system = with_system(said, str)
    assume(len(messages) == 1)
    return {"instruction": messages[0]["content"], **system, "output": "x", **settings}


FORMS = {
    "bare": openai,
    "Python literal": lambda said, settings: {"messages": str(chat(said)), **settings},
    "Langfuse": lambda said, settings: {"input": chat(said), "modelParameters": settings},
    "conversation": lambda said, settings: {"conversation": chat(said), **settings},
    "Anthropic": anthropic,
    "Anthropic batch": lambda *asked: {"custom_id": "a", "params": anthropic(*asked)},
    "Bedrock": bedrock,
    "Gemini": gemini,
    "Ollama": ollama,
    "Responses": responses,
    "OpenTelemetry": telemetry,
    "OpenInference": openinference,
    "OpenLLMetry": openllmetry,
    "LangSmith": langsmith,
    "ShareGPT": sharegpt,
    "Alpaca": alpaca,
}


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


@st.composite
def requests(draw):
    texts = draw(st.lists(TEXTS, min_size=1, max_size=5).filter(lambda said: len(said) % 2))
    said = [(("user", "assistant")[at % 2], text) for at, text in enumerate(texts)]
    if draw(st.booleans()):
        said.insert(0, ("system", draw(TEXTS)))
    settings = {"temperature": draw(st.sampled_from([0.0, 0.5, 1.0]))}
    settings |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "max_tokens": st.integers(1, 99),
                "top_p": st.sampled_from([0.5, 0.9]),
                "stop": st.lists(TEXTS, min_size=1, max_size=2),
            },
        )
    )
    return said, settings


@given(requests(), st.sampled_from(sorted(FORMS)))
def test_a_request_is_the_same_in_whichever_form_it_is_written(asks, form):
    said, settings = asks
    request = asked(FORMS[form](said, settings))
    assert request.messages == tuple(chat(said))
    assert request.sampling == Sampling(
        temperature=settings["temperature"], top_p=settings.get("top_p")
    )
    assert request.max_tokens == settings.get("max_tokens")
    assert request.stop == tuple(settings.get("stop", ()))
    assert request.id == asked(openai(said, settings)).id


# Parts of a prompt, as they may stand in any object of a row; each holds a word of its own.
PART = {
    **dict.fromkeys(["system", "instructions", "context", "text", "input", "prompt"], "PIRATE"),
    **dict.fromkeys(["system_prompt", "instruction"], "Talk like a PIRATE."),
    "system_message": {"role": "system", "content": "PIRATE"},
    "system_instruction": {"parts": [{"text": "PIRATE"}]},
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
WRAPPED = FORMS | {
    "request": lambda *asked: {"id": "r", "request": openai(*asked)},
    "request.body": lambda *asked: {"request": {"method": "POST", "body": openai(*asked)}},
    "JSON text": lambda *asked: {"response": "Hi", "request": json.dumps(openai(*asked))},
    "prompt": lambda *asked: {"prompt": json.dumps(openai(*asked))},
}


def objects(thing):
    """The objects in which a row keeps its request, the row first."""
    yield thing
    for name in (
        "params",
        "input",
        "inputBodyJson",
        "request",
        "body",
        "attributes",
        "inputs",
        *BLOCKS,
    ):
        if isinstance(thing.get(name), dict):
            yield from objects(thing[name])


@given(requests(), st.sampled_from(sorted(WRAPPED)), st.sampled_from(sorted(PART)), st.data())
def test_a_part_of_a_prompt_beside_any_form_is_read_or_its_row_is_left_out_by_name(
    asks, form, part, data
):
    said, settings = asks
    row = WRAPPED[form](said, {"temperature": settings["temperature"]})
    place = data.draw(st.sampled_from(list(objects(row))))
    assume(part not in place)
    place[part] = PART[part]
    try:
        outcome, expected = repr(asked(row)), {"PIRATE"}
    except (BadRowError, NotRepresentableError) as error:
        # Of two prompts either may be the one that is left.
        outcome, expected = str(error), {part, "several system texts", *row, *place}
    assert any(name in outcome for name in expected)


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"prompt": "Once"}, "prompt"),
        ({"messages": [USER]}, "messages"),
        ({"body": {"messages": [USER]}}, "OpenAI request"),
        ({"request": {"prompt": "Once"}}, "OpenAI request"),
        ({"conversations": [{"from": "human", "value": "One"}]}, "ShareGPT"),
    ],
)
def test_a_row_names_its_form(row, form):
    assert read_request(row, "log:1", QUERY).form == form


def test_the_last_message_of_a_request_body_is_never_taken_as_the_answer():
    messages = [USER, {"role": "assistant", "content": "Hi"}]
    assert asked({"body": {"messages": messages}}).messages == tuple(messages)


@pytest.mark.parametrize(
    "marked",
    [{"anthropic_version": "bedrock-2023-05-31"}, {"stop_sequences": ["."]}, {"model": "claude-5"}],
)
def test_an_answer_that_an_anthropic_request_begins_is_no_finished_turn(marked):
    messages = [USER, {"role": "assistant", "content": "{"}]
    with pytest.raises(NotRepresentableError, match="an assistant message for the model"):
        asked({"request": {"model": "m", "messages": messages} | marked})
    for mark in ("prefix", "partial"):
        with pytest.raises(NotRepresentableError, match=f"messages.{mark}"):
            asked({"messages": [USER, messages[1] | {mark: True}]})


def test_an_object_on_the_way_to_a_request_is_accounted_for():
    row = {
        "id": "r",
        "request": {"url": "u", "body": {"text": {"format": None, "verbosity": "low"}, **CHAT}},
    }
    row["request"]["body"] = {"model": "m", "input": "Hello", "text": {"verbosity": "low"}}
    read = read_request(row, "log:1", QUERY)
    assert read.unread == {"id": "r", "request.url": "u", "request.body.text.verbosity": "low"}


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"prompt": "Write to him.", "details": "It was late."}, {"details"}),
        ({"instruction": "Sum it up.", "user": "Dear Bob, …", "output": "x"}, {"user"}),
        ({"request": CHAT, "metadata": {"tools": []}, "model": "m"}, {"metadata"}),
        ({"request": CHAT | {"metadata": {"a": 1}, "user": "u"}}, set()),
        (CHAT | {"metadata": {"a": 1}, "user": "u"}, set()),
    ],
)
def test_what_sets_nothing_in_the_body_of_an_api_is_any_field_elsewhere(row, unread):
    assert set(read_request(row, "log:1", QUERY).unread) == unread


def test_numbered_columns_are_messages_and_other_columns_that_begin_so_are_not():
    flat = {f"messages.{at}.{name}": each[name] for at, each in enumerate(TOLD) for name in each}
    assert asked(flat) == asked({"messages": TOLD})
    assert asked({"prompt": "Once", "messages.count": 3}).prompt == "Once"


def test_with_a_path_to_the_prompt_other_parts_of_it_are_named_only():
    row = {"prompt": "Once", "text": "Twice", "context": "Thrice"}
    read = read_request(row, "log:1", replace(QUERY, prompt_field="prompt"))
    assert (read.request.prompt, set(read.unread)) == ("Once", {"text", "context"})


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (
            {"properties": {"requestBody": json.dumps(CHAT)}, "time": "8 am"},
            "properties.requestBody",
        ),
        ({"meta": {"output": {"messages": [ANSWER]}, "input": CHAT}}, "meta.input"),
        ({"items": [{"from": "human", "value": "Hello"}]}, "items"),
        ({"data": {"inputs": "Once", "parameters": {}}, "more": {"said": [USER]}}, "more.said"),
        ({"data": {"inputs": "Once", "parameters": {}}}, "data"),
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
    request = asked(row, prompt_field=path.strip("'"))
    assert request.prompt == "Once" or request.messages == (USER,)


@pytest.mark.parametrize("place", ["request", "body", "proxy_server_request"])
def test_a_body_that_a_column_was_too_short_for_is_cut(place):
    whole = json.dumps(CHAT)
    for end in (1, 20, len(whole) - 1):
        with pytest.raises(NoTrafficError, match=r"^cut by the logger$"):
            asked({place: whole[:end]})
    assert asked({place: whole}).messages == (USER,)


@pytest.mark.parametrize("row", [USER, USER | {"id": 7}, {"type": "user", "message": USER}])
def test_a_row_that_is_one_message_of_a_conversation_is_no_request(row):
    with pytest.raises(UnknownFormError) as raised:
        asked(row)
    assert raised.value.hint.startswith("a row is one message: put those of a conversation into")


BODY = {"inputs": "Once", "parameters": {"max_new_tokens": 9}}
CODED = base64.b64encode(json.dumps(BODY).encode()).decode()


@pytest.mark.parametrize(
    ("row", "query"),
    [
        ({"data": [{"payload": [CHAT]}, {"payload": [CHAT]}]}, ".data[].payload[]"),
        ({"runs": {"all calls": [{"id": 1, "call": CHAT}]}}, '.runs."all calls"[].call'),
        ({"events": [{"chat": [USER], "temperature": 0.7}]}, ".events[]"),
        ({"log": json.dumps([{"request": CHAT}])}, ".log|fromjson[].request"),
        (
            {"captureData": {"endpointInput": {"data": CODED, "encoding": "BASE64"}}},
            ".captureData.endpointInput.data|@base64d|fromjson",
        ),
        ({"item": {"encoding": "base64", "body": CODED}}, ".item.body|@base64d|fromjson"),
    ],
)
def test_requests_in_lists_or_in_base64_are_taken_out_by_jq(row, query):
    with pytest.raises(UnknownFormError) as raised:
        asked(row)
    hint = f"take the requests out first: jq -c {shlex.quote(query)} FILE > requests.jsonl"
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"doc": {"q": "Why not?"}, "args": {"a": "Once upon", "b": {"temperature": 1}}}, "args.a"),
        ({"step": {"task": "Once upon", "params": {"top_p": 1}}}, "step.task"),
        ({"data": {"$ask": [USER]}}, "data.$ask"),
    ],
)
def test_a_text_beside_settings_is_pointed_at_and_is_read_with_them(row, path):
    with pytest.raises(UnknownFormError) as raised:
        asked(row)
    where = f"--prompt-field {shlex.quote(path)}"
    assert raised.value.hint == f"a request stands in one of its fields: {where}"
    found = asked(row, prompt_field=path)
    assert found.prompt == "Once upon" or found.messages == (USER,)


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (
            {"query": "How is it?", "tools": '[{"name": "w", "description": "The weather"}]'},
            "query",
        ),
        ({"query": "How is it?", "answers": "It is raining there."}, "query"),
        ({"ask": "How is it?", "available_tools": "The weather, the time, the news"}, "ask"),
        ({"ask": "How is it?", "gold_label": "It is raining over there."}, "ask"),
        ({"request": 5, "response": "It is raining over there."}, None),
        ({"ask": "Who did it?", "context": "Bob did it over there."}, "ask"),
        ({"modelId": "amazon.titan", "input": {"text": {}}}, None),
        ({"id": 1, "final_answer": "It is raining over there.", "tools": "[]"}, None),
    ],
)
def test_no_hint_names_an_answer_a_tool_or_a_label(row, path):
    with pytest.raises(UnknownFormError) as raised:
        asked(row)
    assert raised.value.hint.endswith(f"--prompt-field {path}") is (path is not None)
    assert path or "--prompt-field" not in raised.value.hint


def test_a_path_to_nothing_is_not_answered_with_a_label():
    with pytest.raises(UnknownFormError) as raised:
        asked({"model": "m", "ask": "Hi"}, prompt_field="aks")
    assert raised.value.hint.endswith("--prompt-field ask")
