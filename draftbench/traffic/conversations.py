"""Logged conversations → the messages that a chat template renders, and the answer that was logged.

Messages keep the OpenAI shape, with their text as one string and tool call arguments as objects.
What a certain template does with them is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from draftbench.traffic.problems import BadRowError, NotRepresentableError

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}


def split_sharegpt(turns: Any) -> tuple[list[dict[str, Any]], str | None]:
    """Take the messages up to the last human turn, and the answer that follows it.

    Raises:
        BadRowError: not a list of turns, or none of them a human's.
        NotRepresentableError: a turn of somebody else than human, assistant and system.
    """
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


def split_answer(messages: Any) -> tuple[Any, str | None]:
    """Take the assistant's closing answer off a logged conversation; leave anything else."""
    match messages:
        case [_, *_, {"role": "assistant", **answer}]:
            content = answer.get("content")
            return messages[:-1], content if isinstance(content, str) else None
    return messages, None


def read_messages(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Check and normalise chat messages.

    Raises:
        BadRowError: a message without role or content, or no message with a text.
        NotRepresentableError: content other than text.
    """
    read = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    if not any(message["content"].strip() for message in read if message.get("content")):
        raise BadRowError("the messages are empty")
    return read


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise BadRowError(f"{where} has no `role`")
    # Tables fill missing fields with nulls, which templates would take for given ones.
    kept = {
        name: value for name, value in message.items() if value is not None or name == "content"
    }
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = _joined(content, where)
    elif not isinstance(content, str) and not (content is None and kept.get("tool_calls")):
        raise BadRowError(f"{where} has no text as `content`")
    if "tool_calls" in kept:
        kept["tool_calls"] = _tool_calls(kept["tool_calls"], where)
    return kept


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
    """Decode the arguments: JSON text in the API, an object in chat templates."""
    read = []
    for call in calls if isinstance(calls, list) else [calls]:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            raise BadRowError(f"{where} has a tool call without `function`")
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = msgspec.json.decode(function["arguments"] or "{}")
            except msgspec.DecodeError:
                raise BadRowError(f"{where} has tool call arguments that are not JSON") from None
        read.append({**call, "function": function})
    return read
