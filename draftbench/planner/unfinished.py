"""What a run has not measured yet of what it was asked to, so that an answer on half a run says so.

How much was to be timed and decoded is in the manifest's effort. Runs of older layouts lack it:
there only responses and replays are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from draftbench.planner.cost_sources import CostSource, costs_in
from draftbench.records import (
    LOOKUP,
    SELF,
    Candidate,
    Key,
)
from draftbench.run_folder.run import Run, to_decode


def unfinished(run: Run, costs: CostSource | None = None) -> str | None:
    """In words, what the same command would measure next: of each candidate the first stage that is
    not complete. None where all is there; a candidate that failed is not waited for.

    Args:
        costs: those of this run, where they are at hand.
    """
    asked = run.manifest.traffic.requests * run.manifest.question.samples
    there = len(run.trajectories)
    missing = [f"{there} of {asked} responses"] if there < asked else []
    missing += filter(None, [_turns_left(run)])
    failed = {failure.candidate for failure in run.failures}
    replayed = Counter(replay.candidate for replay in run.replays)
    responses = sum(t.output_tokens > 1 for t in run.trajectories)
    costs = costs or costs_in(run)
    for candidate in run.candidates:
        if candidate in failed:
            continue
        engine = run.manifest.question.engine is not None
        stage = _not_served(run, candidate) if engine else _not_decoded(run, candidate, costs)
        if replayed[candidate] < responses and (replayed[candidate] or not engine):
            stage = f"replayed on {replayed[candidate]} of {responses} responses"
        if stage is not None:
            missing.append(f"{candidate} {stage}")
    seen = failed.union(run.candidates)
    absent = [str(candidate) for candidate in _expected(run) if candidate not in seen]
    if absent:
        missing.append(f"no replay of {', '.join(absent)}")
    if not missing:
        return None
    return f"this run is not finished ({'; '.join(missing)}): the same command resumes it"


def _not_served(run: Run, candidate: Candidate) -> str | None:
    """Where requests are missing of those that an engine was to answer with a candidate. A
    candidate that was not served before the closing turn of the server without a draft is replayed
    only.
    """
    effort = run.manifest.effort
    if effort is None or effort.measure in ("replay", "none"):
        return None
    wanted = len(to_decode(run.trajectories, effort.measure_requests))
    done: defaultdict[tuple[int, int], set[Key]] = defaultdict(set)
    for row in run.served:
        if row.candidate == candidate:
            # Who came at its time of arrival met any number of others: that is one load.
            concurrency = row.concurrency if row.load == "closed" else 1
            done[row.k, concurrency].add(row.key)
    for (k, concurrency), keys in sorted(done.items()):
        if len(keys) < wanted:
            load = "" if concurrency == 1 else f" at concurrency {concurrency}"
            return f"served on {len(keys)} of {wanted} responses at k = {k}{load}"
    ks = sorted({row.k for row in run.partial if row.candidate == candidate} - {k for k, _ in done})
    if ks:
        return f"answered only in part at k = {', '.join(map(str, ks))}, to be asked again"
    running = not any(facts.started for facts in run.engines)
    closed = any(row.candidate is None and row.repeat for row in run.served)
    return None if done or running or closed else "not served"


def _turns_left(run: Run) -> str | None:
    """How many of the turns of starts ended with the server without a draft, where not all did."""
    effort = run.manifest.effort
    started = any(facts.started for facts in run.engines)
    failed = any(failure.candidate is None for failure in run.failures)
    if effort is None or effort.measure == "replay" or not started or failed:
        return None
    ended = len({row.repeat for row in run.served if row.candidate is None and row.repeat})
    return f"{ended} of {effort.processes} turns of starts" if ended < effort.processes else None


def _not_decoded(run: Run, candidate: Candidate, costs: CostSource) -> str | None:
    """Where a candidate was not timed or decoded as it should be. The target as a mere control is
    decoded only where everything is; at unknown costs (too short a context) no k is the best one.
    """
    effort, question = run.manifest.effort, run.manifest.question
    if effort is None or effort.measure == "replay":
        return None
    if any(facts and not facts.has_kernel for facts in map(run.facts_of, (None, candidate))):
        return None  # its seconds would say nothing of the level
    control = candidate.draft == SELF and SELF not in question.drafts
    responses = len(to_decode(run.trajectories, effort.measure_requests))
    for batch in question.batches:
        rows = "" if batch == 1 else f" with {batch} rows"
        block = str(candidate), batch
        timed = {point.process for point in run.costs if (point.block, point.batch) == block}
        if not timed:
            return f"not timed{rows}"
        if len(timed) < effort.processes:
            return f"timed in {len(timed)} of {effort.processes} processes{rows}"
        best = effort.measure == "best" and not control and batch in costs.batches(candidate)
        wanted = responses if best or effort.measure == "all" else 0
        runs = [row for row in run.decodes if (row.block, row.batch) == block]
        done = Counter(key for key, _ in {(row.key, row.process) for row in runs})
        decoded = sum(processes >= effort.processes for processes in done.values())
        if decoded < wanted:
            each = f" in each of {effort.processes} processes" if effort.processes > 1 else ""
            return f"decoded on {decoded} of {wanted} responses{rows}{each}"
    return None


def _expected(run: Run) -> list[Candidate]:
    """The candidates that were asked for; none where the run does not know its drafts' names. A
    draft that is stored quantized goes by a level of its own.
    """
    question, specs = run.manifest.question, run.manifest.specs or {}
    built_in = [draft for draft in question.drafts if draft in (LOOKUP, SELF)]
    # Of a running server that is asked about its own draft alone nothing is replayed.
    replays = question.engine is None or bool(question.drafts)
    if replays and run.manifest.effort is not None and run.manifest.effort.controls:
        controls = (LOOKUP, SELF) if question.engine is None else (LOOKUP,)
        built_in = list(dict.fromkeys((*built_in, *controls)))
    known = (*run.candidates, *(f.candidate for f in run.failures if f.candidate is not None))
    stored = {c.draft: c for c in known if c.quant not in question.quants}
    expected = [Candidate(draft=draft) for draft in built_in]
    for name in specs:
        if name in stored:
            expected.append(stored[name])
        else:
            expected += [Candidate(draft=name, quant=level) for level in question.quants]
    return expected
