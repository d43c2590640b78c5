"""A prompt → a response, by rounds of drafting and verification; k = 0 is plain decoding through
the same code.

Each round drafts up to k tokens, runs the target once over the last token and the proposal, keeps
what the acceptance rule accepts plus one token of the target's, and rewinds both caches. Nothing is
drafted past the length limit. Proposals after an accepted end of the response are cut. The loop
knows token ids; text, files and statistics are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftbench.decode.clock import Clock
from draftbench.decode.drafters import Drafter, Proposal
from draftbench.decode.runner import KVCache, Runner
from draftbench.decode.sampling import (
    Uniforms,
    Verdict,
    choose,
    distribution,
    verify_matching,
    verify_sampling,
)
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


@dataclass
class Response:
    """Output ids and, per round, what was proposed, accepted and cut and how long both halves took
    (seconds).
    """

    tokens: list[int] = field(default_factory=list)
    finish: str = "length"
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    verify_seconds: list[float] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_prefill_seconds: float | None = None
    decode_seconds: float = 0.0


def decode(task: Task, target: Runner, drafter: Drafter | None, k: int, clock: Clock) -> Response:
    """Produce the response to `task` with draft length `k`.

    With k = 0 or no drafter every round is one plain step. At temperature 0 the output is the
    target's own greedy output up to near ties of its logits; with greedy drafting so is the sampled
    output above temperature 0.
    """
    speculator = _Speculator(task, target, drafter if k > 0 else None, clock)
    response = Response()
    speculator.prefill(response)
    start = clock.mark()
    while response.finish == "length" and len(response.tokens) < task.limit:
        speculator.round(response, min(k, task.limit - len(response.tokens) - 1))
    response.decode_seconds = clock.seconds(start, clock.mark())
    return response


class _Speculator:
    """The state of one response: the target's cache, the drafter and the random numbers."""

    def __init__(self, task: Task, target: Runner, drafter: Drafter | None, clock: Clock) -> None:
        self.task, self.target, self.drafter, self.clock = task, target, drafter, clock
        capacity = len(task.prompt) + task.limit
        self.cache: KVCache = target.new_cache(capacity)
        self.capacity = capacity
        self.context = list(task.prompt)
        self.streams: dict[str, Tensor] = {}
        if task.sampling.temperature > 0:
            purposes = ("target", "accept", "residual")
            self.streams = {p: torch.from_numpy(task.uniforms.stream(p)) for p in purposes}

    def prefill(self, response: Response) -> None:
        """Read the prompt with both models and emit the first token."""
        start = self.clock.mark()
        prompt = torch.tensor(self.task.prompt, device=self.target.device)
        logits = self.target.forward(prompt, self.cache, 1)
        first = int(choose(logits, self.task.sampling, self._uniforms("target", 0, 1)).item())
        end = self.clock.mark()
        response.prefill_seconds = self.clock.seconds(start, end)
        if self.drafter is not None:
            self.drafter.begin(self.task.prompt, self.capacity)
            response.draft_prefill_seconds = self.clock.seconds(end, self.clock.mark())
        self._emit(response, [first])

    def round(self, response: Response, k: int) -> None:
        """Draft up to k tokens, verify them in one pass, emit and rewind."""
        start = self.clock.mark()
        proposal = self.drafter.propose(self.context, k) if self.drafter and k > 0 else None
        drafted = self.clock.mark()
        verdict, tokens = self._verify(proposal)
        verified = self.clock.mark()
        emitted = self._emit(response, [*tokens[: verdict.accepted], verdict.token])
        proposed = 0 if proposal is None else len(tokens)
        response.proposed.append(proposed)
        response.accepted.append(min(emitted, verdict.accepted))
        # Without the target's own token the response ended inside the proposal: the rest of it is
        # cut, not rejected.
        response.cut.append(proposed - emitted if emitted <= verdict.accepted else 0)
        self.cache.rewind(len(self.context) - 1)
        if self.drafter is not None:
            self.drafter.keep(len(self.context) - 1)
        response.draft_seconds.append(self.clock.seconds(start, drafted))
        response.verify_seconds.append(self.clock.seconds(drafted, verified))

    def _verify(self, proposal: Proposal | None) -> tuple[Verdict, list[int]]:
        """One target pass over the last token and the proposal."""
        last = torch.tensor(self.context[-1:], device=self.target.device)
        if proposal is None:
            logits = self.target.forward(last, self.cache, 1)
            own = choose(logits, self.task.sampling, self._uniforms("target", self._position(), 1))
            return Verdict(0, int(own.item())), []
        n = proposal.tokens.shape[0] + 1
        logits = self.target.forward(torch.cat([last, proposal.tokens]), self.cache, n)
        position = self._position()
        if proposal.q is None:
            own = choose(logits, self.task.sampling, self._uniforms("target", position, n))
            return verify_matching(own, proposal.tokens), proposal.tokens.tolist()
        accept, residual, bonus = (
            self.streams[purpose][position : position + n]
            for purpose in ("accept", "residual", "target")
        )
        p = distribution(logits, self.task.sampling)
        verdict = verify_sampling(p, proposal.q, proposal.tokens, (accept, residual, bonus))
        return verdict, proposal.tokens.tolist()

    def _emit(self, response: Response, tokens: list[int]) -> int:
        """Append tokens up to an end of the response; how many were appended."""
        for count, token in enumerate(tokens, start=1):
            response.tokens.append(token)
            self.context.append(token)
            if self.task.ends(response.tokens):
                response.finish = "stop"
                return count
        return len(tokens)

    def _position(self) -> int:
        return len(self.context) - len(self.task.prompt)

    def _uniforms(self, purpose: str, position: int, count: int) -> Tensor | None:
        if not self.streams:
            return None
        return self.streams[purpose][position : position + count]
