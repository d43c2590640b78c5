"""Finds the request in a raw row of a log, whatever program wrote the log.

`FORMS` lists the ways in which a request may be written, `BODIES` and `PARTS` the places in a row
where it may be, `BLOCKS` the places of its sampling parameters. A request means the same at every
place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from draftbench.traffic.places import at, decoded, splits
from draftbench.traffic.request_settings import (
    HARMLESS,
    SETTINGS,
    BadRowError,
    NotRepresentableError,
)

# Places that hold the body of an API call and nothing else; what is around it belongs to the log.
BODIES = (
    *("body", "request.body", "request", "request_body"),
    *("proxy_server_request.body", "proxy_server_request"),
)
# Places that hold a part of a request; the rest of it is beside them.
PARTS = ("input", "attributes")
# Objects beside a prompt that hold its sampling parameters. The first two are also names for the
# choices of a quiz and for a schema, which set nothing.
BLOCKS = (
    *("options", "parameters", "sampling_params", "model_parameters", "modelParameters"),
    *("extra_body", "gen_ai.request"),
)
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

    content: Any  # a text, or messages
    answer: str | None = None  # the answer with which a logged conversation ends
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Whether it was sent to a server, whose default is temperature 1; None: nothing says so.
    server: bool | None = None
    api: Set[str] = frozenset()  # settings that an API was given; others may belong to the log
    form: str = ""  # the name of the form in which it was written


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _with_system(messages: Any, system: Any) -> Any:
    """The messages with a system text before them that the row keeps separately."""
    if not system or not isinstance(messages, list):
        return messages
    if any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        return messages
    match decoded(system):
        case [{"type": _}, *_] as parts:
            return [{"role": "system", "content": parts}, *messages]
    return [{"role": "system", "content": system}, *messages]


def _messages(call: Mapping[str, Any]) -> LoggedRequest | None:
    messages = decoded(call.get("messages"))
    if messages is None or (not messages and call.get("prompt")):
        return None
    return LoggedRequest(_with_system(messages, call.get("system")))


def _prompt(call: Mapping[str, Any]) -> LoggedRequest | None:
    match call.get("prompt"), decoded(call.get("prompt")):
        case None, _:
            return None
        case _, [{"role": _}, *_] as messages:
            return LoggedRequest(messages)
        case list(), _:
            raise NotRepresentableError("prompt as a list")
        # A server that takes `system` or `options` beside a prompt (Ollama's) makes it a chat.
        case str(text), _ if call.get("system") or _block(call, "options"):
            raw = str(call.get("raw")).lower() == "true"
            return LoggedRequest(text if raw else _with_system([_user(text)], call.get("system")))
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
    """The messages up to the last human turn, and the answer that follows it."""
    names = [str(turn.get("from")) for turn in turns]
    roles = [{"human": "user", "gpt": "assistant"}.get(name, name) for name in names]
    if not {*roles} <= {"user", "assistant", "system"}:
        raise NotRepresentableError("conversations.from")
    if "user" not in roles:
        raise BadRowError("`conversations` has no human turn")
    texts = [turn.get("value") for turn in turns]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    end = len(roles) - roles[::-1].index("user")
    answered = roles[end : end + 1] == ["assistant"] and isinstance(texts[end], str)
    return LoggedRequest(messages[:end], texts[end] if answered else None)


def _responses(call: Mapping[str, Any]) -> LoggedRequest | None:
    match call.get("input"), decoded(call.get("input")):
        case _, [{"role": _}, *_] as items:
            messages = []
            for item in items:
                if not isinstance(item, dict) or item.get("type", "message") != "message":
                    raise NotRepresentableError("input items other than messages")
                extra = ("type", "id", "status")
                messages.append({name: item[name] for name in item if name not in extra})
        case _, Mapping() as inner if _PROMPTS & inner.keys():  # Langfuse: a part of the request
            return None
        case str(text), _ if {"modelParameters", "provided_model_name"} & call.keys():
            return LoggedRequest(text)  # Langfuse: a completion
        case str(text), _ if "model" in call and not _unanswered(call):
            messages = [_user(text)]
        case _:
            return None
    if call.get("previous_response_id"):
        raise NotRepresentableError("previous_response_id")
    if (at(call, "text.format.type") or "text") != "text":
        raise NotRepresentableError("text.format")
    effort = {"reasoning_effort": at(call, "reasoning.effort")}
    return LoggedRequest(_with_system(messages, call.get("instructions")), settings=effort)


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
        return None
    if (at(call, "gen_ai.output.type") or "text") != "text":
        raise NotRepresentableError("gen_ai.output.type")
    system = at(call, "gen_ai.system_instructions")
    tools = {"tools": at(call, "gen_ai.tool.definitions")}
    return LoggedRequest(_with_system(messages, system), settings=tools)


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
            return LoggedRequest([_user(text)])
    return None


@dataclass(frozen=True)
class Form:
    """A way to write a request."""

    name: str
    example: str
    read: Callable[[Mapping[str, Any]], LoggedRequest | None]  # None: the object is of another form
    # Whether a request in this form was sent to a server; None: if the row names a `model`.
    server: bool | None = False
    logged: bool = False  # whether its last message may be the logged answer


# The forms that are recognised; the first that fits counts.
# fmt: off
FORMS = (
    Form("ShareGPT", '{"conversations": [{"from": "human", "value": "…"}, …]}',
         _conversations, logged=True),
    Form("Ollama", '{"messages": […], "options": {"temperature": 0.7}}, or with a `prompt`',
         _ollama, server=True),
    Form("messages", '{"messages": [{"role": "user", "content": "…"}]}, also with a `system`',
         _messages, server=None, logged=True),
    Form("vLLM custom", '{"prompt": "…", "output_tokens": 128}', _custom),
    Form("prompt", '{"prompt": "…"}', _prompt, server=None, logged=True),
    Form("conversation", '{"conversation": [{"role": "user", "content": "…"}, …]}',
         _conversation, logged=True),
    Form("Responses or Langfuse", '{"model": "…", "input": "…", "instructions": "…"}',
         _responses, server=True),
    Form("SGLang", '{"text": "…", "sampling_params": {"temperature": 0.7}}', _sglang, server=True),
    Form("TGI", '{"inputs": "…", "parameters": {"temperature": 0.7}}', _tgi, server=True),
    Form("text", '{"text": "…"}, as AIPerf has it, alone or with its other fields',
         _text, server=None),
    Form("OpenTelemetry", '{"gen_ai.input.messages": […], "gen_ai.request.temperature": 0.7}',
         _telemetry, server=True),
    Form("turns", '{"turns": ["…", …]}, of which the first is asked', _turns),
    Form("Alpaca", '{"instruction": "…", "input": "…", "output": "…"}', _alpaca),
)
# fmt: on


class UnknownFormError(BadRowError):
    """A row in which nothing looks like a request."""

    hint = "name the prompt with --prompt-field; docs/formats.md lists the known forms"


class LengthsOnlyError(BadRowError):
    """A row of a trace that keeps the lengths of requests without their text."""

    hint = "acceptance depends on the text: give a log that holds the prompts"


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
        if request := _request_in(call, whole=place in BODIES):
            request = replace(request, server=request.server or place != "")
            return _with_settings(row, request) if place in PARTS else request
        if place in BODIES and "input" in call:  # an embedding
            raise NotRepresentableError("input")
    if any(names <= row.keys() for names in _LENGTHS):
        raise LengthsOnlyError("a trace of lengths only, without any text")
    raise UnknownFormError("no known form of request")


def _at_prompt_field(row: Mapping[str, Any], path: str) -> LoggedRequest:
    """The request whose prompt is at a path, with the settings that are around it."""
    around = {name: decoded(at(row, place)) for place, name in (("", path), *splits(path))}
    holders = {name: thing for name, thing in around.items() if isinstance(thing, Mapping)}
    content, request = decoded(at(row, path)), None
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
                request = LoggedRequest(at(row, path))
    calls = [decoded(at(row, place)) for place in BODIES]
    for holder in (*reversed(holders.values()), *calls):
        if isinstance(holder, Mapping):
            request = _with_settings(holder, request)
    if request.server is None:
        wrapped = any(place in BODIES for place, _ in splits(path))
        models = (
            at(holder, "model") or at(holder, "gen_ai.request.model") for holder in holders.values()
        )
        request = replace(request, server=wrapped or any(models))
    return replace(request, form="--prompt-field")


def _request_in(call: Mapping[str, Any], *, whole: bool = False) -> LoggedRequest | None:
    """The request in an object; `whole` if that is the body of an API call and nothing else."""
    for form in FORMS:
        # A body that was sent to a server has none of the forms of data sets.
        request = None if whole and form.server is False else form.read(call)
        if request is None:
            continue
        if form.logged and not whole:
            request = _answered(request)
        request = _with_settings(call, request)
        return replace(
            request,
            api=request.settings.keys() if whole else request.api,
            server=("model" in call or None) if form.server is None else form.server,
            form="OpenAI request" if whole and form.name in ("messages", "prompt") else form.name,
        )
    return None


def _answered(request: LoggedRequest) -> LoggedRequest:
    """A conversation that ends with the assistant, as a request and its answer."""
    match request.content:
        case [_, *_, {"role": "assistant", **last}]:
            text = last.get("content")
            answer = text if isinstance(text, str) else None
            return replace(request, content=request.content[:-1], answer=answer)
    return request


def _with_settings(call: Mapping[str, Any], request: LoggedRequest) -> LoggedRequest:
    """The request with those settings of an object and its blocks that it does not have yet."""
    fields, in_blocks = _settings(call)
    given = {name: value for name, value in request.settings.items() if value is not None}
    return replace(
        request, settings={**in_blocks, **fields, **given}, api=request.api | in_blocks.keys()
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
