"""Timed passes and expected rounds → predicted seconds of every configuration, summed over drawn
requests.

A serving engine shows no passes: there each round counts as 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds
from draftbench.acceptance.definitions import equal_requests
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.planner.cells import ROUND, Columns, DrawnRequests, TimedRun, seconds_and_factor
from draftbench.planner.passes import Block
from draftbench.planner.recommendation import Configuration
from draftbench.records import Candidate, Decode, StopRule
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run


@dataclass(frozen=True, eq=False)
class PredictedSeconds:
    """What passes predict for some configurations, a column each [1 + draws, configurations]:
    seconds of `plain` decoding, and of `rounds` with the draft; NaN where unknown.

    `prefills` [1 + draws, configurations, 2] are seconds without a draft and with it.
    `step_per_round` is a target step over the passes of a round, `tokens` the tokens of all
    responses after each one's first, `responses` their number; `tokens_per_round` is known without
    passes too. `requests` is over how many a column is known, `effective_requests` as how many
    equally long ones they count.
    """

    configurations: Sequence[Configuration]
    plain: Floats
    rounds: Floats
    prefills: Floats
    step_per_round: Floats
    tokens: Floats
    tokens_per_round: Floats
    responses: Floats
    effective_requests: Floats
    requests: Ints

    @cached_property
    def column(self) -> dict[Configuration, int]:
        return {each: column for column, each in enumerate(self.configurations)}

    def part(self, columns: slice) -> PredictedSeconds:
        """Those of some columns."""
        prefills, configurations = self.prefills[:, columns], self.configurations[columns]
        others = {
            each.name: getattr(self, each.name)[..., columns]
            for each in fields(self)
            if each.name not in ("configurations", "prefills")
        }
        return PredictedSeconds(configurations=configurations, prefills=prefills, **others)


def predicted_seconds(
    run: Run,
    configurations: Sequence[Configuration],
    blocks: Mapping[tuple[Candidate, int], Block | None],
    decoded: Mapping[Configuration, Sequence[TimedRun]],
    judged: Mapping[Configuration, Floats],
    drawn: DrawnRequests,
    *,
    foreign: bool,
) -> PredictedSeconds:
    """The seconds of configurations over the responses on which their rounds are known.

    Args:
        blocks: the passes of each candidate at each load; None on a serving engine, whose rounds
            count as 1.
        decoded: the decoding runs of configurations of which neither passes nor rounds are known.
        judged: of rules that were chosen, the seconds of every response by the rule that other
            requests chose.
        foreign: whether costs are from elsewhere, so that this run's prefills say nothing.
    """
    columns, known = Columns(drawn), dict[Configuration, tuple[float, ...]]()
    nowhere = columns.add(np.full(len(drawn.names), np.nan))
    # The columns of its seconds without a draft and with it, and of both prefills; tokens, target
    # passes, responses, equal requests and requests.
    unknown = (*(nowhere,) * 4, *(math.nan,) * 3, 0.0, 0.0)
    at_load = defaultdict[tuple[Candidate, int], list[Configuration]](list)
    for each in configurations:
        if each not in decoded:
            at_load[each.candidate, each.concurrency].append(each)
    for at, block in blocks.items():
        candidate, concurrency = at
        rounds, passes = candidate_rounds(run, candidate), block or ROUND
        weights = rounds.weights
        rows = drawn.rows(t.request for t in rounds.trajectories)
        requests = len(set(rows.tolist()))
        longest = math.inf if block is None or block.longest is None else block.longest - 1
        some = [c for c in at_load[at] if c.k <= longest and rounds.knows(c.k, c.stop)]
        if not some:
            continue
        answered: Mapping[int, int] = {}
        if block and (prefills := block.prefills(rounds.prompts)) is not None:
            answered = {
                k: columns.add(drawn.column(rows, weights * side))
                for k, side in enumerate(prefills.T)
            }
        elif not foreign:
            of_answers = _answered_prefills(run, candidate, concurrency, drawn)
            answered = {k: columns.add(column) for k, column in of_answers.items()}
        seconds, factor = in_seconds(rounds, passes, concurrency, None)
        plain = columns.add(drawn.column(rows, weights * seconds), factor)
        for each in some:
            k, stop = each.k, each.stop
            seconds, factor = in_seconds(rounds, passes, concurrency, k, stop)
            seconds = judged.get(each, seconds)
            column, at_k = drawn.column(rows, weights * seconds), rounds.at(k, stop)
            nearest = min(filter(None, answered), key=lambda n: (abs(n - k), n), default=0)
            prefill, both = answered.get(0, nowhere), answered.get(nearest, nowhere)
            sides = plain, columns.add(column, factor), prefill, both
            tokens, passed = float(weights @ at_k.tokens), float(weights @ at_k.target_passes)
            sizes = float(weights.sum()), equal_requests(column), requests
            known[each] = (*sides, tokens, passed, *sizes)
    for configuration, runs in decoded.items():
        rows = drawn.rows(each.row.request for each in runs)
        spent = np.array([each.response.weight * each.steady.decode_seconds for each in runs])
        # Known by its tokens alone: the same without a draft and with it.
        same, total = columns.add(column := drawn.column(rows, spent)), float(spent.sum())
        sizes = 0.0, equal_requests(column), len({*rows})
        known[configuration] = (same, same, nowhere, nowhere, total, total, *sizes)
    counts = np.array([known.get(each, unknown) for each in configurations]).reshape(-1, 9).T
    tokens, target_passes, responses, equal, requests = counts[4:]
    sums = columns.sums()[:, counts[:4].astype(np.int64)]  # [1 + draws, 4, configurations]
    with np.errstate(invalid="ignore", divide="ignore"):
        step = (sums[0, 0] / tokens) / (sums[0, 1] / target_passes)
    return PredictedSeconds(
        configurations=configurations,
        plain=sums[:, 0],
        rounds=sums[:, 1],
        prefills=np.moveaxis(sums[:, 2:], 1, -1),
        step_per_round=step,
        tokens=tokens,
        tokens_per_round=np.array([_tokens_per_round(run, each) for each in configurations]),
        responses=responses,
        effective_requests=equal,
        requests=requests.astype(np.int64),
    )


def _tokens_per_round(run: Run, configuration: Configuration) -> float:
    rounds, length = candidate_rounds(run, configuration.candidate), configuration.length
    if not rounds.knows(*length):
        return math.nan
    passes = float(rounds.weights @ rounds.at(*length).target_passes)
    return float(rounds.weights @ rounds.at(*length).tokens) / passes if passes else math.nan


@remembered
def in_seconds(
    rounds: CandidateRounds,
    block: Block,
    concurrency: int,
    k: int | None,
    stop: StopRule | None = None,
) -> tuple[Floats, Floats]:
    """The seconds that passes predict for every response at a k (None: without a draft), and the
    factor by which drawn passes change their sum [1 + draws].
    """
    contexts, weights = rounds.contexts, rounds.weights
    if k is None:
        return seconds_and_factor(block.steps(rounds.tokens, contexts), weights)
    spent = block.rounds(rounds.at(k, stop), contexts, concurrency, weights)
    return seconds_and_factor(spent, weights)


def _answered_prefills(
    run: Run, candidate: Candidate, concurrency: int, drawn: DrawnRequests
) -> dict[int, Floats]:
    """The prefill seconds of the decoded requests, scaled up to all of them, by k [requests]."""
    by_k, found = defaultdict[int, list[Decode]](list), {}
    for row in run.decodes:
        if (row.block, row.concurrency) == (str(candidate), concurrency):
            by_k[row.k].append(row)
    total = candidate_rounds(run, candidate).weights.sum()
    for k, own in sorted(by_k.items()):
        often = Counter(row.request for row in own)
        weights = np.array([run.responses[row.key].weight / often[row.request] for row in own])
        seconds = weights * [row.prefills for row in own] * total / weights.sum()
        found[k] = drawn.column(drawn.rows(row.request for row in own), seconds)
    return found if 0 in found and len(found) > 1 else {}
