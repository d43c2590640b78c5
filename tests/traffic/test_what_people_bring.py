"""Logs as people have them: whatever stands in a row is read, leaves the row out by its name, or is
named as not read.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import query

from draftbench.errors import TrafficError
from draftbench.records import Sampling
from draftbench.traffic import load
from draftbench.traffic.errors import BadRowError, NoTrafficError, NotRepresentableError
from draftbench.traffic.rows import Fields, read_request

RAIN = {"role": "user", "content": "Write a short note about rain."}
FALLS = {"role": "assistant", "content": "Rain falls."}
PIRATE = {"role": "system", "content": "Talk like a pirate."}
CALL = {"model": "m", "messages": [RAIN], "temperature": 0.5, "max_tokens": 16}


def read(row):
    data = row if isinstance(row, bytes) else json.dumps(row).encode()
    return read_request(data, "log:1", Fields(), b"key")


def asked(row):
    return read(row).request


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_messages_that_a_table_keeps_as_a_python_literal_are_messages(tmp_path):
    said = str([{"role": "user", "content": "It's late."}, {"role": "assistant", "content": "Yes"}])
    path = written(tmp_path, "a.csv", "id,messages\n1," + said.replace('"', '""').join('""') + "\n")
    (request,) = load(query(path)).requests
    assert request.messages == ({"role": "user", "content": "It's late."},)
    assert request.response == "Yes"


@pytest.mark.parametrize("text", ["[{'role': 'user'}\n {'role': 'user'}]", "hello", "{'a': 1}"])
def test_messages_that_are_no_list_are_a_bad_row(text):
    with pytest.raises(BadRowError, match="`messages` is not a list"):
        read({"messages": text})


@pytest.mark.parametrize("name", ["system", "system_prompt", "systemPrompt", "system_message"])
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [RAIN, FALLS]},
        {"conversations": [{"from": "human", "value": RAIN["content"]}]},
        {"conversation": [RAIN]},
        {"prompt": RAIN["content"]},
        {"text": RAIN["content"], "sampling_params": {}},
        {"instruction": RAIN["content"], "output": "Rain falls."},
    ],
)
def test_a_system_text_beside_any_form_is_the_system_message(name, row):
    assert asked(row | {name: PIRATE["content"]}).messages == (PIRATE, RAIN)


def test_a_system_text_that_the_messages_repeat_is_read_once():
    row = {"messages": [PIRATE, RAIN], "system": PIRATE["content"]}
    assert asked(row).messages == (PIRATE, RAIN)


def test_nulls_with_which_a_table_pads_are_not_in_the_prompt_and_those_of_a_log_are(tmp_path):
    called = {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": None}}}
    padded = {
        "messages": [
            {**RAIN, "tool_calls": None},
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
        {"conversation": [{**RAIN, "hashed_ip": f"ip{n}", "turn_identifier": n, "state": None}]}
        for n in range(2)
    ]
    traffic = load(query(written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))))
    assert (len(traffic.requests), traffic.merged) == (1, 1)
    assert traffic.unread == {"messages.hashed_ip": 2, "messages.turn_identifier": 2}


MARKERS = [
    (
        "aa... (litellm_truncated skipped 81 chars. Truncation is a DB storage safeguard.) ...z",
        1,
    ),
    ("aa... (litellm_truncated 12982 chars)", 1),
    ("<truncated due to size exceeding limit>", 1),
    ("[This value has been dropped because this span's size exceeds the 1MB size limit.]", 1),
    ("redacted-by-litellm", 0),
    ("__REDACTED__", 0),
    ("[REDACTED]", 0),
]


@pytest.mark.parametrize(("text", "cut"), MARKERS)
def test_a_text_that_the_logger_cut_or_redacted_is_no_traffic(text, cut):
    reason = "cut by the logger" if cut else "redacted by the logger"
    for row in ({"prompt": text}, {"messages": [RAIN, {"role": "user", "content": text}]}):
        with pytest.raises(NoTrafficError, match=f"^{reason}$"):
            read(row)
    assert asked({"prompt": "a", "response": text}).response is None


@pytest.mark.parametrize(
    "text", ["Why was it [REDACTED] here?", "redacted", "[Output truncated: 9 lines] and more"]
)
def test_a_prompt_that_speaks_of_markers_is_a_prompt(text):
    assert asked({"prompt": text}).prompt == text


@pytest.mark.parametrize(
    "failure",
    [
        {"response": {"object": "error", "message": "too long", "code": 400}},
        {"response": json.dumps({"error": {"message": "too long"}})},
        {"response": "Internal Server Error"},
        {"response": "502 Bad Gateway"},
        {"response": {"status_code": 500, "body": {}}},
        {"response": {"type": "error", "error": {"type": "overloaded_error"}}},
        {"response": None, "error": {"message": "too long"}},
        {"status": "failure"},
        {"level": "ERROR"},
        {"response_status": 429},
    ],
)
def test_a_call_that_failed_is_no_traffic(failure):
    with pytest.raises(NoTrafficError, match=r"^the call failed\Z"):
        read({"request": CALL} | failure)
    prompts = {"prompt": "a", "error": "NullPointerException", "status": "failed"}
    assert asked(prompts).prompt == "a"  # a data set about errors


@pytest.mark.parametrize("reasoning", ["reasoning_content", "reasoning"])
def test_the_reasoning_before_an_answer_is_part_of_it(reasoning):
    said = {**FALLS, reasoning: "Let me think."}
    response = asked({"request": CALL, "response": {"choices": [{"message": said}]}}).response
    assert response == {**FALLS, "reasoning_content": "Let me think."}
    hidden = {"completion_tokens_details": {"reasoning_tokens": 36}}
    counted = {"choices": [{"message": FALLS}], "usage": hidden}
    response = asked({"request": CALL, "response": counted}).response
    assert response == {**FALLS, "reasoning_content": None}


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_null(word):
    row = json.dumps(CALL | {"score": 1, "top_p": 1}).replace(": 1,", f": {word},")
    assert asked(row.encode()) == asked(CALL)


def test_a_null_turn_is_an_empty_one():
    said = [RAIN, {"role": "assistant", "content": None}, {"role": "user", "content": "Hello?"}]
    assert asked({"messages": said}).messages[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("think", "template"),
    [(False, {"enable_thinking": False}), ("low", {"reasoning_effort": "low"})],
)
def test_think_is_an_argument_of_the_template(think, template):
    row = {"model": "m", "messages": [RAIN], "options": {}, "think": think}
    assert asked(row).template == template


LS = {"type": "function", "function": {"name": "ls", "arguments": {}}, "id": "t"}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [RAIN, {"role": "assistant", "content": None, "tool_calls": [LS]},
                      {"role": "tool", "tool_call_id": "t", "content": "a.txt"}]},
        {"messages": [
            RAIN,
            {"role": "assistant",
             "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t",
                 "content": [{"type": "text", "text": "a.txt"}]}]}]},
        {"messages": [
            {"role": "user", "content": [{"text": RAIN["content"]}]},
            {"role": "assistant",
             "content": [{"toolUse": {"toolUseId": "t", "name": "ls", "input": {}}}]},
            {"role": "user", "content": [
                {"toolResult": {"toolUseId": "t", "content": [{"text": "a.txt"}]}}]}],
         "inferenceConfig": {}},
        {"model": "m", "input": [
            RAIN, {"type": "function_call", "call_id": "t", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t", "output": "a.txt"}]},
        {"gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": RAIN["content"]}]},
            {"role": "assistant",
             "parts": [{"type": "tool_call", "id": "t", "name": "ls", "arguments": {}}]},
            {"role": "tool",
             "parts": [{"type": "tool_call_response", "id": "t", "response": "a.txt"}]}]},
        {"llm.input_messages": [
            {"message.role": "user", "message.content": RAIN["content"]},
            {"message.role": "assistant",
             "message.tool_calls": [{"tool_call": {"id": "t", "function": {
                 "name": "ls", "arguments": "{}"}}}]},
            {"message.role": "tool", "message.content": "a.txt", "message.tool_call_id": "t"}]},
    ],
)  # fmt: skip
def test_calls_of_tools_and_their_results_are_the_same_messages_in_every_api(row):
    assert asked(row).messages == (
        RAIN,
        {"role": "assistant", "content": None, "tool_calls": [LS]},
        {"role": "tool", "content": "a.txt", "tool_call_id": "t"},
    )


def test_items_of_one_answer_are_one_message():
    items = [
        RAIN,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So"}],
        },
        {"type": "function_call", "call_id": "t", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": "a.txt"},
    ]
    assert asked({"model": "m", "input": items}).messages[1] == {
        "role": "assistant",
        "content": "So",
        "reasoning_content": "hm",
        "tool_calls": [LS],
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
        read({"messages": [said]})


def test_fields_that_are_not_read_are_named_the_longest_first(tmp_path):
    row = CALL | {"custom": 1, "passage": "a long text", "metadata": {"a": 1}, "empty": None}
    traffic = load(query(written(tmp_path, "a.jsonl", json.dumps(row))))
    assert list(traffic.unread.items()) == [("passage", 1), ("custom", 1)]


def test_one_bad_row_costs_itself_alone(tmp_path):
    path = written(tmp_path, "a.jsonl", f"{json.dumps(CALL)}\n{{\n{{\n[]\n")
    traffic = load(query(path, skip_bad=True))
    assert len(traffic.requests) == 1
    firsts = [(bad.first, bad.rows) for bad in traffic.bad_rows]
    assert firsts == [("a.jsonl:2", 2), ("a.jsonl:4", 1)]
    with pytest.raises(TrafficError) as raised:
        load(query(path))
    assert raised.value.message == (
        "3 of 4 rows cannot be read: a.jsonl:2: not JSON (Input data was truncated) "
        "(2 such rows); a.jsonl:4: not an object"
    )
    assert "--skip-bad" in raised.value.hint


def test_a_source_without_a_single_request_is_not_read_to_its_end(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"question": "a"}\n' * 3000)
    with pytest.raises(TrafficError, match=r"^1000 of 1000 rows cannot be read: a\.jsonl:1: "):
        load(query(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_utf_16_is_read_and_said(tmp_path, encoding, name):
    text = "prompt;id\nnaïve;1\n" if name == "a.csv" else '{"prompt": "naïve"}\n'
    traffic = load(query(written(tmp_path, name, text.encode(encoding))))
    assert [request.prompt for request in traffic.requests] == ["naïve"]
    assert ("UTF-16" in traffic.layout) == encoding.startswith("utf-16")


@pytest.mark.parametrize(
    ("sign", "word"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")]
)
def test_columns_are_separated_by_what_the_header_holds_most(tmp_path, sign, word):
    path = written(tmp_path, "a.csv", f'prompt{sign}"a;b,c"\nOnce{sign}1\n')
    traffic = load(query(path))
    assert traffic.requests[0].prompt == "Once"
    assert traffic.layout == (f"columns separated by {word}",)
    path = written(tmp_path, "b.csv", f"question{sign}id\nOnce{sign}1\n")
    with pytest.raises(TrafficError) as raised:
        load(query(path))
    assert raised.value.message == (
        "b.csv:2: no known form of request; its fields are `question`, `id`; read as columns "
        f"separated by {word}"
    )
    assert raised.value.hint == "name the prompt's field, perhaps --prompt-field question"


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
    for at, (role, text) in enumerate(said):
        flat[f"llm.input_messages.{at}.message.role"] = role
        flat[f"llm.input_messages.{at}.message.content"] = text
    return {"attributes": {**flat, "llm.invocation_parameters": json.dumps(settings)}}


def openllmetry(said, settings):
    flat = {f"gen_ai.prompt.{at}.role": role for at, (role, _) in enumerate(said)}
    flat |= {f"gen_ai.prompt.{at}.content": text for at, (_, text) in enumerate(said)}
    flat |= {f"gen_ai.request.{name}": settings[name] for name in settings}
    return {"attributes": flat}


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
    texts = [each["content"] for each in messages]
    pairs = [list(pair) for pair in zip(texts[:-1:2], texts[1::2], strict=True)]
    return {"instruction": texts[-1], "history": pairs, **system, "output": "x", **settings}


FORMS = {
    "bare": openai,
    "body": lambda *asked: {"body": openai(*asked)},
    "JSON text": lambda *asked: {"request": json.dumps(json.dumps(openai(*asked)))},
    "columns": lambda *asked: {f"request.{n}": v for n, v in openai(*asked).items()},
    "Python literal": lambda said, settings: {"messages": str(chat(said)), **settings},
    "LiteLLM": lambda said, settings: {"messages": chat(said), "model_parameters": settings},
    "Langfuse": lambda said, settings: {"input": chat(said), "modelParameters": settings},
    "Helicone": lambda *asked: {"request_body": json.dumps(openai(*asked))},
    "conversation": lambda said, settings: {"conversation": chat(said), **settings},
    "Anthropic": anthropic,
    "Anthropic batch": lambda *asked: {"custom_id": "a", "params": anthropic(*asked)},
    "Bedrock": bedrock,
    "Ollama": ollama,
    "Responses": responses,
    "OpenTelemetry": telemetry,
    "OpenInference": openinference,
    "OpenLLMetry": openllmetry,
    "LangSmith": langsmith,
    "ShareGPT": sharegpt,
    "Alpaca": alpaca,
}
# Half a character is no text, and a text that is only blanks is no message.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


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
