"""Turn a raw row of a log into a `Request`, whatever form the row has.

The form is recognised row by row, from the table `FORMS`. A conversation that ends with the
assistant's answer is read as a request for that answer, which is then the logged response. Messages
keep the OpenAI shape, with their text as one string and the arguments of tool calls as objects.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from draftbench.records import Request
from draftbench.safe_files import without_controls
from draftbench.traffic.files import MAX_ROW
from draftbench.traffic.request_settings import (
    BadRowError,
    NotRepresentableError,
    request_fields,
)

MAX_TEXT = 1 << 20
"""Bytes of a request, as JSON, and of a logged response; a longer one is a bad row."""

_SEGMENTS = ("segment", "category", "tags.segment")
_RESPONSES = ("response", "completion", "output")
_CHOICES = (
    "choices",
    "response.body.choices",
    "response.choices",
    "completion.choices",
    "output.choices",
)
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_MAX_LABEL = 200


def _split_answer(content: Any) -> tuple[Any, str | None]:
    """Split a logged conversation into the request and the assistant's closing answer."""
    match content:
        case [_, *_, {"role": "assistant", **answer}]:
            text = answer.get("content")
            return content[:-1], text if isinstance(text, str) else None
    return content, None


def _split_sharegpt(turns: Any) -> tuple[list[dict[str, Any]], str | None]:
    """Split ShareGPT turns into the messages up to the last human turn and the answer to it."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRowError("`conversations` is not a list of objects")
    roles = [_SHAREGPT_ROLES.get(str(turn.get("from"))) for turn in turns]
    if None in roles:
        raise NotRepresentableError("conversations.from")
    messages = [
        {"role": role, "content": turn.get("value")}
        for role, turn in zip(roles, turns, strict=True)
    ]
    if "user" not in roles:
        raise BadRowError("`conversations` has no human turn")
    end = len(roles) - roles[::-1].index("user")
    answer = messages[end]["content"] if roles[end : end + 1] == ["assistant"] else None
    return messages[:end], answer if isinstance(answer, str) else None


@dataclass(frozen=True)
class Form:
    """A form of row: where its content is, and how that splits into request and answer.

    `body` says that the places hold the body of an OpenAI API call, with the settings in it.
    """

    name: str
    example: str
    places: tuple[str, ...]
    split: Callable[[Any], tuple[Any, str | None]] = _split_answer
    body: bool = False


FORMS = (
    Form(
        "OpenAI request",
        '{"body": {"messages": […], "temperature": 0.7}}, also under `request`',
        ("body", "request.body", "request"),
        body=True,
    ),
    Form(
        "ShareGPT",
        '{"conversations": [{"from": "human", "value": "…"}, …]}',
        ("conversations",),
        _split_sharegpt,
    ),
    Form("messages", '{"messages": [{"role": "user", "content": "…"}]}', ("messages",)),
    Form("prompt", '{"prompt": "…"}', ("prompt",)),
)
"""The forms that are recognised, the first that fits."""


class UnknownFormError(BadRowError):
    """A row in which nothing looks like a request."""

    hint = (
        "forms understood: "
        + "; ".join(form.example for form in FORMS)
        + "; for anything else use --prompt-field"
    )


@dataclass(frozen=True)
class Fields:
    """Dotted paths to a row's prompt, logged response and segment; `None`: the usual places."""

    prompt: str | None = None
    response: str | None = None
    segment: str | None = None


@dataclass(frozen=True)
class _Parts:
    """A row taken apart by its form; `settings` holds its parameters."""

    form: str
    content: Any
    settings: Mapping[str, Any]
    body: bool
    answer: str | None


def read_request(
    data: bytes | Mapping[str, Any], source: str, fields: Fields, key: bytes
) -> tuple[str, Request]:
    """Read one row; return the name of its form and its request.

    `Request.id` is the first 16 hex digits of HMAC-SHA256(key, content and settings): equal
    requests have equal ids, whatever their source, segment, response and time.

    Raises:
        BadRowError: the row is not a request (`UnknownFormError`: its form is not known).
        NotRepresentableError: the request asks for something that a `Request` cannot express.
    """
    try:
        row = _parse(data)
        parts = _take_apart(row, fields.prompt)
        content = _content(parts)
        settings = request_fields(parts.settings, openai=parts.body)
        request = Request(
            id=_identity(content | settings, key),
            source=source,
            segment=_segment(row, fields.segment),
            response=_response(row, fields.response, parts.answer),
            timestamp=_timestamp(row.get("timestamp")),
            **content,
            **settings,
        )
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    except UnicodeError:
        raise BadRowError("not UTF-8") from None
    return parts.form, request


def _parse(data: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    row = data
    if isinstance(data, bytes):
        if len(data) > MAX_ROW:
            raise BadRowError("longer than 16 MiB")
        try:
            row = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            reason = str(error).removeprefix("JSON is malformed: ")
            raise BadRowError(f"not JSON ({reason})") from None
    if not isinstance(row, Mapping):
        raise BadRowError("not an object")
    if None in row:
        raise BadRowError("more cells than the header")
    return row


def _take_apart(row: Mapping[str, Any], prompt_field: str | None) -> _Parts:
    if prompt_field is not None:
        content, answer = _split_answer(_at(row, prompt_field))
        return _Parts("--prompt-field", content, row, False, answer)
    for form in FORMS:
        for place in form.places:
            value = _at(row, place)
            if not form.body and value is not None:
                content, answer = form.split(value)
                return _Parts(form.name, content, row, False, answer)
            if form.body and isinstance(value, dict) and {"messages", "prompt", "input"} & {*value}:
                content = value.get("messages") or value.get("prompt")
                return _Parts(form.name, content, value, True, None)
    raise UnknownFormError("no known form of request")


def _at(row: Any, path: str) -> Any:
    """The value at a dotted path, or in a column whose name holds the dots."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _content(parts: _Parts) -> dict[str, Any]:
    content = parts.content
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError("the prompt is empty")
        return {"prompt": content}
    if content is None and parts.body and "input" in parts.settings:
        raise NotRepresentableError("input")
    if not isinstance(content, list):
        raise BadRowError(
            "the prompt is missing" if content is None else "the prompt is not a text"
        )
    if not all(isinstance(message, dict) for message in content):
        if parts.body and not parts.settings.get("messages"):
            raise NotRepresentableError("prompt as a list")
        raise BadRowError("the messages are not objects")
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(content))
    if not any(message["content"].strip() for message in messages if message.get("content")):
        raise BadRowError("the messages are empty")
    return {"messages": messages}


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise BadRowError(f"{where} has no `role`")
    # Tables fill missing fields with nulls, which templates would take for given ones.
    given = {
        name: value for name, value in message.items() if value is not None or name == "content"
    }
    content = given.get("content")
    if isinstance(content, list):
        given["content"] = _joined(content, where)
    elif not isinstance(content, str) and not (content is None and given.get("tool_calls")):
        raise BadRowError(f"{where} has no text as `content`")
    if "tool_calls" in given:
        given["tool_calls"] = _tool_calls(given["tool_calls"], where)
    return given


def _joined(parts: list[Any], where: str) -> str:
    """Join text parts by line breaks, as vLLM and llama.cpp do for plain-text templates."""
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type", "text") != "text":
            raise NotRepresentableError("message content other than text")
        if not isinstance(part.get("text"), str):
            raise BadRowError(f"{where} has a part without text")
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Decode the arguments, which are JSON text in the API and an object in chat templates."""
    decoded = []
    for call in calls if isinstance(calls, list) else [calls]:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            raise BadRowError(f"{where} has a tool call without `function`")
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = msgspec.json.decode(function["arguments"] or "{}")
            except msgspec.DecodeError:
                raise BadRowError(f"{where} has tool call arguments that are not JSON") from None
        decoded.append({**call, "function": function})
    return decoded


def _identity(request: Mapping[str, Any], key: bytes) -> str:
    body = {
        name: value for name, value in request.items() if name != "weight" and value is not None
    }
    sampling = msgspec.structs.asdict(request["sampling"])
    body["sampling"] = {name: value for name, value in sampling.items() if value is not None}
    try:
        text = msgspec.json.encode(body, order="sorted")
    except TypeError:
        raise BadRowError("holds values that JSON does not have") from None
    if len(text) > MAX_TEXT:
        raise BadRowError("the request is longer than 1 MiB")
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:16]


def _segment(row: Mapping[str, Any], path: str | None) -> str | None:
    values = (_at(row, place) for place in ([path] if path else _SEGMENTS))
    value = next((value for value in values if value is not None), None)
    if value is None or value == "":
        return None
    if not isinstance(value, str | int | float):
        raise BadRowError("the segment is not a text")
    text = str(value)
    text.encode()  # a lone surrogate is not UTF-8
    if len(text) > _MAX_LABEL:
        raise BadRowError(f"the segment is longer than {_MAX_LABEL} characters")
    return without_controls(text)


def _timestamp(value: Any) -> str | None:
    """The time of a request as text; `None`, for unknown, where it cannot be read as one."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = without_controls(str(value).encode(errors="replace").decode())
    return text if len(text) <= _MAX_LABEL else None


def _response(row: Mapping[str, Any], path: str | None, answer: str | None) -> str | None:
    response = _logged(row, answer) if path is None else _at(row, path)
    if response is None:
        return None
    if not isinstance(response, str):
        raise BadRowError("the logged response is not a text")
    if len(response.encode()) > MAX_TEXT:
        raise BadRowError("the logged response is longer than 1 MiB")
    return response


def _logged(row: Mapping[str, Any], answer: str | None) -> str | None:
    for place in _RESPONSES:
        if isinstance(text := row.get(place), str):
            return text
    for place in _CHOICES:
        match _at(row, place):
            case [{"message": {"content": str(text)}}, *_] | [{"text": str(text)}, *_]:
                return text
    return answer
