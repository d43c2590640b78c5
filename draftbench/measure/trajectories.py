"""A prompt → the target's response with what the target thinks of each of its tokens.

Generated here by plain decoding, or taken from the log; either way the target then scores it in one
pass, so that both kinds give the same records. A log that the target would not have written is
visible in the record (`argmax`, `log_p`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftbench.decode.clock import Clock
from draftbench.decode.loop import Task, decode
from draftbench.decode.runner import Runner
from draftbench.decode.sampling import Uniforms, distribution
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.teacher import teacher_forced, top_two_margin
from draftbench.records import Trajectory
from draftbench.store.folder import PrivateText

# Margins are kept to tell near ties; beyond this they would only tell which prompt it was.
WIDEST_MARGIN = 1.0
# log 0 for a token that the request's filters exclude; JSON has no infinity.
EXCLUDED = -1e9


def task_of(prompt: Prompt, sample: int, text: TextSide) -> Task:
    """The decoding task of one sample of one request."""
    request = prompt.request
    return Task(
        prompt=prompt.tokens,
        limit=prompt.limit,
        sampling=request.sampling,
        uniforms=Uniforms(f"{request.id}/{request.sampling.seed}", sample, prompt.limit + 1),
        ends=lambda output: text.ends(output, request.stop),
    )


def generate(
    prompt: Prompt, sample: int, target: Runner, text: TextSide, clock: Clock
) -> tuple[tuple[int, ...], str]:
    """The target's own response and its finish reason."""
    response = decode(task_of(prompt, sample, text), target, None, 0, clock)
    return tuple(response.tokens), response.finish


def logged(prompt: Prompt, text: TextSide) -> tuple[tuple[int, ...], str] | None:
    """The logged response as the target's tokens, cut at the limit; None where the row has none."""
    if not prompt.request.response:
        return None
    ids = text.tokenizer(prompt.request.response, add_special_tokens=False)["input_ids"]
    if len(ids) >= prompt.limit:
        return tuple(ids[: prompt.limit]), "length"
    return tuple(ids), "stop"


@dataclass(frozen=True)
class Given:
    """A response to be scored: its tokens, why it ended, where it came from, and its keyed hash."""

    sample: int
    tokens: tuple[int, ...]
    finish: str
    origin: str
    digest: str


def score(prompt: Prompt, given: Given, target: Runner) -> tuple[PrivateText, Trajectory]:
    """What the target thinks of every token of a response, in one pass."""
    sample, tokens, finish, origin, digest = dataclasses.astuple(given)
    request = prompt.request
    margins: list[float] = []
    argmax: list[int] = []
    log_p: list[float] = []
    expected: list[float] = []
    for start, logits in teacher_forced(target, tuple(prompt.tokens), tokens, first=0):
        chosen = torch.tensor(tokens[start : start + len(logits)], device=logits.device)
        margins += top_two_margin(logits).tolist()
        argmax += (logits.argmax(dim=-1) == chosen).long().tolist()
        if request.sampling.temperature > 0:
            p = distribution(logits, request.sampling)
            log_p += p.gather(1, chosen[:, None])[:, 0].log().clamp(min=EXCLUDED).tolist()
            expected += torch.special.entr(p).sum(dim=-1).neg().tolist()
    private = PrivateText(
        request=request.id,
        sample=sample,
        prompt=tuple(prompt.tokens),
        tokens=tokens,
        log_p=tuple(round(value, 5) for value in log_p),
        expected_log_p=round(sum(expected), 3) if expected else None,
    )
    trajectory = Trajectory(
        request=request.id,
        sample=sample,
        segment=request.segment,
        weight=request.weight,
        sampling=request.sampling,
        prompt_tokens=len(prompt.tokens),
        output_tokens=len(tokens),
        limit=prompt.limit,
        finish=finish,
        origin=origin,
        margins=tuple(round(min(value, WIDEST_MARGIN), 3) for value in margins),
        argmax=tuple(argmax),
        digest=digest,
        looping=looping(tokens),
    )
    return private, trajectory


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


def log_objection(scored: Sequence[tuple[PrivateText, Trajectory]]) -> str | None:
    """Why the logged responses cannot be the target's own, with the figures, or None."""
    greedy = [t for _, t in scored if t.sampling.temperature == 0]
    positions = sum(t.output_tokens for t in greedy)
    share = sum(sum(t.argmax) for t in greedy) / positions if positions else 1.0
    if share < LEAST_ARGMAX:
        return f"only {share:.0%} of {positions} tokens logged at temperature 0 are the argmax"
    sampled = [p for p, t in scored if t.sampling.temperature > 0 and p.expected_log_p is not None]
    possible = [v for p in sampled for v in p.log_p if v > EXCLUDED]
    count = sum(len(p.log_p) for p in sampled)
    if count and 1 - len(possible) / count > MOST_IMPOSSIBLE:
        return (
            f"{count - len(possible)} of {count} logged tokens have probability 0 under the target"
        )
    if count:
        surprise = (sum(p.expected_log_p or 0.0 for p in sampled) - sum(possible)) / count
        if surprise > MOST_SURPRISE:
            return (
                f"the logged tokens are {surprise:.2f} nats each less likely than the target's own"
            )
    return None
