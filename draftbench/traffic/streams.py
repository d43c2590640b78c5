"""Joins the chunks in which an API streamed an answer, kept as a list, as lines of JSON or as
server-sent events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from draftbench.traffic.json_paths import parsed

# Server-sent events: comments and fields, of which one holds JSON.
_SENT = re.compile(r"\s*(?:(?::|event:|id:|retry:|data:)[^\n]*\n\s*)*data: ?(\{|\[)")
# How JSON of an API begins, of which the rest was cut off.
_OF_AN_API = re.compile(
    r'\\*"(choices|candidates|delta|finish_reason|meta_info|generated_text|outputBodyJson'
    r'|contentBlock\w*|content_block|messageStart|token)\\*":'
    r'|\\*"(role\\*": ?\\*"assistant|type\\*": ?\\*"(message_start|response\.\w+))\\*"'
    r'|\\*"(done|stop)\\*": ?(true|false)'
)
_MOST_SEARCHED = 2000
_SOMETHING = re.compile(r"\S")
# What stands beside the text of a completion; beside other things the model may have written it.
_BESIDE_A_TEXT = {"finish_reason", "index", "logprobs", "object", "model", "created", "id"}


class _Shape(NamedTuple):
    """A chunk of an API."""

    says: str  # where it says something; of a list the first item does
    ends: str = ""  # where it tells whether it is the last
    needs: str = ""  # what else stands in it


_SHAPES = (
    _Shape("choices.delta", "choices.finish_reason"),
    _Shape("choices.text", "choices.finish_reason"),
    _Shape("delta", "finish_reason", needs="index"),  # a choice alone
    _Shape("message", "done", needs="done"),  # Ollama's
    _Shape("response", "done", needs="done"),
    _Shape("content", "stop", needs="stop"),  # llama.cpp's
    _Shape("token.text", "generated_text"),  # TGI's, whose last says all again
    _Shape("text", "meta_info.finish_reason", needs="meta_info"),  # SGLang's, which all do
    _Shape("candidates.content", "candidates.finishReason"),  # Gemini's, whose last may lack it
    _Shape("", "candidates.finishReason", needs="candidates"),
)
# Events of Anthropic and Bedrock, and whether they are the last, if they tell.
_EVENTS = {
    "message_start": False, "message_stop": True, "messageStart": False, "messageStop": True,
    **dict.fromkeys(["ping", "message_delta", "content_block_stop", "contentBlockStop"]),
    "metadata": None,
}  # fmt: skip
# Where chunks add to a text; anything else that is given again is the same.
_IN_PIECES = {
    *("content", "text", "reasoning_content", "reasoning", "thinking", "summary"),
    *("arguments", "partial_json", "input"),
}


def chunks_in(text: str) -> list[Any] | None:
    """The chunks of a stream that was kept as text, none if they are not whole; None: no stream."""
    if _SENT.match(text):
        lines = re.split(r"\r\n?|\n", text)
        told = [line[5:].strip() for line in lines if line.startswith("data:")]
        try:
            return [parsed(each) for each in told if each not in ("", "[DONE]")]
        except ValueError:
            return []
    if not text.lstrip(' \n"').startswith(("{", "[")):
        return None
    chunks: list[Any] = []
    end, decode = 0, json.JSONDecoder().raw_decode
    try:
        while begin := _SOMETHING.search(text, end):
            chunk, end = decode(text, begin.start())
            chunks.append(chunk)
    except (ValueError, RecursionError):
        return [] if _OF_AN_API.search(text[:_MOST_SEARCHED]) else None
    return chunks if len(chunks) > 1 and is_stream(chunks[:1]) else None


def is_stream(chunks: list[Any]) -> bool:
    """Whether a list holds chunks of a stream, and nothing else."""
    return bool(chunks) and all(_told(chunk) is not None for chunk in chunks)


def is_chunk(value: Mapping[str, Any]) -> bool:
    """Whether an object alone is a chunk, not the whole answer."""
    told = _told(value)
    streamed = "delta" in value or _at(value, "choices.delta") != ()
    return told is not None and (told[1] is False or streamed)


def joined(chunks: list[Any]) -> Any:
    """The whole answer, as a message or as the object that the last chunk holds; None: a chunk is
    not known, or the stream did not come to its end.
    """
    message: dict[str, Any] = {"role": "assistant", "content": None}
    ends = []
    for chunk in chunks:
        if (told := _told(chunk)) is None:
            return None
        delta, end = told
        if "whole" in delta:
            return delta["whole"]
        ends += [] if end is None else [end]
        _add(message, delta)
    return message if not ends or any(ends) else None


def _told(chunk: Any) -> tuple[dict[str, Any], bool | None] | None:
    """What a chunk adds to the message, and whether it is the last, if it tells; None: it is no
    chunk that is known.
    """
    match chunk:
        case {"error": error} if error:
            return None
        # No answer, or another one to the same question.
        case {"choices": []}:
            return {}, None
        case {"choices": [{"index": int(place)}, *_]} | {"delta": _, "index": int(place)} if (
            place and "type" not in chunk
        ):
            return {}, None
        case {"choices": [{"text": _, **rest}, *_], **more} if (rest or more) and (
            _BESIDE_A_TEXT.isdisjoint(rest.keys() | more.keys())
        ):
            return None
        case {"type": "content_block_start" | "content_block_delta", "index": place}:
            return _block(chunk.get("content_block") or chunk.get("delta"), place), None
        case {"contentBlockStart": Mapping() as block} | {"contentBlockDelta": Mapping() as block}:
            said = block.get("start") or block.get("delta")
            return _block(said, block.get("contentBlockIndex")), None
        case {"type": "response.completed" | "response.incomplete", "response": whole}:
            return {"whole": whole}, True
        case {"type": str(kind)} if kind.startswith("response.") and "role" not in chunk:
            return {}, False
        case Mapping():
            name = chunk.get("type") or next(iter(chunk), None)  # Bedrock's are their only field
            if isinstance(name, str) and name in _EVENTS:
                return {}, _EVENTS[name]
            if "type" in chunk and "delta" in chunk:
                return None
    for shape in _SHAPES if isinstance(chunk, Mapping) else ():
        if (said := _at(chunk, shape.says)) != () and shape.needs in ("", *chunk):
            end = _at(chunk, shape.ends)
            if shape.says == "token.text" and isinstance(end, str):
                return {"whole": {"role": "assistant", "content": end}}, True
            field = "so_far" if shape.needs == "meta_info" else "content"
            delta = said if isinstance(said, dict) and shape.says else {field: said}
            return delta if shape.says else {}, None if end == () else bool(end)
    return None


def _block(said: Any, place: Any) -> dict[str, Any]:
    """What is said in one of an answer's blocks."""
    if not isinstance(said, Mapping):
        return {}
    kind = {"type": str(said["type"]).removesuffix("_delta")} if "type" in said else {}
    return {"content": [{**said, **kind, "index": place}]}


def _add(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add what a chunk says: texts are joined, items of lists by their index."""
    for name, more in delta.items():
        have = message.get(name)
        if name == "so_far" and isinstance(more, str):
            before = message["content"] if isinstance(message["content"], str) else ""
            message["content"] = more if more.startswith(before) else before + more
        elif isinstance(more, list) and more:
            items = message[name] = have if isinstance(have, list) else []
            for item in more:
                if isinstance(item, Mapping):
                    _add(_continued(items, item), item)
                else:
                    items.append(item)
        elif isinstance(have, dict) and isinstance(more, Mapping):
            _add(have, more)
        elif isinstance(have, str) and isinstance(more, str):
            message[name] = have + more if name in _IN_PIECES else have or more
        elif more or have is None:
            message[name] = dict(more) if isinstance(more, Mapping) else more


def _continued(items: list[Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """The item that another one continues: that of its index; if it has none, a text before it, or
    a call if it has no name of its own; else a new one.
    """
    place, function = item.get("index"), item.get("function")
    last = [each for each in items if isinstance(each, dict) and each.get("index") == place][-1:]
    if last and place is None:
        nameless = isinstance(function, Mapping) and not function.get("name")
        last = last if nameless or ("text" in item and item.keys() == last[0].keys()) else []
    if not last or item.get("id") not in (None, "", last[0].get("id")):
        last = [{}]
        items += last
    return last[0]


def _at(value: Any, path: str) -> Any:
    """What stands at a path, in a list in its first item; an empty tuple: nothing does."""
    for name in filter(None, path.split(".")):
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, Mapping) or name not in value:
            return ()
        value = value[name]
    return value
