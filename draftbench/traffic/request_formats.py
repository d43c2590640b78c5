"""Finds the request in a log's raw row, whatever program wrote the log.

`FORMS` lists the ways to write a request, `BODIES` and `PARTS` the places in a row where it may be,
`BLOCKS` where its sampling parameters are, `SYSTEMS` where its system text is. A request means the
same in every place. For every object around the request it records what was not read: in `parts` if
it belongs to the prompt (the row may then be left out), otherwise in `unread` (listed as ignored).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from draftbench.traffic.answers import ANSWERS, LoggedAnswer, has_answer, message_of
from draftbench.traffic.errors import (
    BadRowError,
    LengthsOnlyError,
    NoTrafficError,
    NotRepresentableError,
    UnknownFormError,
    readable_names,
)
from draftbench.traffic.json_paths import at, is_cut, splits, unpacked
from draftbench.traffic.messages import BEGUN, messages_of, readable, role_of, speaker_of
from draftbench.traffic.request_settings import SETTINGS, setting_value
from draftbench.traffic.setting_names import COLUMNS, HARMLESS, PADDING

# Places that hold the body of an API call and nothing else; what surrounds it is the log's.
BODIES = (
    *("body", "request.body", "request", "request_body"),
    *("proxy_server_request.body", "proxy_server_request", "input.inputBodyJson", "params"),
)
# Places that hold part of a request; the rest is beside them.
PARTS = ("input", "attributes", "inputs", "prompt")
# Objects beside a prompt that hold its sampling parameters. The first two are also names for the
# choices of a quiz and for a schema, which set nothing.
BLOCKS = (
    *("options", "parameters", "sampling_params", "model_parameters", "modelParameters"),
    *("extra_body", "gen_ai.request", "llm.invocation_parameters", "extra.invocation_params"),
    *("inferenceConfig", "additionalModelRequestFields", "generationConfig"),
)
# Fields beside a prompt or a conversation that hold its system text.
SYSTEMS = (
    *("system", "system_prompt", "systemPrompt", "system_message", "system_instruction"),
    *("systemInstruction", "gen_ai.system_instructions"),
)
# Where a row keeps what is read from it beside the request.
SEGMENTS = ("segment", "category", "tags.segment")
# Settings with which a server repeats the prompt in its answer.
_REPEATING = ("echo", "return_full_text")
_EMPTY: tuple[Any, ...] = ("", [], {}, *PADDING)
_TEXT = str | int | float
_BESIDE_A_REQUEST = (*ANSWERS, *SEGMENTS, "timestamp", "model")
_PARAMETERS = SETTINGS | {"do_sample", "details", "return_full_text"}
# Fields that may accompany a bare text sent to SGLang, TGI or AIPerf.
_BESIDE_A_TEXT = HARMLESS | SETTINGS | {
    *BLOCKS, "text", "text_input", "inputs", "system", "type", "timestamp", "delay", "role",
    "output_length",
}  # fmt: skip
# Models that do not answer an `input` but embed, judge or speak it.
_NO_ANSWER = re.compile(r"embed|moderation|rerank|\b(bge|gte|e5|minilm|tts)\b", re.IGNORECASE)
# Fields of traces that record only the lengths of requests, not their text.
_LENGTHS = (
    {"input_length", "output_length"},  # Mooncake
    {"ContextTokens", "GeneratedTokens"},  # Azure
    {"Request tokens", "Response tokens"},  # BurstGPT
)


@dataclass(frozen=True)
class LoggedRequest:
    """What a log's row asks a model."""

    content: Any  # a text, or turns of a conversation
    read: tuple[str, ...] = ()  # the paths of what a form read for it
    answer: LoggedAnswer | None = None  # with which a logged conversation ends
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Whether it was sent to a server, whose default is temperature 1; None: nothing says so.
    server: bool | None = None
    repeated: bool = False  # whether the logged answer begins with the prompt
    form: str = ""  # the name of the form in which it was written
    parts: Sequence[tuple[str, Any]] = ()  # of a prompt, that were not read: where, and what
    unread: Mapping[str, Any] = field(default_factory=dict)  # what else was not read


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _with_system(
    fields: Mapping[str, Any], request: LoggedRequest, *, chat: bool
) -> tuple[LoggedRequest, list[str]]:
    """The request with the system text that an object keeps separately put before it, and the names
    under which that was found.

    Args:
        chat: whether a system text makes a plain prompt a user's message.
    """
    found = {name: turns for name in SYSTEMS if (turns := _system(at(fields, name)))}
    content = request.content
    if not found or str(fields.get("raw")).lower() == "true":
        return request, list(found)
    if isinstance(content, str) and chat:
        content = [_user(content)]
    if not isinstance(content, list):
        return request, []
    said = {_text(turn).strip() for turn in content if _is_system(turn)}
    texts: dict[str, str] = {}
    for text in (_text(turn) for turns in found.values() for turn in turns):
        texts.setdefault(text.strip(), text)
    others = [{"role": "system", "content": texts[it]} for it in texts if it not in said]
    if others and len(others) + len(said) > 1:
        raise NotRepresentableError("several system texts")
    return replace(request, content=[*others, *content]), list(found)


def _system(value: Any) -> list[dict[str, Any]]:
    """The messages of a system text, in whatever way it is written; none if it is not one."""
    match unpacked(value):
        case {"role": _} as turn if _is_system(turn):
            return [turn]
        case [{"role": _}, *_] as turns if all(map(_is_system, turns)):
            return turns
        case {"parts": list(parts)} | ([{"type": _} | {"text": _} | str(), *_] as parts):
            return [{"role": "system", "content": parts}]
        case {"text": str()} as part:
            return [{"role": "system", "content": [part]}]
    text = isinstance(value, str) and value not in _EMPTY and value.strip()
    return [{"role": "system", "content": value}] if text else []


def _is_system(turn: Any) -> bool:
    return speaker_of(turn) == "system"


def _text(turn: Any) -> str:
    return messages_of([turn], set())[0]["content"] or ""


def _turns_in(value: Any) -> LoggedRequest | None:
    """A conversation's turns, in any API's or data set's format; None for anything else."""
    match unpacked(value):
        case {"role": "user" | "system" | "developer" | "human", "content": _} as turn:
            return LoggedRequest([turn])
        case [{"role": _} | {"lc": _} | {"type": "human" | "system", "content": _}, *_] as turns:
            return LoggedRequest(turns)
        case [{"from": _, "value": _}, *_] as turns:
            return _sharegpt(turns)
    return None


def _messages(call: Mapping[str, Any]) -> LoggedRequest | None:
    messages = unpacked(at(call, "messages"))
    if messages in (None, *PADDING) or (not messages and call.get("prompt")):
        return None
    if "messages" not in call and not isinstance(messages, list):  # columns that speak of messages
        return None
    if not isinstance(messages, list):
        raise BadRowError("`messages` is not a list")
    match messages:
        case [list(first)]:  # LangSmith's
            return LoggedRequest(first, ("messages",))
        case [list(), *_]:
            raise NotRepresentableError("messages of several prompts")
    return LoggedRequest(messages, ("messages",))


def _prompt(call: Mapping[str, Any]) -> LoggedRequest | None:
    prompt, raw = call.get("prompt"), str(call.get("raw")).lower() == "true"
    read = ("prompt", "raw")
    if turns := _turns_in(prompt):
        return replace(turns, read=read)
    match prompt, unpacked(prompt):
        case (None | Mapping(), _) | (_, {"messages": _} | {"conversations": _}):  # see `PARTS`
            return None
        case list(), _:
            raise NotRepresentableError("prompt as a list")
        # A server that takes `options` beside a prompt (Ollama's) makes it a chat.
        case str(text), _ if _block(call, "options") and not raw:
            return LoggedRequest([_user(text)], read)
    return LoggedRequest(prompt, read)


def _gemini(call: Mapping[str, Any]) -> LoggedRequest | None:
    match unpacked(call.get("contents")):
        case [{"parts": _}, *_] as turns if all(isinstance(turn, Mapping) for turn in turns):
            choice = {"AUTO": "auto", "ANY": "required", "NONE": "none"}
            mode = at(call, place := "toolConfig.functionCallingConfig.mode")
            settings = {"tool_choice": choice.get(str(mode))}
            said = [{"role": "user", **turn} for turn in turns]
            return LoggedRequest(said, ("contents", place), settings=settings)
    return None


def _ollama(call: Mapping[str, Any]) -> LoggedRequest | None:
    return (_messages(call) or _prompt(call)) if _block(call, "options") else None


def _custom(call: Mapping[str, Any]) -> LoggedRequest | None:
    length = call.get("output_tokens")
    # Beside an answer or the prompt's count it is the answer's length, not a limit.
    if length is None or {"response", "completion", "output", "input_tokens"} & call.keys():
        return None
    if (request := _prompt(call)) is None:
        return None
    limit = {"max_tokens": call.get("max_tokens", length)}
    return replace(request, settings=limit, read=(*request.read, "output_tokens"))


def _bedrock(call: Mapping[str, Any]) -> LoggedRequest | None:
    if not {"inferenceConfig", "toolConfig"} & call.keys():
        return None
    places = {"tools": "toolConfig.tools", "tool_choice": "toolConfig.toolChoice"}
    tools = {name: at(call, places[name]) for name in places}
    request = _messages(call)
    return request and replace(request, settings=tools, read=(*request.read, *places.values()))


def _conversations(call: Mapping[str, Any]) -> LoggedRequest | None:
    turns = unpacked(call.get("conversations"))
    if turns in (None, *PADDING):
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRowError("`conversations` is not a list of objects")
    plain = turns and all("role" in turn for turn in turns)
    return replace(LoggedRequest(turns) if plain else _sharegpt(turns), read=("conversations",))


def _conversation(call: Mapping[str, Any]) -> LoggedRequest | None:
    turns = _turns_in(call.get("conversation"))
    return turns and replace(turns, read=("conversation",))


def _sharegpt(turns: list[dict[str, Any]]) -> LoggedRequest:
    """The turns up to the last human one and the tools' output after it, and the answer."""
    roles = [role_of(str(turn.get("from"))) for turn in turns]
    if "user" not in roles:
        raise BadRowError("`conversations` has no human turn")
    end = max(n for n, role in enumerate(roles, start=1) if role in ("user", "tool"))
    answers = roles[end : end + 1] == ["assistant"]
    return LoggedRequest(turns[:end], answer=message_of(turns[end]) if answers else None)


def _responses(call: Mapping[str, Any]) -> LoggedRequest | None:
    read: tuple[str, ...] = ("input",)
    match call.get("input"), unpacked(call.get("input")):
        case _, [{"role": _} | {"type": _} | {"lc": _}, *_] as items:
            content = items
        case _, Mapping() as inner if PROMPTS & inner.keys():  # Langfuse: a part of the request
            return None
        case str(text), _ if {"modelParameters", "provided_model_name"} & call.keys():
            return LoggedRequest(text, read)  # Langfuse: a completion
        case str(text), _ if "model" in call and not _unanswered(call):
            content = [_user(text)]
        case _:
            return None
    if call.get("previous_response_id") not in (None, *_EMPTY):
        raise NotRepresentableError("previous_response_id")
    places = {"reasoning_effort": "reasoning.effort", "response_format": "text.format"}
    if before := _system(call.get("instructions")):
        content, read = [*before, *content], (*read, "instructions")
    settings = {name: at(call, places[name]) for name in places}
    return LoggedRequest(content, (*read, *places.values()), settings=settings)


def _unanswered(call: Mapping[str, Any]) -> bool:
    other = {"encoding_format", "dimensions", "input_type", "voice"} & call.keys()
    return bool(other or _NO_ANSWER.search(str(call["model"])))


def _sglang(call: Mapping[str, Any]) -> LoggedRequest | None:
    given = _block(call, "sampling_params") is not None
    text = call.get("text")
    return LoggedRequest(text, ("text",)) if given and isinstance(text, str) else None


def _tgi(call: Mapping[str, Any]) -> LoggedRequest | None:
    given = _block(call, "parameters")
    alone = call.keys() <= _BESIDE_A_TEXT
    if not isinstance(call.get("inputs"), str) or (given is None and not alone):
        return None
    # TGI samples where any setting narrows the choice (text_generation_server/utils/tokens.py).
    neutral = {"do_sample": False, "temperature": 1, "top_p": 1, "typical_p": 1, "top_k": 0}
    greedy = all(((given or {}).get(name) or off) == off for name, off in neutral.items())
    if not greedy or (given is None and _has_temperature(call)):
        return LoggedRequest(call["inputs"], ("inputs",))
    return LoggedRequest(call["inputs"], ("inputs", "temperature"), settings={"temperature": 0.0})


def _has_temperature(fields: Mapping[str, Any]) -> bool:
    blocks = (_block(fields, name) for name in BLOCKS)
    return "temperature" in fields or any(block and _has_temperature(block) for block in blocks)


def _text_alone(call: Mapping[str, Any]) -> LoggedRequest | None:
    name = "text" if "text" in call else "text_input"
    if not isinstance(call.get(name), str) or not call.keys() <= _BESIDE_A_TEXT:
        return None
    limit = {"max_tokens": call.get("output_length")}
    return LoggedRequest(call[name], (name, "output_length"), settings=limit)


def _telemetry(call: Mapping[str, Any]) -> LoggedRequest | None:
    places = ("gen_ai.input.messages", "gen_ai.prompt")  # the second is OpenLLMetry's
    found = ((place, unpacked(at(call, place))) for place in places)
    place, messages = next((each for each in found if isinstance(each[1], list)), ("", None))
    if messages is None:
        return None
    if (at(call, "gen_ai.output.type") or "text") != "text":
        raise NotRepresentableError("gen_ai.output.type")
    functions, defined = at(call, "llm.request.functions"), at(call, "gen_ai.tool.definitions")
    tools = [
        {"type": "function", **{name: unpacked(each[name]) for name in each}}
        if isinstance(each, Mapping)
        else each
        for each in (functions if isinstance(functions, list) else [])
    ]
    return LoggedRequest(
        messages,
        (place, "gen_ai.tool.definitions", "gen_ai.output.type", "llm.request.functions"),
        settings={"tools": tools or defined},
    )


def _openinference(call: Mapping[str, Any]) -> LoggedRequest | None:
    messages, tools = at(call, "llm.input_messages"), at(call, "llm.tools")
    if not isinstance(messages, list):
        return None
    if isinstance(tools, list):
        tools = [unpacked(at(tool, "tool.json_schema")) for tool in tools] or None
    # `input.value` is the same once more, as the program gave it.
    read = ("llm.input_messages", "llm.tools", "input.value", "input.mime_type")
    return LoggedRequest(messages, read, settings={"tools": tools})


def _turns(call: Mapping[str, Any]) -> LoggedRequest | None:
    match unpacked(call.get("turns")):
        # Only the first turn: a later one needs the answers before it.
        case [str(first), *_] | [{"text": str(first)}, *_]:
            return LoggedRequest([_user(first)], ("turns",))
    return None


def _alpaca(call: Mapping[str, Any]) -> LoggedRequest | None:
    match call:
        case {"instruction": str(instruction), "output": _} | {
            "instruction": str(instruction),
            "response": _,
        }:
            # Dolly calls the input `context`; a structure is left.
            names = (name for name in ("input", "context") if isinstance(call.get(name), _TEXT))
            beside = [name for name in names if call[name] not in _EMPTY][:1]
            text = "\n".join([instruction, *(str(call[name]) for name in beside)])
            turns = [*_history(call.get("history")), _user(text)]
            return LoggedRequest(turns, ("instruction", "history", *beside))
    return None


def _history(value: Any) -> list[dict[str, Any]]:
    """The earlier questions and answers in a data set's row."""
    pairs = [] if value in _EMPTY else unpacked(value) or []
    turns = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str(asked), str(answer)]:
                turns += [_user(asked), {"role": "assistant", "content": answer}]
            case _:
                raise BadRowError("`history` is not a list of questions with their answers")
    return turns


@dataclass(frozen=True)
class Form:
    """A way to write a request."""

    name: str
    example: str
    read: Callable[[Mapping[str, Any]], LoggedRequest | None]  # None: the object is of another form
    prompts: tuple[str, ...]  # the fields under which it may keep its prompt
    # Whether a request in this form was sent to a server; None: if the row names a `model`.
    server: bool | None = False
    logged: bool = False  # whether its last message may be the logged answer


# The forms that are recognised; the first that fits is used.
# fmt: off
FORMS = (
    Form("ShareGPT", '{"conversations": [{"from": "human", "value": "…"}, …]}',
         _conversations, ("conversations",), logged=True),
    Form("Bedrock", '{"messages": […], "inferenceConfig": {"temperature": 0.7}}',
         _bedrock, ("messages",), server=True),
    Form("Gemini", '{"contents": [{"role": "user", "parts": [{"text": "…"}]}], …}',
         _gemini, ("contents",), server=None, logged=True),
    Form("Ollama", '{"messages": […], "options": {"temperature": 0.7}}, or with a `prompt`',
         _ollama, ("messages", "prompt"), server=True),
    Form("messages", '{"messages": [{"role": "user", "content": "…"}]}, also with a `system`',
         _messages, ("messages",), server=None, logged=True),
    Form("vLLM custom", '{"prompt": "…", "output_tokens": 128}', _custom, ("prompt",)),
    Form("prompt", '{"prompt": "…"}', _prompt, ("prompt",), server=None, logged=True),
    Form("conversation", '{"conversation": [{"role": "user", "content": "…"}, …]}',
         _conversation, ("conversation",), logged=True),
    Form("Responses or Langfuse", '{"model": "…", "input": "…", "instructions": "…"}',
         _responses, ("input",), server=True),
    Form("SGLang", '{"text": "…", "sampling_params": {"temperature": 0.7}}',
         _sglang, ("text",), server=True),
    Form("TGI", '{"inputs": "…", "parameters": {"temperature": 0.7}}',
         _tgi, ("inputs",), server=True),
    Form("text", '{"text": "…"}, as AIPerf has it, alone or with its other fields',
         _text_alone, ("text", "text_input"), server=None),
    Form("OpenTelemetry", '{"gen_ai.input.messages": […], "gen_ai.request.temperature": 0.7}',
         _telemetry, ("gen_ai.input.messages", "gen_ai.prompt"), server=True),
    Form("OpenInference", '{"llm.input_messages.0.message.content": "…", …}',
         _openinference, ("llm.input_messages",), server=True),
    Form("turns", '{"turns": ["…", …]}, of which the first is asked', _turns, ("turns",)),
    Form("Alpaca", '{"instruction": "…", "input": "…", "output": "…"}, also with a `history`',
         _alpaca, ("instruction",)),
)
# fmt: on
PROMPTS = frozenset(name for form in FORMS for name in form.prompts)
# Fields that are part of a prompt wherever they are; tools and what is not text count as settings.
_OF_PROMPTS = PROMPTS | {
    *SYSTEMS, "instructions", "context", "documents", "choices", "chat_history", "preamble",
    "promptVariables", "prompt_variables", "variables", "prompt_template", "promptTemplate",
    "contexts", "retrieved_context", "retrieved_contexts", "retrieved_documents", "cachedContent",
}  # fmt: skip
_AT_FIELD = "--prompt-field"
# How many objects of a row are searched for a request.
_MOST_SEARCHED = 100


def find_request(row: Mapping[str, Any], prompt_field: str | None) -> LoggedRequest:
    """The request of a row; `prompt_field` is a dotted path to its prompt (None: the usual places).

    Raises:
        UnknownFormError: there is no known form in a known place.
        LengthsOnlyError: the row comes from a trace without texts.
        BadRowError, NotRepresentableError: there is a request that cannot be used.
    """
    if prompt_field is not None:
        return _at_prompt_field(row, prompt_field)
    for place in (*BODIES, "", *PARTS):
        call = unpacked(at(row, place))
        if place in BODIES and is_cut(call):
            raise NoTrafficError("cut by the logger")
        if not isinstance(call, Mapping):
            continue
        if "litellm_truncated" in call:
            raise NoTrafficError("cut by the logger")
        if request := _request_in(
            call, place, whole=place in BODIES, server=place not in ("", "prompt")
        ):
            for prefix, fields, child, _ in _around(row, place):
                request = _with_fields(request, fields, prefix, (child,), around=True)
            return request
        if place in BODIES and "input" in call:  # an embedding
            raise NotRepresentableError("input")
    if at(row, "input.inputBodyS3Path"):
        raise NoTrafficError("kept elsewhere by the logger")
    if any(names <= row.keys() for names in _LENGTHS):
        raise LengthsOnlyError("a trace of lengths only, without any text")
    raise UnknownFormError(row, found=_elsewhere(row))


def _elsewhere(row: Mapping[str, Any]) -> str | None:
    """Where a row of unknown form holds a request: a conversation if there is one, else a text."""
    texts: list[str] = []
    objects = [("", row)]
    for path, fields in objects:  # which grow meanwhile
        for name in readable_names(fields) if len(objects) < _MOST_SEARCHED else ():
            if name in _OF_PROMPTS - PROMPTS:
                continue
            place, value = _join(path, name), unpacked(fields[name])
            if isinstance(value, Mapping):
                objects.append((place, value))
            # What cannot be used is not pointed at.
            with suppress(BadRowError, NotRepresentableError, NoTrafficError):
                is_object = isinstance(value, Mapping)
                request = _request_in(value, place, server=True) if is_object else _turns_in(value)
                match request and request.content:
                    case list() as turns if "user" in map(speaker_of, turns):
                        return place
                    case str():
                        texts.append(place)
    return next(iter(texts), None)


def _at_prompt_field(row: Mapping[str, Any], path: str) -> LoggedRequest:
    """The request whose prompt is at a path, with what the objects around it say about it."""
    if (found := at(row, path)) is None:
        raise UnknownFormError(row, path)
    content, request, unread = unpacked(found), None, {}
    holders = list(_around(row, path))
    if isinstance(content, Mapping):
        request = _request_in(content, path, server=True)
    around = holders
    for depth, holder in reversed(list(enumerate(holders, start=1))):
        if request is None and holder.rest in PROMPTS:
            others = [name for name in holder.fields if name in PROMPTS - {holder.rest}]
            call = {name: holder.fields[name] for name in holder.fields if name not in others}
            if request := _request_in(call, holder.prefix):
                around = holders[depth:]
                unread = {_join(holder.prefix, name): holder.fields[name] for name in others}
    if request is None:  # undecoded, since a prompt may happen to be JSON
        turns = _turns_in(content)
        request = _answered(turns) if turns else LoggedRequest(found)
    bodies = {
        name: unpacked(at(row, name)) for name in BODIES if not f"{path}.".startswith(f"{name}.")
    }
    for name, body in bodies.items():
        if isinstance(body, Mapping):
            request = _with_fields(request, body, name, ("body",), around=True)
    for prefix, fields, child, _ in around:
        read = (child, *bodies)
        request = _with_fields(request, fields, prefix, read, around=True, chat=True)
    if request.server is None:
        wrapped = any(name in BODIES for name, _ in splits(path))
        models = (
            at(each.fields, name) for each in holders for name in ("model", "gen_ai.request.model")
        )
        request = replace(request, server=wrapped or any(models))
    unread |= {**request.unread, **dict(request.parts)}
    return replace(request, form=_AT_FIELD, parts=(), unread=unread)


def _request_in(
    call: Mapping[str, Any], prefix: str, *, whole: bool = False, server: bool = False
) -> LoggedRequest | None:
    """The request in an object.

    Args:
        prefix: the object's path in its row.
        whole: whether it is the body of an API call and nothing else.
        server: whether its place shows that it was sent to a server.
    """
    for form in FORMS:
        # A body that was sent to a server has none of the forms of data sets.
        request = None if whole and form.server is False else form.read(call)
        if request is None:
            continue
        if form.logged and not whole:
            request = _answered(request)
        elif whole and _is_continued(call, request.content):
            raise NotRepresentableError("an assistant message for the model to continue")
        own, read = request.settings, request.read
        sent = ("model" in call or None) if form.server is None else form.server
        request = replace(request, settings={}, server=server or sent)
        request = _with_fields(request, call, prefix, read, whole=whole, chat=True)
        named = "OpenAI request" if whole and form.name in ("messages", "prompt") else form.name
        settings = dict(request.settings)
        for name, value in own.items():
            settings[name] = value if name in read else _agreed(name, settings.get(name), value)
        return replace(request, settings=settings, form=named)
    return None


def _answered(request: LoggedRequest) -> LoggedRequest:
    """A conversation that ends with the assistant, as a request and its answer."""
    match request.content:
        case [_, *_, Mapping() as last] if speaker_of(last) == "assistant":
            if not any(map(last.get, BEGUN)):
                return replace(request, content=request.content[:-1], answer=message_of(last))
    return request


def _is_continued(call: Mapping[str, Any], content: Any) -> bool:
    """Whether the last message begins the answer, which the model continues (Anthropic, Gemini)."""
    match content:
        case [*_, {"role": "assistant"}]:
            known = {"anthropic_version", "stop_sequences", "inferenceConfig"} & call.keys()
            return bool(known) or "claude" in str(call.get("model"))
        case [*_, {"role": "model"}]:  # Gemini's
            return True
    return False


class _Around(NamedTuple):
    """One of a row's objects on the way to a path."""

    prefix: str  # its own path
    fields: Mapping[str, Any]
    child: str  # its field through which the path continues
    rest: str  # the path from this object on


def _around(row: Mapping[str, Any], path: str) -> Iterator[_Around]:
    """The objects on the way to a path, the innermost first."""
    heads = [("", path), *splits(path)] if path else []
    child = path
    for prefix, rest in reversed(heads):
        fields = unpacked(at(row, prefix))
        if isinstance(fields, Mapping):
            yield _Around(prefix, fields, child[len(prefix) :].removeprefix("."), rest)
            child = prefix


def _with_fields(
    request: LoggedRequest,
    fields: Mapping[str, Any],
    prefix: str,
    read: Collection[str] = (),
    *,
    whole: bool = False,
    around: bool = False,
    chat: bool = False,
) -> LoggedRequest:
    """Add an object's system text and settings to the request, and list its other fields as unread.

    Args:
        prefix: the object's path in its row.
        read: the paths that were read in it before.
        whole: whether all its fields are an API's, so that no unknown field is ignored.
        around: whether it surrounds the request rather than being it.
        chat: whether a system text makes a plain prompt a user's message.
    """
    request, systems = _with_system(fields, request, chat=chat)
    blocks = {name: block for name in BLOCKS if (block := _block(fields, name)) is not None}
    settings = dict(request.settings)
    parts, unread = list(request.parts), dict(request.unread)
    # Some names are an API's in a request that was sent to a server, and elsewhere any column's.
    sent = whole or (request.server and not around)
    known = SETTINGS if sent else SETTINGS - COLUMNS
    for name, value in _left(fields, (*read, *systems, *blocks, *_read_beside(fields, prefix))):
        path = _join(prefix, name)
        if name in _REPEATING and str(value).lower() == "true":
            request = replace(request, repeated=True)
        if name in known:
            settings[name] = _agreed(name, settings.get(name), value)
        elif value in _EMPTY:
            continue
        elif name in _OF_PROMPTS:
            parts.append((name if whole else path, value))
        elif whole and name in fields and name not in HARMLESS:
            raise NotRepresentableError(
                name if readable(name) == name else "an unreadable field name"
            )
        elif not (sent and name in HARMLESS):
            unread[path] = value
    request = replace(request, settings=settings, parts=parts, unread=unread)
    for name, block in blocks.items():
        request = _with_fields(request, block, _join(prefix, name), whole=True)
    return request


def _left(fields: Mapping[str, Any], read: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What an object holds apart from these paths; if an object in it was read in part, its other
    fields.
    """
    for name, value in fields.items():
        if not isinstance(name, str) or value is None or name in read:
            continue
        if "." in name and any(name.startswith(f"{path}.") for path in read):
            continue
        inside = [path[len(name) + 1 :] for path in read if path.startswith(f"{name}.")]
        if inside and isinstance(inner := unpacked(value), Mapping):
            yield from ((f"{name}.{each}", left) for each, left in _left(inner, inside))
        else:
            yield name, value


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _read_beside(fields: Mapping[str, Any], prefix: str) -> list[str]:
    """What is read, apart from the request, in the object at a path of its row."""
    start = f"{prefix}." if prefix else ""
    return [
        path[len(start) :]
        for path in _BESIDE_A_REQUEST
        if path.startswith(start)
        and (path not in ANSWERS or has_answer(fields, path[len(start) :]))
    ]


def _agreed(name: str, given: Any, again: Any) -> Any:
    """A setting that is given twice with the same value."""
    if given is None:
        return again
    first, second = setting_value(name, given), setting_value(name, again)
    if None not in (first, second) and first != second:
        raise NotRepresentableError(f"several values of {name}")
    return again if first is None else given


def _block(call: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """An object's sampling parameters under one of `BLOCKS`; None if there are none."""
    block = unpacked(at(call, name))
    if not isinstance(block, Mapping):
        return None
    other = name in BLOCKS[:2] and block and not _PARAMETERS & block.keys()
    return None if other else block
