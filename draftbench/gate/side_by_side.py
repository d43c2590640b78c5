"""Several runs → the answer of each beside the others: one pair on the built-in decoder and on the
engines that could serve it.

Acceptance travels from one runner to another, costs and loads do not. So nothing is subtracted:
every row names its runner and its load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Decision
from draftbench.records import Record
from draftbench.run_folder.manifest import differing_question
from draftbench.run_folder.run import Run

BUILT_IN = "built-in decoder"
# Settings that stand elsewhere in the comparison.
_SHOWN = {"engine", "key_id"}


class RunAnswer(Record, frozen=True):
    """The answer of one run at one load, with the figures of its best draft; None is unknown."""

    run: str  # path of the run
    runner: str  # the serving engine with its version, or the built-in decoder
    load: str  # active rows of the decoder, requests in flight on an engine, or how they came
    requests: int
    decision: Decision  # speculate, do_not_speculate or inconclusive
    draft: str | None  # the best one, at its quantization level
    k: int | None
    speedup_deciding: Estimate | None  # what the decision goes by
    alpha: Estimate | None
    mean_accepted_length: Estimate | None  # τ


class Differing(Record, frozen=True):
    """One setting that differs between runs."""

    fact: str  # what differs
    values: tuple[str | None, ...]  # in each run


class SideBySide(Record, frozen=True):
    """The answers of several runs, in the order in which they were named."""

    runs: tuple[str, ...]  # paths
    common_requests: int | None  # requests in all of them; None where other keys hashed them
    caveats: tuple[str, ...]
    answers: tuple[RunAnswer, ...]  # one entry per run and load
    question: tuple[Differing, ...]  # settings that differ


def side_by_side(names: Sequence[str], runs: Sequence[Run]) -> SideBySide:
    """What each run answers.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    requests = [{t.request for t in run.trajectories} for run in runs]
    keys = {run.manifest.key_id for run in runs}
    settings = _differing(runs)
    return SideBySide(
        runs=tuple(names),
        common_requests=len(set.intersection(*requests)) if len(keys) == 1 else None,
        caveats=tuple(_caveats(runs, requests)),
        answers=tuple(
            answer for name, run in zip(names, runs, strict=True) for answer in _answers(name, run)
        ),
        question=tuple(Differing(fact, values) for fact, values in settings.items()),
    )


def why_unpaired(a: Run, b: Run) -> str | None:
    """Why two runs have nothing in common that could be paired; None where they have."""
    only = "only the answers of the two runs can be compared"
    targets = [(run.facts_of(None), run.manifest.question.target) for run in (a, b)]
    sizes = {facts.parameters for facts, _ in targets if facts is not None}
    if len(sizes) > 1:
        return f"the targets are different models ({targets[0][1]} and {targets[1][1]}): {only}"
    if a.manifest.key_id != b.manifest.key_id:
        return (
            f"the requests were hashed with different keys: {only}; with the same DRAFTBENCH_KEY "
            "for both runs their requests can be paired"
        )
    in_a, in_b = ({t.request for t in run.trajectories} for run in (a, b))
    return None if in_a & in_b else f"no request is in both runs: {only}"


def _answers(name: str, run: Run) -> Iterator[RunAnswer]:
    first = recommend(run)
    for level in first.levels:
        options = DecisionOptions(concurrency=(level.concurrency,))
        answer = first if level.concurrency == first.concurrency else recommend(run, options)
        leader = answer.leading_evaluation
        yield RunAnswer(
            run=name,
            runner=answer.engine or BUILT_IN,
            load=_load(run, level.concurrency),
            requests=answer.requests,
            decision=answer.decision,
            draft=str(leader.candidate) if leader else None,
            k=leader.k if leader else None,
            speedup_deciding=answer.speedup_deciding,
            alpha=leader.alpha if leader else None,
            mean_accepted_length=leader.mean_accepted_length if leader else None,
        )


def _load(run: Run, concurrency: int) -> str:
    question = run.manifest.question
    if question.engine is None:
        return f"{concurrency} active row" + ("s" if concurrency > 1 else "")
    return f"{concurrency} in flight" if question.arrivals == "closed" else arrivals_of(run)


def arrivals_of(run: Run) -> str:
    """How requests came to a serving engine: closed, poisson:RATE, or log with its pace."""
    question = run.manifest.question
    if question.arrivals != "log":
        return question.arrivals
    return "log ×?" if question.time_scale is None else f"log ×{question.time_scale:g}"


def _caveats(runs: Sequence[Run], requests: Sequence[set[str]]) -> Iterator[str]:
    unpaired = why_unpaired(*runs) if len(runs) == 2 else None
    if unpaired:
        yield unpaired
    elif len({run.manifest.key_id for run in runs}) > 1:
        yield "the requests were hashed with different keys: whether they are the same is unknown"
    elif len(set.intersection(*requests)) < max(map(len, requests)):
        yield "the runs did not measure the same requests"
    if len({run.manifest.environment.machine for run in runs}) > 1:
        yield "the runs come from different machines, or used different numbers of threads"
    kinds = {run.manifest.question.engine is None for run in runs}
    if len(kinds) > 1:
        yield (
            "a decoder's active rows and an engine's requests in flight are different loads: an "
            "engine's times hold queueing and the prefills of other requests"
        )


def _differing(runs: Sequence[Run]) -> dict[str, tuple[str | None, ...]]:
    """Settings in which some run differs from the first."""
    found = [differing_question(runs[0].manifest, run.manifest) for run in runs]
    facts = dict.fromkeys(fact for each in found for fact in each if fact not in _SHOWN)
    first = {fact: each[fact][0] for fact in facts for each in found if fact in each}
    return {
        fact: tuple(each[fact][1] if fact in each else first[fact] for each in found)
        for fact in facts
    }
