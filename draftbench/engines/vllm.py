"""vLLM: ids go out and come back, with the rounds of every request one by one where the server runs
with `--per-request-spec-decode-metrics detailed --enable-per-request-metrics`.

Seen with 0.32: the ids hold the end token, a stop token, and the tokens of a stop string up to the
one that completed it. Only steps that had drafts are listed; accepted tokens past the limit or the
end of the response are counted. A request that ended at a stop string tells no rounds. With
speculation the server refuses a `min_p` above 0; on a CPU it then writes noise above temperature 0
(mean log p -11 where greedy text has -0.7, nothing accepted) and dies of a top-k.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from draftbench.engines.client import AnswerError, decoded
from draftbench.engines.counters import read_counters
from draftbench.engines.engine import Ask, Counters, Fault, Reading, ServerFacts
from draftbench.engines.openai import Choice, Event, Id, OpenAi, check_prompt, check_starts
from draftbench.errors import EngineError
from draftbench.records import Count
from draftbench.safe_files import without_controls

_TOLD = re.compile(
    r"\b(dtype|max_seq_len|tensor_parallel_size|pipeline_parallel_size|data_parallel_size"
    r"|quantization|kv_cache_dtype|enforce_eager|enable_chunked_prefill)=([^,()\s]{1,80})"
)
_SPECULATION = re.compile(
    r"SpeculativeConfig\(method='([\w-]{1,40})'(?:, model='?([^',]{1,400})'?)?"
    r"[^)]*?num_spec_tokens=(\d{1,3})"
)
_CACHING = re.compile(r'enable_prefix_caching="(True|False)"')


class Speculated(msgspec.Struct):
    acceptance_histogram: list[Count] = []
    num_spec_steps: Count = 0
    num_accepted_draft_tokens: Count = 0
    num_draft_tokens: Count = 0
    per_step_accepted: list[Count] | None = None
    per_step_drafted: list[Count] | None = None


class Metrics(msgspec.Struct):
    speculative_decoding: Speculated | None = None


class VllmEvent(Event):
    metrics: Metrics | None = None


class ScoredToken(msgspec.Struct):
    logprob: float
    rank: int | None = None


class ScoredChoice(Choice):
    prompt_logprobs: list[dict[Id, ScoredToken] | None] | None = None


class Scored(msgspec.Struct):
    choices: list[ScoredChoice]


class Tokens(msgspec.Struct):
    tokens: list[Id]


class Version(msgspec.Struct):
    version: str


class Info(msgspec.Struct):
    vllm_config: str = ""


class Vllm(OpenAi):
    engine = "vllm"
    returns_ids = True
    cache_off_by_request = True

    def question(self, ask: Ask) -> dict[str, Any]:
        body = super().question(ask) | {
            "return_token_ids": True,
            "add_special_tokens": False,
            "ignore_eos": False,
            "min_tokens": 0,
            "cache_salt": secrets.token_hex(16),  # no other request's prefix has it
        }
        if ask.log_p:
            body |= {"logprobs": 0, "return_tokens_as_token_ids": True}
        return body

    def read(self, data: bytes, reading: Reading) -> None:
        if data == b"[DONE]":
            reading.ended = True
            return
        event = decoded(data, VllmEvent)
        self.take(event, reading)
        stated = event.metrics.speculative_decoding if event.metrics else None
        if stated is None:
            return
        reading.rounds = stated.num_spec_steps
        reading.drafted, reading.kept = stated.num_draft_tokens, stated.num_accepted_draft_tokens
        # Of the steps that accepted j tokens, all accepted those at the positions before j.
        survivors = list(accumulate(reversed(stated.acceptance_histogram)))[::-1]
        reading.by_position = survivors[1:]
        if stated.per_step_accepted is not None and stated.per_step_drafted is not None:
            reading.proposed, reading.accepted = stated.per_step_drafted, stated.per_step_accepted

    def facts(self) -> ServerFacts:
        page = self._page()
        counters = read_counters(page)
        caching = _CACHING.search(page)
        k = len(counters.by_position) if counters.by_position else 0 if page else None
        method = "none" if k == 0 else None
        settings: dict[str, str] = {}
        try:
            config = self.http.json("/server_info", type=Info).vllm_config
        except AnswerError as error:  # it answers in developer mode only
            if error.fault is not Fault.REFUSED:
                raise
        else:
            settings = {name: without_controls(value) for name, value in _TOLD.findall(config)}
            if speculation := _SPECULATION.search(config):
                method, k = speculation[1], int(speculation[3])
                if speculation[2]:
                    settings["speculative_model"] = without_controls(speculation[2])
        return ServerFacts(
            engine=self.engine,
            version=self.http.json("/version", type=Version).version,
            model=self.model,
            context_length=self._card().max_model_len,
            prefix_cache=None if caching is None else caching[1] == "True",
            method=method,
            k=k,
            settings=settings,
        )

    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        check_starts(prompts)
        for prompt in prompts:
            read = self._one_token(prompt).choices[0].prompt_token_ids
            if read is None:
                raise EngineError(
                    f"{self.url} does not return token ids",
                    hint="vLLM 0.10.2 and later do; else measure it with `--engine openai`",
                )
            check_prompt(read, prompt)

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": add_special}
        return self.http.json("/tokenize", body, type=Tokens).tokens

    def apply_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
        body |= {"add_generation_prompt": True, "add_special_tokens": False}
        if tools:
            body["tools"] = list(tools)
        if arguments:
            body["chat_template_kwargs"] = dict(arguments)
        return self.http.json("/tokenize", body, type=Tokens).tokens

    def best_tokens(self, ids: Sequence[int], start: int) -> list[int]:
        if not 0 < start < len(ids):
            raise ValueError("the first position to score lies in the ids, after the first")
        # The token after all but the last id is written, so that a full context can be scored.
        body = self.question(self.greedy(ids[:-1]))
        body |= {"stream": False, "prompt_logprobs": 1}
        del body["stream_options"]
        most = (1 << 20) + len(ids) * 1024
        choice = self.http.json(self.route, body, type=Scored, most=most).choices[0]
        scored = (choice.prompt_logprobs or [])[start:]
        if len(scored) != len(ids) - 1 - start or not choice.token_ids:
            raise AnswerError(
                Fault.GARBAGE,
                f"{self.url} scored other positions than were asked",
                hint="see whether the server is a vLLM that can tell `prompt_logprobs`",
            )
        best = []
        for stated in scored:
            if not stated:
                raise AnswerError(
                    Fault.GARBAGE,
                    f"{self.url} left a position without a score",
                    hint="see whether the server is a vLLM that can tell `prompt_logprobs`",
                )
            # Of two tied tokens the one that the server names as best has rank 1.
            best.append(
                min(stated, key=lambda token: (stated[token].rank or 1, -stated[token].logprob))
            )
        return [*best, choice.token_ids[0]]

    def margin(self, ids: Sequence[int]) -> float | None:
        stated = (
            self._one_token(ids, logprobs=2, return_tokens_as_token_ids=True).choices[0].logprobs
        )
        top = (stated.top_logprobs or [None])[0] if stated else None
        values = sorted((top or {}).values(), reverse=True)
        return values[0] - values[1] if len(values) > 1 else None

    def flush(self) -> bool:
        try:
            self.http.run(self.http.post("/reset_prefix_cache"))
        except AnswerError as error:  # it answers in developer mode only
            if error.fault is not Fault.REFUSED:
                raise
            return False
        return True

    async def count(self) -> Counters:
        return read_counters(await self.http.page("/metrics"))

    def _page(self) -> str:
        return self.http.run(self.http.page("/metrics"))
