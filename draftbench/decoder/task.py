"""What a decoder is asked for and what it answers: token ids, and what every round of it did.

Knows token ids; text, files and statistics are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from draftbench.decoder.sampling import Uniforms
from draftbench.records import Sampling

# Whether the response ends with its last token; asked once for every token of the output, in order.
EndTest = Callable[[list[int]], bool]


@dataclass(frozen=True)
class Task:
    """One response to produce: prompt ids, at most `limit` tokens, the request's sampling and where
    it ends.
    """

    prompt: list[int]
    limit: int
    sampling: Sampling
    uniforms: Uniforms
    ends: EndTest

    @property
    def capacity(self) -> int:
        """Tokens of prompt and longest response together."""
        return len(self.prompt) + self.limit


@dataclass
class Response:
    """Output ids and, per round, what was proposed, accepted and cut, the seconds of drafting and
    of the rest of the round, and how many rows took part.

    Rounds follow each other without a gap, so their seconds add up to `decode_seconds`; what other
    rows' prompts take between two rounds is not in it.
    """

    tokens: list[int] = field(default_factory=list)
    finish: str = "length"
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    verify_seconds: list[float] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_prefill_seconds: float | None = None

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return sum(self.draft_seconds) + sum(self.verify_seconds)
