"""What a run asked → what of it is not there yet, so that an answer on half a run says so."""

from __future__ import annotations

from pathlib import PurePath

from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.store.observed import Observed


def unfinished(observed: Observed) -> str | None:
    """In words, what the same sweep command would go on with; None where all is there.

    A candidate that failed is not waited for. Runs that were asked for but not decoded are not
    seen: the question does not say how many there were to be.
    """
    missing = [*_responses(observed), *_replays(observed)]
    if not missing:
        return None
    return f"this run is not finished ({'; '.join(missing)}): the same sweep command goes on"


def _responses(observed: Observed) -> list[str]:
    manifest = observed.manifest
    failed = sum(f.draft is None and f.request is not None for f in observed.failures)
    asked = manifest.traffic.requests * manifest.question.samples - failed
    there = len(observed.trajectories)
    return [f"{there} of {asked} responses"] if there < asked else []


def _replays(observed: Observed) -> list[str]:
    responses = sum(t.output_tokens > 1 for t in observed.trajectories)
    failed = {Candidate(draft=f.draft, quant=f.quant) for f in observed.failures if f.draft}
    counts: dict[Candidate, int] = dict.fromkeys(failed, responses)
    for replay in observed.replays:
        own = Candidate(draft=replay.draft, quant=replay.quant)
        counts[own] = counts.get(own, 0) + 1
    found = [f"{c} replayed on {n} of {responses} responses" for c, n in counts.items()]
    partly = [text for text, n in zip(found, counts.values(), strict=True) if n < responses]
    return partly + _absent(observed, set(counts))


def _absent(observed: Observed, there: set[Candidate]) -> list[str]:
    """Drafts without any replay. A name may have come from where a link led, so they are counted by
    level, and called by name only where the names add up.
    """
    question = observed.manifest.question
    built_in = {Candidate(draft=spec) for spec in question.drafts if spec in (LOOKUP, SELF)}
    absent = [str(candidate) for candidate in built_in - there]
    specs = [spec for spec in question.drafts if spec not in (LOOKUP, SELF)]
    for level in question.quants:
        known = {c.draft for c in there if c.quant == level and c.draft not in (LOOKUP, SELF)}
        missing = len(specs) - len(known)
        names = [_short(spec) for spec in specs if not {spec, _short(spec)} & known]
        if missing > 0 and len(names) == missing:
            absent += [str(Candidate(draft=name, quant=level)) for name in names]
        elif missing > 0:
            absent.append(f"{missing} of the drafts at {level}")
    return [f"no replay of {', '.join(absent)}"] if absent else []


def _short(spec: str) -> str:
    """The last part of a path or hub id, without a file's ending or a pinned revision."""
    path = PurePath(spec)
    return path.stem if path.suffix == ".gguf" else path.name.partition("@")[0]
