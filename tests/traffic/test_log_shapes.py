"""Forty shapes of logs, and what each becomes.

Sources of the shapes: LiteLLM, StandardLoggingPayload and spend logs; Helicone, export with bodies;
Langfuse, observations; OpenTelemetry, GenAI conventions 1.37; MLflow, `search_traces`; Anthropic,
Messages; OpenAI, Responses; Ollama, `/api/chat` and `/api/generate`; llama.cpp, `/completion`;
SGLang, `/generate`; TGI, `/generate`; vLLM, benchmarks/datasets.
"""

import csv
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import query

from draftbench.records import Sampling
from draftbench.traffic import load
from draftbench.traffic.forms import BODIES, LengthsOnlyError, UnknownFormError
from draftbench.traffic.request_settings import BadRowError, NotRepresentableError
from draftbench.traffic.rows import Fields, read_request

USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief"}
ANSWER = {"role": "assistant", "content": "Hi"}
TOLD = [SYSTEM, USER]
COMPLETION = {"model": "m", "choices": [{"message": ANSWER}]}
CHAT = {"model": "m", "messages": [USER], "temperature": 0.7, "max_tokens": 9}
SAMPLED = {"temperature": 0.7, "max_tokens": 9}
SPAN = {
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.max_tokens": 9,
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief"}],
    "gen_ai.input.messages": [
        {"role": "user", "parts": [{"type": "text", "content": "Hello"}]},
    ],
    "gen_ai.output.messages": [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "Hi"},
            ],
            "finish_reason": "stop",
        }
    ],
}
LANGFUSE = {
    "id": "o",
    "type": "GENERATION",
    "model": "m",
    "modelParameters": {"temperature": "0.7", "max_tokens": "inf"},
    "output": ANSWER,
}
SHAREGPT = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]
DEFAULT, GREEDY = {"temperature": 1.0}, {"temperature": 0.0}

# fmt: off
SHAPES = {
    "OpenAI chat, bare": (CHAT, [USER], None, SAMPLED),
    "OpenAI chat, bare, no temperature": (
        {"model": "m", "messages": [USER]}, [USER], None, DEFAULT),
    "OpenAI batch": (
        {"custom_id": "a", "url": "/v1/chat/completions", "body": CHAT,
         "response": {"status_code": 200, "body": COMPLETION}},
        [USER], "Hi", SAMPLED),
    "body as JSON text": ({"body": json.dumps(CHAT)}, [USER], None, SAMPLED),
    "MLflow trace": (
        {"trace_id": "t", "request": json.dumps(CHAT), "response": json.dumps(COMPLETION)},
        [USER], "Hi", SAMPLED),
    "LiteLLM standard payload": (
        {"call_type": "acompletion", "model": "m", "messages": [USER], "response": COMPLETION,
         "model_parameters": SAMPLED | {"stream": True}},
        [USER], "Hi", SAMPLED),
    "LiteLLM spend log": (
        {"request_id": "r", "messages": {}, "proxy_server_request": CHAT, "response": COMPLETION},
        [USER], "Hi", SAMPLED),
    "LiteLLM proxy request": (
        {"proxy_server_request": {"url": "u", "method": "POST", "body": CHAT}},
        [USER], None, SAMPLED),
    "Helicone": (
        {"request_id": "r", "request_body": CHAT, "response_body": COMPLETION},
        [USER], "Hi", SAMPLED),
    "Helicone, CSV": (
        {"request_body": json.dumps(CHAT), "response_body": json.dumps(COMPLETION)},
        [USER], "Hi", SAMPLED),
    "Langfuse, messages": (LANGFUSE | {"input": TOLD}, TOLD, "Hi", {"temperature": 0.7}),
    "Langfuse, messages and tools": (
        LANGFUSE | {"input": {"messages": [USER], "tools": []}}, [USER], "Hi",
        {"temperature": 0.7}),
    "Langfuse, JSON text": (
        LANGFUSE | {"input": json.dumps(TOLD), "output": json.dumps(ANSWER)}, TOLD, "Hi",
        {"temperature": 0.7}),
    "Langfuse, completion": (
        LANGFUSE | {"input": "Once", "output": "upon"}, "Once", "upon", {"temperature": 0.7}),
    "OpenTelemetry span": ({"name": "chat m", "attributes": SPAN}, TOLD, "Hi", SAMPLED),
    "OpenTelemetry, JSON text": (
        {"attributes": json.dumps({
            name: json.dumps(value) if isinstance(value, list) else value
            for name, value in SPAN.items()})},
        TOLD, "Hi", SAMPLED),
    "OpenTelemetry, columns": (SPAN, TOLD, "Hi", SAMPLED),
    "Anthropic Messages": (
        {"model": "m", "system": "Be brief", "messages": [USER], "max_tokens": 9,
         "stop_sequences": ["."]},
        TOLD, None, DEFAULT | {"max_tokens": 9, "stop": (".",)}),
    "Anthropic Messages, logged": (
        {"request": {"model": "m", "system": [{"type": "text", "text": "Be brief"}],
                     "messages": [USER], "max_tokens": 9, "temperature": 0.7},
         "response": {"type": "message", "role": "assistant",
                      "content": [{"type": "thinking", "thinking": "hm"},
                                  {"type": "text", "text": "Hi"}]}},
        TOLD, "Hi", SAMPLED),
    "Ollama /api/chat": (
        {"model": "m", "messages": [USER], "options": {"temperature": 0.7, "num_predict": 9}},
        [USER], None, SAMPLED),
    "Ollama /api/generate": (
        {"model": "m", "system": "Be brief", "prompt": "Hello", "response": "Hi",
         "options": {"temperature": 0.7, "num_predict": -1, "num_ctx": 4096}},
        TOLD, "Hi", {"temperature": 0.7}),
    "Ollama, raw": (
        {"model": "m", "prompt": "Once", "raw": True, "options": {"temperature": 0.7}},
        "Once", None, {"temperature": 0.7}),
    "llama.cpp /completion": (
        {"prompt": "Once", "temperature": 0.7, "n_predict": 9, "repeat_penalty": 1.0},
        "Once", None, SAMPLED),
    "OpenAI Responses": (
        {"model": "m", "instructions": "Be brief", "input": "Hello", "temperature": 0.7,
         "max_output_tokens": 9,
         "output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]},
        TOLD, "Hi", SAMPLED),
    "OpenAI Responses, items": (
        {"body": {"model": "m", "instructions": "Be brief", "max_output_tokens": 9, "input": [
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "Hello"}]}]}},
        TOLD, None, DEFAULT | {"max_tokens": 9}),
    "SGLang /generate": (
        {"text": "Once", "sampling_params": {"temperature": 0.7, "max_new_tokens": 9}},
        "Once", None, SAMPLED),
    "SGLang, logged": (
        {"request": {"text": "Once", "rid": "r", "sampling_params": {"max_new_tokens": 9,
                                                                    "no_stop_trim": True}},
         "response": {"text": "upon", "meta_info": {}}},
        "Once", "upon", DEFAULT | {"max_tokens": 9}),
    "TGI, sampled": (
        {"inputs": "Once", "parameters": {"temperature": 0.7, "max_new_tokens": 9}},
        "Once", None, SAMPLED),
    "TGI, greedy by default": (
        {"inputs": "Once", "parameters": {"max_new_tokens": 9},
         "response": [{"generated_text": "upon"}]},
        "Once", "upon", GREEDY | {"max_tokens": 9}),
    "vLLM custom": (
        {"prompt": "Once", "output_tokens": 9}, "Once", None, GREEDY | {"max_tokens": 9}),
    "Spec-Bench, MT-Bench": (
        {"question_id": 81, "category": "writing", "turns": ["Hello", "Shorter"]},
        [USER], None, GREEDY),
    "ShareGPT": ({"conversations": SHAREGPT}, [USER], "Hi", GREEDY),
    "ShareGPT with roles": ({"conversations": [USER, ANSWER]}, [USER], "Hi", GREEDY),
    "LMSYS, WildChat": (
        {"model": "m", "conversation": [USER, ANSWER], "turn": 1}, [USER], "Hi", GREEDY),
    "Alpaca": (
        {"instruction": "Greet", "input": "Bob", "output": "Hi Bob"},
        [{"role": "user", "content": "Greet\nBob"}], "Hi Bob", GREEDY),
    "messages of a data set": ({"messages": [USER, ANSWER]}, [USER], "Hi", GREEDY),
    "prompt of a data set": ({"prompt": "Once", "completion": "upon"}, "Once", "upon", GREEDY),
    "Mooncake trace": (
        {"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]},
        LengthsOnlyError, None, {}),
    "Azure trace": (
        {"TIMESTAMP": "t", "ContextTokens": "5", "GeneratedTokens": "2"},
        LengthsOnlyError, None, {}),
    "BurstGPT trace": (
        {"Timestamp": "5", "Model": "m", "Request tokens": "5", "Response tokens": "2"},
        LengthsOnlyError, None, {}),
}
# fmt: on


def read(row, **fields):
    return read_request(json.dumps(row).encode(), "log:1", Fields(**fields), b"key").request


@pytest.mark.parametrize(("row", "content", "answer", "asks"), SHAPES.values(), ids=SHAPES)
def test_a_log_is_read_as_what_was_asked(row, content, answer, asks):
    if isinstance(content, type):
        with pytest.raises(content, match="lengths only"):
            read(row)
        return
    asked = read(row)
    sampling = Sampling(temperature=asks["temperature"])
    assert (asked.prompt or list(asked.messages), asked.response) == (content, answer)
    assert (asked.sampling, asked.max_tokens) == (sampling, asks.get("max_tokens"))
    assert asked.stop == asks.get("stop", ())


def test_there_are_forty_shapes():
    assert len(SHAPES) == 40


BODY = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.sampled_from([0.5, 1]),
        "max_tokens": st.integers(1, 9),
        "stop": st.sampled_from([".", ["a", "b"]]),
        "seed": st.integers(0, 9),
        "n": st.integers(1, 3),
        "options": st.just({"temperature": 0.3, "num_predict": 4}),
        "extra_body": st.just({"top_k": 5}),
        "system": st.just("Be brief"),
    },
)
CONTENT = st.sampled_from(
    [
        {"messages": [USER]},
        {"messages": [USER, ANSWER, USER]},
        {"prompt": "Once"},
        {"input": [USER]},
        {"text": "Once", "sampling_params": {"temperature": 0.7}},
        {"inputs": "Once", "parameters": {"top_k": 3}},
    ]
)


@given(body=BODY, content=CONTENT, place=st.sampled_from(BODIES), as_text=st.booleans())
def test_a_wrapped_body_means_what_the_bare_body_means(body, content, place, as_text):
    bare = body | content
    wrapped = json.dumps(bare) if as_text else bare
    for name in reversed(place.split(".")):
        wrapped = {name: wrapped}
    assert read(wrapped) == read(bare)


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("request_body.messages", {"request_body": CHAT}),
        ("request_body.messages", {"request_body": json.dumps(CHAT)}),
        ("messages", {"messages": [USER], "model": "m", "model_parameters": SAMPLED}),
        ("input", {"input": [USER], "modelParameters": SAMPLED}),
        ("data.messages", {"data": CHAT}),
        ("request", {"request": json.dumps(CHAT)}),
        ("deep.call", {"deep": {"call": CHAT}}),
    ],
)
def test_a_path_to_the_prompt_finds_the_parameters_beside_it(path, row):
    assert read(row, prompt=path) == read(CHAT)


def test_a_path_to_turns_asks_the_first():
    assert read({"turns": ["Hello", "Shorter"]}, prompt="turns").messages == (USER,)


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', '[{"a": 1}]'])
def test_a_prompt_that_happens_to_be_json_stays_a_prompt(text):
    assert read({"prompt": text}).prompt == text
    assert read({"question": text}, prompt="question").prompt == text


@pytest.mark.parametrize("text", ['{"choices": ["A"]}', '[{"text": "A"}]', '{"role": "user"}'])
def test_an_answer_that_is_json_stays_an_answer(text):
    assert read({"prompt": "a", "response": text}).response == text


def test_a_plain_prompt_can_be_a_message():
    row = {"prompt": "Hello", "output_tokens": 9}
    form, asked, _ = read_request(row, "log:1", Fields(as_chat=True), b"key")
    assert (form, asked.messages, asked.max_tokens) == ("vLLM custom as chat", (USER,), 9)
    assert read({"messages": TOLD}, as_chat=True) == read({"messages": TOLD})


@pytest.mark.parametrize(
    "count",
    [{"response": "Hi"}, {"input_tokens": 5}],
)
def test_output_tokens_beside_an_answer_or_a_count_are_no_limit(count):
    assert read({"prompt": "Once", "output_tokens": 9} | count).max_tokens is None


@pytest.mark.parametrize("row", [{"messages": [USER]}, {"prompt": "Once"}])
@pytest.mark.parametrize("column", [{"options": {"A": "red"}}, {"parameters": {"type": "object"}}])
def test_options_of_a_quiz_and_a_schema_are_no_sampling_parameters(row, column):
    assert read(row | column) == read(row)


@pytest.mark.parametrize(
    "parameters",
    [{"do_sample": True}, {"top_p": 0.9}, {"top_k": 5}, {"do_sample": True, "temperature": 1.0}],
)
def test_tgi_samples_where_it_is_told_to_or_the_choice_is_narrowed(parameters):
    row = {"inputs": "Once", "parameters": parameters}
    assert read(row).sampling.temperature == 1.0
    assert read({"inputs": "Once", "parameters": {"temperature": 1.0}}).sampling.temperature == 0.0


TOOL = {"name": "f", "description": "d"}
FUNCTION = {"type": "function", "function": {**TOOL, "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "tool",
    [
        FUNCTION,
        {**TOOL, "input_schema": {"type": "object"}},
        {"type": "function", **TOOL, "parameters": {"type": "object"}},
    ],
)
def test_tools_of_every_api_reach_the_template_alike(tool):
    assert read({"messages": [USER], "tools": [tool]}).tools == (FUNCTION,)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (CHAT | {"options": {"temperature": 0.7}, "format": "json"}, "format"),
        ({"model": "m", "input": [USER], "previous_response_id": "r"}, "previous_response_id"),
        ({"input": [USER], "text": {"format": {"type": "json_schema"}}}, "text.format"),
        (
            {"input": [USER, {"type": "function_call", "name": "f"}]},
            "input items other than messages",
        ),
        (CHAT | {"model_parameters": {"temperature": 1, "frobnicate": 1}}, "frobnicate"),
        ({"text": "Once", "sampling_params": {"regex": "a+"}}, "regex"),
        ({"inputs": "Once", "parameters": {"do_sample": True, "truncate": 5}}, "truncate"),
        (
            {"prompt": "a", "options": {"num_predict": 5, "repeat_penalty": 1.1}},
            "repetition_penalty",
        ),
        ({"prompt": ["a", "b"]}, "prompt as a list"),
        ({"body": CHAT | {"parameters": {"odd": 1}}}, "parameters"),
        ({"body": CHAT | {"conversation": "c"}}, "conversation"),
        ({"body": CHAT | {"allowed_token_ids": [1]}}, "allowed_token_ids"),
        ({"request_body": CHAT | {"thinking_token_budget": 5}}, "thinking_token_budget"),
    ],
)
def test_what_cannot_be_applied_is_named_wherever_it_stands(row, field):
    with pytest.raises(NotRepresentableError) as raised:
        read(row)
    assert str(raised.value) == field


# fmt: off
HARMLESS = (
    "session_id", "return_token_offsets", "return_prompt_text", "logprob_token_ids",
    "return_weight_versions", "return_mm_kwargs", "kv_transfer_params", "ec_transfer_params",
    "stream_interval", "rid", "extra_key", "data_parallel_rank", "return_hidden_states",
    "return_meta_info", "return_cached_tokens_details", "return_spec_tokens_details",
    "no_stop_trim",
)
# fmt: on


@pytest.mark.parametrize("name", HARMLESS)
def test_a_field_that_changes_no_token_costs_no_row(name):
    assert read({"body": CHAT | {name: 1}}) == read(CHAT)


NAMES = st.sampled_from(
    [
        *("messages", "prompt", "conversations", "conversation", "input", "inputs", "text"),
        *("turns", "instruction", "output", "options", "parameters", "sampling_params", "request"),
        *("attributes", "gen_ai.input.messages", "parts", "role", "content", "type", "model"),
        *("tools", "system", "response", "choices", "temperature", "num_predict", "output_tokens"),
    ]
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 0.5, "", "Hello", "user", "message", "inf", "[", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400)
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.none() | NAMES)
def test_whatever_stands_where_a_request_could_is_read_or_refused(row, path):
    try:
        asked = read_request(row, "log:1", Fields(prompt=path), b"key").request
    except (BadRowError, NotRepresentableError):
        return
    assert asked.prompt or asked.messages


@pytest.mark.parametrize(
    "row", [{"text": "a story"}, {"inputs": "a"}, {"instruction": "a"}, {"conversation": "a"}]
)
def test_a_text_that_may_be_anything_is_no_request(row):
    with pytest.raises(UnknownFormError):
        read(row)


@pytest.mark.parametrize(
    "row",
    [
        {"request_body": CHAT, "response_body": COMPLETION},
        {"messages": [USER], "options": {"temperature": 0.7, "num_predict": 9}, "model": "m"},
        {"input": [USER], "modelParameters": SAMPLED, "output": ANSWER},
        {"turns": ["Hello"], "category": "writing"},
        {"prompt": "Once", "output_tokens": 9},
    ],
)
def test_a_table_of_texts_means_what_its_objects_mean(row, tmp_path):
    path = tmp_path / "log.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()})
    (request,) = load(query(path)).requests
    assert msgspec.structs.replace(request, source="log:1") == read(row)
