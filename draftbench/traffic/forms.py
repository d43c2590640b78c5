"""A raw row → a `Request`, whatever form the row has.

The form is recognised by content, row by row: a plain `prompt`; chat `messages`; an OpenAI request
under `body` or `request`, as in request logs and batch files; ShareGPT `conversations`. A
conversation that ends with the assistant's answer is a request for that answer, which is then the
logged response. Which tokens a request becomes, and whether the logged response is the target's, is
not known here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from draftbench.records import Request
from draftbench.safe_files import without_controls
from draftbench.traffic.conversations import read_messages, split_answer, split_sharegpt
from draftbench.traffic.parameters import request_fields
from draftbench.traffic.problems import BadRowError, NotRepresentableError
from draftbench.traffic.readers import MAX_ROW

MAX_TEXT = 1 << 20
"""Bytes of a request, as JSON, and of a logged response; a longer one is a bad row."""

FORMS = {
    "prompt": '{"prompt": "…"}',
    "messages": '{"messages": [{"role": "user", "content": "…"}]}',
    "OpenAI request": '{"body": {"messages": […], "temperature": 0.7}}, also under `request`',
    "ShareGPT": '{"conversations": [{"from": "human", "value": "…"}, …]}',
}

_WRAPPERS = ("body", "request.body", "request")
_SEGMENTS = ("segment", "category", "tags.segment")
_RESPONSES = ("response", "completion", "output")
_CHOICES = (
    "choices",
    "response.body.choices",
    "response.choices",
    "completion.choices",
    "output.choices",
)
_MAX_LABEL = 200


@dataclass(frozen=True)
class Fields:
    """Dotted paths to a row's prompt, logged response and segment; `None`: the usual places."""

    prompt: str | None = None
    response: str | None = None
    segment: str | None = None


class UnknownFormError(BadRowError):
    """A row in which nothing looks like a request."""

    hint = "forms understood: " + "; ".join(FORMS.values()) + "; anything else with --prompt-field"


@dataclass(frozen=True)
class _Found:
    form: str
    content: Any
    asked: Mapping[str, Any]
    openai: bool = False
    response: str | None = None


def read_request(
    data: bytes | Mapping[str, Any], source: str, fields: Fields, key: bytes
) -> tuple[str, Request]:
    """Read one row as its form and its request.

    `Request.id` is the first 16 hex digits of HMAC-SHA256(key, what was asked): two rows that ask
    the same have one id, whatever their source, segment, response and time are.

    Raises:
        BadRowError: the row is not a request (`UnknownFormError`: of no known form).
        NotRepresentableError: the request asks for something that a `Request` cannot express.
    """
    try:
        row = _parse(data)
        found = _find(row, fields.prompt)
        content = _content(found)
        asked = request_fields(found.asked, openai=found.openai)
        request = Request(
            id=_identity(content | asked, key),
            source=source,
            segment=_segment(row, fields.segment),
            response=_response(row, fields.response, found.response),
            timestamp=_timestamp(row.get("timestamp")),
            **content,
            **asked,
        )
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    except UnicodeError:
        raise BadRowError("not UTF-8") from None
    return found.form, request


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


def _find(row: Mapping[str, Any], prompt_field: str | None) -> _Found:
    if prompt_field is not None:
        content, answer = split_answer(_dig(row, prompt_field))
        return _Found("--prompt-field", content, row, response=answer)
    for wrapper in _WRAPPERS:
        asked = _dig(row, wrapper)
        if isinstance(asked, dict) and not asked.keys().isdisjoint(("messages", "prompt", "input")):
            content = asked.get("messages") or asked.get("prompt")
            return _Found("OpenAI request", content, asked, openai=True)
    if row.get("conversations") is not None:
        content, answer = split_sharegpt(row["conversations"])
        return _Found("ShareGPT", content, row, response=answer)
    for form in ("messages", "prompt"):
        if row.get(form) is not None:
            content, answer = split_answer(row[form])
            return _Found(form, content, row, response=answer)
    raise UnknownFormError("no known form of request")


def _dig(row: Any, path: str) -> Any:
    """Follow a dotted path; a column whose name holds the dots counts too."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _content(found: _Found) -> dict[str, Any]:
    content = found.content
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError("the prompt is empty")
        return {"prompt": content}
    if content is None and found.openai and "input" in found.asked:
        raise NotRepresentableError("input")
    if not isinstance(content, list):
        raise BadRowError(
            "the prompt is missing" if content is None else "the prompt is not a text"
        )
    if not all(isinstance(message, dict) for message in content):
        if found.openai and not found.asked.get("messages"):
            raise NotRepresentableError("prompt as a list")
        raise BadRowError("the messages are not objects")
    return {"messages": read_messages(content)}


def _identity(asked: Mapping[str, Any], key: bytes) -> str:
    body = {name: value for name, value in asked.items() if name != "weight" and value is not None}
    sampling = msgspec.structs.asdict(asked["sampling"])
    body["sampling"] = {name: value for name, value in sampling.items() if value is not None}
    try:
        text = msgspec.json.encode(body, order="sorted")
    except TypeError:
        raise BadRowError("holds values that JSON does not have") from None
    if len(text) > MAX_TEXT:
        raise BadRowError("the request is longer than 1 MiB")
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:16]


def _segment(row: Mapping[str, Any], path: str | None) -> str | None:
    values = (_dig(row, place) for place in ([path] if path else _SEGMENTS))
    value = next((value for value in values if value is not None), None)
    if value is None or value == "":
        return None
    if not isinstance(value, str | int | float):
        raise BadRowError("the segment is not a text")
    return _label(str(value), "segment")


def _timestamp(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float | datetime):
        raise BadRowError("`timestamp` is not a text or a number")
    return _label(value.isoformat() if isinstance(value, datetime) else str(value), "timestamp")


def _label(text: str, what: str) -> str:
    text.encode()  # a lone surrogate is not UTF-8
    if len(text) > _MAX_LABEL:
        raise BadRowError(f"the {what} is longer than {_MAX_LABEL} characters")
    return without_controls(text)


def _response(row: Mapping[str, Any], path: str | None, inside: str | None) -> str | None:
    response = _logged(row, inside) if path is None else _dig(row, path)
    if response is None:
        return None
    if not isinstance(response, str):
        raise BadRowError("the logged response is not a text")
    if len(response.encode()) > MAX_TEXT:
        raise BadRowError("the logged response is longer than 1 MiB")
    return response


def _logged(row: Mapping[str, Any], inside: str | None) -> str | None:
    for place in _RESPONSES:
        if isinstance(text := row.get(place), str):
            return text
    for place in _CHOICES:
        match _dig(row, place):
            case [{"message": {"content": str(text)}}, *_] | [{"text": str(text)}, *_]:
                return text
    return inside
