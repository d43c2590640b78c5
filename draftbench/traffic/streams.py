"""Joins the chunks in which an API streamed an answer, kept as a list, as lines of JSON or as
server-sent events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "reasoningContent")


class _Shape(NamedTuple):
    """A chunk of an API."""

    says: str  # where it says something; in a list its first item does
    ends: str = ""  # where it tells whether it is the last
    needs: str = ""  # what else stands in it
    so_far: bool = False  # whether it repeats the text of those before it


_SHAPES = (
    _Shape("choices.delta", "choices.finish_reason"),
    _Shape("choices.text", "choices.finish_reason"),
    _Shape("delta", "finish_reason", needs="index"),  # a choice alone
    _Shape("message", "done", needs="done"),  # Ollama's
    _Shape("response", "done", needs="done"),
    _Shape("content", "stop", needs="stop"),  # llama.cpp's
    _Shape("token", "generated_text"),  # TGI's
    _Shape("text", "meta_info.finish_reason", needs="meta_info", so_far=True),  # SGLang's
    _Shape("candidates.content", "candidates.finishReason"),  # Gemini's
    _Shape("contentBlockDelta.delta"),  # Bedrock's
)
# Events that say nothing: of Anthropic, Bedrock, and Gemini's last.
_SILENT = {"ping", "content_block_stop", "message_delta"}
_EMPTY = ("contentBlockStop", "metadata.usage", "candidates.finishReason")


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
    return bool(chunks) and all(_Joined().add(chunk) for chunk in chunks)


def is_chunk(value: Mapping[str, Any]) -> bool:
    """Whether an object alone is a chunk, not the whole answer."""
    alone = _Joined()
    return alone.add(value) and (alone.ends == [False] or _at(value, "choices.delta") is not None)


def joined(chunks: list[Any]) -> Any:
    """The whole answer's text, its message, or the object that the last chunk holds; None: a chunk
    is not known, or the stream did not come to its end.
    """
    answer = _Joined()
    if not all(map(answer.add, chunks)):
        return None
    return answer.whole or answer.message()


class _Joined:
    """What the chunks of an answer said so far."""

    def __init__(self) -> None:
        self.text, self.thoughts = "", ""
        self.calls: dict[Any, dict[str, Any]] = {}
        self.ends: list[bool] = []  # whether it was the last, of each chunk that tells
        self.whole: Any = None  # the object that holds the whole answer

    def message(self) -> Any:
        """The text, or the message if it holds more; None: nothing, or it lacks its end."""
        if (self.ends and not any(self.ends)) or not (self.calls or self.text or self.thoughts):
            return None
        if not self.calls and not self.thoughts:
            return self.text
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        message |= {"tool_calls": list(self.calls.values())} if self.calls else {}
        return message | ({"reasoning_content": self.thoughts} if self.thoughts else {})

    def add(self, chunk: Any) -> bool:
        """Add what a chunk says; whether it is one that is known."""
        match chunk:
            case {"error": error} if error:
                return False
            # Another answer to the same question, or no answer.
            case {"choices": [{"index": int(place)}, *_]} | {"delta": _, "index": int(place)} if (
                place and "type" not in chunk
            ):
                return True
            case {"choices": []}:
                return True
            case {"type": "response.completed" | "response.incomplete", "response": whole}:
                self.whole = self.whole or whole
                return True
            case {"type": "message_start" | "message_stop"} | {"messageStart": _}:
                self.ends.append(chunk.get("type") == "message_stop")
                return True
            case {"messageStop": _}:
                self.ends.append(True)
                return True
            case {"type": "content_block_start" | "content_block_delta", "index": place}:
                return self._say(chunk.get("content_block") or chunk.get("delta"), place)
            case {"type": str(kind)} if kind in _SILENT:
                return True
            case {"type": str(kind)} if kind.startswith("response.") and "role" not in chunk:
                self.ends.append(False)
                return True
            case {"choices": [{"text": str(), **rest}, *_], **more} if (rest or more) and (
                _BESIDE_A_TEXT.isdisjoint(rest.keys() | more.keys())
            ):
                return False
            case {"type": _, "delta": _}:
                return False
        for shape in _SHAPES if isinstance(chunk, Mapping) else ():
            if (said := _at(chunk, shape.says)) is not None and shape.needs in {"", *chunk}:
                if (end := _at(chunk, shape.ends)) is not None:
                    self.ends.append(bool(end[0]))
                if shape.so_far and isinstance(said[0], str) and said[0].startswith(self.text):
                    self.text = ""
                return self._say(said[0])
        silent = any(_at(chunk, place) is not None for place in _EMPTY)
        if silent and (end := _at(chunk, "candidates.finishReason")):
            self.ends.append(bool(end[0]))
        return silent

    def _say(self, said: Any, place: Any = None) -> bool:
        """Add a piece of text, of reasoning or of a call; whether it is one that is known.

        Args:
            place: the number of the answer's block that it belongs to.
        """
        match said:
            case None | {"special": True} | {"type": "signature_delta" | "citations_delta"}:
                return True
            case str():
                self.text += said
                return True
            case list():
                return all(self._say(each, place) for each in said)
            case {"type": "tool_use", "name": str(name)}:
                return self._call({"index": place, "id": said.get("id"), "name": name})
            case {"type": "input_json_delta", "partial_json": str(text)}:
                return self._call({"index": place, "arguments": text})
            case {"functionCall": Mapping() as call}:  # Gemini's
                return self._call({**call, "arguments": call.get("args")})
            case {"text": str(text), "thought": True} | {"type": "reasoning.text", "text": str(text)}:
                self.thoughts += text
                return True
            case {"type": str(kind)} if not kind.startswith(("text", "thinking")):
                return kind.startswith("reasoning.")
            case Mapping():
                thought = next((said[name] for name in _THOUGHTS if said.get(name)), None)
                calls = said.get("tool_calls") or []
                old = said.get("function_call")
                said = next((said[n] for n in ("content", "text", "parts") if n in said), None)
                return (
                    self._think(thought)
                    and isinstance(calls, list)
                    and all(map(self._call, calls))
                    and (not old or self._call(old, "function_call"))
                    and (said is None or self._say(said, place))
                )
        return False

    def _think(self, thought: Any) -> bool:
        before, self.text = self.text, ""
        known = self._say(thought)
        self.thoughts, self.text = self.thoughts + self.text, before
        return known

    def _call(self, call: Any, place: Any = None) -> bool:
        """Add a piece of a tool call: its name, which may be repeated, then its arguments. One that
        does not say of which call it is begins another if it has a name.
        """
        function = at(call, "function") or call
        if not isinstance(function, Mapping):
            return False
        name, more = function.get("name"), function.get("arguments")
        place = call.get("index") if place is None else place
        if place is None:
            place = len(self.calls) - (not name)
        known = self.calls.setdefault(
            str(place), {"id": None, "function": {"name": "", "arguments": ""}}
        )
        known["id"] = call.get("id") or known["id"]
        said = known["function"]
        said["name"] += name if isinstance(name, str) and name != said["name"] else ""
        text = isinstance(more, str) and isinstance(said["arguments"], str)
        said["arguments"] = said["arguments"] + more if text else more or said["arguments"]
        return True


def _at(value: Any, path: str) -> list[Any] | None:
    """What stands at a path, in a list in its first item, as the only item of a list; None:
    nothing does.
    """
    for name in path.split("."):
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return [value]
