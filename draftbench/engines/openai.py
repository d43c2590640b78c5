"""Any server with OpenAI's completions: a black box that takes text and tells no token ids, so that
its speed can be measured and nothing else. How many tokens it wrote is what `usage` says.

The route that vLLM and TensorRT-LLM share with it is read here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from draftbench.engines.client import AnswerError, decoded, failure
from draftbench.engines.engine import Ask, Fault, Reading, Server, ServerFacts
from draftbench.errors import EngineError
from draftbench.records import Count
from draftbench.safe_files import without_controls

Id = Annotated[int, Meta(ge=0, lt=2**31)]


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


class Event(msgspec.Struct):
    """One event of a stream, or a whole answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Card(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None
    parent: str | None = None  # of an adapter


class Models(msgspec.Struct):
    data: list[Card] = []


class OpenAi(Server):
    """A server behind `/v1/completions`.

    `extended` is whether it takes the sampling fields that OpenAI's own servers refuse.
    """

    engine = "openai"
    route = "/v1/completions"
    tried = True
    returns_ids = False
    extended = True

    def facts(self) -> ServerFacts:
        return ServerFacts(self.engine, model=self.model, context_length=self._card().max_model_len)

    def question(self, ask: Ask) -> dict[str, Any]:
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
        return body

    def read(self, data: bytes, reading: Reading) -> None:
        if data == b"[DONE]":
            reading.ended = True
        else:
            self.take(decoded(data, Event), reading)

    def take(self, event: Event, reading: Reading) -> None:
        """Take in one decoded event."""
        if event.error is not None:
            raise failure(_said(event.error))
        for choice in event.choices[:1]:
            self._take_choice(choice, reading)
        if event.usage is not None and event.usage.completion_tokens is not None:
            reading.stated = event.usage.completion_tokens
            reading.prompt_tokens = event.usage.prompt_tokens
            if details := event.usage.prompt_tokens_details:
                reading.cached_tokens = details.cached_tokens

    def _take_choice(self, choice: Choice, reading: Reading) -> None:
        reading.text.append(choice.text or "")
        reading.finish = choice.finish_reason or reading.finish
        if choice.prompt_token_ids is not None:
            check_prompt(choice.prompt_token_ids, reading.ask.prompt)
        if not self.returns_ids:
            reading.tokens = None
        elif choice.token_ids is not None and reading.tokens is not None:
            reading.tokens += choice.token_ids
            reading.count += len(choice.token_ids)
        logged = choice.logprobs.token_logprobs if choice.logprobs else ()
        if reading.log_p is not None:
            reading.log_p += [value for value in logged if value is not None]

    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        """Let it answer with one token each, and find out whether it takes every sampling field.
        What it read it does not tell.
        """
        for prompt in prompts:
            try:
                answer = self._one_token(prompt)
            except AnswerError as error:
                if error.fault is not Fault.REFUSED or not self.extended:
                    raise
                self.extended = False
                answer = self._one_token(prompt)
            if answer.usage is None or answer.usage.completion_tokens is None:
                raise EngineError(
                    f"{self.url} does not say how many tokens it wrote",
                    hint="its answers need `usage` (`stream_options.include_usage`)",
                )

    def _one_token(
        self, prompt: Sequence[int] | str, *, most: int = 8 << 20, **fields: Any
    ) -> Event:
        """A greedy answer of one token, not streamed."""
        body = self.question(self.greedy(prompt)) | fields
        body["stream"] = False
        del body["stream_options"]
        answer = self.http.json(self.route, body, type=Event, most=most)
        if answer.error is not None:
            raise failure(_said(answer.error))
        if not answer.choices:
            raise AnswerError(
                Fault.GARBAGE,
                f"{self.url} answers without a choice",
                hint="see what runs at this address",
            )
        return answer

    def _card(self) -> Card:
        """What the server's list of models says of the one that is asked."""
        cards = self.http.json("/v1/models", type=Models).data
        return next((card for card in cards if card.id == self.model), Card(id=self.model or ""))


def check_prompt(read: Sequence[int], sent: Sequence[int] | str) -> None:
    """Compare what a server read with what was sent.

    Raises:
        AnswerError: another id.
    """
    if isinstance(sent, str) or list(read) == list(sent):
        return
    raise AnswerError(
        Fault.OTHER_IDS,
        "the server read other token ids than were sent",
        hint="the server's tokenizer must be the target's, and add nothing to a prompt of ids",
    )


def check_starts(prompts: Sequence[Sequence[int] | str]) -> None:
    """Look for a beginning-of-sequence token that stands twice: the token that begins every prompt,
    and begins one of them again.

    Raises:
        EngineError: there is one.
    """
    ids = [list(prompt[:2]) for prompt in prompts if not isinstance(prompt, str)]
    if len({tuple(two[:1]) for two in ids}) == 1 and any(two == 2 * two[:1] for two in ids):
        raise EngineError(
            "prompts begin with the beginning-of-sequence token twice",
            hint="the chat template writes it and the tokenizer adds it: one of them must not",
        )


def _said(error: Any) -> str:
    said = error.get("message", error) if isinstance(error, dict) else error
    return without_controls(str(said))
