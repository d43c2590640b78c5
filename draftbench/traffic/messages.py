"""Turns any API's or data set's messages into messages as chat templates read them.

These have a `role`, a `content` (a text, or None beside tool calls), and if given `name`,
`tool_calls` (with arguments as objects), `tool_call_id` and `reasoning_content`. Anything else in a
message is either part of the prompt, so that its row is left out, or the log's own, so that it is
listed as unread. If a text holds the parts of a message, the parts are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from draftbench.traffic.errors import BadRowError, NotRepresentableError
from draftbench.traffic.json_paths import at, parsed, unpacked
from draftbench.traffic.setting_names import MARKS, MEDIA

# Cohere's templates use the last name, others call it reasoning.
_KEPT = ("name", "tool_call_id", "tool_plan")
# Reasoning that is given under several names is read once.
_REASONING = (
    *("reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details"),
    "tool_plan",
)
READ = {
    *("role", "type", "content", "contents", "parts", "id", "status", "finish_reason", "index"),
    *("tool_calls", "function_call", *_KEPT, *_REASONING, *MARKS),
}
# What marks a message that the answer continues.
BEGUN = ("prefix", "partial")
# Fields of a message that change the prompt and that `Request` cannot express.
_PARTS = (
    *(*MEDIA, "file", *BEGUN, "tools", "functions"),
    *("system", "instructions", "context", "documents"),
)
# Channels in which gpt-oss talks to itself or to tools; each template writes them in its own way.
_CHANNELS = ("analysis", "commentary")
_ROLES = {
    **dict.fromkeys(["user", "human", "prompter", "HumanMessage"], "user"),
    **dict.fromkeys(["assistant", "gpt", "chatgpt", "bot", "chatbot", "ai", "model"], "assistant"),
    **dict.fromkeys(["AIMessage", "AIMessageChunk", "function_call"], "assistant"),
    **dict.fromkeys(["system", "SystemMessage"], "system"),
    **dict.fromkeys(["tool", "ToolMessage", "function", "observation"], "tool"),
    "function_response": "tool",
}
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_TEXTS = ("text", "input_text", "output_text")
_CALLS = ("tool_use", "toolUse", "tool_call", "function_call", "functionCall")
_RESULTS = (
    *("tool_result", "toolResult", "tool_call_response", "function_call_output"),
    "functionResponse",
)
_THOUGHTS = (
    *("thinking", "reasoning", "reasoningContent", "reasoning_text"),
    *("reasoning.text", "reasoning.summary", "reasoning.encrypted", "redacted_thinking"),
)
_NO_TEXTS = (*MEDIA, "input_image", "document", "file")
_KINDS = (*_TEXTS, *_CALLS, *_RESULTS, *_THOUGHTS, *_NO_TEXTS)
# Where a tool's result is, and which other fields a text or result part may have.
_RESULT = ("content", "output", "response", "result")
_IDS = ("call_id", "tool_use_id", "toolUseId", "tool_call_id", "id")
_OF_PART = {"type", "text", "name", "status", *_RESULT, *_IDS, *MARKS}


def messages_of(
    turns: Iterable[Any], unread: set[str], between: str = "\n"
) -> list[dict[str, Any]]:
    """The messages of these turns; adds the names of fields that are not read to `unread`. The
    texts of a message are joined, as vLLM and llama.cpp do for plain-text templates.

    Raises:
        BadRowError: a turn is not a message.
        NotRepresentableError: a turn holds something that a text model cannot read.
    """
    whole: list[tuple[int, Mapping[str, Any]]] = []
    joins = False  # whether the next of the Responses API's items continues the last turn
    for number, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            raise BadRowError(f"messages[{number}] is not an object")
        given, item = _flat(_unwrapped(turn)), turn.get("type") in (*_THOUGHTS, "function_call")
        own = speaker_of(given) == "assistant"
        if own and (joins or item) and whole and speaker_of(whole[-1][1]) == "assistant":
            number, before = whole.pop()
            parts = [*_listed(before.get("content")), *_listed(given.get("content"))]
            given = {**given, **before, "content": parts}
        whole.append((number, given))
        joins = own and (joins or item)
    read = (_messages_in(turn, f"messages[{number}]", unread, between) for number, turn in whole)
    return [message for messages in read for message in messages]


def _unwrapped(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """A turn of LangChain, OpenInference, ShareGPT or Responses as an object with a role."""
    match turn:
        case {"lc": _, "id": [*_, str(name)], "kwargs": Mapping() as inner}:
            return {"role": name, **inner}
        case {"type": str(name), "data": Mapping() as inner}:
            return {"role": name, **inner}
        case {"from": str(name), "value": value}:
            beside = {key: turn[key] for key in turn if key not in ("from", "value")}
            called = name == "function_call"
            content = [{"type": name, name: unpacked(value)}] if called else value
            return {"role": role_of(name), "content": content, **beside}
        case {"role": _}:
            return turn
        case {"parts": _} if "type" not in turn:  # Gemini's
            return {"role": "user", **turn}
        case {"type": "message", "content": _}:
            return {"role": "assistant", **turn}
        case {"type": "function_call" | "reasoning"}:
            return {"role": "assistant", "content": [turn]}
        case {"type": "function_call_output"}:
            return {"role": "user", "content": [turn]}
        case {"type": str(name)} if name in _ROLES:
            return {"role": name, **turn}
        case {"type": str(name)} if name != "message":
            raise NotRepresentableError(f"input items of type {readable(name)}")
    return _inside(turn, "message")


def _inside(whole: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The object at a path in another one; the whole if there is none."""
    inner = at(whole, path)
    return inner if isinstance(inner, Mapping) else whole


def _flat(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message together with the fields that LangChain stores apart."""
    match turn:
        case {"additional_kwargs": Mapping() as more, **rest}:
            return {**more, **{name: rest[name] for name in rest if rest[name] or name not in more}}
    return turn


def role_of(name: str) -> str:
    """The role that ShareGPT means by a speaker's name."""
    role = _role(name)
    if role not in _ROLES.values():
        raise NotRepresentableError("conversations.from")
    return role


def _role(name: str) -> str:
    """A role by its name in chat templates: logs may use capitals or another API's names."""
    return _ROLES.get(name) or _ROLES.get(name.lower(), name)


def speaker_of(turn: Any) -> str | None:
    """A turn's role, in whatever way it is given; None: not given."""
    role = _unwrapped(turn).get("role") if isinstance(turn, Mapping) else None
    return _role(role) if isinstance(role, str) else None


def _messages_in(
    turn: Mapping[str, Any], where: str, unread: set[str], between: str
) -> list[dict[str, Any]]:
    """A turn's messages; tool results inside a user's message become messages of their own."""
    role = turn.get("role")
    if not isinstance(role, str):
        raise BadRowError(f"{where} has no `role`")
    for name in _PARTS:
        if turn.get(name):
            raise NotRepresentableError(f"messages.{name}")
    if turn.get("channel") in _CHANNELS:
        raise NotRepresentableError("messages.channel")
    known = {name for name in turn if name.partition(".")[0] in READ}
    unread |= {f"messages.{name}" for name in turn.keys() - known if turn[name] not in _EMPTY}
    contents = [at(turn, name) for name in ("parts", "contents", "content")]
    given = [each for each in contents if each is not None]
    found = [
        _content(each, role, where, unread)
        for each in [each for each in given if each not in _EMPTY] or given[:1]
    ]
    if len({"\n".join(each.texts).strip() for each in found}) > 1:
        raise NotRepresentableError("several texts of a message")
    if not found and not turn.keys() & {"content", "tool_calls"} and not at(turn, "tool_calls"):
        raise BadRowError(f"{where} has no text as `content`")
    read = found[0] if found else _Parts(where, unread)
    for call in _listed(at(turn, "tool_calls")) + _listed(turn.get("function_call")):
        read.add_call(call)
    thoughts = next((turn[name] for name in _REASONING if turn.get(name)), None)
    for thought in [] if read.thoughts else _listed(thoughts):
        read.add_thought(thought)
    # Servers read a turn without any text as an empty one.
    text = between.join(read.texts) if read.texts or not read.calls else None
    message: dict[str, Any] = {"role": _role(role), "content": text}
    kept = [name for name in _KEPT if turn.get(name) and isinstance(turn[name], str)]
    message |= {name: turn[name] for name in kept}
    if read.calls:
        message["tool_calls"] = read.calls
    if read.thoughts:
        message["reasoning_content"] = "\n".join(read.thoughts)
    alone = read.results and not (read.texts or read.calls or read.thoughts)
    return [*read.results, *([] if alone else [message])]


def _content(content: Any, role: str, where: str, unread: set[str]) -> _Parts:
    """A message's content: a text, which may hold parts as JSON or as a Python literal, or a list
    of parts.
    """
    if not isinstance(content, str | list):
        raise BadRowError(f"{where} has no text as `content`")
    read, parts = _Parts(where, unread), _listed(content)
    if isinstance(content, str) and role not in ("tool", "function"):
        held = unpacked(content) if content.lstrip().startswith("[") else None
        if isinstance(held, list) and held and all(at(part, "type") in _KINDS for part in held):
            parts = held
    for part in parts:
        read.add(part)
    return read


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


class _Parts:
    """What a message's parts say."""

    def __init__(self, where: str, unread: set[str]) -> None:
        self.where, self.unread = where, unread
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []

    def add(self, part: Any) -> None:
        """Add one part. In Bedrock its only field names its kind, in other APIs `type` does."""
        if isinstance(part, str):
            self.texts.append(part)
            return
        if not isinstance(part, Mapping):
            raise BadRowError(f"{self.where} has a part without text")
        part = _inside(part, "message_content")  # OpenInference's
        if part.get("thought") is True:  # Gemini's
            self.add_thought(part)
            return
        fields = [name for name in part if part[name] is not None and name not in MARKS]
        if kind := part.get("type"):
            if not isinstance(kind, str):
                raise BadRowError(f"{self.where} has a part whose `type` is not a text")
            fields = [kind, *(name for name in _NO_TEXTS if name in fields and name != kind)]
        if not fields and not any(name in part for name in MARKS):
            raise BadRowError(f"{self.where} has a part without text")
        for name in fields:
            self._add_field(name, part)

    def _add_field(self, kind: str, part: Mapping[str, Any]) -> None:
        inner = part[kind] if isinstance(part.get(kind), Mapping) else part
        if kind in _TEXTS:
            self.texts.append(self._text(inner))
        elif kind in _CALLS:
            self.add_call(inner)
        elif kind in _RESULTS:
            self._add_result(inner)
        elif kind in _THOUGHTS:
            self.add_thought(inner)
        elif kind not in MARKS:
            raise NotRepresentableError(f"message content of type {readable(kind)}")

    def _name_unread(self, part: Mapping[str, Any]) -> None:
        """List as unread what a typed part says beside its text or its result."""
        left = part.keys() - _OF_PART if "type" in part else ()
        self.unread |= {f"messages.content.{name}" for name in left if part[name]}

    def _text(self, part: Mapping[str, Any]) -> str:
        self._name_unread(part)
        match part:
            case {"text": str(text)} | {"content": str(text)}:  # OpenTelemetry says `content`
                return text
        raise BadRowError(f"{self.where} has a part without text")

    def add_call(self, call: Any) -> None:
        """Add a tool call. Its arguments are JSON text in the API, an object in chat templates."""
        call = at(call, "tool_call") or call  # OpenInference's
        function = at(call, "function") or call
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise NotRepresentableError("a tool call without `function`")
        names = ("partial_json", "arguments", "input", "args")
        arguments: Any = next(
            (function[name] for name in names if function.get(name) is not None), {}
        )
        if isinstance(arguments, str):
            try:
                arguments = parsed(arguments.strip() or "{}")
            except ValueError:  # cut: the server read them in its own way, or refused the request
                raise NotRepresentableError("tool call arguments that are not JSON") from None
            arguments = {} if arguments is None else arguments
        read = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        if isinstance(name := _identifier(call), str):
            read["id"] = name
        self.calls.append(read)

    def _add_result(self, part: Mapping[str, Any]) -> None:
        """Add a tool's result as a message of its own; the model gets an object as JSON."""
        self._name_unread(part)
        result = next((part[name] for name in _RESULT if part.get(name) is not None), "")
        inner = _Parts(self.where, self.unread)
        for each in _listed(result):
            match each:
                case {"json": value}:
                    inner.texts.append(_json(value))
                case str() | {"type": _} | {"text": str()} | {"image": _} | {"document": _}:
                    inner.add(each)
                case value:
                    inner.texts.append(_json(value))
        message = {"role": "tool", "content": "\n".join(inner.texts)}
        if isinstance(function := part.get("name"), str):  # Gemini's
            message["name"] = function
        if isinstance(name := _identifier(part), str):
            message["tool_call_id"] = name
        self.results.append(message)

    def add_thought(self, part: Any) -> None:
        """Add reasoning; refused if only the provider has its text."""
        match at(part, "reasoningText") or part:
            case str(text):
                self.thoughts.append(text)
            case {"thinking": str(text)} | {"text": str(text)} | {"content": str(text)} if text:
                self.thoughts.append(text)
            case {"content": [{"text": _}, *_] as thoughts} | {
                "thinking": [{"text": _}, *_] as thoughts
            }:
                self.thoughts += [self._text(thought) for thought in thoughts]
            case {"thinking": ""} | {"text": ""} if not part.get("signature"):
                pass
            case _:
                raise NotRepresentableError("reasoning that is not in the log")


def _identifier(part: Mapping[str, Any]) -> Any:
    return next((part[name] for name in _IDS if part.get(name)), None)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:
        raise BadRowError("holds values that JSON does not have") from None


def readable(name: Any) -> str:
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name)
    return name if plain else "unreadable"
