"""Any server with OpenAI's `/v1/completions`, as a black box: it takes text and returns no token
ids, so only its speed can be measured. The tokens of its texts are counted here; its own count, in
`usage`, is believed only where no tokenizer is at hand.

vLLM shares the route, so its answers are decoded here too, and its names of counters are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from draftbench.engines.faults import AnswerError, Fault, garbage
from draftbench.engines.server import (
    Answer,
    Ask,
    Id,
    Server,
    ServerEvent,
    ServerFacts,
    check_prompt,
    event_of,
    one_token,
)
from draftbench.errors import EngineError
from draftbench.records import Amount, Count


class LogProbs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[Id] | None = None
    prompt_token_ids: list[Id] | None = None
    logprobs: LogProbs | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None


class Speculated(msgspec.Struct):
    acceptance_histogram: list[Count] = []
    num_spec_steps: Count = 0
    num_accepted_draft_tokens: Count = 0
    num_draft_tokens: Count = 0
    per_step_accepted: list[Count] | None = None
    per_step_drafted: list[Count] | None = None


class Metrics(msgspec.Struct):
    generation_time_ms: Amount | None = None  # from the first token to the last
    speculative_decoding: Speculated | None = None


class OpenAiEvent(ServerEvent):
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    metrics: Metrics | None = None  # of vLLM


class ModelCard(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None
    root: str | None = None  # where vLLM read the weights
    parent: str | None = None  # of an adapter


class ModelList(msgspec.Struct):
    data: list[ModelCard] = []


class OpenAiServer(Server):
    """A server behind `/v1/completions`.

    `extended` is whether it takes the sampling fields that OpenAI's own servers refuse.
    """

    engine = "openai"
    route = "/v1/completions"
    returns_ids = False
    extended = True
    constraints = frozenset({"json", "json_object"})
    counter_names: ClassVar[Mapping[str, str]] = {  # vLLM's
        "rounds": "spec_decode_num_drafts_total",
        "drafted": "spec_decode_num_draft_tokens_total",
        "accepted": "spec_decode_num_accepted_tokens_total",
        "by_position": "spec_decode_num_accepted_tokens_per_pos_total",
        "written": "generation_tokens_total",
    }

    def facts(self) -> ServerFacts:
        return ServerFacts(self.engine, model=self.model, context_length=self._card().max_model_len)

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = ask.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt),
            "max_tokens": ask.limit,
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": sampling.seed,
            "stop": list(ask.stop),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.extended:
            body |= {
                "top_k": sampling.top_k or 0,
                "min_p": sampling.min_p or 0.0,
                "repetition_penalty": 1.0,
            }
        elif sampling.top_k or sampling.min_p:
            raise AnswerError(
                Fault.REFUSED,
                "the server takes neither `top_k` nor `min_p`",
                hint="measure requests without them, or set them in the server",
            )
        return body | self.constrained(ask)

    def constrained(self, ask: Ask) -> dict[str, Any]:
        """The fields that hold the answer to a constraint."""
        match ask.constraint:
            case {"json": schema}:
                named = {"name": "answer", "schema": schema}
                return {"response_format": {"type": "json_schema", "json_schema": named}}
            case {"json_object": _}:
                return {"response_format": {"type": "json_object"}}
        return {}

    def read(self, data: bytes, answer: Answer) -> None:
        if (event := event_of(data, OpenAiEvent, answer)) is not None:
            self.take(event, answer)

    def take(self, event: OpenAiEvent, answer: Answer) -> None:
        """Take in one decoded event."""
        for choice in event.choices[:1]:
            answer.text += choice.text or ""
            answer.finish = choice.finish_reason or answer.finish
            if choice.prompt_token_ids is not None:
                check_prompt(choice.prompt_token_ids, answer.ask.prompt)
            if not self.returns_ids:
                answer.tokens = None
            elif choice.token_ids is not None and answer.tokens is not None:
                answer.tokens += choice.token_ids
                answer.count += len(choice.token_ids)
            logged = choice.logprobs.token_logprobs if choice.logprobs else ()
            if answer.log_p is not None:
                answer.log_p += [value for value in logged if value is not None]
        if event.usage is not None and event.usage.completion_tokens is not None:
            answer.stated = event.usage.completion_tokens
            answer.prompt_tokens = event.usage.prompt_tokens
            if details := event.usage.prompt_tokens_details:
                answer.cached_tokens = details.cached_tokens

    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        """Ask for one token each, to learn whether the server takes every sampling field. Which ids
        it read it does not say.
        """
        for prompt in prompts:
            try:
                answer = self.one_token(prompt)
            except AnswerError as error:
                if error.fault is not Fault.REFUSED or not self.extended:
                    raise
                self.extended = False
                answer = self.one_token(prompt)
            if answer.usage is None or answer.usage.completion_tokens is None:
                raise EngineError(
                    f"{self.url} does not say how many tokens it wrote",
                    hint="its answers need `usage` (`stream_options.include_usage`)",
                )

    def one_token(self, prompt: Sequence[int] | str, **fields: Any) -> OpenAiEvent:
        """A greedy answer of one token, not streamed."""
        answer = one_token(self, prompt, OpenAiEvent, **fields)
        if not answer.choices:
            raise garbage(f"{self.url} answers without a choice")
        return answer

    def _card(self) -> ModelCard:
        """What the server's list of models says of its model."""
        cards = self.http.json("/v1/models", type=ModelList).data
        return next(
            (card for card in cards if card.id == self.model), ModelCard(id=self.model or "")
        )
