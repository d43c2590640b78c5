"""What a run asked → what of it is not there yet, so that an answer on half a run says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from draftbench.planner.costs import block_costs
from draftbench.planner.effort import Effort, effort_of
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.run_folder.manifest import short_name
from draftbench.run_folder.run import Run

Block = tuple[str, int]


def unfinished(observed: Run) -> str | None:
    """In words, what the same command would go on with: of each candidate the first stage
    that is not whole. None where all is there.

    A candidate that failed is not waited for. How much was to be timed and decoded is what the
    candidate with the most of it has, and where there is none to compare with, what the command
    line asked for.
    """
    missing = [*_responses(observed), *_stages(observed)]
    if not missing:
        return None
    return f"this run is not finished ({'; '.join(missing)}): the same command goes on"


def _responses(observed: Run) -> list[str]:
    manifest = observed.manifest
    asked = manifest.traffic.requests * manifest.question.samples
    there = len(observed.trajectories)
    return [f"{there} of {asked} responses"] if there < asked else []


def _stages(observed: Run) -> list[str]:
    effort = effort_of(observed.manifest.command)
    failed = {f.candidate for f in observed.failures if f.candidate}
    begun = [candidate for candidate in observed.candidates if candidate not in failed]
    replays = _replays(observed, begun)
    later = _measurements(observed, [c for c in begun if c not in replays], effort)
    found = [f"{candidate} {stage}" for candidate, stage in (replays | later).items()]
    return found + _absent(observed, failed.union(begun), effort)


def _replays(observed: Run, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
    responses = sum(t.output_tokens > 1 for t in observed.trajectories)
    replayed = Counter(r.candidate for r in observed.replays)
    counts = {candidate: replayed[candidate] for candidate in candidates}
    return {
        candidate: f"replayed on {count} of {responses} responses"
        for candidate, count in counts.items()
        if count < responses
    }


def _measurements(
    observed: Run, candidates: Sequence[Candidate], effort: Effort | None
) -> dict[Candidate, str]:
    """Step times and decoding runs. A level without a kernel has neither, what has no costs (too
    short a context) no k to decode at, and the control is only decoded where it was asked for as a
    draft or all was.
    """
    question, decoded = observed.manifest.question, _decoded(observed)
    timed = {(point.block, point.batch) for point in observed.costs}
    most = _most(observed, decoded, effort)
    found: dict[Candidate, str] = {}
    for candidate in candidates if timed or (effort and effort.times) else ():
        facts = observed.facts_of(None), observed.facts_of(candidate)
        if any(known is not None and not known.has_kernel for known in facts):
            continue
        asked = candidate.draft != SELF or SELF in question.drafts
        everything = effort is not None and effort.measure == "all"
        for batch in question.batches:
            own, rows = (str(candidate), batch), "" if batch == 1 else f" with {batch} rows"
            done = decoded.get(own, 0)
            if own not in timed:
                found.setdefault(candidate, f"not timed{rows}")
            elif done < most and (
                everything or (asked and block_costs(observed, candidate, batch) is not None)
            ):
                found.setdefault(candidate, f"decoded on {done} of {most} responses{rows}")
    return found


def _most(observed: Run, decoded: Mapping[Block, int], effort: Effort | None) -> int:
    """On how many responses a candidate is to be decoded. What two candidates have tells it better
    than the command that began the run: the one that went on may have asked for more.
    """
    most = max(decoded.values(), default=0)
    alone = len({block for block, _ in decoded}) < 2
    return max(most, effort.decoded(observed)) if effort and alone else most


def _decoded(observed: Run) -> dict[Block, int]:
    """How many responses each candidate was decoded on, by batch size."""
    keys: dict[Block, set[tuple[str, int]]] = {}
    for row in (*observed.decodes, *observed.stopped):
        keys.setdefault((row.block, row.batch), set()).add((row.request, row.sample))
    return {own: len(found) for own, found in keys.items()}


def _absent(observed: Run, there: set[Candidate], effort: Effort | None) -> list[str]:
    """Drafts without any replay. A name may have come from where a link led, so they are counted by
    level, and called by name only where the names add up.
    """
    question = observed.manifest.question
    controls = (LOOKUP, SELF) if effort is not None and effort.controls else ()
    asked = dict.fromkeys((*question.drafts, *controls))
    built_in = [spec for spec in asked if spec in (LOOKUP, SELF)]
    absent = [spec for spec in built_in if Candidate(draft=spec) not in there]
    specs = [spec for spec in question.drafts if spec not in (LOOKUP, SELF)]
    for level in question.quants:
        # A draft that is stored quantized goes by a level of its own.
        own = {c for c in there if c.quant == level or c.quant not in question.quants}
        known = {c.draft for c in own if c.draft not in (LOOKUP, SELF)}
        missing = len(specs) - len(known)
        names = [short_name(spec) for spec in specs if not {spec, short_name(spec)} & known]
        if missing > 0 and len(names) == missing:
            absent += [str(Candidate(draft=name, quant=level)) for name in names]
        elif missing > 0:
            absent.append(f"{missing} of the drafts at {level}")
    return [f"no replay of {', '.join(absent)}"] if absent else []
