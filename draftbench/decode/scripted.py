"""A runner that follows a script, and a clock that it moves: the whole decoder with exact, known
numbers and no model.

The seam for tests, shipped with the package so that users of the library can test against it too. A
script is any function from the tokens so far to next-token logits; every pass takes the scripted
time, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Script = Callable[[Sequence[int]], Tensor]


@dataclass
class ScriptedClock:
    """Seconds that pass only when a scripted runner works."""

    now: float = 0.0

    def mark(self) -> float:
        """The scripted time."""
        return self.now

    def seconds(self, start: float, end: float) -> float:
        """Scripted seconds between two marks."""
        return end - start


@dataclass
class ScriptedCache:
    """The tokens read so far."""

    tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return len(self.tokens)

    def rewind(self, length: int) -> None:
        """Forget what was read after `length` tokens."""
        del self.tokens[length:]


@dataclass
class ScriptedRunner:
    """A model that is a function.

    `seconds_per_pass` and `seconds_per_token` are what a pass over n tokens takes on `clock`: first
    + n · second.
    """

    script: Script
    vocab_size: int
    clock: ScriptedClock = field(default_factory=ScriptedClock)
    seconds_per_pass: float = 1.0
    seconds_per_token: float = 0.0
    context_length: int = 4096
    device: str = "cpu"
    name: str = "scripted"

    def new_cache(self, capacity: int) -> ScriptedCache:
        """An empty cache."""
        return ScriptedCache()

    def forward(self, tokens: Tensor, cache: ScriptedCache, keep: int) -> Tensor:
        """Append tokens [n]; the script's logits after each of the last `keep`."""
        self.clock.now += self.seconds_per_pass + self.seconds_per_token * len(tokens)
        start = len(cache.tokens) + len(tokens) - keep
        cache.tokens += tokens.tolist()
        assert len(cache.tokens) <= self.context_length
        return torch.stack([self.script(cache.tokens[: start + i + 1]) for i in range(keep)])

    def modules(self) -> Iterator[nn.Module]:
        """A script has no layers."""
        return iter(())

    def tensors(self) -> Iterator[Tensor]:
        """A script has no weights."""
        return iter(())


def markov(table: Tensor) -> Script:
    """The script of a first-order Markov chain: logits [vocab, vocab], row = last token."""
    return lambda tokens: table[tokens[-1]]
