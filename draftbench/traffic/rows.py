"""Turns a raw row of a log into a `Request`, whatever form the row has.

Each row's form is recognised (`forms`). A conversation that ends with the assistant's answer is
read as a request for that answer, which becomes the logged response. Messages keep the OpenAI
shape, with their text as one string and the arguments of tool calls as objects.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from draftbench.records import Request
from draftbench.safe_files import without_controls
from draftbench.traffic.files import MAX_ROW
from draftbench.traffic.forms import find_request
from draftbench.traffic.places import at, decoded
from draftbench.traffic.request_settings import (
    BadRowError,
    NotRepresentableError,
    request_fields,
    setting_value,
)

# Most bytes of a request as JSON, and of a logged response; a row with a longer one is bad.
MAX_TEXT = 1 << 20
_MAX_LABEL = 200

# Where logs keep the label of a request, and its answer, as text or as an API returns it.
_SEGMENTS = ("segment", "category", "tags.segment")
_ANSWERS = (
    *("response", "completion", "output", "choices", "response_body"),
    *("gen_ai.output.messages", "attributes.gen_ai.output.messages"),
)
# Types of message parts that are text.
_TEXTS = ("text", "input_text", "output_text")
# Fields inside which an API's answer keeps its text.
_INSIDE = (
    *("body", "choices", "message", "output", "content", "parts", "text", "generated_text"),
    "response",
)


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


def read_request(
    data: bytes | Mapping[str, Any], source: str, fields: Fields, key: bytes
) -> ReadRow:
    """Read one row.

    `Request.id` is the first 16 hex digits of HMAC-SHA256(key, content and settings): equal
    requests have equal ids, whatever their source, segment, response and time.

    Raises:
        BadRowError: the row is not a request (`UnknownFormError`: its form is not known).
        NotRepresentableError: the request asks for something that a `Request` cannot express.
    """
    try:
        row = _parse(data)
        asked = find_request(row, fields.prompt)
        content = _content(asked.content, chat=fields.as_chat)
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
    return ReadRow(form, request, assumed)


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


def _content(content: Any, *, chat: bool) -> dict[str, Any]:
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError("the prompt is empty")
        return (
            {"messages": ({"role": "user", "content": content},)} if chat else {"prompt": content}
        )
    if not isinstance(content, list):
        missing = "the prompt is missing" if content is None else "the prompt is not a text"
        raise BadRowError(missing)
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(content))
    if not any(message["content"].strip() for message in messages if message.get("content")):
        raise BadRowError("the messages are empty")
    return {"messages": messages}


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadRowError(f"{where} is not an object")
    if not isinstance(message.get("role"), str):
        raise BadRowError(f"{where} has no `role`")
    # Tables fill missing fields with nulls, which templates would take for given ones.
    given = {
        name: value for name, value in message.items() if value is not None or name == "content"
    }
    if "parts" in given:  # OpenTelemetry's
        given = {"role": given["role"], "content": given["parts"]}
    match given.get("content"):
        case list(parts):
            # vLLM and llama.cpp join them by line breaks too, for plain-text templates.
            given["content"] = "\n".join(_text(part, where) for part in parts)
        case str():
            pass
        case None if given.get("tool_calls"):
            pass
        case _:
            raise BadRowError(f"{where} has no text as `content`")
    if "tool_calls" in given:
        calls = given["tool_calls"]
        calls = calls if isinstance(calls, list) else [calls]
        given["tool_calls"] = [_tool_call(call, where) for call in calls]
    return given


def _text(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type", "text") in _TEXTS:
        match part:
            # OpenTelemetry calls it `content`.
            case {"text": str(text)} | {"content": str(text)}:
                return text
        raise BadRowError(f"{where} has a part without text")
    raise NotRepresentableError("message content other than text")


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """The arguments are JSON text in the API and an object in chat templates."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise BadRowError(f"{where} has a tool call without `function`")
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        decoded = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        raise BadRowError(f"{where} has tool call arguments that are not JSON") from None
    return {**call, "function": {**call["function"], "arguments": decoded}}


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
    values = (at(row, place) for place in ([path] if path else _SEGMENTS))
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


def _response(row: Mapping[str, Any], path: str | None, answer: str | None) -> str | None:
    if path is not None:
        given = at(row, path)
        answer = _answer_text(given)
        if answer is None and given is not None and not _is_api_answer(decoded(given)):
            raise BadRowError("the logged response is not a text")
    else:
        places = {place: at(row, place) for place in _ANSWERS}
        choices = decoded(places["choices"])  # of an API's answer, or of a quiz
        places["choices"] = choices if isinstance(choices, list) else None
        values = sorted(places.values(), key=lambda value: not isinstance(value, str))
        answer = next((text for text in map(_answer_text, values) if text is not None), answer)
    if answer is None:
        return None
    if len(answer.encode()) > MAX_TEXT:
        raise BadRowError("the logged response is longer than 1 MiB")
    return answer


def _answer_text(answer: Any) -> str | None:
    """The text of an answer in the form of any API; of several choices, the first."""
    match answer:
        case str():
            content = decoded(answer)
            # JSON that is no API's answer is what the model wrote.
            return _answer_text(content) if _is_api_answer(content) else answer
        case {"type": "reasoning" | "thinking"}:
            return None
        case [{"message": first}, *_]:
            return _answer_text(first)
        case Mapping():
            texts = (_answer_text(answer[name]) for name in _INSIDE if name in answer)
        case list():
            texts = (_answer_text(part) for part in answer if isinstance(part, Mapping))
        case _:
            return None
    return next((text for text in texts if text is not None), None)


def _is_api_answer(value: Any) -> bool:
    match value:
        case (
            {"choices": [{"message": _} | {"text": _}, *_]}  # OpenAI
            | {"output": [{"type": _}, *_]}  # its Responses
            | {"content": [{"type": _}, *_]}  # Anthropic
            | {"role": "assistant"}  # a message alone
            | [{"role": "assistant"}, *_]
            | {"message": {"role": "assistant"}}  # Ollama
            | {"response": str(), "done": _}
            | {"content": str(), "stop": _, "tokens_predicted": _}  # llama.cpp
            | {"text": _, "meta_info": _}  # SGLang
            | {"generated_text": _}  # TGI
            | [{"generated_text": _}, *_]
            | {"status_code": _, "body": _}  # OpenAI's batches
        ):
            return True
    return False
