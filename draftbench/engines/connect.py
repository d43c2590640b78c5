"""An address → the server that answers there: which engine it is, and which model it serves."""

from __future__ import annotations

import contextlib

import httpx2

from draftbench.engines.client import NO_ENTRY, Http
from draftbench.engines.every import SERVERS
from draftbench.engines.faults import AnswerError, Fault
from draftbench.engines.openai import ModelList
from draftbench.engines.secrets import on_one_line
from draftbench.engines.server import Server
from draftbench.errors import EngineError


def connect(
    url: str,
    engine: str | None = None,
    *,
    target: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> Server:
    """Connect to the server at an address. Without `engine` its list of models shows which one it
    is; of several models the `target` is used. `transport` replaces the network.

    Raises:
        EngineError: nothing answers, it is a different engine, or it serves several models and none
            is the target.
    """
    with contextlib.ExitStack() as unless_connected:
        http = Http(url, transport=transport)
        unless_connected.callback(http.close)
        try:
            cards = http.json("/v1/models", type=ModelList).data
        except AnswerError as error:
            if error.fault is not Fault.REFUSED or engine is None or error.status in NO_ENTRY:
                raise
            cards = []  # a proxy may pass only the engine's own routes
        stated = {card.owned_by for card in cards if card.owned_by}
        owners = [each.engine for each in SERVERS.values() if each.owner in stated]
        owner = owners[0] if len(owners) == 1 else None
        if engine not in (None, "openai", owner) and owner is not None:
            raise EngineError(
                f"{http.url} is a server of kind `{owner}`, not `{engine}`",
                hint="leave --engine out, or give the other address",
            )
        models = [card.id for card in cards if not card.parent]
        if len(models) > 1 and target not in models:
            listed = ", ".join(f"`{on_one_line(name, most=100)}`" for name in models[:5])
            raise EngineError(
                f"{http.url} serves {len(models)} models",
                hint=f"name one of them with --target: {listed}",
            )
        model = target if target in models else next(iter(models), None)
        unless_connected.pop_all()
    return SERVERS[engine or owner or "openai"](http, model)
