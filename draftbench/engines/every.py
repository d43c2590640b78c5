"""The engines: here they are named, and everything that lists engines follows from here."""

from __future__ import annotations

import re
from collections.abc import Collection

from draftbench.drafts.speculation import Speculation
from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.llama_cpp import LLAMA_CPP
from draftbench.engines.openai import OpenAiServer
from draftbench.engines.server import Server
from draftbench.engines.sglang import SGLANG
from draftbench.engines.tensorrt_llm import TENSORRT_LLM
from draftbench.engines.transformers import TRANSFORMERS
from draftbench.engines.vllm import VLLM
from draftbench.errors import EngineError
from draftbench.records import STACK

# By the name that `--engine` takes, in the order in which they are listed.
ENGINES = {each.key: each for each in (VLLM, SGLANG, LLAMA_CPP, TENSORRT_LLM, TRANSFORMERS)}
# The engines that draftbench can start.
STARTED = {key: engine.start for key, engine in ENGINES.items() if engine.start is not None}
# How servers are asked: those of an engine, and any other that speaks OpenAI's API.
SERVERS: dict[str, type[Server]] = {
    key: engine.server for key, engine in ENGINES.items() if engine.server is not None
} | {"openai": OpenAiServer}

# A server's settings that follow from how it drafts, by the engines' names.
DRAFTING_SETTINGS = {name for each in ENGINES.values() for name in each.drafting_settings}
# The settings that tell in which type a server holds its target, and where it read it from.
NUMBER_TYPES = tuple(dict.fromkeys(n for each in ENGINES.values() for n in each.number_types))
OF_TARGET = (*NUMBER_TYPES, "weights")


def listed(names: Collection[str], last: str) -> str:
    """Names in a sentence: `a, b or c` with `or` before the last one."""
    *others, end = names
    return f"{', '.join(others)} {last} {end}" if others else end


def engine_called(name: str) -> str:
    """An engine's name from any spelling (`llamacpp`, `vLLM`, `tensorrt_llm`); other names
    unchanged.
    """

    def letters(text: str) -> str:
        return re.sub(r"[-_. ]", "", text.lower())

    return next((key for key in (*ENGINES, *SERVERS) if letters(key) == letters(name)), name)


def check_method(key: str, speculation: Speculation) -> None:
    """Raise an EngineError if an engine lacks this method of drafting, or stops no draft so."""
    engine, method = ENGINES[key], speculation.method
    if speculation.stacked and not engine.stacks:
        able = " and ".join(other for other, each in ENGINES.items() if each.stacks)
        raise EngineError(
            f"{key} drafts by one method, not by prompt lookup and then by `{method}`",
            hint=f"{able} does; or take the draft alone, without `{STACK}`",
        )
    if method not in engine.methods:
        raise EngineError(
            f"{key} is not known to draft by `{method}`",
            hint=f"it drafts by {', '.join(engine.methods).replace('raw', 'spec:FILE.json')}",
        )
    if (stop := speculation.stop) is not None and not engine.follows(speculation):
        others = [other.name for other in ENGINES.values() if other.follows(speculation)]
        instead = "stop by another rule, or draft k tokens in every round"
        raise EngineError(
            f"{engine.name} does not stop such a draft by this rule: "
            f"{STOP_RULES[stop.kind].at(stop.threshold)}",
            hint=f"{listed(others, 'and')} does; or {instead}" if others else instead,
        )
