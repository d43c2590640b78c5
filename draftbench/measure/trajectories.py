"""Prompts → the target's responses with what the target thinks of each of their tokens.

Generated here by plain decoding, or taken from the log; either way the target then scores them in
one pass, so that both kinds give the same records. A log that the target would not have written is
visible in the record (`argmax`, `log_p`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from draftbench.decoder.runner import Clock, Runner, Task
from draftbench.decoder.sampling import Uniforms, best, distribution
from draftbench.decoder.speculate import decode_all
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.teacher import TOKENS_AT_ONCE, teacher_forced, top_two_margin
from draftbench.records import Trajectory
from draftbench.run_folder.folder import Key, PrivateText

# Responses that are scored, replayed and kept together, all or none.
GROUP = 16
# Responses that are written side by side. More would be faster, but what is interrupted is redone.
RESPONSE_ROWS = 8
# Margins are kept to tell near ties; beyond this they would only tell which prompt it was.
WIDEST_MARGIN = 1.0
# log 0 for a token that the request's filters exclude; JSON has no infinity.
EXCLUDED = -1e9


Asked = tuple[Prompt, int]


def plan(prompts: Iterable[Prompt], samples: int) -> list[list[Asked]]:
    """The prompts with the number of each sample, in the groups in which they are answered.

    A group's composition follows from the plan alone, so that a run that was interrupted computes
    what an uninterrupted one would have. The longest prompts come first: what does not fit shows
    early, and the time left is not underestimated.
    """
    asked = [(prompt, sample) for prompt in prompts for sample in range(samples)]
    asked.sort(key=lambda one: (-len(one[0].tokens), one[0].request.id, one[1]))
    return [asked[at : at + GROUP] for at in range(0, len(asked), GROUP)]


def task_of(prompt: Prompt, sample: int, text: TextSide) -> Task:
    """The decoding task of one sample of one request."""
    request = prompt.request
    return Task(
        prompt=list(prompt.tokens),
        limit=prompt.limit,
        sampling=request.sampling,
        uniforms=Uniforms(f"{request.id}/{request.sampling.seed}", sample, prompt.limit + 1),
        ends=lambda output: text.ends(output, request.stop),
    )


def generate(
    asked: Sequence[tuple[Prompt, int]], target: Runner, text: TextSide, clock: Clock
) -> list[tuple[tuple[int, ...], str]]:
    """The target's own response to each prompt and sample, and its finish reason; decoded side by
    side.
    """
    tasks = [task_of(prompt, sample, text) for prompt, sample in asked]
    longest = max(task.capacity for task in tasks)
    rows = max(1, min(RESPONSE_ROWS, TOKENS_AT_ONCE // longest))
    responses = decode_all(tasks, target, None, 0, clock, rows)
    return [(tuple(response.tokens), response.finish) for response in responses]


def logged(prompt: Prompt) -> tuple[tuple[int, ...], str]:
    """The logged response, cut at the limit, and its finish reason."""
    return tuple(prompt.logged), "length" if len(prompt.logged) >= prompt.limit else "stop"


@dataclass(frozen=True)
class Given:
    """A response to be scored: its prompt, tokens, why it ended, where it came from, and its keyed
    hash.
    """

    prompt: Prompt
    sample: int
    tokens: tuple[int, ...]
    finish: str
    origin: str
    digest: str


@dataclass(frozen=True)
class ScoredResponse:
    """A response of the target with what the target thinks of its tokens: the value that every
    measurement starts from. Above temperature 0 it has the log-probability of each token, and what
    their sum is expected to be.
    """

    prompt: Prompt
    tokens: Sequence[int]
    trajectory: Trajectory
    log_p: Sequence[float] = ()
    expected_log_p: float | None = None

    @property
    def key(self) -> Key:
        """Request and sample."""
        return self.trajectory.request, self.trajectory.sample

    @classmethod
    def kept(cls, prompt: Prompt, text: PrivateText, trajectory: Trajectory) -> ScoredResponse:
        """As a run folder kept it."""
        tokens, log_p = array("i", text.tokens), array("d", text.log_p)
        return cls(prompt, tokens, trajectory, log_p, text.expected_log_p)

    def private(self) -> PrivateText:
        """The part that a run folder keeps to itself."""
        return PrivateText(
            request=self.trajectory.request,
            sample=self.trajectory.sample,
            prompt=tuple(self.prompt.tokens),
            tokens=tuple(self.tokens),
            log_p=tuple(self.log_p),
            expected_log_p=self.expected_log_p,
        )


@dataclass
class _Scores:
    margins: list[float] = field(default_factory=list)
    argmax: list[int] = field(default_factory=list)
    log_p: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)


def score(group: Sequence[Given], target: Runner) -> list[ScoredResponse]:
    """What the target thinks of every token of some responses, in one pass over all of them."""
    scores = [_Scores() for _ in group]
    texts = [(list(given.prompt.tokens), given.tokens) for given in group]
    for row, start, logits in teacher_forced(target, texts, first=0):
        given, found = group[row], scores[row]
        chosen = torch.tensor(given.tokens[start : start + len(logits)], device=logits.device)
        found.margins += top_two_margin(logits).tolist()
        found.argmax += (best(logits) == chosen).long().tolist()
        sampling = given.prompt.request.sampling
        if sampling.temperature > 0:
            p = distribution(logits, sampling)
            found.log_p += p.gather(1, chosen[:, None])[:, 0].log().clamp(min=EXCLUDED).tolist()
            found.expected += torch.special.entr(p).sum(dim=-1).neg().tolist()
    return [_scored(given, found) for given, found in zip(group, scores, strict=True)]


def _scored(given: Given, scores: _Scores) -> ScoredResponse:
    request = given.prompt.request
    trajectory = Trajectory(
        request=request.id,
        sample=given.sample,
        segment=request.segment,
        weight=request.weight,
        sampling=request.sampling,
        prompt_tokens=len(given.prompt.tokens),
        output_tokens=len(given.tokens),
        limit=given.prompt.limit,
        finish=given.finish,
        origin=given.origin,
        margins=tuple(round(min(value, WIDEST_MARGIN), 3) for value in scores.margins),
        argmax=tuple(scores.argmax),
        digest=given.digest,
        looping=looping(given.tokens),
    )
    return ScoredResponse(
        given.prompt,
        array("i", given.tokens),
        trajectory,
        array("d", [round(value, 5) for value in scores.log_p]),
        round(sum(scores.expected), 3) if scores.expected else None,
    )


# The longest passage that is looked for, and how often it must stand in a row.
LONGEST_LOOP, LEAST_TURNS = 32, 3


def looping(tokens: Sequence[int]) -> int:
    """How many tokens at the end repeat one passage: a degenerate response, in which any draft and
    above all prompt lookup is accepted more than it deserves.
    """
    longest = 0
    for period in range(1, LONGEST_LOOP + 1):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        if same >= (LEAST_TURNS - 1) * period:
            longest = max(longest, same + period)
    return longest


# A log below these was not written by this target: fewer of its tokens are the argmax at
# temperature 0, more of them impossible above it, or less likely (nats a token) than the target's
# own would be.
LEAST_ARGMAX = 0.95
MOST_IMPOSSIBLE = 0.01
MOST_SURPRISE = 0.3


@dataclass
class LogCheck:
    """Whether logged responses can be the target's own, from their scores, one after the other."""

    greedy: int = 0
    best: int = 0
    sampled: int = 0
    impossible: int = 0
    surprise: float = 0.0

    def add(self, response: ScoredResponse) -> None:
        """Count one scored response."""
        trajectory = response.trajectory
        if trajectory.sampling.temperature == 0:
            self.greedy += trajectory.output_tokens
            self.best += sum(trajectory.argmax)
        elif response.expected_log_p is not None:
            possible = [value for value in response.log_p if value > EXCLUDED]
            self.sampled += len(response.log_p)
            self.impossible += len(response.log_p) - len(possible)
            self.surprise += response.expected_log_p - sum(possible)

    def objection(self) -> str | None:
        """Why they cannot be, with the figures, or None."""
        if self.best < LEAST_ARGMAX * self.greedy:
            share = self.best / self.greedy
            return (
                f"only {share:.0%} of {self.greedy} tokens logged at temperature 0 are the argmax"
            )
        if self.impossible > MOST_IMPOSSIBLE * self.sampled:
            return (
                f"{self.impossible} of {self.sampled} logged tokens have probability 0 under the "
                "target"
            )
        if self.surprise > MOST_SURPRISE * self.sampled:
            each = self.surprise / self.sampled
            return f"the logged tokens are {each:.2f} nats each less likely than the target's own"
        return None
