"""Finds a row's logged answer, as text or as any API returns it, and recognises failed calls.

An answer is its text, or a message if it holds more: the reasoning before it, or tool calls. If
only the length of the reasoning is logged, the reasoning is None. It is used only if its shape is
known and it is whole; `streams` joins the chunks of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from draftbench.traffic.errors import BadRowError, NotRepresentableError
from draftbench.traffic.json_paths import at, at_each, by_head, unpacked
from draftbench.traffic.messages import READ, messages_of
from draftbench.traffic.setting_names import PADDING
from draftbench.traffic.streams import chunks_in, is_chunk, is_stream, joined

LoggedAnswer = str | dict[str, Any]

# Where logs keep the answer.
_OF_SPANS = ("gen_ai.output.messages", "llm.output_messages", "gen_ai.completion")
ANSWERS = (
    *("response", "completion", "output.outputBodyJson", "output", "choices", "response_body"),
    *("outputs", "result", *_OF_SPANS, *(f"attributes.{name}" for name in _OF_SPANS)),
    *("ai.response.text", "attributes.ai.response.text"),
    *("$ai_output_choices", "properties.$ai_output_choices"),
)
_OF_VERCEL, _BESIDE_VERCEL = "ai.response.text", ("toolCalls", "reasoning")
# Fields that hold the text inside an API's answer.
_INSIDE = (
    *("body", "choices", "candidates", "message", "generations", "output", "content"),
    *("parts", "text", "generated_text", "response", "completion"),
)
# The Responses API's items that are the model's, or what its tools gave back.
_ITEMS = ("message", "function_call", "reasoning", "function_call_output")
# Fields in which an API speaks of the call beside a plain text.
_OF_A_CALL = {"model", "created_at", "tokens_predicted"}
# Fields that hold several answers to one question.
_CHOICES = ("choices", "candidates", "generations")
# What a program prints of an object that it cannot write out: Python's, an API client's classes,
# JavaScript's.
_CLASS = (
    r"\w{0,40}(Block|Choice|Chunk|Completion|Generation|Message|Output|Response|Result|Stream)"
    r"\w{0,40}"
)
_PRINTED = re.compile(
    rf"""<[^\n]{{1,300}}\ at\ 0x[0-9a-fA-F]+> | <{_CLASS}[\ (][^<>\n]{{0,300}}>
    | \[?{_CLASS}\(\w+=.*\)\]?
    | (id|content|text|choices|role|model)=['"\[].*\ \w+=.*
    | b'.*' | b".*" | ({_CLASS}|Promise)\ ?\{{.*\}} | \[object\ \w+\]
    | (?i:\W{{0,9}}(object\ of\ type\ \S{{1,99}}\ is\ )?
        (not\ (json.)?|un)serializable[^\n]{{0,200}})""",
    re.VERBOSE | re.DOTALL,
)
# Where a log says that a call failed, by an HTTP status or a word.
_MARKS = (
    *("status", "status_code", "response_status", "statusCode", "http_status", "level", "success"),
    *("status.code", "status.status_code", "result.type", "finish_reason"),
    *("response.status_code", "response.statusCode", "response.status", "response.success"),
)
_FAILED = re.compile(
    r"[45]\d\d|(status_code_)?(error|errored|failed|failure|expired|canceled)|false", re.I
)
_AT_ANSWERS, _AT_MARKS = by_head(ANSWERS), by_head(_MARKS)
# What servers and gateways write instead of an answer; other short answers come from a model.
_PAGES = {HTTPStatus(code).phrase.lower() for code in (500, 502, 503, 504)}
# What API clients say when a call fails.
_RAISED = re.compile(r"Error code: [45]\d\d - |litellm\.\w+(Error|Exception): ")


def failed(row: Mapping[str, Any]) -> bool:
    """Whether a row of a server's log says that its call failed."""
    told = (row.get(name) for name in ("error", "exception", "error_message"))
    if any(word and word not in PADDING for word in told):
        return True
    marks = at_each(row, _AT_MARKS).values()
    return any(
        _FAILED.fullmatch(str(mark)) for mark in marks if not isinstance(mark, dict | list)
    ) or any(map(_is_error, at_each(row, _AT_ANSWERS).values()))


def _is_error(answer: Any) -> bool:
    """Whether an API's answer says that its call failed. JSON that is kept as text may be the
    model's own words, unless it looks exactly like an API's error.
    """
    match unpacked(answer):
        case {"error": {"message": _}} | {"object": "error"}:
            return True
        case {"choices": [first, *_]} | [first, *_]:
            return at(first, "finish_reason") == "error" or isinstance(at(first, "error"), Mapping)
        case {"status_code": int(code), "body": _}:
            return code >= 400
        case str(text):  # `Internal Server Error`, `502 Bad Gateway`
            page = text.strip().lstrip("0123456789").strip(" :.-").lower()
            return page in _PAGES or bool(_RAISED.match(text))
    match answer:
        case {"type": "error"}:
            return True
        case {"message": str(), "code": int(code)}:
            return code >= 400
        case {"detail": _}:
            return len(answer) == 1
    return bool(isinstance(answer, Mapping) and answer.get("error"))


def find_answer(row: Mapping[str, Any], path: str | None) -> tuple[LoggedAnswer | None, list[str]]:
    """The logged answer, at a path or else in the usual places, and the places that hold one.

    Raises:
        BadRowError: the value at the path is not an answer.
    """
    standing = _standing(row) if path is None else {path: at(row, path)}
    read = {place: _read(standing[place]) for place in standing}
    said = [place for place in read if read[place] is not None]
    given = None if path is None or said else unpacked(standing[path])
    if given is not None and not _is_api_answer(given):
        raise BadRowError("the logged response is not a text")
    first = min(said, key=lambda place: not isinstance(standing[place], str), default="")
    found = read.get(first)
    used = [row.get("usage"), row.get("usageMetadata"), unpacked(standing.get(first))]
    if found is not None and any(map(_counts_reasoning, used)):
        found = _with_reasoning(found)
    starts = [place.removesuffix("text") for place in said if place.endswith(_OF_VERCEL)]
    beside = [start + name for start in starts for name in _BESIDE_VERCEL]
    return found, [*said, *beside, *({"choices"} & read.keys())]


def _standing(row: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at `ANSWERS`; no `choices` that are texts, as a quiz's options are."""
    found = at_each(row, _AT_ANSWERS)
    match unpacked(found.pop("choices", None)):
        case [Mapping(), *_] as choices:
            found["choices"] = choices if is_stream(choices[:1]) else choices[:1]
    for place in [each for each in found if each.endswith(_OF_VERCEL)]:
        found[place] = _of_vercel(row, place)
    return {place: found[place] for place in ANSWERS if place in found}


def _of_vercel(row: Mapping[str, Any], place: str) -> Any:
    """Vercel's answer, whose calls of tools and reasoning stand beside its text."""
    start = place.removesuffix("text")
    more = {name: unpacked(at(row, start + name)) for name in _BESIDE_VERCEL}
    calls = more["toolCalls"] if isinstance(more["toolCalls"], list) else []
    said = {"reasoning": more["reasoning"]} if more["reasoning"] else {}
    told = [
        {"name": at(it, "toolName"), "id": at(it, "toolCallId"),
         "arguments": at(it, "input") or at(it, "args")}
        for it in calls
    ]  # fmt: skip
    text = at(row, place)
    whole = {"role": "assistant", "content": text, "tool_calls": told, **said}
    return whole if told or said else text


def message_of(turn: Mapping[str, Any]) -> LoggedAnswer | None:
    """A message as an answer; None if it has neither text nor tool calls."""
    try:
        # A model's blocks follow one another; only those of a prompt are lines.
        (message, *_) = messages_of([turn], set(), between="") or [{}]
    except (BadRowError, NotRepresentableError):
        return None
    more = ("tool_calls", "reasoning_content", "tool_plan")
    said: dict[str, Any] = {name: message[name] for name in more if name in message}
    if not said:
        return message.get("content") or None
    return {"role": "assistant", "content": message["content"], **said}


def _read(answer: Any) -> LoggedAnswer | None:
    """An answer in any API's format; the first if there are several choices."""
    match answer:
        case str():
            if _PRINTED.fullmatch(answer.strip()):
                return None
            if isinstance(content := unpacked(answer), dict | list):
                # JSON in no API's format was written by the model.
                return _read(content) if _is_api_answer(content) else answer
            if (chunks := chunks_in(answer)) is None:
                return answer
            return _read(chunks) if is_stream(chunks[:1]) else None
        case [first, *_] if is_stream([first]):
            return _read(joined(answer))
        case Mapping() if is_chunk(answer):
            return _read([answer])
        case [list() as first, *_]:
            return _read(first[:1])
        case [{"message": first}, *_]:
            return _read(first)
        case [{"type": str()} | {"role": str()}, *_]:
            return _joined(answer)
        case {"message.role": _}:
            return message_of(answer)
        case {"lc": _} | {"role": _} | {"content": list() | str()}:
            return message_of({"role": "assistant", **answer})
        case {"response": str(text), "thinking": str(thought)}:  # Ollama's
            return message_of({"role": "assistant", "content": text, "thinking": thought})
        case Mapping():
            standing = ((name, answer[name]) for name in _INSIDE if name in answer)
            inside = (
                it[:1] if name in _CHOICES and isinstance(it, list) else it for name, it in standing
            )
            return next((said for said in map(_read, inside) if said is not None), None)
        case [Mapping() as only]:
            return _read(only)
    return None


def _joined(items: list[Any]) -> LoggedAnswer | None:
    """The answer as the Responses API's items, as blocks, or as messages."""
    if not all(isinstance(item, Mapping) for item in items):
        return None
    # What a server's own tools did in between is no part of what the model says.
    own = [item for item in items if "role" in item or item.get("type") in _ITEMS]
    if not own:
        return message_of({"role": "assistant", "content": items})
    hidden = [item for item in own if item.get("type") == "reasoning" and _is_hidden(item)]
    with suppress(BadRowError, NotRepresentableError):
        said = messages_of([it for it in own if it not in hidden], set(), between="")
        # Behind a tool's result, or beside another message, it is not the answer to the request.
        before = said[-2]["role"] if len(said) > 1 else ""
        answer = message_of(said[-1]) if said and before not in ("assistant", "tool") else None
        return _with_reasoning(answer) if hidden and answer is not None else answer
    return None


def _is_hidden(item: Mapping[str, Any]) -> bool:
    return not item.get("content") and not {"summary", "encrypted_content"}.isdisjoint(item)


def _with_reasoning(answer: LoggedAnswer) -> LoggedAnswer:
    """An answer that began with reasoning, whether or not the log has the reasoning's text."""
    if isinstance(answer, str):
        answer = {"role": "assistant", "content": answer}
    return {"reasoning_content": None, **answer}


def _counts_reasoning(value: Any) -> bool:
    """Whether an API counts tokens of reasoning anywhere in its answer."""
    match value:
        case {"reasoning_tokens": int(count)} | {"thoughtsTokenCount": int(count)}:
            return count > 0
        case Mapping():
            return any(map(_counts_reasoning, value.values()))
        case list():
            return any(map(_counts_reasoning, value))
    return False


def _is_api_answer(value: Any) -> bool:
    """Whether JSON was written by an API: what its shape leaves open has only the API's fields, or
    speaks of the call. Any other was written by the model.
    """
    first = value[0] if isinstance(value, list) and value else value
    match first:
        case {"role": "assistant"} if first.keys() <= READ:  # a message alone
            return True
        case {"generated_text": _} if first.keys() <= {"generated_text", "details"}:  # TGI
            return True
    match value:
        case (
            {"choices": [{"message": _}, *_]}  # OpenAI
            | {"output": [{"type": _}, *_]}  # its Responses, and their output alone
            | [{"type": "reasoning"}, {"type": "message" | "function_call" | "reasoning"}, *_]
            | [{"type": "message", "content": [{"type": "output_text"}, *_]}, *_]
            | [{"type": "function_call", "call_id": _}, *_]
            | {"outputBodyJson": _}  # Bedrock's log, in which it is looked for
            | {"output": {"message": _}}  # Bedrock
            | {"content": [{"type": _}, *_]}  # Anthropic
            | [{"message": {"role": "assistant"}}, *_]
            | {"message": {"role": "assistant"}}  # Ollama
            | {"generations": [[_, *_], *_]}  # LangSmith
            | {"status_code": _, "body": _}  # OpenAI's batches
        ):
            return True
        case list():
            return is_stream(value[:1])
        case Mapping():
            plain = not any(isinstance(each, Mapping | list) for each in value.values())
            return is_stream([value]) and not (plain and _OF_A_CALL.isdisjoint(value))
    return False
