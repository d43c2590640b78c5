"""A scripted model on a clock that only it moves, for tests that expect exact seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from draftbench.decoder.runner import HostClock
from draftbench.decoder.scripted_model import ScriptedRunner


@dataclass
class ScriptedClock(HostClock):
    """Seconds that pass only when a timed runner works."""

    now: float = 0.0

    def mark(self) -> float:
        return self.now


@dataclass
class TimedRunner(ScriptedRunner):
    """A pass over n tokens takes `a_pass` + n · `a_token` seconds of its clock."""

    clock: ScriptedClock = field(default_factory=ScriptedClock)
    a_pass: float = 1.0
    a_token: float = 0.0

    def forward(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.clock.now += self.a_pass + self.a_token * len(tokens)
        return super().forward(tokens, *args, **kwargs)
