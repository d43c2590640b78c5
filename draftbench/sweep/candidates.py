"""Drafts as they were asked for → candidates that can be measured, and those that cannot with the
reason.

Reads configurations and tokenizers; knows nothing of traffic and loads no weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from draftbench.errors import DraftbenchError, PairError, UsageError
from draftbench.models.compatibility import check_pair
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import check_level
from draftbench.models.source import ModelSource
from draftbench.records import LOOKUP, SELF, Candidate, Failure
from draftbench.run_folder.manifest import portable
from draftbench.sweep.failures import failure, known_error
from draftbench.sweep.options import SweepOptions


@dataclass
class Found:
    """What is known of the drafts: sources and caveats by name, the candidates in order, those that
    are out as records, and the first reason as the error that it is where nothing is left.
    """

    sources: dict[str, ModelSource] = field(default_factory=dict)
    caveats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: dict[Candidate, None] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    reason: DraftbenchError | None = None


def check_candidates(options: SweepOptions, target: ModelSource, device: str) -> Found:
    """Which drafts can be measured at which levels, from configurations and tokenizers alone.

    Raises:
        DraftbenchError: none can, or a level cannot be had here.
    """
    for level in options.quants:
        check_level(level, device, simulate=options.simulate_quant)
    found = Found()
    for name, source in _named(options):
        if source is None:
            found.candidates[Candidate(draft=name)] = None
        else:
            _check_draft(name, source, target, options.quants, found)
    if not found.candidates:
        raise found.reason or UsageError("no draft is given", hint="name one with --drafts")
    if options.controls:
        found.candidates.update({Candidate(draft=LOOKUP): None, Candidate(draft=SELF): None})
    return found


def _named(options: SweepOptions) -> Iterator[tuple[str, ModelSource | None]]:
    """Each draft under the name by which the run calls it, the short one where no other has it; the
    drafts that are no files come without a source.
    """
    taken = {LOOKUP, SELF}
    for spec in options.drafts:
        if spec in (LOOKUP, SELF):
            yield spec, None
            continue
        source = ModelSource(spec, options.trust)
        name = source.name if source.name not in taken else portable(spec)
        taken.add(name)
        yield name, source


def _check_draft(
    name: str, source: ModelSource, target: ModelSource, levels: tuple[str, ...], found: Found
) -> None:
    """Add the draft to what is found, at its own level where it is stored quantized."""
    try:
        caveats = check_pair(target, source)
        stored = stored_level(source)
    # Configurations and tokenizers are read by code that raises what it likes.
    except Exception as error:
        found.reason = found.reason or known_error(f"the draft {name}", error)
        stage = "pair" if isinstance(error, PairError) else "load"
        own = (Candidate(draft=name, quant=level) for level in levels)
        found.failures += [failure(candidate, error, stage) for candidate in own]
        return
    found.sources[name], found.caveats[name] = source, caveats
    kept = levels if stored is None else (stored,)
    found.candidates.update({Candidate(draft=name, quant=level): None for level in kept})
