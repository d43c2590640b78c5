"""An address → the server that answers there: which engine it is, and which model it serves."""

from __future__ import annotations

import httpx2

from draftbench.engines.client import NO_ENTRY, AnswerError, Fault, Http, Limits
from draftbench.engines.engine import Server
from draftbench.engines.llama_cpp import LlamaCpp
from draftbench.engines.openai import ModelCard, ModelList, OpenAi
from draftbench.engines.secrets import on_one_line
from draftbench.engines.sglang import Sglang
from draftbench.engines.vllm import Vllm
from draftbench.errors import EngineError, did_you_mean

KINDS: dict[str, type[Server]] = {kind.engine: kind for kind in (Vllm, LlamaCpp, Sglang, OpenAi)}
_OWNERS = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang"}


def connect(
    url: str,
    engine: str | None = None,
    *,
    target: str | None = None,
    limits: Limits | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> Server:
    """Connect to the server at an address. Without `engine` its list of models shows which one it
    is; of several models the `target` is used. `transport` replaces the network.

    Raises:
        EngineError: nothing answers, it is a different engine, or it serves several models and none
            is the target.
    """
    if engine is not None and engine not in KINDS:
        raise EngineError(
            f"unknown engine `{on_one_line(engine)}`",
            hint=did_you_mean(engine, KINDS, f"choose one of {', '.join(KINDS)}"),
        )
    http = Http(url, limits=limits, transport=transport)
    try:
        return _identified(http, engine, target)
    except BaseException:
        http.close()
        raise


def _identified(http: Http, engine: str | None, target: str | None) -> Server:
    try:
        cards = http.json("/v1/models", type=ModelList).data
    except AnswerError as error:
        if error.fault is not Fault.REFUSED or engine is None or error.status in NO_ENTRY:
            raise
        cards = []  # a proxy may pass the engine's own routes alone
    owners = {_OWNERS[card.owned_by] for card in cards if card.owned_by in _OWNERS}
    owner = owners.pop() if len(owners) == 1 else None
    if engine not in (None, "openai", owner) and owner is not None:
        raise EngineError(
            f"{http.url} is a server of kind `{owner}`, not `{engine}`",
            hint="leave --engine out, or give the other address",
        )
    return KINDS[engine or owner or "openai"](http, _chosen(http.url, cards, target))


def _chosen(url: str, cards: list[ModelCard], target: str | None) -> str | None:
    names = [card.id for card in cards if not card.parent]
    if len(names) < 2 or target in names:
        return target if target in names else next(iter(names), None)
    listed = ", ".join(f"`{on_one_line(name, most=100)}`" for name in names[:5])
    raise EngineError(
        f"{url} serves {len(names)} models", hint=f"name one of them with --target: {listed}"
    )
