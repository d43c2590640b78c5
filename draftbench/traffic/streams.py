"""Joins the chunks in which an API streamed an answer, kept as a list, as lines of JSON or as
server-sent events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from draftbench.traffic.json_paths import at, parsed

# Server-sent events: comments and fields, of which one holds JSON.
_EVENTS = re.compile(r"\s*(?:(?::|event:|id:|retry:|data:)[^\n]*\n\s*)*data: ?(\{|\[)")
# How JSON of an API begins, of which the rest was cut off.
_OF_AN_API = re.compile(
    r"""\\*"(choices|candidates|delta|finish_reason|meta_info|generated_text|outputBodyJson)\\*":
    | \\*"(contentBlock\w*|content_block|messageStart)\\*":\ ?\{
    | \\*"(role\\*":\ ?\\*"assistant|type\\*":\ ?\\*"(message_start|response\.\w+))\\*"
    | \\*"(done|stop)\\*":\ ?(true|false) | \\*"token\\*":\ ?\{""",
    re.VERBOSE,
)
_MOST_SEARCHED = 2000
_SOMETHING = re.compile(r"\S")
# What stands beside the text of a completion; beside other things the model may have written it.
_BESIDE_A_TEXT = {"finish_reason", "index", "logprobs", "object", "model", "created", "id"}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def chunks_in(text: str) -> list[Any] | None:
    """The chunks of a stream that was kept as text, none if they are not whole; None: no stream."""
    if _EVENTS.match(text):
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
    return bool(chunks) and all(_delta(chunk) is not None for chunk in chunks)


def is_chunk(value: Mapping[str, Any]) -> bool:
    """Whether an object alone is a chunk, not the whole answer."""
    match value, _delta(dict(value)):
        case _, {"end": False}:
            return True
        case (({"choices": [{"delta": _}, *_]} | {"delta": _}), Mapping()):
            return True
    return False


def joined(chunks: list[Any]) -> Any:
    """The whole answer's text, its message, or the object that the last chunk holds; None: a chunk
    is not known, or the stream did not come to its end.
    """
    said = {"content": "", "reasoning_content": ""}
    calls: dict[Any, dict[str, Any]] = {}
    ends = []
    for delta in map(_delta, chunks):
        if delta is None:
            return None
        if "whole" in delta:
            return delta["whole"]
        if "end" in delta:
            ends.append(delta["end"])
        thought = next((delta[name] for name in _THOUGHTS if delta.get(name)), "")
        for name, text in (("content", delta.get("content") or ""), ("reasoning_content", thought)):
            if not isinstance(text, str):
                return None
            said[name] += text
        if "so_far" in delta:
            before, text = said["content"], delta["so_far"]
            said["content"] = text if text.startswith(before) else before + text
        for place, call in enumerate(_list(delta.get("tool_calls"))):
            _add_call(calls.setdefault(str(at(call, "index") or place), {}), call)
    if (ends and not any(ends)) or not (calls or any(said.values())):
        return None
    if not calls and not said["reasoning_content"]:
        return said["content"]
    message: dict[str, Any] = {"role": "assistant", "content": said["content"] or None}
    message |= {"tool_calls": list(calls.values())} if calls else {}
    thoughts = said["reasoning_content"]
    return message | ({"reasoning_content": thoughts} if thoughts else {})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _add_call(call: dict[str, Any], more: Any) -> None:
    """Add what a chunk says of a tool call: its name, then its arguments piece by piece."""
    function = call.setdefault("function", {"name": "", "arguments": ""})
    for name in function:
        piece = at(more, f"function.{name}")
        text = isinstance(piece, str) and isinstance(function[name], str)
        function[name] = function[name] + piece if text else piece or function[name]
    call["id"] = at(more, "id") or call.get("id")


def _delta(chunk: Any) -> dict[str, Any] | None:
    """What a chunk adds to a message, in the words of OpenAI's chat API, and whether it is the
    `end`, if it says that; `so_far` is all of the text up to it, `whole` the whole answer. None: it
    is no chunk that is known.
    """
    match chunk:
        case {"error": error} if error:
            return None
        # OpenAI's, with choices and as these alone.
        case {"choices": [{"index": int(place)}, *_]} | {"delta": _, "index": int(place)} if (
            place and "type" not in chunk
        ):
            return {}
        case {"choices": []}:
            return {}
        case {"choices": [{"delta": Mapping() | None as delta, **rest}, *_]}:
            return {**(delta or {}), **_end(rest, "finish_reason")}
        case {"choices": [{"text": str(text), **rest}, *_], **more} if not (
            rest or more
        ) or _BESIDE_A_TEXT & (rest.keys() | more.keys()):
            return {"content": text, **_end(rest, "finish_reason")}
        case {"delta": Mapping() as delta, "index": _, **rest} if "type" not in rest:
            return {**delta, **_end(rest, "finish_reason")}
        # Ollama's, llama.cpp's, TGI's, SGLang's.
        case {"message": Mapping() as message, "done": _}:
            return {**message, **_end(chunk, "done")}
        case {"response": str(text), "done": _}:
            return {"content": text, "thinking": chunk.get("thinking"), **_end(chunk, "done")}
        case {"content": str(text), "stop": bool()}:
            return {"content": text, **_end(chunk, "stop")}
        case {"token": {"text": str(text), **token}}:
            ended = _end(chunk, "generated_text")
            return {"content": "" if token.get("special") else text, **ended}
        case {"text": str(text), "meta_info": Mapping() as about}:
            return {"so_far": text, **_end(about, "finish_reason")}
        # Gemini's, Bedrock's.
        case {"candidates": [{"content": {"parts": [*parts]}, **rest}, *_]} if all(
            isinstance(at(part, "text"), str) for part in parts
        ):
            text = "".join(part["text"] for part in parts if not part.get("thought"))
            thought = "".join(part["text"] for part in parts if part.get("thought"))
            return {"content": text, "thinking": thought, **_end(rest, "finishReason")}
        case {"contentBlockDelta": {"delta": {"text": str(text)}}}:
            return {"content": text}
        case {"messageStart": _} | {"messageStop": _}:
            return {"end": "messageStop" in chunk}
        case {"contentBlockStop": _} | {"metadata": {"usage": _}}:
            return {}
        # Anthropic's and OpenAI's typed events.
        case {"type": "response.completed" | "response.incomplete", "response": whole}:
            return {"whole": whole}
        case {"type": "message_start" | "message_stop"}:
            return {"end": chunk["type"] == "message_stop"}
        case {"type": "ping" | "content_block_stop" | "message_delta"}:
            return {}
        case {"type": "content_block_start" | "content_block_delta", "index": place}:
            return _block_delta(place, chunk.get("content_block") or chunk.get("delta"))
        case {"type": str(kind), **rest} if kind.startswith("response.") and "role" not in rest:
            return {"end": False}
    return None


def _end(fields: Mapping[Any, Any], name: str) -> dict[str, Any]:
    return {"end": bool(fields[name])} if name in fields else {}


def _block_delta(place: Any, block: Any) -> dict[str, Any] | None:
    """What an Anthropic event adds to one of the answer's blocks."""
    match block:
        case {"type": "text" | "text_delta", "text": str(text)}:
            return {"content": text}
        case {"type": "thinking" | "thinking_delta", "thinking": str(text)}:
            return {"thinking": text}
        case {"type": "signature_delta"}:
            return {}
        case {"type": "tool_use", "name": str(name)}:
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": place, "id": block.get("id"), "function": function}]}
        case {"type": "input_json_delta", "partial_json": str(text)}:
            return {"tool_calls": [{"index": place, "function": {"arguments": text}}]}
    return None
