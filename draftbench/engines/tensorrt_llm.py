"""TensorRT-LLM by its OpenAI route (`trtllm-serve`). Untried: written after the fields of its
sources, tested with answers of that shape.

- With `detokenize` off it gives ids instead of text. It refuses fields that it does not know.
- Of the prompt it returns only the number of tokens, and it reports no rounds.
- `include_stop_str_in_output` keeps the tokens of a stop string. Where `usage` counts more tokens
  than there are ids (the end token), the ids of that answer are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftbench.engines.client import other_ids, unless_refused
from draftbench.engines.engine import FROM_OUTSIDE, Ask, ServerFacts, check_beginnings
from draftbench.engines.openai import NOTHING_ADDED, OpenAi, Version
from draftbench.errors import EngineError


class TensorRtLlm(OpenAi):
    engine = "tensorrt-llm"
    returns_ids = True

    def body(self, ask: Ask) -> dict[str, Any]:
        body = super().body(ask) | NOTHING_ADDED
        body |= {"detokenize": False, "include_stop_str_in_output": True}
        if ask.log_p:
            body["logprobs"] = 1
        return body

    def facts(self) -> ServerFacts:
        version = None
        with unless_refused():
            version = self.http.json("/version", type=Version).version
        return ServerFacts(self.engine, version=version, model=self.model)

    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        check_beginnings(prompts)
        for prompt in prompts:
            answer = self.one_token(prompt)
            if isinstance(prompt, str) or answer.usage is None:
                continue
            if answer.usage.prompt_tokens != len(prompt):
                read = answer.usage.prompt_tokens
                raise other_ids(f"the server read {read} tokens where {len(prompt)} were sent")
            if not answer.choices[0].token_ids:
                raise EngineError(f"{self.url} does not return token ids", hint=FROM_OUTSIDE)
