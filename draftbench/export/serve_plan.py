"""Turns a run's recommendation into what an engine should serve: models by the engine's names,
draft lengths, sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import msgspec

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.definitions import survival
from draftbench.drafts.kinds import FROM_TEXT, kind_drafting, with_weights
from draftbench.drafts.speculation import Speculation, speculation_of
from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.engine import Engine, Schedule, ServePlan
from draftbench.engines.every import ENGINES, STARTED
from draftbench.errors import DraftbenchError, UsageError
from draftbench.hub import split_revision
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, Recommendation, ScheduleEntry
from draftbench.records import Candidate, DraftLength, NGramSizes, Sampling
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.run import Run

_FOR_TIMING = (
    "for timing only: drafts are accepted at the measured rates whatever they are, so any draft "
    "will do, and the answers are not the target's"
)


class NotRecommendedError(DraftbenchError):
    """There is nothing to serve: the run does not recommend speculation."""

    exit_code = 1


def answer_for(
    engine: Engine, run: Run, options: DecisionOptions, *, synthetic: bool = False
) -> Recommendation:
    """What the run recommends among what an engine can do: k's, and the rules by which it stops a
    draft. What is played back is accepted whatever it is, so that no rule could stop it.
    """
    return recommend(run, replace(options, stops=() if synthetic else engine.stop_kinds))


def rule_left_out(
    engine: Engine, candidate: Candidate, run: Run, options: DecisionOptions
) -> tuple[str, ...]:
    """A note on the rule that is best for a draft, if the engine does not follow it."""
    if "confidence" not in run.manifest.question.stop:
        return ()
    best = recommend(run, options).best_of(candidate)
    if best is None or best.stop is None or best.stop.kind in engine.stop_kinds:
        return ()
    rule = STOP_RULES[best.stop.kind].at(best.stop.threshold)
    return (f"{engine.name} does not follow the run's best rule for this draft: {rule}",)


def answers_by_engine(
    answer: Recommendation, run: Run, options: DecisionOptions
) -> Iterator[tuple[Engine, Recommendation]]:
    """Each engine that could serve the choice, with the answer for it."""
    ruled = any(each.stop for each in answer.evaluations)
    for engine in engines_for(answer, run):
        yield engine, answer_for(engine, run, options) if ruled else answer


def engines_for(answer: Recommendation, run: Run) -> list[Engine]:
    """The engines that could serve the choice: the one that measured it, or the usual ones, after
    the one that follows the choice's rule.
    """
    if answer.choice is None:
        return []
    measured, stop = run.manifest.question.engine, answer.choice.stop
    keys: tuple[str | None, ...] = (measured,) if measured in ENGINES else tuple(STARTED)
    if stop is not None:
        keys = (STOP_RULES[stop.kind].engine, *keys)
    return [ENGINES[key] for key in dict.fromkeys(filter(None, keys))]


def serve_plan(
    answer: Recommendation,
    run: Run,
    *,
    candidate: Candidate | None = None,
    target: str | None = None,
    draft: str | None = None,
    anyway: bool = False,
    synthetic: bool = False,
) -> ServePlan:
    """What to serve: the configuration that the run recommends, or the one named instead.

    Args:
        candidate: to be served at its best k.
        target, draft: the engine's names, in place of the run's.
        anyway: serve what ranked first even if the answer is not to speculate.
        synthetic: have the engine accept drafts at the measured rates, whatever they propose.

    Raises:
        NotRecommendedError: the run does not recommend speculation, or no speed is known.
        UsageError: a name is unknown or cannot be written into a command.
    """
    question = run.manifest.question
    # Other rules, which this engine does not follow, may have another answer.
    among = " for what this engine follows" * ("confidence" in question.stop)
    says = f"the run's answer{among} is"
    pick, differences = _chosen(answer, candidate, says, anyway=anyway)
    served = target or question.target
    served_name, served_revision = split_revision(served)
    speculation = speculation_of_pick(pick, run.manifest, draft)
    for name in filter(None, (served, speculation.model)):
        if not name.isprintable() or name.startswith("-"):
            raise UsageError(
                f"the model name {name!r} cannot be written into a command",
                hint="give another one with --target or --draft",
            )
    schedule: Schedule = ()
    open_loads: tuple[str, ...] = ()
    # The answer's schedule is the leader's.
    if answer.leader is not None and pick.candidate == answer.leader.candidate:
        schedule, open_loads = schedule_of(answer, pick.k)
    facts, draft_facts = run.facts_of(None), run.facts_of(pick.candidate)
    both = (facts, draft_facts) if facts and draft_facts else None
    # A head writes ids of the target, of which it may know only some.
    pair = both if speculation.kind.is_model else None
    samplings = Counter(
        msgspec.structs.replace(t.sampling, seed=None) if t.sampling.temperature else Sampling()
        for t in run.trajectories
    )
    slower = answer.evaluation_of(pick).slower_with_prefills
    doubts = [slower] if slower and not answer.prefills_counted else []
    if answer.provisional:
        doubts.append(f"the run's answer is provisional: {answer.provisional}")
    plan = ServePlan(
        target=served_name,
        target_quant=question.target_quant,
        speculation=speculation,
        sampled=any(t.sampling.temperature > 0 for t in run.trajectories),
        vocabularies=pair and (pair[0].vocab_size, pair[1].vocab_size),
        on_gpu=question.device.startswith("cuda"),
        other_ids=pair is not None and pair[1].translated,
        misread=draft_facts.misread if draft_facts else {},
        target_revision=served_revision,
        sampling=samplings.most_common(1)[0][0] if samplings else Sampling(),
        mixed=len(samplings) > 1,
        limit=max((t.limit for t in run.trajectories), default=128),
        contexts=both and (both[0].context_length, both[1].context_length),
        concurrency=question.max_concurrency
        or max((entry.concurrency for entry in answer.schedule if entry.timed), default=1),
        schedule=schedule,
        open_loads=open_loads,
        differences=differences,
        doubts=tuple(doubts),
        engine=question.engine,
        costs_given=answer.costs_from is not None,
    )
    if not synthetic:
        return plan
    # The shares of rounds whose first 1, 2, … draft tokens were all accepted.
    rounds, k = candidate_rounds(run, pick.candidate), plan.longest
    counted = [survival(rounds.trajectories, rounds.at(k), at).value for at in range(1, k + 1)]
    shares = tuple(round(share or 0.0, 4) for share in counted)
    return replace(plan, differences=(*differences, _FOR_TIMING), survival=shares)


def _chosen(
    answer: Recommendation, candidate: Candidate | None, says: str, *, anyway: bool
) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration to export, and how it differs from the one that the run `says`."""
    decision = answer.decision.replace("_", " ")
    if candidate is not None:
        evaluation = answer.best_of(candidate)
        if evaluation is None:
            raise NotRecommendedError(
                f"no k of `{candidate}` is known to be best, so there is nothing to export",
                hint="`draftbench recommend` says why",
            )
        pick = evaluation.configuration
        if answer.choice is not None and pick.candidate == answer.choice.candidate:
            return answer.choice, ()
        chosen = answer.choice and str(answer.choice)
        recommended = f"the run recommends {chosen}" if chosen else f"{says} `{decision}`"
        return pick, (f"not recommended: {recommended}; exported because of --candidate",)
    if answer.choice is not None:
        return answer.choice, ()
    if answer.leader is None:
        why = next(caveat.text for caveat in answer.caveats if caveat.kind == "no-speed")
        raise NotRecommendedError(
            f"nothing to export: {why}",
            hint="`draftbench recommend` says why",
        )
    if not anyway:
        raise NotRecommendedError(
            f"{says} `{decision}`, so there is nothing to export",
            hint="`draftbench recommend` says why; --anyway exports what ranked first anyway",
        )
    return answer.leader, (f"not recommended: {says} `{decision}`; exported because of --anyway",)


def speculation_of_pick(pick: Configuration, manifest: Manifest, given: str | None) -> Speculation:
    """How an engine can draft as the run did. `given` is the value of `--draft`: the engine's name
    for the draft's model, or the draft itself if the measured server did not reveal it.

    Raises:
        UsageError: a model is given for a draft that has none, or none is given though the run does
            not record the draft.
    """
    question = manifest.question
    sizes = NGramSizes(question.lookup_longest, question.lookup_shortest)
    how = partial(
        speculation_of,
        k=pick.k,
        lookup=sizes,
        quant=pick.quant,
        mode=question.mode,
        stop=pick.stop,
    )
    specs = manifest.specs | {name: name for name in FROM_TEXT}
    if (spec := specs.get(pick.draft)) is None:
        if given is None:
            raise UsageError(
                f"the run does not record what --drafts called `{pick.draft}`",
                hint="say so with --draft: a path, a hub id, eagle3:MODEL, mtp or the like",
            )
        return how(given)
    last, kind = with_weights(spec), kind_drafting(spec)
    # The built-in decoder ran a model, even one whose folder is called dflash:x.
    if kind.is_model or not (question.engine or kind.built_in):
        return replace(how("a model"), model=given or last, stacked=last != spec)
    held = None
    if spec.startswith("spec:"):
        files = [each for each in specs.values() if each.startswith("spec:")]
        contents = dict(zip(files, question.spec_files or (), strict=False))
        if (held := contents.get(spec)) is None:
            raise UsageError(
                f"the run does not record what `{spec}` held", hint="give the engine that file"
            )
    speculation = how(spec, held=held)
    if given is None:
        return speculation
    if speculation.model is None:
        raise UsageError(
            f"`{spec}` has no model that --draft could name",
            hint="omit --draft, which says where a model is; --candidate exports another draft",
        )
    return replace(speculation, model=given)


def schedule_of(answer: Recommendation, k: int) -> tuple[Schedule, tuple[str, ...]]:
    """The draft length for each range of loads, from 1 request to the most that were measured (none
    if one length serves all), and a sentence on each range where the run is inconclusive.

    Args:
        k: the length up to the first load with a decided answer.
    """
    lengths: list[tuple[int, int]] = []
    open_loads = []
    if any(entry.stop for entry in answer.schedule):  # no engine takes rules by load
        decided = [entry for entry in answer.schedule if entry.k is not None]
        steps = groupby(decided, key=lambda entry: DraftLength(entry.k or 0, entry.stop))
        best = [f"{length.short} from {next(entries).concurrency}" for length, entries in steps]
        words = f"the best draft length by concurrent requests: {'; '.join(best)}"
        return (), (words,) * (len(best) > 1)
    for unknown, group in groupby(answer.schedule, key=lambda entry: entry.k is None):
        entries = list(group)
        if unknown:
            k = lengths[-1][1] if lengths else k
            open_loads.append(f"{_inconclusive(answer.schedule, entries)}: k = {k} is kept")
        lengths += [(entry.concurrency, k if entry.k is None else entry.k) for entry in entries]
    firsts = [next(group) for _, group in groupby(lengths, key=lambda entry: entry[1])]
    if len(firsts) < 2:
        return (), tuple(open_loads)
    largest, _ = lengths[-1]
    starts = [1, *(at for at, _ in firsts[1:]), largest + 1]
    return tuple(
        (starts[at], starts[at + 1] - 1, length) for at, (_, length) in enumerate(firsts)
    ), tuple(open_loads)


def _inconclusive(every: Sequence[ScheduleEntry], entries: Sequence[ScheduleEntry]) -> str:
    """That the run is inconclusive from the first of these loads to the next decided one."""
    first, last = entries[0].concurrency, entries[-1].concurrency
    last = next((entry.concurrency - 1 for entry in every if entry.concurrency > last), last)
    concurrencies = f"{first} to {last} concurrent requests"
    if first == last:
        concurrencies = f"{first} concurrent request{'s' if first > 1 else ''}"
    return f"the run is inconclusive at {concurrencies}"
