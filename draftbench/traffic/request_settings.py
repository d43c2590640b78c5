"""Turns a request's settings, by the servers' names, into the fields of a `Request`.

A request cannot be represented if it sets a field that changes the target's distribution and that
`Request` cannot express, or if its body has an unknown field. Such requests are counted by the
field's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from draftbench.records import Sampling
from draftbench.traffic.constraints import CONSTRAINTS, constraint_of
from draftbench.traffic.errors import NotRepresentableError
from draftbench.traffic.json_paths import at, parsed, unpacked
from draftbench.traffic.setting_names import ALIASES, MARKS, NEUTRAL, PADDING, TEMPLATE_RESERVED

_TEMPLATE_SWITCHES = ("enable_thinking", "reasoning_effort")
# Python's words, which some tables contain → JSON's.
_PYTHON = {"True": "true", "False": "false"}
# Types in msgspec's words → in a user's.
_TYPES = {
    "float": "a number",
    "int": "an integer",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
# Numbers of tokens that mean no limit.
_ENDLESS = (-1, -2, "inf", "Infinity")
_INT64 = 2**63 - 1
_Positive = Annotated[int, Meta(ge=1, le=_INT64)]


class _Applied(msgspec.Struct):
    """The settings that `Request` can express; the defaults change nothing."""

    temperature: Annotated[float, Meta(ge=0, lt=_INT64)]
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1
    top_k: Annotated[int, Meta(ge=-1, le=_INT64)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    n: _Positive = 1
    stop: str | list[str] = []
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: dict[str, Any] = {}


# The names of all settings in all APIs.
SETTINGS = frozenset({
    *_Applied.__struct_fields__, *_TEMPLATE_SWITCHES, *NEUTRAL, *ALIASES, *CONSTRAINTS,
    "think", "seed",
})  # fmt: skip


def add_setting(settings: dict[str, Any], name: str, value: Any) -> None:
    """Add a setting by the name that all APIs have here, if it sets anything.

    Raises:
        NotRepresentableError: it was given before with another value.
    """
    name = ALIASES.get(name, name)
    value = _value(name, value)
    if name == "think":  # Ollama's
        name = "enable_thinking" if isinstance(value, bool) else "reasoning_effort"
    if value is None:
        return
    if (given := settings.setdefault(name, value)) is not value and given != value:
        raise NotRepresentableError(f"several values of {name}")


def request_fields(settings: Mapping[str, Any], *, server: bool) -> dict[str, Any]:
    """The settings as keyword arguments of `Request`, where neutral values become `None` and `n`
    samples count as `n` times the weight. An absent temperature means 1 if a `server` was asked,
    as servers' default is, else 0.

    Raises:
        NotRepresentableError: the request sets a field that `Request` cannot express, or to a
            value of the wrong type or range.
    """
    given = dict(settings)
    if isinstance(tools := given.get("tools"), list):
        given["tools"] = [function for tool in tools for function in _functions(tool)]
    constraint, forced = constraint_of(given)
    if forced or not given.get("tools"):
        given.pop("tool_choice", None)
    for name, value in given.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise NotRepresentableError(name)
    given.setdefault("temperature", 1.0 if server else 0.0)
    try:
        asked = msgspec.convert(given, _Applied)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).replace(" | null", "").partition(" - at ")
        name = place.partition("$.")[2].rstrip("`")
        plain = re.sub(r"`(\w+)(?: \| (\w+))?`", _in_words, reason)
        raise NotRepresentableError(f"`{name}`: {plain[0].lower()}{plain[1:]}") from None
    if not TEMPLATE_RESERVED.isdisjoint(asked.chat_template_kwargs):
        raise NotRepresentableError("chat_template_kwargs")
    seed = given.get("seed")
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    switches = {name: given[name] for name in _TEMPLATE_SWITCHES if name in given}
    return {
        "sampling": Sampling(
            temperature=asked.temperature,
            # A nucleus without room still holds the likeliest token.
            top_p=asked.top_p if 0 < asked.top_p < 1 else None,
            top_k=1 if asked.top_p == 0 else asked.top_k if asked.top_k > 0 else None,
            min_p=asked.min_p or None,
            # No seed changes what may be drawn, so one that cannot be kept costs nothing.
            seed=seed if type(seed) is int and abs(seed) <= _INT64 else None,
        ),
        "max_tokens": asked.max_completion_tokens or asked.max_tokens,
        "stop": tuple(filter(None, stops)),
        "weight": float(asked.n),
        "tools": tuple(asked.tools) or None,
        "template": asked.chat_template_kwargs | switches,
        "constraint": constraint,
    }


def _in_words(types: re.Match[str]) -> str:
    return " or ".join(_TYPES.get(name, name) for name in types.groups() if name)


def _value(name: str, value: Any) -> Any:
    """A setting's value, which a table or a log may store as text; None: it sets nothing."""
    content = _parsed(name, value) if isinstance(value, str) else value
    if name in ("max_tokens", "max_completion_tokens") and content in _ENDLESS:
        return None
    # Tables turn a column of whole numbers with gaps into floats.
    whole = isinstance(content, float) and content.is_integer()
    return int(content) if whole and name in (*_Applied.__struct_fields__, "seed") else content


def _parsed(name: str, text: str) -> Any:
    if not text.strip() or text in PADDING:
        return None
    if name == "tool_choice" and text.isalpha():
        return text.lower()  # Gemini's has capitals
    content = unpacked(text)
    if content is text:
        try:
            content = parsed(_PYTHON.get(text, text))
        except (ValueError, RecursionError):
            return text
    if name == "stop":
        return content if content is None or isinstance(content, list) else text
    verbatim = CONSTRAINTS.get(name) in ("regex", "grammar") and content is not None
    return text if verbatim else content


def _functions(tool: Any) -> list[dict[str, Any]]:
    """A tool's functions as chat templates expect them. OpenAI's chat API writes them so; other
    APIs write them flat, and Gemini several in one.
    """
    tool = unpacked(tool)  # Vercel's
    if isinstance(inner := unpacked(at(tool, "tool.json_schema")), Mapping):  # OpenInference's
        tool = inner
    if not isinstance(tool, Mapping):
        raise NotRepresentableError("a function of `tools` is not an object")
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
    parameters = {name: unpacked(parameters[name]) for name in parameters}
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
