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
# A request's field → the kind of constraint in it; None: a structure that names its own kind.
CONSTRAINTS: dict[str, str | None] = {
    **{f"guided_{kind}": kind for kind in KINDS if kind != "tool"},
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    **dict.fromkeys(("response_format", "structured_outputs", "grammar", "format"), None),
    "structural_tag": None,
}


def constraint_of(settings: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The constraint in the settings, and whether it comes from `tool_choice`.

    Raises:
        NotRepresentableError: its kind is unknown, or there are several.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, kind in CONSTRAINTS.items():
        value = settings.get(name)
        if value in (None, "", [], False):
            continue
        if kind:
            found[name] = {kind: value}
            continue
        match name, value:
            case _, {"type": "text"}:
                pass
            case _, {"type": "json_schema", "json_schema": {"schema": schema}}:
                found[name] = {"json": schema}
            case _, {"type": "json_schema" | "json_object", "schema": Mapping() as schema}:
                found[name] = {"json": schema}
            case (_, {"type": "json_object"}) | ("format", "json"):  # the second is Ollama's
                found[name] = {"json_object": True}
            case "format", {"type": "object"}:
                found[name] = {"json": value}
            case "grammar", str():
                found[name] = {"grammar": value}
            case "structured_outputs", Mapping():
                given = {kind: held for kind, held in value.items() if held not in (None, False)}
                if len(given) > 1 or not given.keys() <= {*KINDS}:
                    raise NotRepresentableError(name)
                if given:
                    found[name] = given
            case _:
                raise NotRepresentableError(name)
    forced = _forced(settings.get("tool_choice"), settings.get("tools"))
    if forced is not None:
        found["tool_choice"] = forced
    if len(found) > 1:
        raise NotRepresentableError(" and ".join(sorted(found)))
    return next(iter(found.values()), None), forced is not None


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
        case "required" | "any" | {"type": "any"} if schemas:
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
