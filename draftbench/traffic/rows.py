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
from typing import Any, NamedTuple

import msgspec

from draftbench.records import Request
from draftbench.safe_files import without_controls
from draftbench.traffic.files import MAX_ROW
from draftbench.traffic.request_settings import (
    BadRowError,
    NotRepresentableError,
    request_fields,
)

# Bytes of a request, as JSON, and of a logged response; a longer one is a bad row.
MAX_TEXT = 1 << 20
_MAX_LABEL = 200

# Where logs keep the label of a request, and the answer: as text, or as the API's list of choices.
_SEGMENTS = ("segment", "category", "tags.segment")
_ANSWERS = (
    *("response", "completion", "output", "choices"),
    *("response.body.choices", "response.choices", "completion.choices", "output.choices"),
)


class Asked(NamedTuple):
    """What a row asks: a text or messages, and the answer that a logged conversation ends with.
    `settings` is the body of an OpenAI API call; None where the row's own fields are the settings.
    """

    content: Any
    answer: str | None = None
    settings: Mapping[str, Any] | None = None


def _api_call(body: Any) -> Asked | None:
    if not isinstance(body, dict) or not {"messages", "prompt", "input"} & {*body}:
        return None
    content = body.get("messages") or body.get("prompt")
    if content is None and "input" in body:
        raise NotRepresentableError("input")
    prompts = content if isinstance(content, list) and not body.get("messages") else []
    if not all(isinstance(prompt, dict) for prompt in prompts):
        raise NotRepresentableError("prompt as a list")
    return Asked(content, settings=body)


def _conversation(content: Any) -> Asked:
    match content:
        case [_, *_, {"role": "assistant", **answer}]:
            text = answer.get("content")
            return Asked(content[:-1], text if isinstance(text, str) else None)
    return Asked(content)


def _sharegpt(turns: Any) -> Asked:
    """The messages up to the last human turn, and the answer to it."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRowError("`conversations` is not a list of objects")
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
    return Asked(messages[:end], texts[end] if answered else None)


@dataclass(frozen=True)
class Form:
    """A form of row: the dotted paths at which its content may be, and how that is read (None where
    it is something else).
    """

    name: str
    example: str
    places: tuple[str, ...]
    read: Callable[[Any], Asked | None]


# The forms that are recognised, the first that fits.
FORMS = (
    Form(
        "OpenAI request",
        '{"body": {"messages": […], "temperature": 0.7}}, also under `request`',
        ("body", "request.body", "request"),
        _api_call,
    ),
    Form(
        "ShareGPT",
        '{"conversations": [{"from": "human", "value": "…"}, …]}',
        ("conversations",),
        _sharegpt,
    ),
    Form(
        "messages",
        '{"messages": [{"role": "user", "content": "…"}]}',
        ("messages",),
        _conversation,
    ),
    Form("prompt", '{"prompt": "…"}', ("prompt",), _conversation),
)


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
        form, asked = _recognised(row, fields.prompt)
        content = _content(asked.content)
        openai = asked.settings is not None
        settings = request_fields(asked.settings or row, openai=openai)
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
    return form, request


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


def _recognised(row: Mapping[str, Any], prompt_field: str | None) -> tuple[str, Asked]:
    if prompt_field is not None:
        return "--prompt-field", _conversation(_at(row, prompt_field))
    for form in FORMS:
        for place in form.places:
            content = _at(row, place)
            asked = None if content is None else form.read(content)
            if asked is not None:
                return form.name, asked
    raise UnknownFormError("no known form of request")


def _at(row: Any, path: str) -> Any:
    """The value at a dotted path, or in a column whose name holds the dots."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _content(content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError("the prompt is empty")
        return {"prompt": content}
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
    match part:
        case {"text": str(text)} if part.get("type", "text") == "text":
            return text
        case dict() if part.get("type", "text") == "text":
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
    if path is not None:
        answer = _at(row, path)
    else:
        for place in _ANSWERS:
            match _at(row, place):
                case str(text) | [{"message": {"content": str(text)}} | {"text": str(text)}, *_]:
                    answer = text
                    break
    if answer is None:
        return None
    if not isinstance(answer, str):
        raise BadRowError("the logged response is not a text")
    if len(answer.encode()) > MAX_TEXT:
        raise BadRowError("the logged response is longer than 1 MiB")
    return answer
