"""Turns a raw row of a log into a `Request`, whatever form the row has.

Each row's form is recognised (`forms`). A conversation that ends with the assistant's answer is
read as a request for that answer, which becomes the logged response. Messages keep the OpenAI
shape, with their text as one string and the arguments of tool calls as objects.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from draftbench.records import Request
from draftbench.safe_files import without_controls
from draftbench.traffic.answers import Answer, answer_of, failed
from draftbench.traffic.errors import BadRowError, NoTrafficError
from draftbench.traffic.files import MAX_ROW
from draftbench.traffic.forms import SEGMENTS, find_request
from draftbench.traffic.messages import messages_of
from draftbench.traffic.places import at, parsed
from draftbench.traffic.request_settings import request_fields, setting_value

# Most bytes of a request as JSON, and of a logged response; a row with a longer one is bad.
MAX_TEXT = 1 << 20
_MAX_LABEL = 200

# What loggers write in place of a text: LiteLLM inside it, and for the whole of it Langfuse,
# Datadog, LiteLLM, OpenInference and those who put a word in brackets.
_CUT_INSIDE = "(litellm_truncated "
_CUT = re.compile(
    r"\s*[<\[(]+[^<>\[\]()]{0,80}\b(truncated|too large|dropped because|omitted)\b"
    r"[^<>\[\]()]{0,80}[>\])]+\s*\Z",
    re.IGNORECASE,
)
_REDACTED = re.compile(
    r"\A\s*(redacted-by-litellm"
    r"|[\W_]{1,3}(content |text )?(redacted|filtered|masked|hidden)[\W_]{1,3})\s*\Z",
    re.IGNORECASE,
)
# A text that only looks like messages: it could be parsed neither as JSON nor as Python.
_LIKE_MESSAGES = re.compile(r"""\s*\[\s*\{\s*(['"])(role|content|from|value)\1\s*:""")


@dataclass(frozen=True)
class Fields:
    """Dotted paths to a row's prompt, logged response and segment; `None`: the usual places."""

    prompt: str | None = None
    response: str | None = None
    segment: str | None = None
    as_chat: bool = False  # whether a plain prompt is a user's message


class ReadRow(NamedTuple):
    """A row that was read."""

    form: str
    request: Request
    assumed: bool  # whether the row names no temperature
    unread: dict[str, Any]  # fields that were not read, with what they hold
    columns: Mapping[str, Any]  # the row's own


def read_request(
    data: bytes | Mapping[str, Any], source: str, fields: Fields, key: bytes
) -> ReadRow:
    """Read one row.

    `Request.id` is the first 16 hex digits of HMAC-SHA256(key, content and settings): equal
    requests have equal ids, whatever their source, segment, response and time.

    Raises:
        BadRowError: the row is not a request (`UnknownFormError`: its form is not known).
        NotRepresentableError: the request asks for something that a `Request` cannot express.
        NoTrafficError: its text is the logger's, or its call failed.
    """
    unread: set[str] = set()
    try:
        row = _parse(data)
        asked = find_request(row, fields.prompt)
        if asked.server and failed(row):
            raise NoTrafficError("the call failed")
        content = _content(asked.content, unread, chat=fields.as_chat)
        settings = request_fields(asked.settings, server=bool(asked.server), api=asked.api)
        request = Request(
            id=_identity(content | settings, key),
            source=source,
            segment=_segment(row, fields.segment),
            response=_response(row, fields.response, asked.answer),
            timestamp=_timestamp(row.get("timestamp")),
            **content,
            **settings,
        )
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    except UnicodeError:
        raise BadRowError("not UTF-8") from None
    form = asked.form + " as chat" * (fields.as_chat and isinstance(asked.content, str))
    assumed = setting_value("temperature", asked.settings.get("temperature")) is None
    return ReadRow(form, request, assumed, {**asked.unread, **dict.fromkeys(unread)}, row)


def _parse(data: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    row = data
    if isinstance(data, bytes):
        if len(data) > MAX_ROW:
            raise BadRowError("longer than 16 MiB")
        try:
            row = parsed(data)
        except msgspec.DecodeError as error:
            reason = str(error).removeprefix("JSON is malformed: ")
            raise BadRowError(f"not JSON ({reason})") from None
    if not isinstance(row, Mapping):
        raise BadRowError("not an object")
    if None in row:
        raise BadRowError("more cells than the header")
    return row


def _content(content: Any, unread: set[str], *, chat: bool) -> dict[str, Any]:
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError("the prompt is empty")
        if _LIKE_MESSAGES.match(content):
            raise BadRowError(
                "the prompt looks like messages, but is no JSON and no Python literal"
            )
        _refuse_marker(content)
        return (
            {"messages": ({"role": "user", "content": content},)} if chat else {"prompt": content}
        )
    if not isinstance(content, list):
        missing = "the prompt is missing" if content is None else "the prompt is not a text"
        raise BadRowError(missing)
    messages = tuple(messages_of(content, unread))
    texts = [text for message in messages if (text := message["content"] or "").strip()]
    if not texts:
        raise BadRowError("the messages are empty")
    for text in texts:
        _refuse_marker(text)
    return {"messages": messages}


def _refuse_marker(text: str) -> None:
    """Raise a NoTrafficError for a text in which the logger speaks."""
    if _CUT_INSIDE in text or _CUT.match(text):
        raise NoTrafficError("cut by the logger")
    if _REDACTED.match(text):
        raise NoTrafficError("redacted by the logger")


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
    values = (at(row, place) for place in ([path] if path else SEGMENTS))
    value = next((v for v in values if v is not None and not isinstance(v, Mapping)), None)
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
    """The time of a request as text; None, for unknown, if it is no time that could be read."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = without_controls(str(value).encode(errors="replace").decode())
    return text if len(text) <= _MAX_LABEL else None


def _response(row: Mapping[str, Any], path: str | None, last: Answer | None) -> Answer | None:
    answer = answer_of(row, path, last)
    if answer is None:
        return None
    text = answer if isinstance(answer, str) else answer["content"] or ""
    try:
        _refuse_marker(text)
    except NoTrafficError:  # the target can still answer the request
        return None
    if len(msgspec.json.encode(answer)) > MAX_TEXT + 2:
        raise BadRowError("the logged response is longer than 1 MiB")
    return answer
