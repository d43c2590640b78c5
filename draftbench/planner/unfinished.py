"""What a run was asked to measure and has not yet, so that an answer on half a run says so.

How much was to be timed and decoded is in the manifest's effort. Runs of older layouts lack it:
there only responses and replays are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from draftbench.planner.cost_sources import CostSource, costs_in
from draftbench.records import LOOKUP, SELF, Candidate, Key
from draftbench.run_folder.run import Run, to_decode


def unfinished(run: Run, costs: CostSource | None = None) -> str | None:
    """In words, what the same command would measure next: for each candidate the first stage that
    is not complete. None where all is there; a candidate that failed is not waited for.

    Args:
        costs: those of this run, where they are at hand.
    """
    asked = run.manifest.traffic.requests * run.manifest.question.samples
    written = len(run.trajectories)
    missing = [f"{written} of {asked} responses"] if written < asked else []
    if turns := _turns_left(run):
        missing.append(turns)
    failed = {failure.candidate for failure in run.failures}
    replays = Counter(replay.candidate for replay in run.replays)
    responses = sum(t.output_tokens > 1 for t in run.trajectories)
    engine, costs = run.manifest.question.engine is not None, costs or costs_in(run)
    for candidate in run.candidates:
        if candidate in failed:
            continue
        stage = _not_served(run, candidate) if engine else _not_decoded(run, candidate, costs)
        replayed = replays[candidate]
        if replayed < responses and (replayed or not engine):
            stage = f"replayed on {replayed} of {responses} responses"
        if stage is not None:
            missing.append(f"{candidate} {stage}")
    begun = failed.union(run.candidates)
    absent = [str(candidate) for candidate in _asked_for(run) if candidate not in begun]
    if absent:
        missing.append(f"no replay of {', '.join(absent)}")
    if not missing:
        return None
    return f"this run is not finished ({'; '.join(missing)}): the same command resumes it"


def _not_served(run: Run, candidate: Candidate) -> str | None:
    """The first k at which an engine has not answered all requests that it should have. A candidate
    that was not served before the server without a draft closed a turn is replayed only.
    """
    effort = run.manifest.effort
    if effort is None or effort.measure in ("replay", "none"):
        return None
    wanted = len(to_decode(run.trajectories, effort.measure_requests))
    answered: defaultdict[tuple[int, int], set[Key]] = defaultdict(set)
    for row in run.served:
        if row.candidate == candidate:
            answered[row.k, row.batch].add(row.key)
    for (k, concurrency), keys in sorted(answered.items()):
        if len(keys) < wanted:
            load = "" if concurrency == 1 else f" at concurrency {concurrency}"
            return f"served on {len(keys)} of {wanted} responses at k = {k}{load}"
    in_part = {row.k for row in run.partial if row.candidate == candidate}
    if ks := sorted(in_part - {k for k, _ in answered}):
        return f"answered only in part at k = {', '.join(map(str, ks))}, to be asked again"
    running = not any(facts.started for facts in run.engines)
    closed = any(row.candidate is None and row.repeat for row in run.served)
    return None if answered or running or closed else "not served"


def _turns_left(run: Run) -> str | None:
    """How many turns of starts ended, with the server without a draft; None where all did."""
    effort = run.manifest.effort
    started = any(facts.started for facts in run.engines)
    failed = any(failure.candidate is None for failure in run.failures)
    if effort is None or effort.measure == "replay" or not started or failed:
        return None
    ended = len({row.repeat for row in run.served if row.candidate is None and row.repeat})
    return f"{ended} of {effort.processes} turns of starts" if ended < effort.processes else None


def _not_decoded(run: Run, candidate: Candidate, costs: CostSource) -> str | None:
    """The first batch size at which a candidate was not timed or decoded as it should be. The
    target as a mere control is decoded only with `--measure all`; at unknown costs (too short a
    context) no k is the best one.
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
        at_batch = str(candidate), batch
        timed = {point.process for point in run.costs if (point.block, point.batch) == at_batch}
        if not timed:
            return f"not timed{rows}"
        if len(timed) < effort.processes:
            return f"timed in {len(timed)} of {effort.processes} processes{rows}"
        best = effort.measure == "best" and not control and batch in costs.batches(candidate)
        wanted = responses if best or effort.measure == "all" else 0
        runs = {(row.key, row.process) for row in run.decodes if (row.block, row.batch) == at_batch}
        processes = Counter(key for key, _ in runs)
        decoded = sum(count >= effort.processes for count in processes.values())
        if decoded < wanted:
            often = f" in each of {effort.processes} processes" if effort.processes > 1 else ""
            return f"decoded on {decoded} of {wanted} responses{rows}{often}"
    return None


def _asked_for(run: Run) -> list[Candidate]:
    """The candidates that were asked for, as far as the run knows its drafts' names."""
    question, specs = run.manifest.question, run.manifest.specs or {}
    built_in = [draft for draft in question.drafts if draft in (LOOKUP, SELF)]
    # Nothing is replayed for a running server that is asked about its own draft alone.
    replays = question.engine is None or bool(question.drafts)
    if replays and run.manifest.effort is not None and run.manifest.effort.controls:
        controls = (LOOKUP, SELF) if question.engine is None else (LOOKUP,)
        built_in = list(dict.fromkeys((*built_in, *controls)))
    begun = (*run.candidates, *(f.candidate for f in run.failures if f.candidate is not None))
    # A draft that is stored quantized has that level alone.
    stored = {c.draft: c for c in begun if c.quant not in question.quants}
    asked = [Candidate(draft=draft) for draft in built_in]
    for name in specs:
        levels = [Candidate(draft=name, quant=level) for level in question.quants]
        asked += [stored[name]] if name in stored else levels
    return asked
