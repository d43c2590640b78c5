"""What serving engines are called, in every command and record."""

import re

STARTED = ("vllm", "llama.cpp", "sglang", "tensorrt-llm")
"""Engines that draftbench can start; it measures on running ones too."""

DRIVEN = (*STARTED, "openai")
"""Servers that it can measure on."""


def engine_called(name: str) -> str:
    """An engine however it is written (`llamacpp`, `vLLM`, `tensorrt_llm`); other names as they
    are.
    """
    return _BY_LETTERS.get(_letters(name), name)


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name.lower())


_BY_LETTERS = {_letters(name): name for name in (*DRIVEN, "transformers")}
