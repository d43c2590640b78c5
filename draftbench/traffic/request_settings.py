"""The settings of a request, as OpenAI-style servers name them → the fields of a `Request`.

A field that changes the target's distribution and has no place in a `Request` makes the request not
representable; so does an unknown field of a request body. Both are counted by the field's name, and
neither is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from draftbench.records import Sampling

# fmt: off
_UNDERSTOOD = frozenset({
    "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens",
    "max_completion_tokens", "stop", "n", "tools", "chat_template_kwargs", "enable_thinking",
    "reasoning_effort",
})
_HARMLESS = frozenset({
    "model", "user", "metadata", "store", "stream", "stream_options", "logprobs",
    "top_logprobs", "prompt_logprobs", "echo", "service_tier", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "prediction", "request_id", "priority",
    "cache_salt", "timeout", "return_tokens_as_token_ids", "return_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "include_reasoning", "separate_reasoning", "stream_reasoning",
})
# fmt: on
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "best_of": (1,),
    "use_beam_search": (False,),
    "typical_p": (1,),
    "modalities": (["text"],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": ("",),
    "json_schema": (),
    "structured_outputs": (),
    "logits_processors": ([],),
}
"""Fields that change the distribution and cannot be applied → their values without effect."""

_TEMPLATE_SWITCHES = ("enable_thinking", "reasoning_effort")
# fmt: off
_TEMPLATE_RESERVED = frozenset({
    "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})
# fmt: on
"""Arguments of the renderer itself, which a log must not set: `chat_template` would run a template
of the log."""

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_INT64 = 2**63 - 1


class BadRowError(Exception):
    """A row that cannot be read as a request. The message gives the reason and never repeats the
    row's text."""

    hint = "fix the row, or skip and count bad rows with --skip-bad"


class NotRepresentableError(Exception):
    """A request whose distribution a `Request` cannot express; `str()` is the field."""


def request_fields(settings: Mapping[str, Any], *, openai: bool) -> dict[str, Any]:
    """Read the settings as keyword arguments of `Request`.

    `openai` says that `settings` is the body of an API call: an absent temperature is then the
    API's default of 1.0 (0.0 otherwise), and an unknown field makes the request not representable
    (otherwise it belongs to the log). Null means absent. Neutral values (top_p 1, top_k 0 or -1,
    min_p 0) become `None`. `n` samples are `n` times the weight.

    Raises:
        BadRowError: a value has the wrong type or is out of range.
        NotRepresentableError: the request sets a field that a `Request` cannot express.
    """
    settings = {name: value for name, value in settings.items() if value is not None}
    _refuse(settings, openai)
    temperature = _number(settings, "temperature", 0, math.inf)
    top_p, min_p = _number(settings, "top_p", 0, 1), _number(settings, "min_p", 0, 1)
    if top_p == 0:
        raise BadRowError("`top_p` is 0")
    top_k = _integer(settings, "top_k", -1)
    limits = [_integer(settings, name, 1) for name in ("max_completion_tokens", "max_tokens")]
    return {
        "sampling": Sampling(
            temperature=(1.0 if openai else 0.0) if temperature is None else temperature,
            top_p=None if top_p == 1 else top_p,
            top_k=None if top_k in (0, -1) else top_k,
            min_p=min_p or None,
            seed=_integer(settings, "seed", -_INT64),
        ),
        "max_tokens": next((limit for limit in limits if limit is not None), None),
        "stop": _stop(settings.get("stop", ())),
        "weight": float(_integer(settings, "n", 1) or 1),
        "tools": _tools(settings.get("tools", [])),
        "template": _template(settings),
    }


def _refuse(settings: Mapping[str, Any], openai: bool) -> None:
    for name, value in settings.items():
        if name in _NEUTRAL:
            refused = value not in _NEUTRAL[name] and not (
                name == "tool_choice" and not settings.get("tools")
            )
        else:
            refused = openai and name not in _UNDERSTOOD and name not in _HARMLESS
        if refused:
            raise NotRepresentableError(
                name if _FIELD_NAME.fullmatch(name) else "an unreadable field name"
            )


def _number(settings: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = settings.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRowError(f"`{name}` is not a number")
    if not (low <= value <= high and abs(value) < _INT64):
        raise BadRowError(f"`{name}` is out of range")
    return float(value)


def _integer(settings: Mapping[str, Any], name: str, low: int) -> int | None:
    value = settings.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        if not low <= value <= _INT64:
            raise BadRowError(f"`{name}` is out of range")
        return value
    number = _number(settings, name, low, math.inf)  # tables turn a column with gaps into floats
    if number is not None and not number.is_integer():
        raise BadRowError(f"`{name}` is not a whole number")
    return None if number is None else int(number)


def _stop(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(
        isinstance(text, str) and text for text in texts
    ):
        raise BadRowError("`stop` is not a text or a list of texts")
    return tuple(texts)


def _tools(value: Any) -> tuple[dict[str, Any], ...] | None:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadRowError("`tools` is not a list of objects")
    return tuple(value) or None


def _template(settings: Mapping[str, Any]) -> dict[str, Any]:
    template = settings.get("chat_template_kwargs", {})
    if not isinstance(template, dict):
        raise BadRowError("`chat_template_kwargs` is not an object")
    if not _TEMPLATE_RESERVED.isdisjoint(template):
        raise NotRepresentableError("chat_template_kwargs")
    return template | {name: settings[name] for name in _TEMPLATE_SWITCHES if name in settings}
