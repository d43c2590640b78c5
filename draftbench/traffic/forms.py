"""Finds the request in a raw row of a log, whatever program wrote the log.

`FORMS` lists the ways in which a request may be written, `BODIES` and `PARTS` the places in a row
where it may be, `BLOCKS` the places of its sampling parameters, `SYSTEMS` those of its system text.
A request means the same at every place. What nothing of this reads is named in `unread`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from draftbench.traffic.answers import ANSWERS, Answer, message_of
from draftbench.traffic.errors import (
    BadRowError,
    LengthsOnlyError,
    NoTrafficError,
    NotRepresentableError,
    UnknownFormError,
)
from draftbench.traffic.messages import role_of
from draftbench.traffic.places import at, decoded, splits
from draftbench.traffic.request_settings import HARMLESS, SETTINGS

# Places that hold the body of an API call and nothing else; what is around it belongs to the log.
BODIES = (
    *("body", "request.body", "request", "request_body"),
    *("proxy_server_request.body", "proxy_server_request", "input.inputBodyJson", "params"),
)
# Places that hold a part of a request; the rest of it is beside them.
PARTS = ("input", "attributes", "inputs")
# Objects beside a prompt that hold its sampling parameters. The first two are also names for the
# choices of a quiz and for a schema, which set nothing.
BLOCKS = (
    *("options", "parameters", "sampling_params", "model_parameters", "modelParameters"),
    *("extra_body", "gen_ai.request", "llm.invocation_parameters", "extra.invocation_params"),
    *("inferenceConfig", "additionalModelRequestFields"),
)
# Fields beside a prompt or a conversation that hold its system text; `instructions` only in the
# Responses API.
SYSTEMS = (
    *("system", "system_prompt", "systemPrompt", "system_message", "system_instruction"),
    "gen_ai.system_instructions",
)
# Where a row keeps what is read of it beside the request.
SEGMENTS = ("segment", "category", "tags.segment")
_PARAMETERS = SETTINGS | {"do_sample", "details", "return_full_text"}
_PROMPTS = frozenset({
    "messages", "prompt", "conversations", "conversation", "input", "inputs", "text", "text_input",
    "turns", "instruction", "gen_ai.input.messages",
})  # fmt: skip
# Fields that may be beside a bare text that was sent to SGLang, TGI or AIPerf.
_BESIDE_A_TEXT = HARMLESS | SETTINGS | {
    *BLOCKS, "text_input", "type", "timestamp", "delay", "role", "output_length",
}  # fmt: skip
# Models that embed, judge or speak an `input` instead of answering it.
_NO_ANSWER = re.compile(r"embed|moderation|rerank|\b(bge|gte|e5|minilm|tts)\b", re.IGNORECASE)
# Fields of traces that keep the lengths of requests without their text.
_LENGTHS = (
    {"input_length", "output_length"},  # Mooncake
    {"ContextTokens", "GeneratedTokens"},  # Azure
    {"Request tokens", "Response tokens"},  # BurstGPT
)


@dataclass(frozen=True)
class LoggedRequest:
    """What a row of a log asks a model."""

    content: Any  # a text, or turns of a conversation
    answer: Answer | None = None  # with which a logged conversation ends
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Whether it was sent to a server, whose default is temperature 1; None: nothing says so.
    server: bool | None = None
    api: Set[str] = frozenset()  # settings that an API was given; others may belong to the log
    form: str = ""  # the name of the form in which it was written
    unread: Mapping[str, Any] = field(default_factory=dict)  # what beside it was not read


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _with_system(call: Mapping[str, Any], request: LoggedRequest, form: Form) -> LoggedRequest:
    """The request with the system text before it that the object keeps separately."""
    systems = {
        repr(text): text
        for name in (*SYSTEMS, *form.systems)
        if (text := _system(at(call, name))) is not None
    }
    content = request.content
    if not systems or str(call.get("raw")).lower() == "true":
        return request
    if isinstance(content, str):
        content = [_user(content)]
    if not isinstance(content, list):
        return request
    said = [turn for turn in content if isinstance(turn, dict) and _is_system(turn)]
    said_texts = [turn.get("content", turn.get("value")) for turn in said]
    others = [text for text in systems.values() if text not in said_texts]
    if len(others) + len(said) > 1:
        raise NotRepresentableError("several system texts")
    before = [{"role": "system", "content": text} for text in others]
    return replace(request, content=[*before, *content])


def _system(value: Any) -> Any:
    """A system text or its parts; None for what is neither."""
    match decoded(value):
        case [{"type": _} | {"text": _}, *_] as parts:
            return parts
    return value if isinstance(value, str) and value.strip() else None


def _is_system(turn: Mapping[str, Any]) -> bool:
    return "system" in (turn.get("role"), turn.get("from"))


def _messages(call: Mapping[str, Any]) -> LoggedRequest | None:
    messages = decoded(call.get("messages"))
    if messages is None or (not messages and call.get("prompt")):
        return None
    if not isinstance(messages, list):
        raise BadRowError("`messages` is not a list")
    match messages:
        case [list(first)]:  # LangSmith's
            return LoggedRequest(first)
        case [list(), *_]:
            raise NotRepresentableError("messages of several prompts")
    return LoggedRequest(messages)


def _prompt(call: Mapping[str, Any]) -> LoggedRequest | None:
    match call.get("prompt"), decoded(call.get("prompt")):
        case None, _:
            return None
        case _, [{"role": _}, *_] as messages:
            return LoggedRequest(messages)
        case list(), _:
            raise NotRepresentableError("prompt as a list")
        # A server that takes `options` beside a prompt (Ollama's) makes it a chat.
        case str(text), _ if _block(call, "options") and str(call.get("raw")).lower() != "true":
            return LoggedRequest([_user(text)])
        case prompt, _:
            return LoggedRequest(prompt)


def _ollama(call: Mapping[str, Any]) -> LoggedRequest | None:
    return (_messages(call) or _prompt(call)) if _block(call, "options") else None


def _custom(call: Mapping[str, Any]) -> LoggedRequest | None:
    length = call.get("output_tokens")
    # Beside an answer or the prompt's count it is the answer's length, not a limit.
    if length is None or {"response", "completion", "output", "input_tokens"} & call.keys():
        return None
    request = _prompt(call)
    return request and replace(request, settings={"max_tokens": call.get("max_tokens", length)})


def _bedrock(call: Mapping[str, Any]) -> LoggedRequest | None:
    if not {"inferenceConfig", "toolConfig"} & call.keys():
        return None
    tools = {
        "tools": at(call, "toolConfig.tools"),
        "tool_choice": at(call, "toolConfig.toolChoice"),
    }
    request = _messages(call)
    return request and replace(request, settings=tools)


def _conversations(call: Mapping[str, Any]) -> LoggedRequest | None:
    turns = decoded(call.get("conversations"))
    if turns is None:
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRowError("`conversations` is not a list of objects")
    return (
        LoggedRequest(turns)
        if turns and all("role" in turn for turn in turns)
        else _sharegpt(turns)
    )


def _conversation(call: Mapping[str, Any]) -> LoggedRequest | None:
    match decoded(call.get("conversation")):
        case [{"role": _}, *_] as messages:
            return LoggedRequest(messages)
        case [{"from": _}, *_] as turns:
            return _conversations({"conversations": turns})
    return None


def _sharegpt(turns: list[dict[str, Any]]) -> LoggedRequest:
    """The turns up to the last human one and what tools said after it, and the answer."""
    roles = [role_of(str(turn.get("from"))) for turn in turns]
    if "user" not in roles:
        raise BadRowError("`conversations` has no human turn")
    end = max(at for at, role in enumerate(roles, start=1) if role in ("user", "tool"))
    answers = roles[end : end + 1] == ["assistant"]
    return LoggedRequest(turns[:end], message_of(turns[end]) if answers else None)


def _responses(call: Mapping[str, Any]) -> LoggedRequest | None:
    match call.get("input"), decoded(call.get("input")):
        case _, [{"role": _} | {"type": _} | {"lc": _}, *_] as items:
            content = items
        case _, Mapping() as inner if _PROMPTS & inner.keys():  # Langfuse: a part of the request
            return None
        case str(text), _ if {"modelParameters", "provided_model_name"} & call.keys():
            return LoggedRequest(text)  # Langfuse: a completion
        case str(text), _ if "model" in call and not _unanswered(call):
            content = [_user(text)]
        case _:
            return None
    if call.get("previous_response_id"):
        raise NotRepresentableError("previous_response_id")
    settings = {
        "reasoning_effort": at(call, "reasoning.effort"),
        "response_format": at(call, "text.format"),
    }
    return LoggedRequest(content, settings=settings)


def _unanswered(call: Mapping[str, Any]) -> bool:
    other = {"encoding_format", "dimensions", "input_type", "voice"} & call.keys()
    return bool(other or _NO_ANSWER.search(str(call["model"])))


def _sglang(call: Mapping[str, Any]) -> LoggedRequest | None:
    given = _block(call, "sampling_params") is not None
    return LoggedRequest(call["text"]) if given and isinstance(call.get("text"), str) else None


def _tgi(call: Mapping[str, Any]) -> LoggedRequest | None:
    given = _block(call, "parameters")
    alone = call.keys() <= _BESIDE_A_TEXT
    if not isinstance(call.get("inputs"), str) or (given is None and not alone):
        return None
    # TGI samples where any setting narrows the choice (text_generation_server/utils/tokens.py).
    neutral = {"do_sample": False, "temperature": 1, "top_p": 1, "typical_p": 1, "top_k": 0}
    greedy = not given or all((given.get(name) or off) == off for name, off in neutral.items())
    return LoggedRequest(call["inputs"], settings={"temperature": 0.0} if greedy else {})


def _text(call: Mapping[str, Any]) -> LoggedRequest | None:
    text = call.get("text", call.get("text_input"))
    if not isinstance(text, str) or not call.keys() <= _BESIDE_A_TEXT:
        return None
    return LoggedRequest(text, settings={"max_tokens": call.get("output_length")})


def _telemetry(call: Mapping[str, Any]) -> LoggedRequest | None:
    messages = decoded(at(call, "gen_ai.input.messages"))
    if not isinstance(messages, list):
        messages = decoded(at(call, "gen_ai.prompt"))  # OpenLLMetry's
    if not isinstance(messages, list):
        return None
    if (at(call, "gen_ai.output.type") or "text") != "text":
        raise NotRepresentableError("gen_ai.output.type")
    functions = at(call, "llm.request.functions")
    tools = [
        {"type": "function", **{name: decoded(each[name]) for name in each}}
        for each in (functions if isinstance(functions, list) else [])
    ]
    return LoggedRequest(messages, settings={"tools": tools or at(call, "gen_ai.tool.definitions")})


def _openinference(call: Mapping[str, Any]) -> LoggedRequest | None:
    messages, tools = at(call, "llm.input_messages"), at(call, "llm.tools")
    if not isinstance(messages, list):
        return None
    tools = [decoded(at(tool, "tool.json_schema")) for tool in tools or ()]
    return LoggedRequest(messages, settings={"tools": tools})


def _turns(call: Mapping[str, Any]) -> LoggedRequest | None:
    match decoded(call.get("turns")):
        # Only the first turn: a later one needs the answers before it.
        case [str(first), *_] | [{"text": str(first)}, *_]:
            return LoggedRequest([_user(first)])
    return None


def _alpaca(call: Mapping[str, Any]) -> LoggedRequest | None:
    match call:
        case {"instruction": str(instruction), "output": _}:
            text = "\n".join(filter(None, (instruction, str(call.get("input") or ""))))
            return LoggedRequest([*_history(call.get("history")), _user(text)])
    return None


def _history(value: Any) -> list[dict[str, Any]]:
    """The earlier questions and answers of a data set's row."""
    turns = []
    for pair in decoded(value) or ():
        match pair:
            case [str(asked), str(answer)]:
                turns += [_user(asked), {"role": "assistant", "content": answer}]
            case _:
                raise BadRowError("`history` is not a list of questions with their answers")
    return turns


@dataclass(frozen=True)
class Form:
    """A way to write a request."""

    name: str
    example: str
    read: Callable[[Mapping[str, Any]], LoggedRequest | None]  # None: the object is of another form
    fields: tuple[str, ...]  # that it reads, beside those that are the same in every form
    # Whether a request in this form was sent to a server; None: if the row names a `model`.
    server: bool | None = False
    logged: bool = False  # whether its last message may be the logged answer
    systems: tuple[str, ...] = ()  # other fields that hold the system text


# The forms that are recognised; the first that fits counts.
# fmt: off
FORMS = (
    Form("ShareGPT", '{"conversations": [{"from": "human", "value": "…"}, …]}',
         _conversations, ("conversations",), logged=True),
    Form("Bedrock", '{"messages": […], "inferenceConfig": {"temperature": 0.7}}',
         _bedrock, ("messages", "toolConfig"), server=True),
    Form("Ollama", '{"messages": […], "options": {"temperature": 0.7}}, or with a `prompt`',
         _ollama, ("messages", "prompt", "raw"), server=True),
    Form("messages", '{"messages": [{"role": "user", "content": "…"}]}, also with a `system`',
         _messages, ("messages",), server=None, logged=True),
    Form("vLLM custom", '{"prompt": "…", "output_tokens": 128}',
         _custom, ("prompt", "output_tokens")),
    Form("prompt", '{"prompt": "…"}', _prompt, ("prompt", "raw"), server=None, logged=True),
    Form("conversation", '{"conversation": [{"role": "user", "content": "…"}, …]}',
         _conversation, ("conversation",), logged=True),
    Form("Responses or Langfuse", '{"model": "…", "input": "…", "instructions": "…"}',
         _responses, ("input", "text", "reasoning"), server=True, systems=("instructions",)),
    Form("SGLang", '{"text": "…", "sampling_params": {"temperature": 0.7}}',
         _sglang, ("text",), server=True),
    Form("TGI", '{"inputs": "…", "parameters": {"temperature": 0.7}}',
         _tgi, ("inputs",), server=True),
    Form("text", '{"text": "…"}, as AIPerf has it, alone or with its other fields',
         _text, ("text", "text_input", "output_length"), server=None),
    Form("OpenTelemetry", '{"gen_ai.input.messages": […], "gen_ai.request.temperature": 0.7}',
         _telemetry, ("gen_ai", "llm.request.functions"), server=True),
    Form("OpenInference", '{"llm.input_messages.0.message.content": "…", …}',
         _openinference, ("llm.input_messages", "llm.tools"), server=True),
    Form("turns", '{"turns": ["…", …]}, of which the first is asked', _turns, ("turns",)),
    Form("Alpaca", '{"instruction": "…", "input": "…", "output": "…"}, also with a `history`',
         _alpaca, ("instruction", "input", "history")),
)
# fmt: on
_AT_FIELD = Form("--prompt-field", "", lambda call: None, ())


def find_request(row: Mapping[str, Any], prompt_field: str | None) -> LoggedRequest:
    """The request of a row; `prompt_field` is a dotted path to its prompt (None: the usual places).

    Raises:
        UnknownFormError: there is no known form at a known place.
        LengthsOnlyError: the row is of a trace without texts.
        BadRowError, NotRepresentableError: there is a request that cannot be used.
    """
    if prompt_field is not None:
        return _at_prompt_field(row, prompt_field)
    for place in (*BODIES, "", *PARTS):
        call = decoded(at(row, place))
        if not isinstance(call, Mapping):
            continue
        if "litellm_truncated" in call:
            raise NoTrafficError("cut by the logger")
        if request := _request_in(call, whole=place in BODIES):
            request = replace(request, server=request.server or place != "")
            if place in PARTS:
                request = _with_settings(row, _with_system(row, request, _AT_FIELD), _AT_FIELD)
            around = _unread(row, (place,)) if place else {}
            inside = {f"{place}.{name}": call[name] for name in request.unread} if place else {}
            return replace(request, unread={**around, **(inside or request.unread)})
        if place in BODIES and "input" in call:  # an embedding
            raise NotRepresentableError("input")
    if at(row, "input.inputBodyS3Path"):
        raise NoTrafficError("kept elsewhere by the logger")
    if any(names <= row.keys() for names in _LENGTHS):
        raise LengthsOnlyError("a trace of lengths only, without any text")
    raise UnknownFormError(row)


def _at_prompt_field(row: Mapping[str, Any], path: str) -> LoggedRequest:
    """The request whose prompt is at a path, with the settings that are around it."""
    around = {name: decoded(at(row, place)) for place, name in (("", path), *splits(path))}
    holders = {name: thing for name, thing in around.items() if isinstance(thing, Mapping)}
    if (found := at(row, path)) is None:
        raise UnknownFormError(row, path)
    content, request = decoded(found), None
    if isinstance(content, Mapping):
        request = _request_in(content)
        request = request and replace(request, server=True)
    for name, holder in holders.items():
        if request is None and name in _PROMPTS:
            others = _PROMPTS - {name}
            request = _request_in({key: holder[key] for key in holder if key not in others})
    if request is None:
        match content:
            case [{"role": _}, *_]:
                request = _answered(LoggedRequest(content))
            case _:  # undecoded, since a prompt may happen to be JSON
                request = LoggedRequest(found)
        for holder in reversed(holders.values()):
            request = _with_system(holder, request, _AT_FIELD)
    calls = [decoded(at(row, place)) for place in BODIES]
    for holder in (*reversed(holders.values()), *calls):
        if isinstance(holder, Mapping):
            request = _with_settings(holder, request, _AT_FIELD)
    if request.server is None:
        wrapped = any(place in BODIES for place, _ in splits(path))
        models = (
            at(holder, "model") or at(holder, "gen_ai.request.model") for holder in holders.values()
        )
        request = replace(request, server=wrapped or any(models))
    return replace(request, form=_AT_FIELD.name, unread=_unread(row, (path,)))


def _request_in(call: Mapping[str, Any], *, whole: bool = False) -> LoggedRequest | None:
    """The request in an object; `whole` if that is the body of an API call and nothing else."""
    for form in FORMS:
        # A body that was sent to a server has none of the forms of data sets.
        request = None if whole and form.server is False else form.read(call)
        if request is None:
            continue
        request = _with_system(call, request, form)
        if form.logged and not whole:
            request = _answered(request)
        request = _with_settings(call, request, form)
        return replace(
            request,
            api=request.settings.keys() if whole else request.api,
            server=("model" in call or None) if form.server is None else form.server,
            form="OpenAI request" if whole and form.name in ("messages", "prompt") else form.name,
            unread={} if whole else _unread(call, form.fields + form.systems),
        )
    return None


def _unread(row: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """What an object holds beside these fields and those that are read wherever they stand."""
    empty: tuple[Any, ...] = (None, "", [], {})
    return {
        name: row[name]
        for name in row
        if isinstance(name, str) and row[name] not in empty and not _is_read(name, fields)
    }


@lru_cache(4096)
def _is_read(name: str, fields: tuple[str, ...]) -> bool:
    places = (*fields, *SYSTEMS, *BLOCKS, *ANSWERS, *SEGMENTS, "timestamp")
    return name in HARMLESS | SETTINGS or any(
        place == name or place.startswith(f"{name}.") or name.startswith(f"{place}.")
        for place in places
    )


def _answered(request: LoggedRequest) -> LoggedRequest:
    """A conversation that ends with the assistant, as a request and its answer."""
    match request.content:
        case [_, *_, {"role": "assistant"} as last]:
            return replace(request, content=request.content[:-1], answer=message_of(last))
    return request


def _with_settings(call: Mapping[str, Any], request: LoggedRequest, form: Form) -> LoggedRequest:
    """The request with those settings of an object and its blocks that it does not have yet."""
    fields, in_blocks = _settings(call)
    beside = {name: fields[name] for name in fields if name not in (*form.fields, *form.systems)}
    given = {name: value for name, value in request.settings.items() if value is not None}
    return replace(
        request, settings={**in_blocks, **beside, **given}, api=request.api | in_blocks.keys()
    )


def _settings(call: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of an object, and those of its blocks."""
    blocks = {name: block for name in BLOCKS if (block := _block(call, name)) is not None}
    in_blocks: dict[str, Any] = {}
    for block in blocks.values():
        fields, deeper = _settings(block)
        in_blocks |= deeper | fields
    fields = {name: call[name] for name in call if name not in blocks and call[name] is not None}
    return fields, in_blocks


def _block(call: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The sampling parameters that an object has under one of `BLOCKS`; None if it has none
    there.
    """
    block = decoded(at(call, name))
    if not isinstance(block, Mapping):
        return None
    other = name in BLOCKS[:2] and block and not _PARAMETERS & block.keys()
    return None if other else block
