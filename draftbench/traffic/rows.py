"""Turns a log's raw row into a `Request`, whatever form the row has.

`request_formats` recognises each row's form. A conversation that ends with the assistant's answer
is a request for that answer, which becomes the logged response. Messages have the OpenAI shape,
with their text as one string and the arguments of tool calls as objects.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from draftbench.records import Request
from draftbench.safe_files import without_controls
from draftbench.traffic.answers import LoggedAnswer, failed, find_answer
from draftbench.traffic.errors import BadRowError, NoTrafficError, NotRepresentableError
from draftbench.traffic.files import MAX_ROW
from draftbench.traffic.json_paths import at, parsed, unpacked
from draftbench.traffic.messages import messages_of
from draftbench.traffic.query import TrafficQuery
from draftbench.traffic.request_formats import SEGMENTS, LoggedRequest, find_request
from draftbench.traffic.request_settings import request_fields
from draftbench.traffic.setting_names import PADDING

# Most bytes of a request as JSON, and of a logged response; a row with more is a bad row.
MAX_TEXT = 1 << 20
_MAX_LABEL = 200
# What is assumed where a row does not name a setting.
ASSUMED = {
    "temperature": "temperature {:g}", "top_p": "top_p 1", "top_k": "no top_k",
    "max_tokens": "no limit on output tokens",
}  # fmt: skip
# What is said of a row that no form foresaw.
MISSHAPEN = "not of the shape that its form has"

# What loggers write in place of text that they do not keep, each in its own brackets: inside the
# text (LiteLLM), for all of it (Langfuse, Datadog, OpenInference), or at its end. A user's "(some
# steps omitted)" does not count.
_OF = r"((content|text|prompt|input|output|message|value|body|request|response) )?"
_SIZE = r"[\d,.]{1,12} ?\w{0,12}"
_LANGFUSE_MEDIA = "@@@langfuseMedia:type="
_LITELLM_CUT = re.compile(r"\(litellm_truncated ")
_LITELLM_REDACTED = re.compile(r"(\A|\n)[ \t]*redacted-by-litellm[ \t]*(\n|\Z)")
_WHOLE_CUT = re.compile(
    r"\s*([\[<][^\[\]<>]{0,80}\b(too large|dropped because)\b[^\[\]<>]{0,80}[\]>]"
    r"|\[((object )?object|array|circular)\])\s*\Z",  # JavaScript's, for what it did not write out
    re.IGNORECASE,
)
_WHOLE_REDACTED = re.compile(
    rf"\s*([\W_]{{1,3}}{_OF}(redacted|filtered|masked|hidden|omitted|scrubbed|removed|deleted)"
    r"( (by|due to) [^\]>)]{0,80})?[\W_]{1,3}"
    r"|(?-i:REDACTED)|[*•█]{3,}|sha\d{1,3}[:=][0-9a-f]{32,128})\s*\Z",
    re.IGNORECASE,
)
_CUT_AT_END = re.compile(
    rf"([\[<]{{1,2}}[.… ]*{_OF}({_SIZE} )?truncated(:? {_SIZE}| due to [^\]>]{{0,80}})?"
    r"[.… ]*[\]>]{1,2}"
    rf"|(\.\.\.|…)(truncated| ?\(truncated( {_SIZE})?\))"
    r"|(\.\.\.|…) ?[\[(<]?\+?[\d,.]{1,12} (more )?(characters|chars|bytes)( more| omitted)?[\])>]?)"
    r"\s*\Z",
    re.IGNORECASE,
)
_LONGEST_MARK = 200
# The beginning of a text that looks like messages or their parts.
_LIKE_MESSAGES = re.compile(
    r"""\s{0,9}(array\(\s?)?[\[(]*\s?(
        \{[^{}\[\]]{0,300}?["'](messages|conversations|contents)["']\s*:\s*\[
        |(?<=\[)\{\s*'(role|content|from|value)'\s*:
        |\{[^{}]{0,300}?["'](role|from)["']\s*:\s*
            ["'](user|human|system|developer|assistant|ai|gpt|tool)["']
        |\{\s*["']type["']\s*:\s*["'](text|input_text|image|image_url)["']
        |\w{0,40}Message\w{0,40}\(content=)""",
    re.VERBOSE,
)
# Names of fields that only label a text.
_LABELS = {"role", "from", "type", "id"}
_NUMBER = re.compile(r"\s*[-+]?\d[\d.,]*(e[-+]?\d+)?\s*", re.IGNORECASE)


class ReadRow(NamedTuple):
    """What was read from a row."""

    form: str
    request: Request
    assumed: tuple[str, ...]  # of the settings that decide what is drawn, those it does not name
    unread: dict[str, Any]  # fields that were not read, with what they hold
    columns: Mapping[str, Any]  # the row's own
    model: tuple[str, str] | None  # where the model that was asked is named, and its name


def read_request(
    data: bytes | Mapping[str, Any] | BadRowError, source: str, query: TrafficQuery
) -> ReadRow:
    """Read one row. Its id is a hash with `query.key` of content and settings, and of the model
    asked if that is the segment: equal requests have equal ids, wherever they come from.

    Raises:
        BadRowError: the row is not a request (`UnknownFormError`: its form is not known).
        NotRepresentableError: the request asks for something that `Request` cannot express.
        NoTrafficError: the logger cut, redacted or moved its text, or the call failed.
    """
    unread: set[str] = set()
    try:
        row = _parse(data)
        answer, places = find_answer(row, query.response_field)
        asked = find_request(row, query.prompt_field, (*places, *SEGMENTS, "timestamp"))
        if asked.server and failed(row):
            raise NoTrafficError("the call failed")
        content = _content(asked.content, unread, chat=query.as_chat)
        given = asked.likely | asked.settings
        settings = request_fields(given, server=bool(asked.server))
        answer = _response(answer, asked)
        place, model = asked.model or (None, None)
        apart = {"model": model} if place and place == query.segment_by else {}
        left = dict(asked.unread) | _new_parts(asked, content, answer)
        request = Request(
            id=_identity(content | settings | apart, query.key),
            source=source,
            segment=_segment(row, query.segment_by),
            response=answer,
            timestamp=_timestamp(row.get("timestamp")),
            **content,
            **settings,
        )
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    except UnicodeError:
        raise BadRowError("not UTF-8") from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        # Whatever a stranger wrote into a row, --skip-bad can skip it.
        raise BadRowError(MISSHAPEN) from error
    form = asked.form + " as chat" * (query.as_chat and isinstance(asked.content, str))
    given |= {"max_tokens": given.get("max_tokens", given.get("max_completion_tokens"))}
    heat, narrowing = request.sampling.temperature, ("top_p", "top_k")  # which change no argmax
    unsaid = [it for it in ASSUMED if given.get(it) is None and (heat or it not in narrowing)]
    assumed = tuple(ASSUMED[name].format(heat) for name in unsaid)
    named = (query.response_field, query.segment_by)
    left = {path: left[path] for path in left if path not in named}
    return ReadRow(form, request, assumed, {**left, **dict.fromkeys(unread)}, row, asked.model)


def _parse(data: bytes | Mapping[str, Any] | BadRowError) -> Mapping[str, Any]:
    if isinstance(data, BadRowError):
        raise data
    if isinstance(data, bytes) and len(data) > MAX_ROW:
        raise BadRowError("longer than 16 MiB")
    try:
        row = parsed(data) if isinstance(data, bytes) else data
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise BadRowError(f"not JSON ({reason})") from None
    if not isinstance(row, Mapping):
        raise BadRowError("not an object")
    return row


def _content(content: Any, unread: set[str], *, chat: bool) -> dict[str, Any]:
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError("the prompt is empty")
        ids = unpacked(content)
        if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
            raise NotRepresentableError("prompt as a list")
        if _LIKE_MESSAGES.match(content):
            raise BadRowError("the prompt looks like messages, but cannot be read as such")
        _refuse_mark(content)
        return (
            {"messages": ({"role": "user", "content": content},)} if chat else {"prompt": content}
        )
    if not isinstance(content, list):
        raise BadRowError("the prompt is not a text")
    messages = tuple(messages_of(content, unread))
    if all(message["role"] == "assistant" for message in messages):
        raise BadRowError("the messages ask nothing")
    if not any((message["content"] or "").strip() for message in messages):
        raise BadRowError("the messages are empty")
    said = [message["content"] or "" for message in messages]
    # Loggers cut the longest texts first; what tools write was often cut before.
    longest = max((len(text) for text in said if not _ends_cut(text)), default=0)
    for message, text in zip(messages, said, strict=True):
        tool = message["role"] == "tool"
        # A user may send a conversation as JSON, for the model to judge.
        json = text.lstrip().startswith(('[{"', '{"'))
        if not tool and not json and _LIKE_MESSAGES.match(text):
            raise NotRepresentableError("messages as the text of a message")
        thought = message.get("reasoning_content", "")
        for each in (text, thought, *_texts(message.get("tool_calls"))):
            _refuse_mark(each, cut_before=tool or len(each) < longest)
    return {"messages": messages}


def _refuse_mark(text: str, *, cut_before: bool = False) -> None:
    """Raise a NoTrafficError if the logger left a mark in this text; that of a cut may be part of
    what the model read where it may have been `cut_before`.
    """
    cut = _CUT_AT_END.match(text) if cut_before else _ends_cut(text)
    if _LANGFUSE_MEDIA in text:
        raise NoTrafficError("kept elsewhere by the logger")
    if cut or _WHOLE_CUT.match(text) or _LITELLM_CUT.search(text):
        raise NoTrafficError("cut by the logger")
    if _WHOLE_REDACTED.match(text) or _LITELLM_REDACTED.search(text):
        raise NoTrafficError("redacted by the logger")


def _ends_cut(text: str) -> bool:
    return bool(_CUT_AT_END.search(text.rstrip()[-_LONGEST_MARK:]))


def _texts(value: Any) -> Iterator[str]:
    """The texts and numbers in a structure without their labels; an id alone counts as a text."""
    match value:
        case str() | int() | float():
            yield str(value)
        case Mapping():
            for name in value.keys() - _LABELS or value.keys() & {"id"}:
                yield from _texts(value[name])
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)


def _new_parts(
    request: LoggedRequest, content: Mapping[str, Any], answer: LoggedAnswer | None
) -> dict[str, Any]:
    """The unread parts of a prompt that can be ignored: numbers, labels, or a rendered copy of the
    prompt and the answer. Text that only repeats turns, or lines of a plain prompt, is ignored too;
    anything else leaves the row out.
    """
    asked = list(_texts(content.get("messages", content.get("prompt"))))
    lines = [line.strip() for text in (*asked, *_texts(answer)) for line in text.splitlines()]
    # As they were written, too: a turn may have several texts.
    known = {text.strip() for text in (*asked, *_texts(request.content))}
    plain = f"\n{content.get('prompt') or ''}\n"
    left = {}
    for path, value in request.parts:
        part = unpacked(value)
        texts = {text.strip() for text in _texts(part)} - {""}
        rendered = answer and isinstance(part, str) and all(line in part for line in lines)
        number = _NUMBER.fullmatch(part) if isinstance(part, str) else isinstance(part, int | float)
        # A context of single words labels the call, as a span's does; a text is the model's.
        words = all(len(text.split()) == 1 for text in texts)
        labels = path.endswith("context") and isinstance(part, Mapping) and words
        if rendered or number or labels or not texts:
            left[path] = value
        elif any(f"\n{text}\n" not in plain for text in texts - known):
            raise NotRepresentableError(path)
    return left


def _identity(request: Mapping[str, Any], key: bytes) -> str:
    body = {
        name: value for name, value in request.items() if name != "weight" and value is not None
    }
    if "messages" in body:
        body["messages"] = [_without_ids(message) for message in body["messages"]]
    sampling = msgspec.structs.asdict(request["sampling"])
    body["sampling"] = {name: value for name, value in sampling.items() if value is not None}
    try:
        text = msgspec.json.encode(body, order="sorted")
    except TypeError:
        raise BadRowError("holds values that JSON does not have") from None
    if len(text) > MAX_TEXT:
        raise BadRowError("the request is longer than 1 MiB")
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:16]


def _without_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the ids that tie a tool's result to its call, which differ in every log."""
    given = message.get("tool_calls", ())
    calls = [{name: call[name] for name in call if name != "id"} for call in given]
    kept = {name: message[name] for name in message if name != "tool_call_id"}
    return kept | ({"tool_calls": calls} if calls else {})


def _segment(row: Mapping[str, Any], path: str | None) -> str | None:
    values = (at(row, place) for place in ([path] if path else SEGMENTS))
    value = next((v for v in values if v is not None and not isinstance(v, Mapping)), None)
    if value in (None, "", *PADDING):
        return None
    if not isinstance(value, str | int | float):
        raise BadRowError("the segment is not a text")
    text = str(value)
    text.encode()  # a lone surrogate is not UTF-8
    if len(text) > _MAX_LABEL:
        raise BadRowError(f"the segment is longer than {_MAX_LABEL} characters")
    return without_controls(text)


def _timestamp(value: Any) -> str | None:
    """A request's time as text; None if it cannot be read as a time."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = without_controls(str(value).encode(errors="replace").decode())
    return text if len(text) <= _MAX_LABEL else None


def _said(answer: LoggedAnswer) -> str:
    return answer if isinstance(answer, str) else answer["content"] or ""


def _response(answer: LoggedAnswer | None, asked: LoggedRequest) -> LoggedAnswer | None:
    if answer is None:
        answer = asked.answer
    elif asked.server and asked.answer and _said(asked.answer) != _said(answer):
        raise NotRepresentableError("an assistant message for the model to continue")
    elif asked.repeated:
        prompt = asked.content  # of messages the log does not have the text that is repeated
        plain = isinstance(answer, str) and isinstance(prompt, str) and answer.startswith(prompt)
        answer = str(answer)[len(prompt) :] if plain else None
    if not answer:
        return None
    try:
        _refuse_mark(_said(answer))
    except NoTrafficError:  # the target can still answer the request
        return None
    if len(msgspec.json.encode(answer)) > MAX_TEXT + 2:
        raise BadRowError("the logged response is longer than 1 MiB")
    return answer
