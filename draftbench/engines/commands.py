"""What is to be started, and the command line that starts it.

The flags of vLLM and llama.cpp were run; those of SGLang and TensorRT-LLM were read in their
sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from draftbench.records import DraftingMode

Method = Literal["draft-model", "ngram", "eagle3", "mtp", "suffix", "dflash", "raw"]


@dataclass(frozen=True)
class Speculation:
    """How a server drafts, and how many tokens a round."""

    method: Method
    model: str | None  # the drafter's weights; None where it has none of its own
    k: int
    lookup: tuple[int, int] | None = None  # ngram: its longest and its shortest match
    raw: dict[str, Any] | None = None  # what `spec:FILE.json` holds
    quant: str = "none"  # of a draft model, made while the engine loads it
    mode: DraftingMode = DraftingMode.GREEDY


@dataclass(frozen=True)
class Start:
    """One server to be started; `speculation` None is the baseline."""

    engine: str  # vllm, llama.cpp, sglang or tensorrt-llm
    target: str
    speculation: Speculation | None = None
    args: str = ""  # what the user adds, as a shell would read it
    command: str | None = None  # the user's, with placeholders; None: the engine's usual one
    stop_command: str | None = None  # ends what lives outside the process group
    concurrency: int = 1  # most requests in flight
    context_length: int | None = None  # tokens of prompt and response; None: the model's
    threads: int | None = None  # of the server, on a CPU; None: as many as it takes
    ready_timeout: float = 900.0  # seconds until it answers
