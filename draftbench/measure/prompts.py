"""Turns a request into a prompt: the token ids that the target reads, and how many it may write.

The target's chat template renders chats, with their tools and thinking switches; a draft reads the
same ids. No error quotes the text of a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec

from draftbench.errors import RefusedError
from draftbench.measure.templates import Renderer
from draftbench.models.source import ModelSource, end_tokens
from draftbench.records import Request

# A stop string of n bytes lies inside the last n + 4 tokens, since a token is at least one byte.
EXTRA_TOKENS = 4


@dataclass(frozen=True)
class Prompt:
    """A request as token ids, without its text: there are as many prompts as requests."""

    request: Request  # its settings alone
    tokens: Sequence[int]
    limit: int  # most tokens of the response
    logged: Sequence[int] = ()  # the answer in the log, cut at the limit, with `--responses log`


def fitted(
    request: Request, tokens: Sequence[int], limit: int, context_length: int
) -> Prompt | None:
    """The prompt of a request with these token ids, and a response of at most `limit` tokens or
    what the context has room for; None if that is not even one.
    """
    room = context_length - len(tokens)
    if not tokens or room < 1:
        return None
    settings = msgspec.structs.replace(
        request, prompt=None, messages=None, tools=None, template={}, response=None
    )
    return Prompt(settings, array("i", tokens), min(limit, room))


class PromptMaker(Protocol):
    """Turns requests into token ids: `TargetText`, or a server."""

    def prompt(self, request: Request, limit: int, context_length: int) -> Prompt | None: ...

    def answer(self, request: Request) -> list[int]: ...

    def shown(self, tokens: Sequence[int]) -> str | None: ...


class LostAnswerError(Exception):
    """A logged answer that cannot be put back together completely; `str()` says what is lost."""


@dataclass(frozen=True)
class TargetText:
    """The target's tokenizer, chat template and end tokens."""

    source: ModelSource
    # What helps where a request is a chat and there is no template.
    template_hint: str = (
        "use plain prompts (built in: `--traffic suite:completion`), or a chat model"
    )

    @property
    def tokenizer(self) -> Any:
        return self.source.tokenizer

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        return end_tokens(self.source)

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self.tokenizer, self.source.name)

    def prompt(self, request: Request, limit: int, context_length: int) -> Prompt | None:
        """The prompt of one request; None if it and one token of response do not fit the context.

        Args:
            limit: most tokens of a response.

        Raises:
            RefusedError, ModelError: the tokenizer or its template refuses it, or does not end.
        """
        if request.messages is not None and not getattr(self.tokenizer, "chat_template", None):
            without = f"is a chat, and `{self.source.name}` has no chat template"
            raise RefusedError(
                f"{request.source} {without}", reason=f"it {without}", hint=self.template_hint
            )
        return fitted(request, self._renderer.tokens(request), limit, context_length)

    def drops_tools(self, request: Request) -> bool:
        """Whether the template renders a request with tools as if it had none."""
        without = msgspec.structs.replace(request, tools=None)
        return self._renderer.tokens(request) == self._renderer.tokens(without)

    def answer(self, request: Request) -> list[int]:
        """The logged answer as the target's tokens: with its reasoning and its calls of tools as
        the template writes them.

        Raises:
            LostAnswerError: the log or the template leaves out a part of it.
            RefusedError, ModelError: the tokenizer refuses it, or does not end.
        """
        answer = request.response
        if not isinstance(answer, dict):
            return self._renderer.answer(request)
        if answer.get("reasoning_content", "") is None:
            raise LostAnswerError("reasoning that is not in the log")
        if request.messages is None:
            raise LostAnswerError("reasoning or calls of tools after a plain prompt")
        prompt, whole = self._renderer.tokens(request), self._renderer.tokens(request, answer)
        if whole[: len(prompt)] != prompt:
            raise LostAnswerError("reasoning or calls of tools that the template writes otherwise")
        rest = whole[len(prompt) :]
        end = next((at for at, token in enumerate(rest) if token in self.end_tokens), len(rest))
        written = "".join(self.shown(rest[:end]).split())
        said = {"reasoning": answer.get("reasoning_content"), "a text": answer.get("content")}
        calls = [call["function"]["name"] for call in answer.get("tool_calls", ())]
        for what, text in (*said.items(), *(("a call of a tool", name) for name in calls)):
            if "".join((text or "").split()) not in written:
                raise LostAnswerError(f"{what} that the template does not write")
        return rest[:end]

    def shown(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        text: str = self.tokenizer.decode(list(tokens))
        return text

    def ends(self, output: list[int], stop: tuple[str, ...]) -> bool:
        """Whether the response ends with the last token of `output`."""
        if output[-1] in self.end_tokens:
            return True
        if not stop:
            return False
        window = output[-max(len(text.encode()) for text in stop) - EXTRA_TOKENS :]
        tail, before = self.tokenizer.decode(window), self.tokenizer.decode(window[:-1])
        return any(text in tail and text not in before for text in stop)
