"""A server's answers → the records of a run; compares their texts with those of the server without
a draft.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from draftbench.engines.engine import Answer, Server
from draftbench.errors import EngineError
from draftbench.measure.trajectories import PromptSample, ScoredResponse, looping
from draftbench.records import (
    Candidate,
    DraftingMode,
    EngineFacts,
    Key,
    Replay,
    Served,
    Trajectory,
)
from draftbench.sweep.engine_arms import Arm, Load

# Fields of an answer that are recorded unchanged.
_ANSWERED = set(Served.__struct_fields__) & {field.name for field in fields(Answer)} - {"error"}


def response_of(answer: Answer, asked: PromptSample, digest: str) -> ScoredResponse:
    """The target's response; if the server returns no ids, without tokens.

    Raises:
        EngineError: the log-probabilities that were asked for are missing.
    """
    prompt, sample = asked
    tokens = answer.tokens or ()
    if answer.ask.log_p and answer.log_p is None:
        raise EngineError(
            "the server gives no log-probabilities of its own tokens",
            hint="--mode greedy needs none; vLLM: --logprobs-mode processed_logprobs",
        )
    trajectory = Trajectory(
        request=prompt.request.id,
        sample=sample,
        segment=prompt.request.segment,
        weight=prompt.request.weight,
        sampling=answer.ask.sampling,
        prompt_tokens=len(prompt.tokens),
        output_tokens=answer.output_tokens,
        limit=prompt.limit,
        finish=answer.finish,
        origin="engine",
        margins=(),
        argmax=(),
        digest=digest,
        looping=looping(tokens),
    )
    log_p = array("d", [round(value, 5) for value in answer.log_p or ()])
    return ScoredResponse(prompt, array("i", tokens), trajectory, log_p)


def served_of(
    answer: Answer,
    arm: Arm,
    load: Load,
    mode: DraftingMode,
    facts: EngineFacts,
    response: ScoredResponse | None,
    error: str | None,
    digest: str,
) -> Served:
    """The record of an answer; at temperature 0 it is compared with the `response`."""
    request, sample = answer.ask.key
    values = ((name, getattr(answer, name)) for name in _ANSWERED)
    answered: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values}
    first = None
    if response is not None and answer.tokens and answer.ask.sampling.temperature == 0:
        first = first_difference(response.tokens, answer.tokens)
    return Served(
        **answered,
        request=request,
        sample=sample,
        candidate=arm.candidate,
        k=arm.k,
        mode=mode,
        repeat=arm.repeat,
        server=facts.server,
        process=facts.process,
        load=load.kind,
        concurrency=load.concurrency or max(1, answer.in_flight),
        output_tokens=answer.output_tokens,
        digest=digest,
        first_difference=first,
        error=error,
    )


def replay_of(
    response: ScoredResponse, candidate: Candidate, best: Sequence[int], context: int
) -> Replay:
    """A greedy draft's replay from its `best` tokens at positions 1, 2, …"""
    request, sample = response.key
    tokens = response.tokens[1:]
    accept = [float(one == other) for one, other in zip(best, tokens, strict=False)]
    return Replay(
        request=request,
        sample=sample,
        candidate=candidate,
        mode=DraftingMode.GREEDY,
        draftable=max(0, context - len(response.prompt.tokens)),
        accept=tuple(accept + [0.0] * (len(tokens) - len(accept))),
        confidence=(),
        margin=(),
        rank=(),
    )


def first_difference(response: Sequence[int], answer: Sequence[int]) -> int | None:
    """The first position at which two texts differ, which may be the end of the shorter one."""
    for at, (one, other) in enumerate(zip(response, answer, strict=False)):
        if one != other:
            return at
    return None if len(response) == len(answer) else min(len(response), len(answer))


def near_ties(
    rows: Sequence[Served],
    responses: Mapping[Key, ScoredResponse],
    plain: Server,
    exact: float,
) -> list[Served]:
    """Each of these answers, which differ from their responses, with whether the difference is a
    near tie: the plain server's two best tokens there are no further apart than `exact`, or than
    where its second answer differs from its first. Answers are left out where the server gives no
    log-probabilities.
    """
    margins: dict[tuple[Key, int], float] = {}
    for row in rows:
        at, response = row.first_difference or 0, responses[row.key]
        if (row.key, at) in margins:
            continue
        with contextlib.suppress(EngineError):
            margin = plain.margin([*response.prompt.tokens, *response.tokens[:at]])
            if margin is not None:
                margins[row.key, at] = margin
    known = [
        (row, margins[where])
        for row in rows
        if (where := (row.key, row.first_difference or 0)) in margins
    ]
    threshold = max([exact, *(margin for row, margin in known if row.candidate is None)])
    return [msgspec.structs.replace(row, tie=margin <= threshold) for row, margin in known]
