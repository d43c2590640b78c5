"""SGLang by its own route `/generate`. Untried: written after the fields of its sources (0.5.23),
tested with answers of that shape.

- The ids hold the token that ended the response.
- Every event repeats all ids, unless the server was started with incremental streaming; the number
  in `completion_tokens` shows which.
- `spec_num_proposed_drafts` assumes that every round drafts the same number of tokens.
- A new `extra_key` with each request keeps its prompt out of the prefix cache.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

import msgspec

from draftbench.engines.client import failure, garbage
from draftbench.engines.engine import (
    Answer,
    Ask,
    Id,
    ServerEvent,
    ServerFacts,
    ServerStart,
    TokenServer,
    accepted_at_least,
    check_prompt,
    event_of,
    margin_of,
    one_token,
)
from draftbench.models.drafting import revision_flags, sglang_flags
from draftbench.records import Count, RoundCounts

# [log-probability, id, text]
LogProb = tuple[float | None, Id, str | None]


class Finish(msgspec.Struct):
    type: str
    message: str | None = None


class MetaInfo(msgspec.Struct):
    finish_reason: Finish | None = None
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count | None = None
    spec_verify_ct: Count | None = None
    spec_num_correct_drafts: Count | None = None
    spec_num_proposed_drafts: Count | None = None
    spec_correct_drafts_histogram: list[Count] | None = None
    output_token_logprobs: list[LogProb] | None = None
    output_top_logprobs: list[list[LogProb] | None] | None = None


class SglangEvent(ServerEvent):
    text: str | None = None
    output_ids: tuple[Id, ...] = ()
    prompt_token_ids: list[Id] | None = None
    meta_info: MetaInfo | None = None


class SglangServerInfo(msgspec.Struct):
    version: str | None = None
    model_path: str | None = None
    context_length: Count | None = None
    max_running_requests: Count | None = None
    disable_radix_cache: bool | None = None
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_eagle_topk: Count | None = None
    speculative_num_draft_tokens: Count | None = None
    dtype: str | None = None
    quantization: str | None = None
    tp_size: Count | None = None


# What SGLang calls the kinds of constraints.
_CONSTRAINTS = {
    "json": "json_schema",
    "json_object": "json_schema",
    "regex": "regex",
    "grammar": "ebnf",
}


class Sglang(TokenServer):
    engine = "sglang"
    constraints = frozenset(_CONSTRAINTS)
    route = "/generate"
    returns_since = "SGLang of 0.5.23 or near does"
    bytes_per_token = 256 << 10  # all ids come again with every token
    owner = "sglang"
    command = "{python} -m sglang.launch_server {args}"
    taken = (
        *("--model-path", "--model", "--port", "--speculative-algorithm"),
        *("--speculative-num-steps", "--speculative-num-draft-tokens"),
        *("--speculative-draft-model-path", "--speculative-draft-model"),
    )
    advice: ClassVar[Mapping[str, str]] = {
        "No module named 'sglang'": "sglang is not installed in the Python that runs draftbench: "
        'name another, --engine-command "/path/to/python -m sglang.launch_server {args}"'
    }

    @classmethod
    def flags(cls, start: ServerStart) -> list[str]:
        target, revision = revision_flags(start.target, "--revision")
        words = ["--model-path", target, *revision, "--disable-radix-cache", "--enable-metrics"]
        words += start.limits("--context-length", "--max-running-requests")
        return words if start.speculation is None else [*words, *sglang_flags(start.speculation)]

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = ask.sampling
        held = {_CONSTRAINTS[kind]: value for kind, value in (ask.constraint or {}).items()}
        if "json_schema" in held:
            schema = {"type": "object"} if held["json_schema"] is True else held["json_schema"]
            held["json_schema"] = json.dumps(schema)
        text = isinstance(ask.prompt, str)
        return {
            "text" if text else "input_ids": ask.prompt if text else list(ask.prompt),
            "sampling_params": {
                "max_new_tokens": ask.limit,
                "n": 1,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or -1,
                "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
                "min_p": sampling.min_p or 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "sampling_seed": sampling.seed,
                "stop": list(ask.stop),
                "ignore_eos": False,
                "min_new_tokens": 0,
                **held,
            },
            "stream": True,
            "return_prompt_token_ids": True,
            "return_logprob": ask.log_p,
            "extra_key": secrets.token_hex(16),
        }

    def read(self, data: bytes, answer: Answer) -> None:
        if (event := event_of(data, SglangEvent, answer)) is None:
            return
        if (stated := event.meta_info) is None:
            raise failure("nothing")
        assert answer.tokens is not None
        if event.prompt_token_ids is not None:
            check_prompt(event.prompt_token_ids, answer.ask.prompt)
        if len(event.output_ids) == stated.completion_tokens:  # all of them again
            new = event.output_ids[answer.count :]
            answer.text = event.text or ""
        else:
            new = event.output_ids
            answer.text += event.text or ""
        if answer.count + len(new) != stated.completion_tokens:
            raise garbage("the ids do not add up to `completion_tokens`")
        answer.tokens += new
        answer.count += len(new)
        answer.prompt_tokens, answer.cached_tokens = stated.prompt_tokens, stated.cached_tokens
        if stated.spec_num_correct_drafts is not None:
            histogram = stated.spec_correct_drafts_histogram
            answer.counts = RoundCounts(
                rounds=stated.spec_verify_ct,
                drafted=stated.spec_num_proposed_drafts,
                accepted=stated.spec_num_correct_drafts,
                by_position=accepted_at_least(histogram) if histogram else None,
            )
        if stated.output_token_logprobs is not None:
            values = [value for value, _, _ in stated.output_token_logprobs if value is not None]
            again = len(values) == answer.count
            answer.log_p = values if again else [*(answer.log_p or ()), *values]
        if stated.finish_reason is not None:
            if stated.finish_reason.type == "abort":
                raise failure(stated.finish_reason.message or "aborted")
            answer.finish = stated.finish_reason.type

    def facts(self) -> ServerFacts:
        stated = self.http.json("/server_info", type=SglangServerInfo)
        names = [
            "dtype",
            "quantization",
            "tp_size",
            "max_running_requests",
            "speculative_eagle_topk",
        ]
        settings = {n: str(v) for n in names if (v := getattr(stated, n))}
        if stated.model_path:
            settings["weights"] = PurePath(stated.model_path).name
        if stated.speculative_draft_model_path:
            settings["speculative_model"] = stated.speculative_draft_model_path
        drafting, no_cache = stated.speculative_num_draft_tokens, stated.disable_radix_cache
        return ServerFacts(
            engine=self.engine,
            version=stated.version,
            model=self.model or stated.model_path,
            context_length=stated.context_length,
            prefix_cache=None if no_cache is None else not no_cache,
            method=stated.speculative_algorithm or "none",
            k=drafting - 1 if drafting and stated.speculative_algorithm else 0,
            settings=settings,
        )

    def prompt_ids(self, prompt: Sequence[int] | str) -> list[int] | None:
        return one_token(self, prompt, SglangEvent).prompt_token_ids

    def margin(self, ids: Sequence[int]) -> float | None:
        answer = one_token(self, ids, SglangEvent, return_logprob=True, top_logprobs_num=2)
        stated = answer.meta_info
        top = (stated.output_top_logprobs or [None])[0] if stated else None
        return margin_of(value for value, _, _ in top or ())
