"""A request → the token ids that the target reads, how many it may write, and where its response
ends.

The prompt is rendered by the target's chat template, since the draft reads the target's ids. What
the request asked for in its template (tools, thinking switches) is given to it. No text of a
request appears in an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from draftbench.errors import TrafficError
from draftbench.measure.templates import Renderer
from draftbench.models.source import ModelSource, end_tokens
from draftbench.records import Request

# A stop string of n bytes lies inside the last n + 4 tokens: a token is at least one byte of text.
EXTRA_TOKENS = 4


@dataclass(frozen=True)
class Prompt:
    """Token ids and the most tokens that may follow. Of what the request said only its settings are
    kept: there may be as many prompts as the traffic has requests. `logged` is its answer in the
    log, cut at the limit, where that is measured on.
    """

    request: Request
    tokens: Sequence[int]
    limit: int
    logged: Sequence[int] = ()


def fitted(
    request: Request, tokens: Sequence[int], longest: int, context_length: int
) -> Prompt | None:
    """A request with its token ids; None where they and one token of response do not fit."""
    room = context_length - len(tokens)
    if not tokens or room < 1:
        return None
    settings = msgspec.structs.replace(
        request, prompt=None, messages=None, tools=None, template={}, response=None
    )
    return Prompt(settings, array("i", tokens), min(request.max_tokens or longest, longest, room))


@dataclass(frozen=True)
class TextSide:
    """The target's tokenizer and its end tokens: all that the measuring half knows of text."""

    source: ModelSource

    @property
    def tokenizer(self) -> Any:
        return self.source.tokenizer

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        return end_tokens(self.source)

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self.tokenizer, self.source.name)

    def prompt(self, request: Request, longest: int, context_length: int) -> Prompt | None:
        """Render one request; None where prompt and one token of response do not fit the context.

        Args:
            longest: most tokens of a response, also where the request allows more.

        Raises:
            TrafficError, ModelError: the tokenizer or its template refuses it, or does not end.
        """
        if request.messages is not None and not getattr(self.tokenizer, "chat_template", None):
            raise TrafficError(
                f"{request.source} is a chat, and `{self.source.name}` has no chat template",
                hint="use plain prompts (built in: `--traffic suite:completion`), or a chat model",
            )
        return fitted(request, self._renderer.tokens(request), longest, context_length)

    def answer(self, request: Request) -> list[int]:
        """The logged answer as the target's tokens.

        Raises:
            TrafficError, ModelError: the tokenizer refuses it, or does not end.
        """
        return self._renderer.answer(request)

    def ends(self, output: list[int], stop: tuple[str, ...]) -> bool:
        """Whether the response ends with the last token of `output`."""
        if output[-1] in self.end_tokens:
            return True
        if not stop:
            return False
        window = output[-max(len(text.encode()) for text in stop) - EXTRA_TOKENS :]
        tail, before = self.tokenizer.decode(window), self.tokenizer.decode(window[:-1])
        return any(text in tail and text not in before for text in stop)
