"""Find the request in a raw row of a log, whatever wrote the log.

Two tables: `BODIES` and `PARTS` are the places at which a request may stand in a row, `FORMS` the
ways in which it may be written. A request means the same at every place. Text that holds JSON is
read as what it holds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from draftbench.traffic.files import NUMBERS
from draftbench.traffic.request_settings import BadRowError, NotRepresentableError

# Places that hold the body of an API call and nothing else; what wraps it is the log's.
BODIES = (
    *("body", "request.body", "request", "request_body"),
    *("proxy_server_request.body", "proxy_server_request"),
)
# Places that hold a part of a request; the rest stands beside them.
PARTS = ("input", "attributes")
# Objects beside a prompt that hold its sampling parameters. The first two are also names for the
# choices of a quiz and for a schema, which have none of `_PARAMETERS`.
BLOCKS = (
    *("options", "parameters", "sampling_params", "model_parameters", "modelParameters"),
    "extra_body",
)
_PARAMETERS = NUMBERS | {"stop", "do_sample", "details", "return_full_text"}
_PROMPTS = frozenset({
    "messages", "prompt", "conversations", "conversation", "input", "inputs", "text", "turns",
    "instruction",
})  # fmt: skip
# What tells a Responses call from an embedding of the same `input`.
_RESPONSES = frozenset({
    "instructions", "max_output_tokens", "temperature", "top_p", "reasoning", "text", "tools",
    "stream", "store", "previous_response_id",
})  # fmt: skip
_LENGTHS = (
    {"input_length", "output_length"},  # Mooncake
    {"ContextTokens", "GeneratedTokens"},  # Azure
    {"Request tokens", "Response tokens"},  # BurstGPT
)


@dataclass(frozen=True)
class Asked:
    """What a row asks: a text or messages, the answer that a logged conversation ends with, and
    settings. `server` says that it was sent to a server, whose default is temperature 1; `api`
    names the settings that an API was given, where the others may be the log's.
    """

    content: Any
    answer: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    server: bool = False
    api: Set[str] = frozenset()
    form: str = ""


def at(row: Any, path: str) -> Any:
    """The value at a dotted path, whose last name may hold dots; the row itself at no path."""
    if not path:
        return row
    row = decoded(row)
    if not isinstance(row, Mapping):
        return None
    if path in row:
        return row[path]
    head, _, rest = path.partition(".")
    return at(row[head], rest) if rest and head in row else None


def decoded(value: Any) -> Any:
    """The object or list that a text holds as JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(value)
    return value


def _with_system(messages: Any, system: Any) -> Any:
    """Messages that begin with the system text that stood beside them."""
    if not system or not isinstance(messages, list):
        return messages
    if any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _messages(call: Mapping[str, Any]) -> Asked | None:
    messages = decoded(call.get("messages"))
    if messages is None or (not messages and call.get("prompt")):
        return None
    return Asked(_with_system(messages, call.get("system")))


def _prompt(call: Mapping[str, Any]) -> Asked | None:
    prompt = call.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(message, dict) for message in prompt):
        raise NotRepresentableError("prompt as a list")
    # A server that takes a system text beside a prompt (Ollama's) applies its template to both.
    if isinstance(prompt, str) and call.get("system") and not call.get("raw"):
        return Asked(_with_system([{"role": "user", "content": prompt}], call["system"]))
    return None if prompt is None else Asked(prompt)


def _custom(call: Mapping[str, Any]) -> Asked | None:
    length = call.get("output_tokens")
    # Beside an answer or the prompt's own count it is what an answer had, not what it may have.
    if length is None or {"response", "completion", "output", "input_tokens"} & call.keys():
        return None
    asked = _prompt(call)
    return asked and replace(asked, settings={"max_tokens": call.get("max_tokens", length)})


def _conversations(call: Mapping[str, Any]) -> Asked | None:
    turns = decoded(call.get("conversations"))
    if turns is None:
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRowError("`conversations` is not a list of objects")
    return Asked(turns) if turns and all("role" in turn for turn in turns) else _sharegpt(turns)


def _conversation(call: Mapping[str, Any]) -> Asked | None:
    match decoded(call.get("conversation")):
        case [{"role": _}, *_] as messages:
            return Asked(messages)
        case [{"from": _}, *_] as turns:
            return _conversations({"conversations": turns})
    return None


def _sharegpt(turns: list[dict[str, Any]]) -> Asked:
    """The messages up to the last human turn, and the answer to it."""
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


def _ollama(call: Mapping[str, Any]) -> Asked | None:
    if not _block(call, "options"):
        return None
    for name in ("format", "suffix", "images", "template", "context"):
        if call.get(name):
            raise NotRepresentableError(name)
    content = decoded(call.get("messages")) or call.get("prompt")
    if isinstance(content, str) and not call.get("raw"):  # it applies the template to prompts too
        content = [{"role": "user", "content": content}]
    return Asked(_with_system(content, call.get("system"))) if content else None


def _responses(call: Mapping[str, Any]) -> Asked | None:
    match decoded(call.get("input")):
        case [{"role": _}, *_] as items:
            messages = []
            for item in items:
                if not isinstance(item, dict) or item.get("type", "message") != "message":
                    raise NotRepresentableError("input items other than messages")
                extra = ("type", "id", "status")
                messages.append({name: item[name] for name in item if name not in extra})
        case str(text) if "model" in call and _RESPONSES & call.keys():
            messages = [{"role": "user", "content": text}]
        case str(text) if "modelParameters" in call:  # Langfuse: a completion
            return Asked(text)
        case _:
            return None
    if call.get("previous_response_id"):
        raise NotRepresentableError("previous_response_id")
    if (at(call, "text.format.type") or "text") != "text":
        raise NotRepresentableError("text.format")
    effort = {"reasoning_effort": at(call, "reasoning.effort")}
    return Asked(_with_system(messages, call.get("instructions")), settings=effort)


def _sglang(call: Mapping[str, Any]) -> Asked | None:
    given = isinstance(decoded(call.get("sampling_params")), Mapping)
    return Asked(call["text"]) if given and isinstance(call.get("text"), str) else None


def _tgi(call: Mapping[str, Any]) -> Asked | None:
    asked = decoded(call.get("parameters"))
    if not isinstance(asked, Mapping) or not isinstance(call.get("inputs"), str):
        return None
    # Its rule (server/text_generation_server/utils/tokens.py): what narrows the choice samples.
    given = {**dict.fromkeys(("temperature", "top_p", "typical_p"), 1), "top_k": 0}
    narrowed = any((asked.get(name) or value) != value for name, value in given.items())
    greedy = not asked.get("do_sample") and not narrowed
    return Asked(call["inputs"], settings={"temperature": 0.0} if greedy else {})


def _telemetry(call: Mapping[str, Any]) -> Asked | None:
    messages = decoded(call.get("gen_ai.input.messages"))
    if not isinstance(messages, list):
        return None
    contents = [
        {"role": message.get("role"), "content": message.get("parts")}
        if isinstance(message, dict)
        else message
        for message in messages
    ]
    prefix = "gen_ai.request."
    settings = {name.removeprefix(prefix): call[name] for name in call if name.startswith(prefix)}
    settings["n"] = settings.pop("choice.count", None)
    settings["tools"] = decoded(call.get("gen_ai.tool.definitions"))
    system = decoded(call.get("gen_ai.system_instructions"))
    return Asked(_with_system(contents, system), settings=settings)


def _turns(call: Mapping[str, Any]) -> Asked | None:
    match decoded(call.get("turns")):
        case [str(first), *_]:  # a later turn needs the answers before it
            return Asked([{"role": "user", "content": first}])
    return None


def _alpaca(call: Mapping[str, Any]) -> Asked | None:
    match call:
        case {"instruction": str(instruction), "output": _}:
            text = "\n".join(filter(None, (instruction, str(call.get("input") or ""))))
            return Asked([{"role": "user", "content": text}])
    return None


@dataclass(frozen=True)
class Form:
    """A way to write a request, read from the object that holds it (None where it is another).

    `server` says that only servers are asked so; None: they are where a `model` is named. `logged`
    says that the last message may be the answer.
    """

    name: str
    example: str
    read: Callable[[Mapping[str, Any]], Asked | None]
    server: bool | None = False
    logged: bool = False


# The forms that are recognised, the first that fits.
FORMS = (
    Form(
        "ShareGPT",
        '{"conversations": [{"from": "human", "value": "…"}, …]}',
        _conversations,
        False,
        True,
    ),
    Form(
        "Ollama",
        '{"messages": […], "options": {"temperature": 0.7}}, or with a `prompt`',
        _ollama,
        True,
    ),
    Form(
        "messages",
        '{"messages": [{"role": "user", "content": "…"}]}, also with a `system`',
        _messages,
        None,
        logged=True,
    ),
    Form("vLLM custom", '{"prompt": "…", "output_tokens": 128}', _custom),
    Form("prompt", '{"prompt": "…"}', _prompt, None, logged=True),
    Form(
        "conversation",
        '{"conversation": [{"role": "user", "content": "…"}, …]}',
        _conversation,
        logged=True,
    ),
    Form(
        "Responses or Langfuse",
        '{"model": "…", "input": "…", "instructions": "…"}',
        _responses,
        True,
    ),
    Form("SGLang", '{"text": "…", "sampling_params": {"temperature": 0.7}}', _sglang, True),
    Form("TGI", '{"inputs": "…", "parameters": {"temperature": 0.7}}', _tgi, True),
    Form(
        "OpenTelemetry",
        '{"gen_ai.input.messages": […], "gen_ai.request.temperature": 0.7}',
        _telemetry,
        True,
    ),
    Form("turns", '{"turns": ["…", …]}, of which the first is asked', _turns),
    Form("Alpaca", '{"instruction": "…", "input": "…", "output": "…"}', _alpaca),
)


class UnknownFormError(BadRowError):
    """A row in which nothing looks like a request."""

    hint = (
        f"forms understood: {', '.join(form.name for form in FORMS)}, also inside `body` and the "
        "like (docs/formats.md shows them); for anything else use --prompt-field"
    )


class LengthsOnlyError(BadRowError):
    """A row of a trace that keeps how long requests were and nothing of what they said."""

    hint = "acceptance depends on the text: give a log that holds the prompts"


def find_request(row: Mapping[str, Any], prompt_field: str | None) -> Asked:
    """The request of a row; `prompt_field` is a dotted path to its prompt (None: the usual places).

    Raises:
        UnknownFormError: no known form is at a known place (`LengthsOnlyError`: nor can be).
        BadRowError, NotRepresentableError: there is one that cannot be used.
    """
    if prompt_field is not None:
        return _named(row, prompt_field)
    for place in (*BODIES, "", *PARTS):
        call = decoded(at(row, place))
        if not isinstance(call, Mapping):
            continue
        whole = place in BODIES
        if asked := _read(call, whole):
            asked = replace(asked, server=asked.server or place != "")
            return _beside(row, asked) if place in PARTS else asked
        if whole and "input" in call:  # an embedding
            raise NotRepresentableError("input")
    if any(names <= row.keys() for names in _LENGTHS):
        raise LengthsOnlyError("a trace of lengths only, without any text")
    raise UnknownFormError("no known form of request")


def _named(row: Mapping[str, Any], path: str) -> Asked:
    """What is at a path, read with what is beside it, as it would be without the path."""
    content = decoded(at(row, path))
    parent, _, name = ("", "", path) if path in row else path.rpartition(".")
    beside = decoded(at(row, parent))
    asked = None
    if isinstance(content, Mapping):
        asked = _read(content, False)
        asked = asked and replace(asked, server=True)
    elif name in _PROMPTS and isinstance(beside, Mapping):
        others = _PROMPTS - {name}
        asked = _read({key: beside[key] for key in beside if key not in others}, False)
    if asked is None:
        match content:
            case [{"role": _}, *_]:
                pass
            case _:  # a prompt that happens to be JSON
                content = at(row, path)
        asked = _answered(Asked(content))
        asked = _beside(beside, asked) if isinstance(beside, Mapping) else asked
    return replace(_beside(row, asked), form="--prompt-field")


def _read(call: Mapping[str, Any], whole: bool) -> Asked | None:
    for form in FORMS:
        # No server is asked in the forms of data sets.
        asked = None if whole and form.server is False else form.read(call)
        if asked is None:
            continue
        if form.logged and not whole:
            asked = _answered(asked)
        given = {name: value for name, value in asked.settings.items() if value is not None}
        asked = _beside(call, replace(asked, settings=given))
        return replace(
            asked,
            api=asked.settings.keys() if whole else asked.api,
            server="model" in call if form.server is None else form.server,
            form="OpenAI request" if whole and form.server is None else form.name,
        )
    return None


def _answered(asked: Asked) -> Asked:
    """A conversation that ends with the assistant asks for that answer."""
    match asked.content:
        case [_, *_, {"role": "assistant", **last}]:
            text = last.get("content")
            answer = text if isinstance(text, str) else None
            return replace(asked, content=asked.content[:-1], answer=answer)
    return asked


def _beside(call: Mapping[str, Any], asked: Asked) -> Asked:
    """With the settings in an object and in its blocks, where it has no such setting yet."""
    blocks = {name: block for name in BLOCKS if (block := _block(call, name)) is not None}
    found = {name: value for block in blocks.values() for name, value in block.items()}
    fields = {
        name: value for name, value in call.items() if value is not None and name not in blocks
    }
    settings = {**found, **fields, **asked.settings}
    return replace(asked, settings=settings, api=asked.api | found.keys())


def _block(call: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    block = decoded(call.get(name))
    ambiguous = name in BLOCKS[:2] and block
    if not isinstance(block, Mapping) or (ambiguous and not _PARAMETERS & block.keys()):
        return None
    return {name: _number(name, value) for name, value in block.items() if value is not None}


def _number(name: str, value: Any) -> Any:
    """Langfuse keeps numbers as text, and infinity for no limit."""
    if name in NUMBERS and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value) if math.isfinite(float(value)) else None
    return value
