"""Every shape of log is read as what was asked: its prompt, its settings and its answer."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_shapes import (
    ANSWER,
    CHAT,
    SAMPLED,
    SHAPES,
    SPAN,
    TOLD,
    USER,
    page,
)

from draftbench.records import Sampling
from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    UnknownFormError,
)
from draftbench.traffic.rows import Fields, read_request


def read(row, **fields):
    return read_request(json.dumps(row).encode(), "log:1", Fields(**fields), b"key").request


@pytest.mark.parametrize(("row", "content", "answer", "asks"), SHAPES.values(), ids=SHAPES)
def test_a_log_is_read_as_what_was_asked(row, content, answer, asks):
    if isinstance(content, type):
        with pytest.raises(content) as raised:
            read(row)
        assert str(raised.value) == answer
        return
    asked = read(row)
    sampling = Sampling(temperature=asks["temperature"])
    assert (asked.prompt or list(asked.messages), asked.response) == (content, answer)
    assert (asked.sampling, asked.max_tokens) == (sampling, asks.get("max_tokens"))
    assert asked.stop == asks.get("stop", ())
    assert (asked.constraint, asked.template) == (asks.get("constraint"), asks.get("template", {}))


def test_the_page_of_logs_says_what_becomes_of_each_shape():
    written = (Path(__file__).parents[2] / "docs/logs.md").read_text()
    assert written == page(), "run scripts/log_shapes.py"
    assert len(SHAPES) >= 40
    assert all(f"\n| {name} | " in written for name in SHAPES)


def test_a_path_to_turns_asks_the_first():
    assert read({"turns": ["Hello", "Shorter"]}, prompt="turns").messages == (USER,)


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', '[{"a": 1}]'])
def test_a_prompt_that_happens_to_be_json_stays_a_prompt(text):
    assert read({"prompt": text}).prompt == text
    assert read({"question": text}, prompt="question").prompt == text


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', '[{"a": 1}]', '"quoted"'])
def test_what_a_user_or_a_system_says_may_be_json(text):
    said = {"role": "user", "content": text}
    for row in ({"model": "m", "input": text}, {"messages": [said]}, CHAT | {"messages": [said]}):
        assert read(row).messages == (said,)
    assert read({"modelParameters": {}, "input": text}).prompt == text
    for row in (CHAT | {"system": text}, {"model": "m", "input": "Hello", "instructions": text}):
        assert read(row).messages == ({"role": "system", "content": text}, USER)


@pytest.mark.parametrize(("raw", "prompt"), [("True", "Once"), ("true", "Once"), ("False", None)])
def test_a_table_says_in_text_that_ollama_applies_no_template(raw, prompt):
    row = {"model": "m", "prompt": "Once", "raw": raw, "options": '{"temperature": 0.7}'}
    assert read(row).prompt == prompt


@pytest.mark.parametrize(
    "text",
    [
        *('{"choices": ["A"]}', '[{"text": "A"}]', '{"role": "user"}', '{"content": "A"}', '"A"'),
        *('{"output": "A"}', '{"response": "A"}', '{"message": "A"}', '{"text": "A"}', "[1]"),
    ],
)
def test_an_answer_that_is_json_stays_an_answer(text):
    assert read({"prompt": "a", "response": text}).response == text


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"content": "Hi"}}]},
        {"choices": [{"text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]},
        {"output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}}},
        {"generations": [[{"text": "Hi"}]]},
        {"message": ANSWER, "done": True},
        {"response": "Hi", "done": True},
        {"content": "Hi", "stop": True, "tokens_predicted": 1},
        {"generated_text": "Hi"},
        [{"generated_text": "Hi"}],
        {"text": "Hi", "meta_info": {}},
        {"status_code": 200, "body": {"choices": [{"message": ANSWER}]}},
        [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}],
    ],
)
def test_an_api_s_answer_kept_as_text_is_read_as_what_it_holds(answer):
    text = json.dumps(answer)
    for kept_as in (answer, text, json.dumps(text)):
        assert read({"prompt": "a", "response": kept_as}).response == "Hi"
        assert read({"prompt": "a", "log": {"said": kept_as}}, response="log.said").response == "Hi"


def test_a_named_answer_that_holds_no_text_is_a_bad_row():
    with pytest.raises(BadRowError, match="the logged response is not a text"):
        read({"prompt": "a", "said": {"score": 1}}, response="said")
    called = {"choices": [{"message": {"content": None, "tool_calls": []}}]}
    assert read({"prompt": "a", "said": called}, response="said").response is None


def test_a_plain_prompt_can_be_a_message():
    row = {"prompt": "Hello", "output_tokens": 9}
    form, asked, *_ = read_request(row, "log:1", Fields(as_chat=True), b"key")
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
    "tool",
    [{"type": "web_search"}, {"type": "custom", "name": "f"}, {"type": "computer_20241022"}],
)
def test_a_tool_that_is_no_function_leaves_its_request_out(tool):
    """Known fault: what the server ran itself reached the template as a function."""
    with pytest.raises(NotRepresentableError, match=r"^tools other than functions$"):
        read({"body": {"model": "m", "input": "Hello", "tools": [FUNCTION, tool]}})


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
        ({"messages": [USER | {"images": ["a"]}]}, "messages.images"),
        ({"messages": [USER], "history": [["a", "b"]]}, "history"),
        (CHAT | {"model_parameters": {"temperature": 1, "frobnicate": 1}}, "frobnicate"),
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
        ({"body": CHAT | {"parameters": {"odd": 1}}}, "parameters"),
        ({"body": CHAT | {"conversation": "c"}}, "conversation"),
    ],
)
def test_what_cannot_be_applied_is_named_wherever_it_stands(row, field):
    with pytest.raises(NotRepresentableError) as raised:
        read(row)
    assert str(raised.value) == field


# fmt: off
REFUSED = {
    "allowed_token_ids": [1], "structural_tag": "{}",
    "thinking_token_budget": 5, "truncate_prompt_tokens": 5, "chat_template": "x",
    "custom_logit_processor": "x", "vllm_xargs": {"a": 1}, "suffix": "x", "images": ["a"],
    "documents": [{"text": "a"}], "dry_multiplier": 0.8, "xtc_probability": 0.5, "top_a": 0.1,
    "dynatemp_range": 0.5, "no_repeat_ngram_size": 3, "stop_regex": "a", "lora_path": "x",
    "thinking": {"type": "enabled", "budget_tokens": 5}, "functions": [{"name": "f"}],
    "bad_words_ids": [[1]], "template": "{{ .Prompt }}", "context": [1, 2],
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_an_answer_is_refused_whatever_wraps_it(name):
    body = CHAT | {name: REFUSED[name]}
    inside = {"messages": [USER], "model_parameters": SAMPLED | {name: REFUSED[name]}}
    for row in (body, {"body": body}, {"request_body": json.dumps(body)}, inside):
        with pytest.raises(NotRepresentableError, match=rf"^{name}$"):
            read(row)
    for row in (CHAT | {name: None}, {"body": CHAT | {name: None}}):
        assert read(row) == read(CHAT)


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
        assert read(row).constraint == constraint
        assert read(row).id != read(CHAT).id
    for none in (None, ""):
        assert read(CHAT | {name: none}) == read(CHAT)


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "schema"),
    [
        (NAMED, {"type": "object"}),
        ({"type": "tool", "name": "f"}, {"type": "object"}),
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
    asked = read(CHAT | {"tools": [FUNCTION], "tool_choice": choice})
    assert (asked.constraint, asked.tools) == ({"tool": schema}, (FUNCTION,))


@pytest.mark.parametrize(
    "name", ["format", "context", "template", "documents", "think", "thinking", "functions"]
)
def test_a_column_of_a_data_set_that_is_named_like_a_setting_costs_no_row(name):
    assert read({"messages": [USER], name: "essay"}) == read({"messages": [USER]})


# fmt: off
HARMLESS = (
    "session_id", "return_token_offsets", "return_prompt_text", "logprob_token_ids",
    "return_weight_versions", "return_mm_kwargs", "kv_transfer_params", "ec_transfer_params",
    "stream_interval", "rid", "extra_key", "data_parallel_rank", "return_hidden_states",
    "return_meta_info", "return_cached_tokens_details", "return_spec_tokens_details",
    "no_stop_trim", "top_logprobs_num", "truncation", "background", "max_tool_calls",
    "token_ids_logprob", "dry_base", "min_keep",
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
    except (BadRowError, NotRepresentableError, NoTrafficError):
        return
    assert asked.prompt or asked.messages


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a story", "label": 1},
        {"inputs": "a", "normalize": True},
        {"inputs": ["a"]},
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
        read(row)


@pytest.mark.parametrize(
    ("row", "prompt", "temperature"),
    [
        ({"text": "Once"}, "Once", 0.0),
        ({"body": {"text": "Once", "stream": True}}, "Once", 1.0),
        ({"body": {"prompt": "Once"}}, "Once", 1.0),
        ({"text": "Once", "sampling_params": {}}, "Once", 1.0),
        ({"inputs": "Once"}, "Once", 0.0),
        ({"request": {"inputs": "Once", "parameters": None}}, "Once", 0.0),
        ({"model": "gpt-5", "input": "Hello"}, None, 1.0),
    ],
)
def test_the_shortest_body_of_an_api_is_a_request(row, prompt, temperature):
    asked = read(row)
    assert (asked.prompt, asked.messages) == (prompt, None if prompt else (USER,))
    assert asked.sampling == Sampling(temperature=temperature)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize("endless", [-1, -2.0, "-2", "inf", "Infinity"])
def test_a_number_of_tokens_below_0_is_no_limit(name, endless):
    assert read({"body": {"model": "m", "messages": [USER], name: endless}}).max_tokens is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("frequency_penalty", text) for text in ("0", "0.0", "", " ", "null", "None")),
        *(("ignore_eos", text) for text in ("false", "False", "")),
        *(("logit_bias", text) for text in ("{}", "null")),
        ("stop", ""),
        ("tools", "[]"),
        ("top_p", "1.0"),
        ("regex", ""),
    ],
)
def test_a_neutral_value_may_be_text(name, text):
    for row in (CHAT | {name: text}, {"body": CHAT | {name: text}}):
        assert read(row) == read(CHAT)


@pytest.mark.parametrize(
    ("text", "stop"), [('["a", "b"]', ("a", "b")), ("END", ("END",)), ("5", ("5",))]
)
def test_langfuse_keeps_stop_as_text(text, stop):
    assert read({"input": [USER], "modelParameters": {"stop": text}}).stop == stop
