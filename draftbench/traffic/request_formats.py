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
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from draftbench.traffic.answers import LoggedAnswer, message_of
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
from draftbench.traffic.json_paths import at, at_each, by_head, is_cut, parsed, splits, unpacked
from draftbench.traffic.messages import BEGUN, messages_of, readable, speaker_of
from draftbench.traffic.request_settings import SETTINGS, add_setting
from draftbench.traffic.setting_names import ALIASES, COLUMNS, HARMLESS, PADDING, is_sampler

# Places that hold the body of an API call and nothing else; what surrounds it is the log's.
BODIES = (
    *("body", "request.body", "request", "request_body"),
    *("proxy_server_request.body", "proxy_server_request", "input.inputBodyJson", "params"),
)
# Places that hold part of a request; the rest is beside them.
PARTS = ("input", "attributes", "properties", "inputs", "prompt")
# Objects beside a prompt that hold its sampling parameters and nothing else. The first two are also
# names for the choices of a quiz and for a schema, which set nothing. Any other object that holds
# one of `_TELLING` is read for the settings that these lack.
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
    *("llm.model_name", "ai.model.id", "$ai_model", "metadata.model", "ls_model_name"),
)
# Fields beside a prompt or a conversation that hold its system text.
SYSTEMS = (
    *("system", "system_prompt", "systemPrompt", "system_message", "system_instruction"),
    *("systemInstruction", "gen_ai.system_instructions", "instructions"),
)
# Where a row keeps what is read from it beside the request.
SEGMENTS = ("segment", "category", "tags.segment")
# Settings with which a server repeats the prompt in its answer.
_REPEATING = ("echo", "return_full_text")
_EMPTY: tuple[Any, ...] = ("", [], {}, *PADDING)
# Only a request to a server has these: what stands beside them is a request's too.
_TELLING = {"temperature", "ls_temperature", "top_p", "topP", "top_k", "topK", "min_p"}
# The highest that hosted models take; above it is one of the weather or of a device.
_HOTTEST = 2
# Settings that tell as much in an object whose name says that it holds some.
_LIMITS = {"max_completion_tokens", "max_tokens", "stop"}
_LIMITS |= {name for name in ALIASES.keys() - COLUMNS if ALIASES[name] in _LIMITS}
_OF_SETTINGS = re.compile(r"param|setting|config|option|kwargs|metadata|extra|sampl", re.I)
_PARAMETERS = SETTINGS | {"do_sample", "details", "return_full_text"}
# Fields that may accompany a bare text sent to SGLang, TGI or AIPerf.
_BESIDE_A_TEXT = HARMLESS | SETTINGS | {
    *BLOCKS, "text", "text_input", "inputs", "system", "type", "timestamp", "delay", "role",
    "output_length",
}  # fmt: skip
# Models that do not answer but embed, judge or speak a text.
_NO_ANSWER = re.compile(r"embed|moderation|rerank|\b(bge|gte|e5|minilm|tts)\b", re.IGNORECASE)
# Fields of traces that record only the lengths of requests: Mooncake's, Azure's, BurstGPT's.
_LENGTHS = (
    *({"input_length", "output_length"}, {"ContextTokens", "GeneratedTokens"}),
    {"Request tokens", "Response tokens"},
)


@dataclass(frozen=True)
class Form:
    """A way to write a request."""

    name: str
    prompts: tuple[str, ...]  # the paths under which it may keep its prompt
    # What a text there is: a `prompt`, a user's message in a `chat`, or its `first` of several;
    # empty: only turns stand there.
    text: str = ""
    # Whether a request in this form was sent to a server; None: if the row names a `model`.
    server: bool | None = False
    logged: bool = False  # whether its last message may be the logged answer
    needs: tuple[str, ...] = ()  # fields of which one stands beside the prompt
    lacks: tuple[str, ...] = ()  # fields of which none does
    beside: frozenset[str] = frozenset()  # the only fields that may; empty: any
    limit: str = ""  # where the most tokens stand, if not under a setting's name
    then: tuple[str, ...] = ()  # fields of which the first that is a text follows the prompt's
    read: tuple[str, ...] = ()  # fields that shape the prompt, or are the same once more


# The forms that are recognised; the first that fits is used.
# fmt: off
FORMS = (
    Form("ShareGPT", ("conversations",), logged=True),
    Form("Bedrock", ("messages",), server=True, needs=("inferenceConfig", "toolConfig")),
    Form("Gemini", ("contents",), server=None, logged=True),
    # A server that takes `options` beside a prompt makes it a chat.
    Form("Ollama", ("messages",), server=True, needs=("options",)),
    Form("Ollama", ("prompt",), "chat", server=True, needs=("options",), read=("raw",)),
    Form("messages", ("messages",), server=None, logged=True),
    # Beside an answer or the prompt's count `output_tokens` is the answer's length, not a limit.
    Form("vLLM custom", ("prompt",), "prompt", needs=("output_tokens",), limit="output_tokens",
         lacks=("response", "completion", "output", "input_tokens", "max_tokens"), read=("raw",)),
    Form("prompt", ("prompt",), "prompt", server=None, logged=True, read=("raw",)),
    Form("conversation", ("conversation",), logged=True),
    Form("Langfuse", ("input",), "prompt", server=True,
         needs=("modelParameters", "provided_model_name")),
    # The fields that it lacks are of calls that embed or speak.
    Form("Responses", ("input",), "chat", server=True, needs=("model",), read=("text.format",),
         lacks=("encoding_format", "dimensions", "input_type", "voice")),
    Form("input", ("input",), server=True, read=("text.format",)),
    Form("SGLang", ("text",), "prompt", server=True, needs=("sampling_params",)),
    Form("TGI", ("inputs",), "prompt", server=True, needs=("parameters",)),
    Form("text", ("text", "text_input", "inputs"), "prompt", server=None, beside=_BESIDE_A_TEXT,
         limit="output_length"),
    # The second is OpenLLMetry's.
    Form("OpenTelemetry", ("gen_ai.input.messages", "gen_ai.prompt"), server=True),
    Form("OpenInference", ("llm.input_messages",), server=True,
         read=("input.value", "input.mime_type")),
    Form("Vercel AI SDK", ("ai.prompt.messages",), server=True),
    Form("PostHog", ("$ai_input",), server=True),
    Form("turns", ("turns",), "first"),
    # Dolly calls the input `context`.
    Form("Alpaca", ("instruction",), "chat", needs=("output", "response"),
         then=("input", "context")),
)
# fmt: on
PROMPTS = frozenset(name for form in FORMS for name in form.prompts)
# Fields that are part of a prompt wherever they are; tools and what is not text count as settings.
_OF_PROMPTS = PROMPTS | {
    *SYSTEMS, "context", "documents", "choices", "chat_history", "preamble",
    "promptVariables", "prompt_variables", "variables", "prompt_template", "promptTemplate",
    "contexts", "retrieved_context", "retrieved_contexts", "retrieved_documents", "cachedContent",
}  # fmt: skip
# How many objects of a row are searched for a request.
_MOST_SEARCHED = 100
_AT_PROMPTS, _AT_OTHERS = by_head(PROMPTS), by_head([*SYSTEMS, *BLOCKS, *NESTED, *MODELS])


@dataclass(slots=True)
class LoggedRequest:
    """What a log's row asks a model."""

    content: Any  # a text, or turns of a conversation
    form: str = ""  # the name of the form in which it was written
    # Whether it was sent to a server, whose default is temperature 1; None: nothing says so.
    server: bool | None = None
    beside: Collection[str] = ()  # the paths of what else is read of the row
    answer: LoggedAnswer | None = None  # with which a logged conversation ends
    settings: dict[str, Any] = field(default_factory=dict)
    # Settings in objects that only look like a request's: they hold where it says nothing itself.
    likely: dict[str, Any] = field(default_factory=dict)
    repeated: bool = False  # whether the logged answer begins with the prompt
    model: tuple[str, str] | None = None  # where the model that was asked is named, and its name
    parts: list[tuple[str, Any]] = field(default_factory=list)  # of a prompt, not read: where, what
    unread: dict[str, Any] = field(default_factory=dict)  # what else was not read


def find_request(
    row: Mapping[str, Any], prompt_field: str | None, beside: Collection[str] = ()
) -> LoggedRequest:
    """The request of a row, at a path or in the usual places; `beside` it other things are read.

    Raises:
        UnknownFormError: there is no known form in a known place.
        LengthsOnlyError: the row comes from a trace without texts.
        BadRowError, NotRepresentableError: there is a request that cannot be used.
    """
    if prompt_field is not None:
        return _at_prompt_field(row, prompt_field, beside)
    for place in (*BODIES, "", *PARTS):
        call, whole = unpacked(at(row, place)), place in BODIES
        if (whole and is_cut(call)) or (isinstance(call, Mapping) and "litellm_truncated" in call):
            raise NoTrafficError("cut by the logger")
        if not isinstance(call, Mapping):
            continue
        server = place not in ("", "prompt")
        if request := _request_in(call, place, beside, whole=whole, server=server):
            for prefix, fields, child, _ in _around(row, place):
                _add_fields(request, fields, prefix, (child,), around=True)
            return request
        if whole and "input" in call:  # an embedding
            raise NotRepresentableError("input")
    if at(row, "input.inputBodyS3Path"):
        raise NoTrafficError("kept elsewhere by the logger")
    if any(names <= row.keys() for names in _LENGTHS):
        raise LengthsOnlyError("a trace of lengths only, without any text")
    path, query = _elsewhere(row)
    raise UnknownFormError(row, found=path, query=query)


def _at_prompt_field(row: Mapping[str, Any], path: str, beside: Collection[str]) -> LoggedRequest:
    """The request whose prompt is at a path, with what the objects around it say about it. Other
    parts of a prompt beside it are only named.
    """
    if (found := at(row, path)) is None:
        raise UnknownFormError(row, path)
    content, around = unpacked(found), list(_around(row, path))
    request, others = None, dict[str, Any]()
    if isinstance(content, Mapping):
        request = _request_in(content, path, beside, server=True)
    for depth, (prefix, fields, _, rest) in enumerate(around, 1):
        if request is None and rest in PROMPTS:
            call = {name: fields[name] for name in fields if name not in PROMPTS - {rest}}
            if request := _request_in(call, prefix, beside):
                others = {_join(prefix, name): fields[name] for name in fields.keys() - call}
                around = around[depth:]
    if request is None:  # undecoded, since a prompt may happen to be JSON
        request = LoggedRequest(_turns_in(content) or found, beside=beside)
        _split_answer(request)
    for prefix, fields, child, _ in around:
        _add_fields(request, fields, prefix, (child,), around=True)
    if request.server is None:
        wrapped = any(name in BODIES for name, _ in splits(path))
        request.server = wrapped or request.model is not None
    request.unread |= others | dict(request.parts)
    request.form, request.parts = "--prompt-field", []
    return request


def _request_in(
    call: Mapping[str, Any],
    prefix: str,
    beside: Collection[str] = (),
    *,
    whole: bool = False,
    server: bool = False,
) -> LoggedRequest | None:
    """The request in the object at the path `prefix`, which may be the `whole` body of an API call
    and nothing else, or stand where only what was sent to a `server` does.
    """
    prompts = at_each(call, _AT_PROMPTS)
    if not prompts or _NO_ANSWER.search(str(call.get("model"))):
        return None
    for form in FORMS:
        # A body that was sent to a server has none of the forms of data sets.
        if prompts.keys().isdisjoint(form.prompts) or (whole and form.server is False):
            continue
        if not _fits(form, call):
            continue
        texts = (name for name in form.then if isinstance(call.get(name), str | int | float))
        then = next((name for name in texts if call[name] not in _EMPTY), "")
        place = next(place for place in form.prompts if place in prompts)
        content = _content(form, place, prompts[place], call, f"\n{call[then]}" if then else "")
        if content is None:
            continue
        sent = ("model" in call or None) if form.server is None else form.server
        request = LoggedRequest(content, form.name, server or sent, beside)
        if whole and form.name in ("messages", "prompt"):
            request.form = "OpenAI request"
        if form.logged and not whole:
            _split_answer(request)
        elif whole and _is_continued(call, content):
            raise NotRepresentableError("an assistant message for the model to continue")
        if form.limit:
            add_setting(request.settings, "max_tokens", call.get(form.limit))
        _add_fields(request, call, prefix, (place, then, form.limit, *form.read), whole=whole)
        return request
    return None


def _fits(form: Form, call: Mapping[str, Any]) -> bool:
    """Whether an object's fields beside its prompt are those of a form."""
    needs = [_block(call, n) is not None if n in BLOCKS else n in call for n in form.needs]
    others = form.beside and not call.keys() <= form.beside
    return (any(needs) or not needs) and call.keys().isdisjoint(form.lacks) and not others


def _content(
    form: Form, place: str, value: Any, call: Mapping[str, Any], then: str
) -> str | list[Any] | None:
    """The prompt at one of a form's places, its text and what follows `then`, or its turns; None:
    it is of another form.
    """
    if isinstance(value, str) and form.text in ("chat", "prompt"):
        if turns := _turns_in(value):
            return turns
        if isinstance(inner := unpacked(value), Mapping) and PROMPTS & inner.keys():  # see `PARTS`
            return None
        chat = form.text == "chat" and str(call.get("raw")).lower() != "true"
        return [_user(value + then)] if chat else value + then
    match unpacked(value):
        case [str(first), *_] | [{"text": str(first)}, *_] if form.text == "first":
            return [_user(first)]  # a later one needs the answers before it
        case [list(turns)] | ([Mapping(), *_] as turns):  # the first is LangSmith's
            return turns
        case {"role": _, "content": _} as turn if form.text:
            return [turn]
        case [list(), *_]:
            raise NotRepresentableError(f"{place} of several prompts")
        case list() if form.text:
            raise NotRepresentableError(f"{place} as a list")
    return None


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _turns_in(value: Any) -> list[Any] | None:
    """The turns of a conversation where also a text may stand; None for anything else."""
    match unpacked(value):
        case {"role": "user" | "system" | "developer" | "human", "content": _} as turn:
            return [turn]
        case [{"role": _} | {"lc": _} | {"from": _, "value": _}, *_] as turns:
            return turns
        case [{"type": "human" | "system" | "message", "content": _}, *_] as turns:
            return turns
    return None


def _split_answer(request: LoggedRequest) -> None:
    """Take the assistant's message with which a conversation ends for its answer."""
    match request.content:
        case [*turns, Mapping() as last] if turns and speaker_of(last) == "assistant":
            if not any(map(last.get, BEGUN)):
                request.content, request.answer = turns, message_of(last)


def _is_continued(call: Mapping[str, Any], content: Any) -> bool:
    """Whether the last message begins the answer, which the model continues (Anthropic, Gemini)."""
    match content:
        case [*_, {"role": "assistant"}]:
            known = {"anthropic_version", "stop_sequences", "inferenceConfig"} & call.keys()
            return bool(known) or "claude" in str(call.get("model"))
        case [*_, {"role": "model"}]:  # Gemini's
            return True
    return False


def _around(row: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """The objects on the way to a path, the innermost first: the path of each, its fields, the one
    in it on the way, and the rest of the path.
    """
    child = path
    for prefix, rest in reversed([("", path), *splits(path)] if path else []):
        fields = unpacked(at(row, prefix))
        if isinstance(fields, Mapping):
            yield prefix, fields, child[len(prefix) :].removeprefix("."), rest
            child = prefix


def _add_fields(
    request: LoggedRequest,
    fields: Mapping[str, Any],
    prefix: str,
    read: Collection[str] = (),
    *,
    whole: bool = False,
    around: bool = False,
    likely: bool = False,
) -> None:
    """Add the system text and the settings of the object at `prefix` to the request, and list what
    else is not `read` as unread; but if it is `whole`, all its fields are an API's, and none is
    ignored. It may be `around` the request instead of holding it, or only `likely` its settings.
    """
    found = at_each(fields, _AT_OTHERS)
    settings = request.likely if likely else request.settings
    names = [name for name in BLOCKS if name in found]
    blocks = {name: block for name in names if (block := _block(fields, name)) is not None}
    nested = [path for path in NESTED if path in found]
    for path in nested:
        if found[path] not in _EMPTY:
            add_setting(settings, NESTED[path], found[path])
    models = [path for path in MODELS if isinstance(found.get(path), str)]
    if request.model is None and (named := [path for path in models if found[path] not in _EMPTY]):
        request.model = _join(prefix, named[0]), found[named[0]]
    start = f"{prefix}." if prefix else ""
    beside = [path[len(start) :] for path in request.beside if path.startswith(start)]
    read = {*read, *_add_system(request, found, fields), *blocks, *nested, *models, *beside}
    inside = tuple(f"{path}." for path in read)
    others = dict(() if whole else _with_settings(fields))
    others = {name: others[name] for name in others if not f"{name}.".startswith(inside)}
    # Some names are an API's in a request that was sent to a server, and elsewhere any column's.
    sampled = not around and not _TELLING.isdisjoint(fields)
    sent = whole or (request.server and not around) or sampled
    for name, value in _left(fields, {*read, *others}):
        path = _join(prefix, name)
        if name in _REPEATING and str(value).lower() in ("true", "1"):
            request.repeated = True
        if name in SETTINGS and (sent or name not in COLUMNS):
            add_setting(settings, name, value)
        elif value in _EMPTY:
            continue
        elif name in _OF_PROMPTS:
            request.parts.append((name if whole else path, value))
        elif name in HARMLESS:
            each = [value, *value.values()] if isinstance(value, Mapping) else []
            lost = any(isinstance(it, Mapping) and _TELLING & it.keys() for it in each)
            request.unread |= {} if sent and not lost else {path: value}
        elif (whole and name in fields) or (sampled and is_sampler(name, value)):
            plain = readable(name) == name
            raise NotRepresentableError(name if plain else "an unreadable field name")
        else:
            request.unread[path] = value
    for name, block in blocks.items():
        _add_fields(request, block, _join(prefix, name), whole=True, likely=likely)
    for name, block in others.items():
        _add_fields(request, block, _join(prefix, name), likely=True)


def _add_system(
    request: LoggedRequest, found: Mapping[str, Any], fields: Mapping[str, Any]
) -> list[str]:
    """Put the system text that an object keeps separately before the request; gives the names of
    the known places, `found` in the object, that hold it.
    """
    systems = {name: turns for name in SYSTEMS if (turns := _system(found.get(name)))}
    content = request.content
    if not systems or str(fields.get("raw")).lower() == "true":
        return list(systems)
    turns = [_user(content)] if isinstance(content, str) else content
    if not isinstance(turns, list):
        return []
    said = {_text(turn).strip() for turn in turns if speaker_of(turn) == "system"}
    told = {
        _text(turn).strip(): _text(turn) for name in reversed(systems) for turn in systems[name]
    }
    others = [{"role": "system", "content": told[it]} for it in told if it not in said]
    if others and len(others) + len(said) > 1:
        raise NotRepresentableError("several system texts")
    request.content = [*others, *turns]
    return list(systems)


def _system(value: Any) -> list[dict[str, Any]]:
    """The messages of a system text, in whatever way it is written; none if it is not one."""
    found = unpacked(value)
    turns = found if isinstance(found, list) else [found]
    match found:
        case {"role": _} | [{"role": _}, *_]:
            return turns if all(speaker_of(turn) == "system" for turn in turns) else []
        case {"parts": list(parts)}:
            return [{"role": "system", "content": parts}]
        case {"text": str()} | [{"type": _} | {"text": _} | str(), *_]:
            return [{"role": "system", "content": turns}]
    text = isinstance(value, str) and value not in _EMPTY and value.strip()
    return [{"role": "system", "content": value}] if text else []


def _text(turn: Any) -> str:
    return messages_of([turn], set())[0]["content"] or ""


def _with_settings(
    fields: Mapping[str, Any], *, deep: bool = False
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects, also as dotted columns, that are settings: they hold one of `_TELLING`, and
    another one or have a name that says so, when one of `_LIMITS` is enough. Those inside others
    are found if `deep`, or if the name of the others says so.
    """
    heads = {name.rpartition(".")[0]: None for name in fields if isinstance(name, str)}
    for name in {**heads, **fields}:
        if not name or not isinstance(name, str) or not_asked(name.partition(".")[0]):
            continue
        value = fields[name] if name in fields else at(fields, name)
        if isinstance(value, str) and value.startswith("{") and '"t' in value:
            value = unpacked(value)
        if not isinstance(value, Mapping):
            continue
        heat = value.get("temperature")
        if isinstance(heat, int | float) and heat > _HOTTEST:
            continue
        named = _OF_SETTINGS.search(name)
        telling = _TELLING if deep or not named else _TELLING | _LIMITS
        if (named or len(SETTINGS & value.keys()) > 1) and not telling.isdisjoint(value):
            yield name, value
        elif deep or named:
            yield from ((f"{name}.{n}", block) for n, block in _with_settings(value, deep=True))


def _left(fields: Mapping[str, Any], read: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What an object holds apart from these paths; if an object in it was read in part, its other
    fields.
    """
    dotted = [path for path in read if "." in path]
    columns = tuple(f"{path}." for path in read)
    for name, value in fields.items():
        if not isinstance(name, str) or value is None or f"{name}.".startswith(columns):
            continue
        inside = [path[len(name) + 1 :] for path in dotted if path.startswith(f"{name}.")]
        if inside and isinstance(inner := unpacked(value), Mapping):
            yield from ((f"{name}.{each}", left) for each, left in _left(inner, inside))
        else:
            yield name, value


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _block(call: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """An object's sampling parameters under one of `BLOCKS`; None if there are none."""
    block = unpacked(at(call, name))
    if not isinstance(block, Mapping):
        return None
    other = name in BLOCKS[:2] and block and not _PARAMETERS & block.keys()
    return None if other else block


def _elsewhere(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Where a row of unknown form holds a conversation, else a text: its path, unless it stands in
    a list or in base64, and what `jq` takes it out with.
    """
    texts: list[tuple[str | None, str | None]] = []
    objects: list[tuple[str | None, str, Mapping[str, Any]]] = [("", "", row)]
    for path, query, fields in objects:  # which grow meanwhile
        blocks = [each for each in fields.values() if isinstance(each, Mapping)]
        sampled = any(_TELLING & block.keys() for block in blocks)
        for name in readable_names(fields) if len(objects) < _MOST_SEARCHED else ():
            if name in _OF_PROMPTS - PROMPTS or not_asked(name):
                continue
            value, place = unpacked(fields[name]), None if path is None else _join(path, name)
            quoted = name if name.isidentifier() else f'"{name}"'
            inner = f"{query}.{quoted}" + "|fromjson" * (value is not fields[name])
            # What cannot be used is not pointed at.
            with suppress(BadRowError, NotRepresentableError, NoTrafficError, ValueError):
                if str(fields.get("encoding")).lower() == "base64" and isinstance(value, str):
                    value, inner = (
                        parsed(b64decode(value, validate=True)),
                        f"{inner}|@base64d|fromjson",
                    )
                    place = None
                content: Any = _turns_in(value)
                while content is None and isinstance(value, list) and value:
                    value, inner, place = unpacked(value[0]), f"{inner}[]", None
                if isinstance(value, Mapping):
                    objects.append((place, inner, value))
                    if content is None and (request := _request_in(value, "", server=True)):
                        content = request.content
                elif place is None:  # what is beside it is taken out too
                    inner = query
                match content or (value if sampled else None):
                    case list() as turns if "user" in map(speaker_of, turns):
                        return place, inner
                    case str(text) if content or is_sentence(text):
                        texts.append((place, inner))
    return next(iter(texts), (None, None))
