"""Restrictions that a request puts on its answer: structured output and forced tools, in any API's
words.

A constraint is an object with one field, whose name is its kind: `json` (a schema),
`json_object` (any JSON object), `regex`, `choice`, `grammar`, or `tool` (the schema of the
arguments of the tools that must be called).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftbench.traffic.errors import NotRepresentableError

KINDS = ("json", "json_object", "regex", "choice", "grammar", "tool")
# A request's field → the kind of constraint in it; None: a structure, which `_structure` reads.
CONSTRAINTS: dict[str, str | None] = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "response_format": None,
    "structured_outputs": None,
    "grammar": None,
    "format": None,
    "structural_tag": None,
}


def constraint_of(settings: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The constraint in the settings, and whether it comes from `tool_choice`.

    Raises:
        NotRepresentableError: its kind is unknown, or there are several.
    """
    found = {
        name: constraint
        for name, kind in CONSTRAINTS.items()
        if (value := settings.get(name)) not in (None, "", [], False)
        and (constraint := {kind: value} if kind else _structure(name, value))
    }
    forced = _forced(settings.get("tool_choice"), settings.get("tools"))
    if forced is not None:
        found["tool_choice"] = forced
    if len(found) > 1:
        raise NotRepresentableError(" and ".join(sorted(found)))
    return next(iter(found.values()), None), forced is not None


def _structure(name: str, value: Any) -> dict[str, Any]:
    """The constraint in a field that names its own kind; empty: none."""
    match name, value:
        case _, {"type": "text"}:
            return {}
        case _, {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json": schema}
        case _, {"type": "json_schema" | "json_object", "schema": Mapping() as schema}:
            return {"json": schema}
        case _, {"type": "json_object"}:
            return {"json_object": True}
        case "format", "json":  # Ollama's
            return {"json_object": True}
        case "format", {"type": "object"}:
            return {"json": value}
        case "grammar", str():
            return {"grammar": value}
        case "grammar", {"type": "json" | "regex" as kind, "value": inner}:  # TGI's
            return {kind: inner}
        case "structured_outputs", Mapping():
            given = {kind: value[kind] for kind in value if value[kind] not in (None, False)}
            if len(given) < 2 and given.keys() <= {*KINDS}:
                return given
    raise NotRepresentableError(name)


def _forced(choice: Any, tools: Any) -> dict[str, Any] | None:
    """The constraint when `tool_choice` forces a call, as vLLM applies it: the arguments of the
    named tool, or a list of calls.
    """
    schemas = {}
    for tool in tools if isinstance(tools, list) else ():
        match tool:
            case {"function": {"name": str(name), **function}}:
                schemas[name] = function.get("parameters") or {}
    match choice:
        case {"function": {"name": str(name)}} | {"type": "tool" | "function", "name": str(name)}:
            return {"tool": schemas[name]} if name in schemas else None
        case {"tool": {"name": str(name)}}:  # Bedrock's
            return {"tool": schemas[name]} if name in schemas else None
        case "required" | "any" | {"type": "any"} | {"any": _} if schemas:
            calls = [
                {
                    "type": "object",
                    "properties": {"name": {"enum": [name]}, "parameters": schema},
                    "required": ["name", "parameters"],
                }
                for name, schema in schemas.items()
            ]
            return {"tool": {"type": "array", "minItems": 1, "items": {"anyOf": calls}}}
    return None
