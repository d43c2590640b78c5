"""Request parameters: what is applied, what is neutral, what cannot be expressed."""

import json
from typing import Any

import pytest
from log_shapes import CHAT, SAMPLED, USER
from traffic.asked import FUNCTION, QUERY, TOOL, asked, read

from draftbench.records import Sampling
from draftbench.traffic.errors import NotRepresentableError
from draftbench.traffic.request_settings import add_setting
from draftbench.traffic.request_settings import request_fields as of_settings
from draftbench.traffic.rows import read_request


def request_fields(asked, **server):
    settings = {}
    for name, value in asked.items():
        add_setting(settings, name, value)
    return of_settings(settings, **server)


NOTHING = request_fields({}, server=True)
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
        ({"tools": [FUNCTION], "tool_choice": "auto"}, {"tools": (FUNCTION,)}),
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
    assert request_fields(asked, server=True) == NOTHING | fields


def test_an_absent_temperature_is_the_default_of_the_api_or_greedy():
    assert NOTHING["sampling"] == Sampling(temperature=1.0)
    assert request_fields({}, server=False)["sampling"] == Sampling(temperature=0.0)


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
        ("safe_prompt", True),
        ("web_search_options", {}),
        # A log cannot set the arguments of the renderer.
        ("chat_template_kwargs", {"chat_template": "x"}),
        ("chat_template_kwargs", {"tokenize": "x"}),
        ("chat_template_kwargs", {"return_tensors": "x"}),
    ],
)
def test_what_changes_the_distribution_is_named(field, value):
    with pytest.raises(NotRepresentableError, match=rf"^{field}$"):
        request_fields({field: value, "tools": [FUNCTION]}, server=True)


@pytest.mark.parametrize(
    ("field", "name"),
    [("frobnicate", "frobnicate"), ("some \x1b[31m text", "an unreadable field name")],
)
def test_an_unknown_field_of_a_request_body_is_never_ignored(field, name):
    with pytest.raises(NotRepresentableError, match=rf"^{name}$"):
        asked({"body": CHAT | {field: 1}})
    assert asked(CHAT | {field: 1}) == asked(CHAT)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"temperature": "warm"}, "`temperature`: expected a number, got text"),
        ({"temperature": "true"}, "`temperature`: expected a number, got true or false"),
        ({"temperature": True}, "`temperature`: expected a number, got true or false"),
        ({"temperature": -0.1}, "`temperature`: expected a number >= 0.0"),
        ({"temperature": float("nan")}, "`temperature`: expected a number >= 0.0"),
        ({"temperature": float("inf")}, "`temperature`: expected a number < 9.223372036854776e+18"),
        ({"top_p": 1.5}, "`top_p`: expected a number <= 1.0"),
        ({"top_k": -2}, "`top_k`: expected an integer >= -1"),
        ({"min_p": 2}, "`min_p`: expected a number <= 1.0"),
        ({"max_tokens": 0}, "`max_tokens`: expected an integer >= 1"),
        ({"max_tokens": 1.5}, "`max_tokens`: expected an integer, got a number"),
        ({"n": 0}, "`n`: expected an integer >= 1"),
        ({"stop": 5}, "`stop`: expected text or a list, got an integer"),
        ({"stop": ["a", 5]}, "`stop[1]`: expected text, got an integer"),
        ({"temperature": -1}, "`temperature`: expected a number >= 0.0"),
        ({"tools": "f"}, "`tools`: expected a list, got text"),
        ({"chat_template_kwargs": []}, "`chat_template_kwargs`: expected an object, got a list"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_leaves_its_row_out(asked, reason):
    with pytest.raises(NotRepresentableError) as raised:
        request_fields(asked, server=True)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("odd", "meant"),
    [
        ({"top_p": 0}, {"top_k": 1}),
        ({"top_p": "0.0", "top_k": 40}, {"top_k": 1}),
        ({"seed": 10**30}, {}),
        ({"seed": -(2**63)}, {}),
        ({"seed": "random"}, {}),
        ({"seed": 7.0}, {"seed": 7}),
        ({"stop": [""]}, {}),
        ({"stop": ["", "END"]}, {"stop": ["END"]}),
    ],
)
def test_what_servers_take_means_what_they_make_of_it(odd, meant):
    assert request_fields(odd, server=True) == request_fields(meant, server=True)


@pytest.mark.parametrize(
    ("think", "template"),
    [(False, {"enable_thinking": False}), ("low", {"reasoning_effort": "low"})],
)
def test_think_is_an_argument_of_the_template(think, template):
    row = {"model": "m", "messages": [USER], "options": {}, "think": think}
    assert asked(row).template == template


@pytest.mark.parametrize("count", [{"response": "Hi"}, {"input_tokens": 5}])
def test_output_tokens_beside_an_answer_or_a_count_are_no_limit(count):
    assert asked({"prompt": "Once", "output_tokens": 9} | count).max_tokens is None


@pytest.mark.parametrize("row", [{"messages": [USER]}, {"prompt": "Once"}])
@pytest.mark.parametrize("column", [{"options": {"A": "red"}}, {"parameters": {"type": "object"}}])
def test_options_of_a_quiz_and_a_schema_are_no_sampling_parameters(row, column):
    assert asked(row | column) == asked(row)


@pytest.mark.parametrize(
    "tool",
    [
        FUNCTION,
        {**TOOL, "input_schema": {"type": "object"}},
        {**TOOL, "inputSchema": {"type": "object"}},
        {"toolSpec": {**TOOL, "inputSchema": {"json": {"type": "object"}}}},
        {"type": "function", **TOOL, "parameters": {"type": "object"}},
        {**TOOL, "parameters": {"type": "object"}},
        {"functionDeclarations": [{**TOOL, "parameters": {"type": "OBJECT"}}]},
        {"functionDeclarations": [{**TOOL, "parametersJsonSchema": {"type": "object"}}]},
    ],
)
def test_tools_of_every_api_reach_the_template_alike(tool):
    assert asked({"messages": [USER], "tools": [tool]}).tools == (FUNCTION,)


@pytest.mark.parametrize("inner", ["f", 5, None])
def test_a_declared_function_that_is_no_object_leaves_its_row_out(inner):
    with pytest.raises(NotRepresentableError, match="a function of `tools` is not an object"):
        asked({"messages": [USER], "tools": [{"functionDeclarations": [inner]}]})


def test_a_tool_of_several_functions_is_as_many_tools_and_its_types_are_json_schema_s():
    inner = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "enum": ["A"]}}}
    tools = asked(
        {
            "messages": [USER],
            "tools": [
                {"functionDeclarations": [{"name": "f", "parameters": inner}, {"name": "g"}]}
            ],
        }
    ).tools
    schema = {"type": "object", "properties": {"type": {"type": "string", "enum": ["A"]}}}
    assert tools == (
        {"type": "function", "function": {"name": "f", "parameters": schema}},
        {"type": "function", "function": {"name": "g"}},
    )


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "custom", "name": "f"},
        {"type": "computer_20241022"},
        {"googleSearch": {}},
        {"functionDeclarations": [TOOL], "codeExecution": {}},
    ],
)
def test_a_tool_that_is_no_function_leaves_its_request_out(tool):
    """Known fault: what the server ran itself reached the template as a function."""
    with pytest.raises(NotRepresentableError, match=r"^tools other than functions$"):
        asked({"body": {"model": "m", "input": "Hello", "tools": [FUNCTION, tool]}})


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
            asked(row)
    for row in (CHAT | {name: None}, {"body": CHAT | {name: None}}):
        assert asked(row) == asked(CHAT)


@pytest.mark.parametrize("name", ["format", "template", "think", "thinking", "grammar", "n"])
def test_a_column_of_a_data_set_that_is_named_like_a_setting_costs_no_row_and_is_named(name):
    for row in ({"messages": [USER], name: "essay"}, {"request": CHAT, name: "essay"}):
        read = read_request(row, "log:1", QUERY)
        assert read.request == asked({field: row[field] for field in row if field != name})
        assert read.unread == {name: "essay"}


# fmt: off
HARMLESS = (
    "session_id", "return_token_offsets", "return_prompt_text", "logprob_token_ids",
    "return_weight_versions", "return_mm_kwargs", "kv_transfer_params", "ec_transfer_params",
    "stream_interval", "rid", "extra_key", "data_parallel_rank", "return_hidden_states",
    "return_meta_info", "return_cached_tokens_details", "return_spec_tokens_details",
    "no_stop_trim", "top_logprobs_num", "truncation", "background", "max_tool_calls",
    "token_ids_logprob", "dry_base", "min_keep",
    # of gateways
    "usage", "provider", "models", "route", "drop_params", "allowed_openai_params", "api_base",
)
# fmt: on


@pytest.mark.parametrize("name", HARMLESS)
def test_a_field_that_changes_no_token_costs_no_row(name):
    assert asked({"body": CHAT | {name: 1}}) == asked(CHAT)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize("endless", [-1, -2.0, "-2", "inf", "Infinity"])
def test_a_number_of_tokens_below_0_is_no_limit(name, endless):
    assert asked({"input": CHAT, "modelParameters": {name: endless}}) == asked(CHAT)
    assert asked({"body": {"model": "m", "messages": [USER], name: endless}}).max_tokens is None


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
        assert asked(row) == asked(CHAT)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ('["a", "b"]', ("a", "b")),
        ("['a', 'b']", ("a", "b")),
        ("END", ("END",)),
        ("5", ("5",)),
        ("[/INST]", ("[/INST]",)),
    ],
)
def test_logs_keep_stop_as_text(text, stop):
    assert asked({"input": [USER], "modelParameters": {"stop": text}}).stop == stop


def lm_eval(block):
    return {"question": "Once", "arguments": {"arg_0": "Once", "arg_1": block}}


@pytest.mark.parametrize(
    "row",
    [
        {"input": [USER], "metadata": {"model": "m", **SAMPLED}},
        {"input": [USER], "metadata": json.dumps({"model": "m", **SAMPLED})},
        {"input": [USER], "metadata": {"run": 7, "call": {"params": SAMPLED}}},
        {"messages": [USER], "generation_config": {"top_p": 1, **SAMPLED}},
        {"messages": [USER], "run": SAMPLED | {"host": "a1", "took": 3}},
        CHAT | {"weather": {"temperature": -3, "wind": 4}},
        CHAT | {"metadata": {"temperature": 31, "city": "Rome"}},
        CHAT | {"device_settings": {"temperature": 21.5, "seed": 4}},
        {"messages": [USER], "run.temperature": 0.7, "run.max_tokens": 9, "run.host": "a1"},
        {"attributes": {"ai.prompt.messages": [USER], "ai.settings.temperature": 0.7,
                        "ai.settings.maxOutputTokens": 9, "ai.settings.maxRetries": 2}},
        {"properties": {"$ai_input": [USER], "$ai_model_parameters": SAMPLED}},
    ],
)  # fmt: skip
def test_settings_are_read_in_whatever_object_they_stand_beside_the_prompt(row):
    assert asked(row) == asked(CHAT)


def test_settings_beside_a_named_prompt_are_read():
    row = lm_eval({"until": ["\n"], "do_sample": True, "temperature": 0.7, "max_gen_toks": 9})
    request = asked(row, prompt_field="arguments.arg_0")
    assert (request.prompt, request.stop, request.max_tokens) == ("Once", ("\n",), 9)
    assert request.sampling == Sampling(temperature=0.7)


@pytest.mark.parametrize("name", ["response", "usage_output", "tool_result", "labels"])
def test_what_an_answer_or_a_label_says_of_a_temperature_is_no_setting(name):
    assert asked(CHAT | {name: {"temperature": "hot"}}).sampling == Sampling(temperature=0.7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("sampler_order", [6, 0]), ("smoothing_factor", 0.2), ("customTokenBans", [5])),
        *(("encoder_repetition_penalty", 1.1), ("cfg_scale", 1.5), ("temperature_last", True)),
        *(("xtc_chance", 0.5), ("eta_cutoff", 3), ("num_beam_groups", 2), ("top_e", 0.3)),
    ],
)
def test_an_unknown_setting_of_a_sampler_beside_known_ones_leaves_its_row_out(name, value):
    prompt = {"prompt": "Once", "temperature": 0.7}
    for row in (CHAT, prompt, {"messages": [USER], "run": SAMPLED}):
        row = {**row, "run": {**SAMPLED, name: value}} if "run" in row else row | {name: value}
        with pytest.raises(NotRepresentableError, match=rf"^{name}$"):
            asked(row)
    # Off, or a column of a data set.
    for off in (False, 0, None, "a label"):
        assert asked(prompt | {name: off}) == asked(prompt)
    assert asked({"prompt": "Once", name: value}) == asked({"prompt": "Once"})


@pytest.mark.parametrize("name", ["passage", "stop_reason", "rep", "dryness", "sampling_rate"])
def test_a_column_that_no_sampler_has_costs_no_row(name):
    assert asked(CHAT | {name: 3}) == asked(CHAT)


def test_koboldcpp_says_limit_stop_and_penalties_in_its_own_words():
    row = {"prompt": "Once", "temperature": 0.7, "max_length": 9, "stop_sequence": ["\n"], "n": 2}
    row |= {"max_context_length": 8192, "rep_pen": 1.0, "rep_pen_range": 360, "tfs": 1}
    request = asked(row)
    assert (request.max_tokens, request.stop, request.weight) == (9, ("\n",), 2)
    for changed in ({"rep_pen": 1.05}, {"typical": 0.9}, {"tfs": 0.5}):
        with pytest.raises(NotRepresentableError, match=r"repetition_penalty|typical_p|tfs_z"):
            asked(row | changed)
    # Columns of a data set.
    assert asked({"prompt": "Once", "max_length": 9}).max_tokens is None


@pytest.mark.parametrize(
    ("reasoning", "template"),
    [
        ({"enabled": False}, {"enable_thinking": False}),
        ({"effort": "high"}, {"reasoning_effort": "high"}),
        ({"effort": "low", "exclude": True}, {"reasoning_effort": "low"}),
        ({"effort": None, "summary": "auto"}, {}),
    ],
)
def test_reasoning_is_an_argument_of_the_template_in_whichever_api_it_is_asked_for(
    reasoning, template
):
    for row in ({"request": CHAT | {"reasoning": reasoning}}, CHAT | {"reasoning": reasoning}):
        assert asked(row).template == template
    with pytest.raises(NotRepresentableError, match="thinking_token_budget"):
        asked({"request": CHAT | {"reasoning": {"max_tokens": 9}}})


@pytest.mark.parametrize("name", ["ai.prompt.tools", "llm.tools", "gen_ai.tool.definitions"])
def test_tools_may_be_a_list_of_json_texts(name):
    prompts = {"ai": "ai.prompt.messages", "llm": "llm.input_messages"}
    prompt = prompts.get(name.partition(".")[0], "gen_ai.input.messages")
    flat = {"type": "function", **TOOL, "inputSchema": {"type": "object"}}
    row = {"attributes": {prompt: [USER], name: [json.dumps(flat)]}}
    assert asked(row).tools == (FUNCTION,)


@pytest.mark.parametrize("block", ["metadata", "config", "extra"])
def test_settings_of_the_request_itself_hold_before_those_in_an_object_that_looks_like_some(block):
    said = {"temperature": 0.2, "max_new_tokens": 5, "top_p": 0.5}
    for row in (CHAT | {block: said}, {"request": CHAT, block: said}):
        found = asked(row)
        assert (found.sampling.temperature, found.max_tokens) == (0.7, 9)
        assert found.sampling.top_p == 0.5


def test_langsmith_keeps_settings_in_its_metadata_too():
    row = {"inputs": {"messages": [[USER]]}, "outputs": {"generations": [[{"text": "Hi"}]]}}
    said = {"ls_temperature": 0.7, "ls_max_tokens": 9, "ls_stop": ["."], "ls_model_name": "m"}
    found = read(row | {"extra": {"metadata": said}})
    assert (found.request.sampling.temperature, found.request.max_tokens) == (0.7, 9)
    assert (found.request.stop, found.model) == ((".",), ("extra.metadata.ls_model_name", "m"))


@pytest.mark.parametrize("name", ["metadata", "settings", "generation_config"])
def test_a_limit_or_a_stop_alone_is_a_setting_where_a_name_says_so(name):
    for beside in ({}, {"model": "m"}):
        row = {"messages": [{"role": "user", "content": "Hello"}], **beside}
        assert asked(row | {name: {"max_output_tokens": 9}}).max_tokens == 9
        assert asked(row | {name: {"stop": ["X"]}}).stop == ("X",)
        model = {"info": {"max_output_tokens": 8192}}
        assert asked(row | {name: model}).max_tokens is None


def test_metadata_that_speaks_of_a_temperature_is_read_or_named():
    row = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    found = read(row | {"metadata": {"call": {"temperature": 0.7}}})
    assert (found.request.sampling.temperature, [*found.unread]) == (1.0, ["metadata"])
    assert not read(row | {"metadata": {"call": {"user": "u"}}}).unread
