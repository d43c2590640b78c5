"""The settings of a request, as OpenAI-style servers name them → the fields of a `Request`.

A field that changes the target's distribution and has no place in a `Request` makes the request not
representable; so does an unknown field of a request body. Both are counted by the field's name, and
neither is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from draftbench.records import Sampling

_TEMPLATE_SWITCHES = ("enable_thinking", "reasoning_effort")
# fmt: off
_HARMLESS = frozenset({
    "messages", "prompt", "model", "user", "metadata", "store", "stream", "stream_options",
    "logprobs", "top_logprobs", "prompt_logprobs", "echo", "service_tier", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "prediction", "request_id", "priority",
    "cache_salt", "timeout", "return_tokens_as_token_ids", "return_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "include_reasoning", "separate_reasoning", "stream_reasoning",
})
# Fields that change the distribution and cannot be applied → their values without effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,),
    "length_penalty": (1,), "logit_bias": ({},), "bad_words": ([],), "typical_p": (1,),
    "min_tokens": (0,), "ignore_eos": (False,), "stop_token_ids": ([],),
    "best_of": (1,), "use_beam_search": (False,), "logits_processors": ([],),
    "response_format": ({"type": "text"},), "modalities": (["text"],),
    "tool_choice": ("auto",), "parallel_tool_calls": (True,),
    "add_generation_prompt": (True,), "continue_final_message": (False,),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "grammar": ("",), "json_schema": (), "structured_outputs": (),
}
# Arguments of the renderer itself, which a log must not set: `chat_template` would run a template
# of the log.
_TEMPLATE_RESERVED = frozenset({
    "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})
# fmt: on

_INT64 = 2**63 - 1
_Positive = Annotated[int, Meta(ge=1, le=_INT64)]
_Text = Annotated[str, Meta(min_length=1)]


class _Applied(msgspec.Struct):
    """What a `Request` can hold, with the values that change nothing."""

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


_KNOWN = _HARMLESS.union(_Applied.__struct_fields__, _TEMPLATE_SWITCHES)


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
    given: dict[str, Any] = {"temperature": 1.0 if openai else 0.0}
    for name, value in settings.items():
        if value is None:
            continue
        # Tables turn a column of whole numbers with gaps into floats.
        whole = isinstance(value, float) and value.is_integer()
        given[name] = int(value) if whole else value
        if name == "tool_choice" and not settings.get("tools"):
            continue
        allowed = value in _NEUTRAL[name] if name in _NEUTRAL else not openai or name in _KNOWN
        if not allowed:
            readable = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name)
            raise NotRepresentableError(name if readable else "an unreadable field name")
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
    }
