"""Makes the target's responses to prompts, and scores each token by the target.

Responses are decoded here without a draft, or taken from the log. Either way the target scores them
in one pass, so that both give the same records; the scores (`argmax`, `log_p`) show whether the
target would have written what the log has.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from draftbench.decoder.runner import Clock, DecodeTask, Runner
from draftbench.decoder.sampling import Uniforms, best, distribution, top_two_margin
from draftbench.decoder.speculate import Batch
from draftbench.errors import TrafficError, UsageError
from draftbench.measure.prompts import Prompt, TargetText
from draftbench.measure.teacher import TOKENS_AT_ONCE, teacher_forced
from draftbench.records import Key, Request, Trajectory
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.run import Run, waves

# Responses that are scored, replayed and kept together, all or none.
GROUP = 16
# Responses that are decoded side by side. More would be faster, but an interrupted group is decoded
# again.
RESPONSE_ROWS = 8
# Margins are recorded to show near ties; larger ones are cut to this, since they could identify the
# prompt.
WIDEST_MARGIN = 1.0
# Stands for log 0, of a token that the request's filters exclude: JSON has no infinity.
EXCLUDED = -1e9
# Tokens of the longest passage whose repetition is noticed, and how often it must be repeated.
LONGEST_LOOP, LEAST_REPETITIONS = 32, 3
# When a log was written by this target:
LEAST_ARGMAX = 0.95  # at temperature 0: share of its tokens that are the argmax
MOST_IMPOSSIBLE = 0.01  # above it: share of its tokens with probability 0 under the target,
MOST_SURPRISE = 0.3  # and mean nats by which the others are less likely than the target's own

# A response's tokens and why it ended ("stop" or "length").
Output = tuple[tuple[int, ...], str]


class PromptSample(NamedTuple):
    """One of the responses that are asked for to a prompt."""

    prompt: Prompt
    sample: int

    @property
    def key(self) -> Key:
        return self.prompt.request.id, self.sample


def plan(prompts: Iterable[Prompt], samples: int) -> list[list[list[PromptSample]]]:
    """Every sample of every prompt, by wave in the groups in which they are answered.

    Waves and groups depend on prompts and samples alone, so that a resumed run computes what an
    uninterrupted one would have. The longest prompts of a wave come first: a lack of memory shows
    early, and prompts of a group are about as long as each other.
    """
    prompt_of, planned = {prompt.request.id: prompt for prompt in prompts}, []
    for wave in waves(prompt_of):
        in_wave = [PromptSample(prompt_of[name], n) for name in wave for n in range(samples)]
        in_wave.sort(key=lambda wanted: (-len(wanted.prompt.tokens), *wanted.key))
        planned.append([in_wave[at : at + GROUP] for at in range(0, len(in_wave), GROUP)])
    return planned


def task_of(prompt: Prompt, sample: int, text: TargetText) -> DecodeTask:
    """The decoding task of one sample of one request."""
    request = prompt.request
    return DecodeTask(
        prompt=list(prompt.tokens),
        limit=prompt.limit,
        sampling=request.sampling,
        uniforms=Uniforms(f"{request.id}/{request.sampling.seed}", sample, prompt.limit + 1),
        ends=lambda output: text.ends(output, request.stop),
        key=(request.id, sample),
    )


def generate(
    group: Sequence[PromptSample],
    target: Runner,
    text: TargetText,
    clock: Clock,
    between: Callable[[int], None] = lambda done: None,
) -> list[Output]:
    """The target's own responses, decoded side by side; `between` is called after every round with
    the number of responses that it finished.
    """
    tasks = [task_of(prompt, sample, text) for prompt, sample in group]
    rows = TOKENS_AT_ONCE // max(task.capacity for task in tasks)
    batch = Batch(tasks, target, None, 0, clock, max(1, min(RESPONSE_ROWS, rows)))
    left, done = True, 0
    while left:
        left = batch.advance()
        between(batch.finished - done)
        done = batch.finished
    return [(tuple(response.tokens), response.finish) for response in batch.responses]


def logged(prompt: Prompt) -> Output:
    """The logged response, cut at the limit."""
    return tuple(prompt.logged), "length" if len(prompt.logged) >= prompt.limit else "stop"


@dataclass(frozen=True)
class ScoredResponse:
    """A response of the target with the target's scores of its tokens, from which every measurement
    starts.
    """

    prompt: Prompt
    tokens: Sequence[int]
    trajectory: Trajectory
    log_p: Sequence[float] = ()  # of each token, above temperature 0
    expected_log_p: float | None = None  # expected sum of `log_p` under the target

    @property
    def key(self) -> Key:
        return self.trajectory.key

    @property
    def length(self) -> int:
        """Tokens of prompt and response together."""
        return len(self.prompt.tokens) + len(self.tokens)

    def first_difference(self, tokens: Sequence[int]) -> int | None:
        """The first position at which another output differs; None: nowhere, or both were drawn."""
        if self.trajectory.sampling.temperature > 0:
            return None
        pairs = enumerate(zip_longest(self.tokens, tokens))
        return next((position for position, (one, other) in pairs if one != other), None)

    @classmethod
    def recorded(cls, prompt: Prompt, text: PrivateText, trajectory: Trajectory) -> ScoredResponse:
        """The response that a run folder kept."""
        tokens, log_p = array("i", text.tokens), array("d", text.log_p)
        return cls(prompt, tokens, trajectory, log_p, text.expected_log_p)

    def private(self) -> PrivateText:
        """What the private part of a run folder keeps of it."""
        return PrivateText(
            request=self.trajectory.request,
            sample=self.trajectory.sample,
            prompt=tuple(self.prompt.tokens),
            tokens=tuple(self.tokens),
            log_p=tuple(self.log_p),
            expected_log_p=self.expected_log_p,
        )


# Responses that are replayed together.
Group = Sequence[ScoredResponse]


def recorded_responses(run: Run, use: str) -> Iterator[ScoredResponse]:
    """The responses of a run whose tokens its folder kept, as they were recorded.

    Args:
        use: what they are wanted for, as in "to train on".

    Raises:
        UsageError: they were deleted.
    """
    assert run.path is not None
    folder = RunFolder(run.path)
    if folder.redacted:
        raise UsageError(
            f"`{folder.path}` was redacted: the responses {use} were deleted",
            hint="sweep again with another --out; a redacted run keeps only its figures",
        )
    for text in folder.records(PrivateText):
        trajectory = run.responses.get(text.key)
        if trajectory is not None and len(text.tokens) > 1:
            settings = Request(id=text.request, source="", sampling=trajectory.sampling)
            prompt = Prompt(settings, text.prompt, trajectory.limit)
            yield ScoredResponse.recorded(prompt, text, trajectory)


def score(
    group: Sequence[PromptSample],
    outputs: Sequence[Output],
    target: Runner,
    origin: str,
    digest: Callable[[tuple[int, ...]], str],
) -> list[ScoredResponse]:
    """Score some responses by the target, in one pass over all of them.

    Args:
        origin: where the responses came from, "target" or "log".
        digest: the keyed hash of an output.
    """
    scores: list[dict[str, list[Any]]] = [defaultdict(list) for _ in group]
    texts = [
        (prompt.tokens, tokens) for (prompt, _), (tokens, _) in zip(group, outputs, strict=True)
    ]
    for row, start, logits in teacher_forced(target, texts, first=0):
        columns, sampling = scores[row], group[row][0].request.sampling
        chosen = torch.tensor(texts[row][1][start : start + len(logits)], device=logits.device)
        columns["margins"] += top_two_margin(logits).tolist()
        columns["argmax"] += (best(logits) == chosen).long().tolist()
        if sampling.temperature > 0:
            p = distribution(logits, sampling)
            log_p = p.gather(1, chosen[:, None])[:, 0].log().clamp(min=EXCLUDED)
            columns["log_p"] += log_p.tolist()
            columns["expected"] += torch.special.entr(p).sum(dim=-1).neg().tolist()
    responses = []
    for (prompt, sample), (tokens, finish), columns in zip(group, outputs, scores, strict=True):
        trajectory = Trajectory(
            request=prompt.request.id,
            sample=sample,
            segment=prompt.request.segment,
            weight=prompt.request.weight,
            sampling=prompt.request.sampling,
            prompt_tokens=len(prompt.tokens),
            output_tokens=len(tokens),
            limit=prompt.limit,
            finish=finish,
            origin=origin,
            margins=tuple(round(min(value, WIDEST_MARGIN), 3) for value in columns["margins"]),
            argmax=tuple(columns["argmax"]),
            digest=digest(tokens),
            looping=looping(tokens),
        )
        rounded = array("d", [round(value, 5) for value in columns["log_p"]])
        expected = round(sum(columns["expected"]), 3) if columns["expected"] else None
        responses.append(ScoredResponse(prompt, array("i", tokens), trajectory, rounded, expected))
    return responses


def looping(tokens: Sequence[int]) -> int:
    """How many tokens at the end repeat one passage. There any draft, and most of all prompt
    lookup, is accepted more often than elsewhere.
    """
    longest = 0
    for period in range(1, LONGEST_LOOP + 1):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        if same >= (LEAST_REPETITIONS - 1) * period:
            longest = max(longest, same + period)
    return longest


def refuse_foreign_log(responses: Iterable[ScoredResponse]) -> None:
    """Raise a TrafficError if the logged responses together cannot be the target's."""
    greedy = argmax = sampled = impossible = 0
    surprise = 0.0
    for response in responses:
        trajectory = response.trajectory
        if trajectory.sampling.temperature == 0:
            greedy += trajectory.output_tokens
            argmax += sum(trajectory.argmax)
        elif response.expected_log_p is not None:
            possible = [value for value in response.log_p if value > EXCLUDED]
            sampled += len(response.log_p)
            impossible += len(response.log_p) - len(possible)
            surprise += response.expected_log_p - sum(possible)
    if argmax < LEAST_ARGMAX * greedy:
        share = f"{argmax / greedy:.0%} of {greedy} tokens"
        objection = f"only {share} logged at temperature 0 are the argmax"
    elif impossible > MOST_IMPOSSIBLE * sampled:
        objection = f"{impossible} of {sampled} logged tokens have probability 0 under the target"
    elif surprise > MOST_SURPRISE * sampled:
        nats = f"{surprise / sampled:.2f} nats each"
        objection = f"the logged tokens are {nats} less likely than the target's own"
    else:
        return
    raise TrafficError(
        f"the logged responses are not this target's: {objection}",
        hint="let the target answer itself: `--responses target`",
    )
