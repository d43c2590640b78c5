"""Finds the request in a log's raw row, whatever program wrote the log.

`FORMS` is a table of the ways to write a request: where its prompt stands, and what else of it
stands elsewhere. `BODIES` and `PARTS` are the places in a row where it may be, `BLOCKS` and
`NESTED` where its settings are, `SYSTEMS` where its system text is, `MODELS` where its model is
named. A request means the same in every place. For every object around the request it records what
was not read: in `parts` if it belongs to the prompt (the row may then be left out), otherwise in
`unread` (listed as ignored).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    is_sentence,
    not_asked,
    readable_names,
)
from draftbench.traffic.json_paths import at, is_cut, parsed, splits, unpacked
from draftbench.traffic.messages import BEGUN, messages_of, readable, role_of, speaker_of
from draftbench.traffic.request_settings import SETTINGS, setting_value
from draftbench.traffic.setting_names import COLUMNS, HARMLESS, PADDING, is_sampler

# Places that hold the body of an API call and nothing else; what surrounds it is the log's.
BODIES = (
    *("body", "request.body", "request", "request_body"),
    *("proxy_server_request.body", "proxy_server_request", "input.inputBodyJson", "params"),
)
# Places that hold part of a request; the rest is beside them.
PARTS = ("input", "attributes", "properties", "inputs", "prompt")
# Objects beside a prompt that hold its sampling parameters and nothing else. The first two are also
# names for the choices of a quiz and for a schema, which set nothing. Any other object that holds
# one of `_TELLING` is read for its settings too.
BLOCKS = (
    *("options", "parameters", "sampling_params", "model_parameters", "modelParameters"),
    *("extra_body", "gen_ai.request", "llm.invocation_parameters", "extra.invocation_params"),
    *("inferenceConfig", "additionalModelRequestFields", "generationConfig"),
)
# Settings beside a prompt that stand inside something else: where, and their names.
NESTED = {
    "reasoning.effort": "reasoning_effort", "reasoning.enabled": "enable_thinking",
    "reasoning.max_tokens": "thinking_token_budget", "text.format": "response_format",
    "toolConfig.tools": "tools", "toolConfig.toolChoice": "tool_choice",
    "toolConfig.functionCallingConfig.mode": "tool_choice",
    "gen_ai.tool.definitions": "tools", "llm.request.functions": "tools", "llm.tools": "tools",
    "gen_ai.output.type": "gen_ai.output.type",
    "ai.prompt.tools": "tools", "ai.prompt.toolChoice": "tool_choice", "$ai_tools": "tools",
}  # fmt: skip
# Where the model that was asked is named.
MODELS = (
    *("model", "modelId", "model_name", "provided_model_name", "gen_ai.request.model"),
    *("llm.model_name", "ai.model.id", "$ai_model", "metadata.model"),
    "extra.invocation_params.model",
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
# Only a request to a server has these: what stands beside them is a request's too.
_TELLING = {"temperature", "top_p", "topP", "top_k", "topK", "min_p"}
# The highest that hosted models take; above it is one of the weather or of a device.
_HOTTEST = 2
_OF_SETTINGS = re.compile(r"param|setting|config|option|kwargs|metadata|sampl", re.IGNORECASE)
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
    model: tuple[str, str] | None = None  # where the model that was asked is named, and its name
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
    given = _at_any(fields, SYSTEMS)
    found = {name: turns for name in given if (turns := _system(given[name]))}
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


def _messages(value: Any, call: Mapping[str, Any]) -> LoggedRequest | None:
    messages = unpacked(value)
    if messages in (None, *PADDING) or (not messages and call.get("prompt")):
        return None
    if "messages" not in call and not isinstance(messages, list):  # columns that speak of messages
        return None
    if not isinstance(messages, list):
        raise BadRowError("`messages` is not a list")
    match messages:
        case [list(first)]:  # LangSmith's
            return LoggedRequest(first)
        case [list(), *_]:
            raise NotRepresentableError("messages of several prompts")
    return LoggedRequest(messages)


def _prompt(prompt: Any, call: Mapping[str, Any]) -> LoggedRequest | None:
    raw = str(call.get("raw")).lower() == "true"
    if turns := _turns_in(prompt):
        return turns
    match prompt, unpacked(prompt):
        case (None | Mapping(), _) | (_, {"messages": _} | {"conversations": _}):  # see `PARTS`
            return None
        case list(), _:
            raise NotRepresentableError("prompt as a list")
        # A server that takes `options` beside a prompt (Ollama's) makes it a chat.
        case str(text), _ if _block(call, "options") and not raw:
            return LoggedRequest([_user(text)])
    return LoggedRequest(prompt)


def _contents(value: Any, _call: Mapping[str, Any]) -> LoggedRequest | None:
    match unpacked(value):
        case [{"parts": _}, *_] as turns if all(isinstance(turn, Mapping) for turn in turns):
            return LoggedRequest([{"role": "user", **turn} for turn in turns])
    return None


def _conversations(value: Any, _call: Mapping[str, Any]) -> LoggedRequest | None:
    turns = unpacked(value)
    if turns in (None, *PADDING) or isinstance(turns, Mapping):
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRowError("`conversations` is not a list of objects")
    plain = turns and all("role" in turn for turn in turns)
    return LoggedRequest(turns) if plain else _sharegpt(turns)


def _sharegpt(turns: list[dict[str, Any]]) -> LoggedRequest:
    """The turns up to the last human one and the tools' output after it, and the answer."""
    roles = [role_of(str(turn.get("from"))) for turn in turns]
    if "user" not in roles:
        raise BadRowError("`conversations` has no human turn")
    end = max(n for n, role in enumerate(roles, start=1) if role in ("user", "tool"))
    answers = roles[end : end + 1] == ["assistant"]
    return LoggedRequest(turns[:end], answer=message_of(turns[end]) if answers else None)


def _input(value: Any, call: Mapping[str, Any]) -> LoggedRequest | None:
    match value, unpacked(value):
        case _, [{"role": _} | {"type": _} | {"lc": _}, *_] as items:
            content = items
        case _, Mapping() as inner if PROMPTS & inner.keys():  # Langfuse: a part of the request
            return None
        case str(text), _ if {"modelParameters", "provided_model_name"} & call.keys():
            return LoggedRequest(text)  # Langfuse: a completion
        case str(text), _ if "model" in call and not _unanswered(call):
            content = [_user(text)]
        case _:
            return None
    if call.get("previous_response_id") not in (None, *_EMPTY):
        raise NotRepresentableError("previous_response_id")
    if before := _system(call.get("instructions")):
        return LoggedRequest([*before, *content], ("instructions",))
    return LoggedRequest(content)


def _unanswered(call: Mapping[str, Any]) -> bool:
    other = {"encoding_format", "dimensions", "input_type", "voice"} & call.keys()
    return bool(other or _NO_ANSWER.search(str(call["model"])))


def _text_of(value: Any, _call: Mapping[str, Any]) -> LoggedRequest | None:
    return LoggedRequest(value) if isinstance(value, str) else None


def _inputs(value: Any, call: Mapping[str, Any]) -> LoggedRequest | None:
    given = _block(call, "parameters")
    alone = call.keys() <= _BESIDE_A_TEXT
    if not isinstance(value, str) or (given is None and not alone):
        return None
    # TGI samples where any setting narrows the choice (text_generation_server/utils/tokens.py).
    neutral = {"do_sample": False, "temperature": 1, "top_p": 1, "typical_p": 1, "top_k": 0}
    greedy = all(((given or {}).get(name) or off) == off for name, off in neutral.items())
    if not greedy or (given is None and _has_temperature(call)):
        return LoggedRequest(value)
    return LoggedRequest(value, ("temperature",), settings={"temperature": 0.0})


def _has_temperature(fields: Mapping[str, Any]) -> bool:
    blocks = (_block(fields, name) for name in BLOCKS)
    return "temperature" in fields or any(block and _has_temperature(block) for block in blocks)


def _text_alone(value: Any, call: Mapping[str, Any]) -> LoggedRequest | None:
    return _text_of(value, call) if call.keys() <= _BESIDE_A_TEXT else None


def _listed(value: Any, _call: Mapping[str, Any]) -> LoggedRequest | None:
    messages = unpacked(value)
    return LoggedRequest(messages) if isinstance(messages, list) else None


def _turns(value: Any, _call: Mapping[str, Any]) -> LoggedRequest | None:
    match unpacked(value):
        # Only the first turn: a later one needs the answers before it.
        case [str(first), *_] | [{"text": str(first)}, *_]:
            return LoggedRequest([_user(first)])
    return None


def _instruction(value: Any, call: Mapping[str, Any]) -> LoggedRequest | None:
    if not isinstance(value, str):
        return None
    # Dolly calls the input `context`; a structure is left.
    names = (name for name in ("input", "context") if isinstance(call.get(name), _TEXT))
    beside = [name for name in names if call[name] not in _EMPTY][:1]
    text = "\n".join([value, *(str(call[name]) for name in beside)])
    return LoggedRequest([*_history(call.get("history")), _user(text)], ("history", *beside))


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
    prompts: tuple[str, ...]  # the paths under which it may keep its prompt
    # The request in what stands there, beside the object's other fields; None: of another form.
    content: Callable[[Any, Mapping[str, Any]], LoggedRequest | None]
    # Whether a request in this form was sent to a server; None: if the row names a `model`.
    server: bool | None = False
    logged: bool = False  # whether its last message may be the logged answer
    needs: tuple[str, ...] = ()  # fields of which one stands beside the prompt
    lacks: tuple[str, ...] = ()  # fields of which none does
    limit: str = ""  # where the most tokens stand, if not under a setting's name
    read: tuple[str, ...] = ()  # fields that shape the prompt, or are the same once more

    def request(self, call: Mapping[str, Any]) -> LoggedRequest | None:
        """The request in an object; None: it is of another form."""
        if self.needs and not any(_stands(call, name) for name in self.needs):
            return None
        if any(name in call for name in self.lacks):
            return None
        for place in self.prompts:
            if (request := self.content(at(call, place), call)) is not None:
                limit = {"max_tokens": call.get(self.limit)} if self.limit else {}
                read = (place, self.limit, *self.read, *request.read)
                return replace(request, read=read, settings=limit | {**request.settings})
        return None


def _stands(call: Mapping[str, Any], name: str) -> bool:
    return _block(call, name) is not None if name in BLOCKS else name in call


_OPTIONS, _CONFIG = ("options",), ("inferenceConfig", "toolConfig")
# The forms that are recognised; the first that fits is used.
# fmt: off
FORMS = (
    Form("ShareGPT", ("conversations",), _conversations, logged=True),
    Form("Bedrock", ("messages",), _messages, server=True, needs=_CONFIG),
    Form("Gemini", ("contents",), _contents, server=None, logged=True),
    Form("Ollama", ("messages",), _messages, server=True, needs=_OPTIONS),
    Form("Ollama", ("prompt",), _prompt, server=True, needs=_OPTIONS, read=("raw",)),
    Form("messages", ("messages",), _messages, server=None, logged=True),
    # Beside an answer or the prompt's count `output_tokens` is the answer's length, not a limit.
    Form("vLLM custom", ("prompt",), _prompt, needs=("output_tokens",), limit="output_tokens",
         lacks=("response", "completion", "output", "input_tokens", "max_tokens"), read=("raw",)),
    Form("prompt", ("prompt",), _prompt, server=None, logged=True, read=("raw",)),
    Form("conversation", ("conversation",), lambda value, _: _turns_in(value), logged=True),
    Form("Responses or Langfuse", ("input",), _input, server=True, read=("text.format",)),
    Form("SGLang", ("text",), _text_of, server=True, needs=("sampling_params",)),
    Form("TGI", ("inputs",), _inputs, server=True),
    Form("text", ("text", "text_input"), _text_alone, server=None, limit="output_length"),
    # The second is OpenLLMetry's.
    Form("OpenTelemetry", ("gen_ai.input.messages", "gen_ai.prompt"), _listed, server=True),
    Form("OpenInference", ("llm.input_messages",), _listed, server=True,
         read=("input.value", "input.mime_type")),
    Form("Vercel AI SDK", ("ai.prompt.messages",), _listed, server=True),
    Form("PostHog", ("$ai_input",), _listed, server=True),
    Form("turns", ("turns",), _turns),
    Form("Alpaca", ("instruction",), _instruction, needs=("output", "response")),
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
            around = list(_around(row, place))
            for prefix, fields, child, _ in around:
                request = _with_fields(request, fields, prefix, (child,), around=True)
            return replace(request, model=_model([(place, call), *(each[:2] for each in around)]))
        if place in BODIES and "input" in call:  # an embedding
            raise NotRepresentableError("input")
    if at(row, "input.inputBodyS3Path"):
        raise NoTrafficError("kept elsewhere by the logger")
    if any(names <= row.keys() for names in _LENGTHS):
        raise LengthsOnlyError("a trace of lengths only, without any text")
    path, query = _elsewhere(row)
    raise UnknownFormError(row, found=path, query=query)


def _model(objects: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, str] | None:
    """Where these objects of a row, with their paths, first name a model, and its name."""
    for prefix, fields in objects:
        for name, value in _at_any(fields, MODELS).items():
            if isinstance(value, str) and value not in _EMPTY:
                return _join(prefix, name), value
    return None


def _elsewhere(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Where a row of unknown form holds a request, a conversation if there is one, else a text: its
    path; or what `jq` takes it out with, if it stands in a list or in base64.
    """
    texts: list[tuple[str | None, str | None]] = []
    objects: list[tuple[str, str, bool, Mapping[str, Any]]] = [("", "", False, row)]
    for path, query, deep, fields in objects:  # which grow meanwhile
        sampled = any(
            isinstance(each, Mapping) and _TELLING & each.keys() for each in fields.values()
        )
        for name in readable_names(fields) if len(objects) < _MOST_SEARCHED else ():
            if name in _OF_PROMPTS - PROMPTS or not_asked(name):
                continue
            value = unpacked(fields[name])
            quoted = name if name.isidentifier() else f'"{name}"'
            inner, inside = f"{query}.{quoted}" + "|fromjson" * (value is not fields[name]), deep
            if str(fields.get("encoding")).lower() == "base64" and isinstance(value, str):
                with suppress(ValueError):
                    value = parsed(b64decode(value, validate=True))
                    inner, inside = f"{inner}|@base64d|fromjson", True
            # What cannot be used is not pointed at.
            with suppress(BadRowError, NotRepresentableError, NoTrafficError):
                request = _turns_in(value)
                while request is None and isinstance(value, list) and value:
                    value, inner, inside = unpacked(value[0]), f"{inner}[]", True
                place = (None, inner) if inside else (_join(path, name), None)
                if isinstance(value, Mapping):
                    objects.append((_join(path, name), inner, inside, value))
                    request = request or _request_in(value, _join(path, name), server=True)
                elif inside:  # what is beside it is taken out too
                    place = (None, query)
                match request.content if request else value if sampled else None:
                    case list() as turns if "user" in map(speaker_of, turns):
                        return place
                    case str(text) if request or is_sentence(text):
                        texts.append(place)
    return next(iter(texts), (None, None))


def _at_prompt_field(row: Mapping[str, Any], path: str) -> LoggedRequest:
    """The request whose prompt is at a path, with what the objects around it say about it."""
    if (found := at(row, path)) is None:
        raise UnknownFormError(row, path)
    content, request, unread = unpacked(found), None, {}
    holders = list(_around(row, path))
    holding = [(each.prefix, each.fields) for each in holders]
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
        request = replace(request, server=wrapped or _model(holding) is not None)
    unread |= {**request.unread, **dict(request.parts)}
    model = _model([(path, content), *holding, *bodies.items()])
    return replace(request, form=_AT_FIELD, parts=(), unread=unread, model=model)


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
        request = None if whole and form.server is False else form.request(call)
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
    given = _at_any(fields, BLOCKS)
    blocks = {name: block for name in given if (block := _block(fields, name)) is not None}
    if not whole:
        names = [name for name in _with_settings(fields) if not _is_inside(name, (*read, *blocks))]
        blocks |= {name: block for name in names if (block := unpacked(at(fields, name)))}
    nested = _at_any(fields, NESTED)
    settings = dict(request.settings)
    for path, value in nested.items():
        if value not in _EMPTY:
            settings[NESTED[path]] = _agreed(NESTED[path], settings.get(NESTED[path]), value)
    parts, unread = list(request.parts), dict(request.unread)
    # Some names are an API's in a request that was sent to a server, and elsewhere any column's.
    sampled = not around and not _TELLING.isdisjoint(fields)
    sent = whole or (request.server and not around) or sampled
    known = SETTINGS if sent else SETTINGS - COLUMNS
    beside = (*systems, *blocks, *nested, *_read_beside(fields, prefix))
    for name, value in _left(fields, (*read, *beside)):
        path = _join(prefix, name)
        if name in _REPEATING and str(value).lower() in ("true", "1"):
            request = replace(request, repeated=True)
        if name in known:
            settings[name] = _agreed(name, settings.get(name), value)
        elif value in _EMPTY:
            continue
        elif name in _OF_PROMPTS:
            parts.append((name if whole else path, value))
        elif name not in HARMLESS and (
            (whole and name in fields) or (sampled and is_sampler(name, value))
        ):
            raise NotRepresentableError(
                name if readable(name) == name else "an unreadable field name"
            )
        elif not (sent and name in HARMLESS):
            unread[path] = value
    request = replace(request, settings=settings, parts=parts, unread=unread)
    for name, block in blocks.items():
        request = _with_fields(request, block, _join(prefix, name), whole=name in BLOCKS)
    return request


def _with_settings(fields: Mapping[str, Any], *, deep: bool = False) -> Iterator[str]:
    """The paths of objects, also as dotted columns, that are settings: they hold one of `_TELLING`,
    and another one or a name that says so. Those inside others are named if `deep`, or if the
    others would not even be named as unread.
    """
    heads = {name.rpartition(".")[0] for name in fields if isinstance(name, str) and "." in name}
    for name in {**dict.fromkeys(sorted(heads)), **fields}:
        value = fields[name] if name in fields else at(fields, name)
        if not isinstance(name, str) or not isinstance(value, Mapping | str):
            continue
        if not_asked(name.partition(".")[0]):
            continue
        if isinstance(value, str) and value.startswith("{") and '"t' in value:
            value = unpacked(value)
        if not isinstance(value, Mapping):
            continue
        temperature = value.get("temperature")
        if isinstance(temperature, int | float) and temperature > _HOTTEST:
            continue
        if not _TELLING.isdisjoint(value) and (
            len(SETTINGS & value.keys()) > 1 or _OF_SETTINGS.search(name)
        ):
            yield name
        elif deep or name in HARMLESS:
            yield from (f"{name}.{inner}" for inner in _with_settings(value, deep=True))


def _is_inside(name: str, paths: Collection[str]) -> bool:
    return any(f"{name}.".startswith(f"{path}.") for path in paths)


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
    names = [path[len(start) :] for path in _BESIDE_A_REQUEST if path.startswith(start)]
    names = [name for name in names if f"{start}{name}" not in ANSWERS or has_answer(fields, name)]
    models = _at_any(fields, MODELS)
    return [*names, *(name for name in models if isinstance(models[name], str))]


def _at_any(fields: Any, paths: Iterable[str]) -> dict[str, Any]:
    """What stands at those of the paths where anything does."""
    if not isinstance(fields, Mapping):
        return {}
    heads = {name.partition(".")[0] for name in fields if isinstance(name, str)}
    found = {path: at(fields, path) for path in paths if path.partition(".")[0] in heads}
    return {path: found[path] for path in found if found[path] is not None}


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
