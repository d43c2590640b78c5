"""Turns a request's settings, by the servers' names, into the fields of a `Request`.

A request cannot be represented if it sets a field that changes the target's distribution and that
`Request` cannot express, or if its body has an unknown field. Such requests are counted by the
field's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from draftbench.records import Sampling
from draftbench.traffic.constraints import CONSTRAINTS, constraint_of
from draftbench.traffic.errors import BadRowError, NotRepresentableError
from draftbench.traffic.json_paths import parsed, unpacked

_TEMPLATE_SWITCHES = ("enable_thinking", "reasoning_effort")
# fmt: off
# Fields of request bodies that do not change the target's text.
HARMLESS = frozenset({
    "model", "user", "metadata", "store", "stream", "stream_options",
    "logprobs", "top_logprobs", "prompt_logprobs", "echo", "service_tier", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "prediction", "request_id", "priority",
    "cache_salt", "timeout", "return_tokens_as_token_ids", "return_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "include_reasoning", "separate_reasoning", "stream_reasoning",
    # vLLM 0.33 and SGLang 0.5.23
    "session_id", "return_token_offsets", "return_prompt_text", "logprob_token_ids",
    "return_weight_versions", "return_mm_kwargs", "kv_transfer_params", "ec_transfer_params",
    "stream_interval", "rid", "extra_key", "data_parallel_rank", "return_hidden_states",
    "return_meta_info", "return_cached_tokens_details", "return_spec_tokens_details",
    "no_stop_trim", "return_logprob", "return_text_in_logprobs", "logprob_start_len",
    "top_logprobs_num", "token_ids_logprob", "guided_decoding_backend",
    "guided_whitespace_pattern",
    "do_sample",
    # Responses (its truncation cuts only what would not fit), TGI, Ollama, LiteLLM, LangChain
    "include", "truncation", "background", "max_tool_calls", "details", "decoder_input_details",
    "return_full_text", "top_n_tokens", "keep_alive", "num_ctx", "num_keep", "num_gpu",
    "num_thread", "num_batch", "main_gpu", "low_vram", "use_mmap", "use_mlock", "numa",
    "litellm_metadata", "litellm_trace_id", "litellm_session_id", "num_retries", "max_retries",
    "fallbacks", "extra_headers", "extra_query", "request_timeout", "streaming", "model_name",
    "_type", "encoding_formats", "drop_params", "allowed_openai_params", "caching", "cache",
    "api_base", "api_version", "base_url", "custom_llm_provider",
    # OpenRouter (whose `transforms` and `plugins` do change a prompt), Gemini
    "usage", "provider", "models", "route", "safetySettings", "labels", "responseLogprobs",
    # Anthropic, Bedrock (whose schemas and guards are of the answer)
    "anthropic_version", "anthropic_beta", "betas", "container", "schemaVersion",
    "performanceConfig", "requestMetadata", "additionalModelResponseFieldPaths",
    "cache_control", "modelId",
    # llama.cpp; the last two lines have no effect where what they shape is off
    "cache_prompt", "id_slot", "n_probs", "min_keep", "n_keep", "timings_per_token",
    "return_tokens", "return_progress", "post_sampling_probs",
    "repeat_last_n", "penalize_newline", "mirostat_tau", "mirostat_eta", "dynatemp_exponent",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
    "xtc_threshold",
})
# Other APIs' names for settings.
_ALIASES = {
    "max_new_tokens": "max_tokens", "max_output_tokens": "max_tokens", "maxTokens": "max_tokens",
    "maxOutputTokens": "max_tokens", "num_predict": "max_tokens", "n_predict": "max_tokens",
    "stop_sequences": "stop", "stopSequences": "stop", "topP": "top_p", "topK": "top_k",
    "sampling_seed": "seed", "choice.count": "n", "reasoning.level": "reasoning_effort",
    "min_new_tokens": "min_tokens", "repeat_penalty": "repetition_penalty",
    "max_gen_len": "max_tokens", "max_tokens_to_sample": "max_tokens",
    "frequencyPenalty": "frequency_penalty", "presencePenalty": "presence_penalty",
    "candidateCount": "n", "random_seed": "seed",
}
# Marks that no model reads: where a provider may cache, where an agent's step begins, and what
# only a provider reads.
MARKS = ("cachePoint", "cache_control", "step-start", "thoughtSignature")
# Parts of a prompt that are not text.
MEDIA = (
    *("image", "images", "audio", "audios", "video", "videos"),
    *("image_url", "files", "attachments", "experimental_attachments"),
)
# Fields that change the distribution or the prompt and cannot be applied → values without effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,),
    "length_penalty": (1,), "logit_bias": ({}, []), "bad_words": ([],), "bad_words_ids": ([],),
    "typical_p": (1,), "min_tokens": (0,), "ignore_eos": (False,), "stop_token_ids": ([],),
    "stop_regex": ([],), "best_of": (1,), "use_beam_search": (False,), "num_beams": (1,),
    "no_repeat_ngram_size": (0,), "logits_processors": ([],), "custom_logit_processor": (),
    "vllm_xargs": ({},), "lora_path": (), "modalities": (["text"],), "history": ([],),
    **dict.fromkeys(MEDIA, ([], {}, 0)), "tool_choice": ("auto", {"type": "auto"}, {"auto": {}}),
    "parallel_tool_calls": (True,), "functions": ([],), "thinking": ({"type": "disabled"},),
    "guardrailConfig": (), "responseMimeType": ("text/plain",),
    "thinking_token_budget": (-1,),
    "add_generation_prompt": (True,), "continue_final_message": (False,), "chat_template": (),
    "template": (), "suffix": (),
    "truncate_prompt_tokens": (-1,),
    "allowed_token_ids": ([],),
    # what a provider adds to the prompt
    "safe_prompt": (False,), "web_search_options": (), "search_parameters": (),
    # samplers of llama.cpp and its like
    "mirostat": (0,), "tfs_z": (1,), "watermark": (False,), "top_a": (0,), "dry_multiplier": (0,),
    "xtc_probability": (0,), "dynatemp_range": (0,), "top_n_sigma": (-1, 0),
}
# Settings that are also columns of data sets: only in a request sent to a server are they settings.
COLUMNS = frozenset({
    "n", "format", "template", "think", "thinking", "grammar", "regex", "json_schema",
})
# Arguments of the renderer that a log must not set: with `chat_template` the log's template would
# run.
_TEMPLATE_RESERVED = frozenset({
    "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})
# fmt: on

# Python's words, which some tables contain → JSON's.
_PYTHON = {"True": "true", "False": "false"}
# What tables write in a cell if the row does not have that field.
PADDING = ("nan", "NaN", "None", "null")
# Numbers of tokens that mean no limit.
_ENDLESS = (-1, -2, "inf", "Infinity")
_INT64 = 2**63 - 1
_Positive = Annotated[int, Meta(ge=1, le=_INT64)]
_Text = Annotated[str, Meta(min_length=1)]


class _Applied(msgspec.Struct):
    """The settings that `Request` can express; the defaults change nothing."""

    temperature: Annotated[float, Meta(ge=0, lt=_INT64)]
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1
    top_k: Annotated[int, Meta(ge=-1, le=_INT64)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0
    seed: Annotated[int, Meta(ge=-_INT64, le=_INT64)] | None = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    n: _Positive = 1
    stop: _Text | list[_Text] = []
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: dict[str, Any] = {}


# The names of all settings in all APIs.
SETTINGS = frozenset({
    *_Applied.__struct_fields__, *_TEMPLATE_SWITCHES, *_NEUTRAL, *_ALIASES, *CONSTRAINTS, "think",
})  # fmt: skip


def request_fields(settings: Mapping[str, Any], *, server: bool) -> dict[str, Any]:
    """The settings, all of `SETTINGS`, as keyword arguments of `Request`.

    Null and empty text mean absent. Neutral values (top_p 1, top_k 0 or -1, min_p 0) become `None`.
    `n` samples count as `n` times the weight.

    Args:
        server: whether a server was asked: an absent temperature then means 1.0, the servers'
            default, else 0.0.

    Raises:
        BadRowError: a value has the wrong type or is out of range.
        NotRepresentableError: the request sets a field that `Request` cannot express.
    """
    given: dict[str, Any] = {}
    if isinstance(tools := setting_value("tools", settings.get("tools")), list):
        tools = [function for tool in tools for function in _functions(tool)]
        settings = {**settings, "tools": tools}
    constraint, forced = constraint_of(
        {
            name: setting_value(name, settings[name])
            for name in (*CONSTRAINTS, "tools", "tool_choice")
            if name in settings
        }
    )
    for alias, text in settings.items():
        name = _ALIASES.get(alias, alias)
        value = setting_value(name, text)
        if name == "think":  # Ollama's
            name = "enable_thinking" if isinstance(value, bool) else "reasoning_effort"
        if value is None:
            continue
        if name == "tool_choice" and (forced or not tools):
            continue
        # Tables turn a column of whole numbers with gaps into floats.
        whole = isinstance(value, float) and value.is_integer()
        value = int(value) if whole and name in _Applied.__struct_fields__ else value
        if (other := given.setdefault(name, value)) is not value and other != value:
            raise NotRepresentableError(f"several values of {name}")
        if name in _NEUTRAL and value not in _NEUTRAL[name]:
            raise NotRepresentableError(name)
    given.setdefault("temperature", 1.0 if server else 0.0)
    try:
        asked = msgspec.convert(given, _Applied)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).replace(" | null", "").partition(" - at ")
        name = place.partition("$.")[2].rstrip("`")
        raise BadRowError(f"`{name}`: {reason[0].lower()}{reason[1:]}") from None
    if not _TEMPLATE_RESERVED.isdisjoint(asked.chat_template_kwargs):
        raise NotRepresentableError("chat_template_kwargs")
    switches = {name: given[name] for name in _TEMPLATE_SWITCHES if name in given}
    return {
        "sampling": Sampling(
            temperature=asked.temperature,
            top_p=None if asked.top_p == 1 else asked.top_p,
            top_k=None if asked.top_k in (0, -1) else asked.top_k,
            min_p=asked.min_p or None,
            seed=asked.seed,
        ),
        "max_tokens": asked.max_completion_tokens or asked.max_tokens,
        "stop": (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop),
        "weight": float(asked.n),
        "tools": tuple(asked.tools) or None,
        "template": asked.chat_template_kwargs | switches,
        "constraint": constraint,
    }


def setting_value(name: str, value: Any) -> Any:
    """A setting's value, which a table or a log may store as text; None: it sets nothing."""
    content = _untyped(name, value)
    limit = _ALIASES.get(name, name) in ("max_tokens", "max_completion_tokens")
    return None if limit and content in _ENDLESS else content


def _untyped(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip() or value in PADDING:
        return None
    content = unpacked(value)
    if content is value:
        try:
            content = parsed(_PYTHON.get(value, value))
        except (ValueError, RecursionError):
            return value
    if name == "stop":
        return content if content is None or isinstance(content, list) else value
    text = CONSTRAINTS.get(name) in ("regex", "grammar") and content is not None
    return value if text else content


def _functions(tool: Any) -> list[dict[str, Any]]:
    """A tool's functions as chat templates expect them. OpenAI's chat API writes them so; other
    APIs write them flat, and Gemini several in one.
    """
    if not isinstance(tool, Mapping):
        raise BadRowError("a function of `tools` is not an object")
    tool = {name: tool[name] for name in tool if name not in MARKS}
    flat = tool.get("toolSpec", tool)
    match flat:
        case {"functionDeclarations": list(inner), **rest} if all(v is None for v in rest.values()):
            return [each for tool in inner for each in _functions(_in_lower_case(tool))]
        case {"function": _}:
            return [tool]
        case {"inputSchema": {"json": schema}} | {"inputSchema": schema} | {"input_schema": schema}:
            parameters = {"parameters": schema}
        case {"type": str(kind)} if kind != "function":  # a tool of the server, or a grammar
            raise NotRepresentableError("tools other than functions")
        case {"parameters": schema} | {"parametersJsonSchema": schema}:
            parameters = {"parameters": schema}
        case {"name": _}:
            parameters = {}
        case _ if tool:
            raise NotRepresentableError("tools other than functions")
        case _:
            return []
    named = {name: flat[name] for name in ("name", "description") if name in flat}
    return [{"type": "function", "function": {**named, **parameters}}]


def _in_lower_case(schema: Any) -> Any:
    """A schema with its types in lower case, as in JSON Schema: Gemini uses capitals."""
    match schema:
        case {"type": str(kind), **rest}:
            return {"type": kind.lower(), **_in_lower_case(rest)}
        case Mapping():
            return {name: _in_lower_case(schema[name]) for name in schema}
        case list():
            return list(map(_in_lower_case, schema))
    return schema
