"""Where costs come from: this run, another run, or a YAML file of an engine's step times.

Acceptance is a property of models and traffic, cost one of hardware and runner: a source has the
costs of each candidate at each timed concurrency, and names its runner. Between two timed
concurrencies costs follow the tokens of a pass (`passes.between`), beyond them they are unknown.

    engine: llama.cpp b4000, 4-bit GGUF           # named in every answer
    concurrency:
      1:                                          # active rows
        tokens_per_second: 27.5                   # of all rows, plain decoding; or target_step_s
        verify: {2: 0.041, 5: 0.060}              # seconds of a target pass over n tokens a row
        drafts:
          qwen0.5:int4: {step_s: 0.021}           # by the names that `recommend` prints

All seconds are for all rows together. For prompt lookup (`ngram`) `step_s` is one whole lookup.
Such a file knows no contexts, prefills or overheads: context is taken to make no difference, the
others are unknown. The speed at a k is unknown if its pass over k + 1 tokens is longer than those
of `verify`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec

from draftbench.drafts.kinds import kind_of
from draftbench.errors import UsageError, did_you_mean
from draftbench.planner.caveat_kinds import FEW_DECODED
from draftbench.planner.passes import Block, blocks_of, exactly
from draftbench.records import Candidate
from draftbench.run_folder.run import Run
from draftbench.run_folder.served import decode_seconds_of
from draftbench.safe_files import UnreadableError, read_yaml


@dataclass(frozen=True, eq=False)
class CostSource:
    """Costs by candidate and timed concurrency, and the `runner` of the target's passes.

    `run` is the run that timed and decoded; None for an engine's file. A serving engine shows no
    passes: `served` has the loads at which it answered both with each candidate and without one.
    `origin` names a source other than the run itself, `caveats` what a reader must know about it,
    and `passes_given` the tokens of a file's passes if it leaves some out.
    """

    blocks: Mapping[Candidate, Mapping[int, Block]]
    runner: str | None
    run: Run | None = None
    served: Mapping[Candidate, tuple[int, ...]] = field(default_factory=dict)
    origin: str | None = None
    caveats: tuple[str, ...] = ()
    passes_given: tuple[int, ...] = ()

    def concurrencies(self, candidate: Candidate) -> tuple[int, ...]:
        """The loads that were timed, ascending."""
        return (*self.served.get(candidate, ()), *self.blocks.get(candidate, ()))

    def around(self, candidate: Candidate, concurrency: int) -> tuple[int, int] | None:
        """The timed loads between which costs are interpolated; None if they are timed or unknown,
        as between two loads of a serving engine.
        """
        timed = sorted(self.blocks.get(candidate, ()))
        return next(((a, b) for a, b in pairwise(timed) if a < concurrency < b), None)

    def note(self, candidate: Candidate, concurrency: int) -> str | None:
        """Why costs are unknown at a load, or between which loads they are interpolated; None if
        they were timed, or if the run's own facts and failures explain better why they are missing.
        """
        timed, run = self.concurrencies(candidate), self.run
        if concurrency in timed:
            return None
        if around := self.around(candidate, concurrency):
            return f"interpolated between {around[0]} and {around[1]}"
        if timed:
            where = f" in {self.origin}" if self.origin else ""
            only = ", ".join(map(str, timed))
            return f"concurrency {concurrency} was not timed{where}, only {only}"
        if run is None or candidate not in self.served:
            return self.origin and f"{self.origin} has no times for it"
        answers = [row for row in run.served if row.error is None and row.output_tokens > 1]
        answers = [row for row in answers if row.candidate in (None, candidate)]
        if not any(row.candidate for row in answers):
            return None
        if not run.has_baseline:
            return "no server without speculation was timed beside it"
        if len({row.k > 0 for row in answers if decode_seconds_of(row)}) < 2:
            return "its server sends answers whole, so nothing after a first token can be timed"
        return f"fewer than {FEW_DECODED} requests were timed with it"


def costs_in(run: Run, candidates: Sequence[Candidate] | None = None) -> CostSource:
    """The costs that a run timed, for all its candidates or for some; on a serving engine these are
    seconds of whole rounds.
    """
    if run.manifest.question.engine is not None:
        # The loads at which a start with a candidate and one without both answered enough requests.
        answered = defaultdict[tuple[Any, ...], set[str]](set)
        for row in run.decodes:
            if row.output_tokens > 1 and row.decode_seconds > 0:
                answered[row.block, row.concurrency, row.k, row.process].add(row.request)
        enough = {
            (of, n, k > 0) for (of, n, k, _), names in answered.items() if len(names) >= FEW_DECODED
        }
        served = {}
        for candidate in run.candidates:
            drafted, plain = (
                {n for of, n, drafts in enough if (of, drafts) == (str(candidate), side)}
                for side in (True, False)
            )
            served[candidate] = tuple(sorted(drafted & plain))
        return CostSource({}, engine_name(run), run, served)
    timed_by = next((point.runner for point in run.costs if point.candidate is None), None)
    target = run.facts_of(None)
    return CostSource(
        blocks={each: blocks_of(run, each) for each in candidates or run.candidates},
        runner=timed_by or (target.runner if target else None),
        run=run,
    )


def engine_name(run: Run) -> str:
    """The engine that served a run, with its version where it names one."""
    name = run.manifest.question.engine or "built-in decoder"
    versions = dict.fromkeys(facts.version for facts in run.engines if facts.version)
    return " ".join([name, *versions])


def costs_of_run(other: Run, own: Run, name: str) -> CostSource:
    """The costs of another run, to use with this run's acceptance.

    Raises:
        UsageError: the other run has another target, or none of this run's candidates.
    """
    here, there = (
        f"{PurePath(question.target).name} at {question.target_quant}"
        for question in (own.manifest.question, other.manifest.question)
    )
    if here != there:
        raise UsageError(
            f"{name} timed another target ({there}) than this run ({here})",
            hint="costs can only be borrowed for the same target and drafts",
        )
    if other.manifest.question.engine is not None:
        raise UsageError(
            f"{name} was measured on {engine_name(other)}, which times whole rounds over its own "
            "requests: these cannot be borrowed",
            hint="`draftbench recommend` on that run says what pays there, and `draftbench "
            "compare` puts it beside this one",
        )
    found = costs_in(other, own.candidates)
    if not any(found.blocks.values()):
        raise UsageError(
            f"{name} has no times for any candidate of this run",
            hint=f"this run has {', '.join(map(str, own.candidates))}",
        )
    runner = found.runner or "an unknown runner"
    caveats = [
        f"costs come from {runner}, in {name}: all speed-ups here are predictions for it, and this "
        "run's own timings are ignored"
    ]
    for candidate in (None, *own.candidates):
        ours, theirs = own.facts_of(candidate), other.facts_of(candidate)
        if ours and theirs and ours.fingerprint != theirs.fingerprint:
            caveats.append(f"{candidate or 'the target'} is not the same model in {name}")
    return replace(found, runner=runner, origin=name, caveats=tuple(caveats))


Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
_HINT = "docs/formats.md says what such a file holds (An engine's costs)"


class _DraftCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step_s: Positive


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verify: Annotated[
        dict[Annotated[int, msgspec.Meta(ge=2)], Positive], msgspec.Meta(min_length=1)
    ]
    drafts: Annotated[dict[str, _DraftCosts], msgspec.Meta(min_length=1)]
    target_step_s: Positive | None = None
    tokens_per_second: Positive | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: Annotated[str, msgspec.Meta(min_length=1)]
    concurrency: Annotated[
        dict[Annotated[int, msgspec.Meta(ge=1)], _Batch], msgspec.Meta(min_length=1)
    ]


def read_engine_costs(path: Path, candidates: Sequence[Candidate]) -> CostSource:
    """Read and check a file of step times; candidates that it does not name have no costs.

    Raises:
        UsageError: no such file, unknown keys, impossible values, or no draft of this run.
    """
    try:
        file = msgspec.convert(read_yaml(path), _File)
    except UnreadableError as error:
        raise UsageError(f"cannot read `{path}`: {error}", hint=_HINT) from error
    except msgspec.ValidationError as error:
        unknown = re.search("unknown field `([^`]*)`", str(error))
        keys = [key for kind in (_File, _Batch, _DraftCosts) for key in kind.__struct_fields__]
        hint = did_you_mean(unknown[1], keys, _HINT) if unknown else _HINT
        raise UsageError(f"`{path}`: {error}", hint=hint) from error
    named = {name for given in file.concurrency.values() for name in given.drafts}
    known = {str(candidate): candidate for candidate in candidates}
    if not named & set(known):
        raise UsageError(
            f"`{path}` has times for {', '.join(sorted(named))}, none of which this run measured",
            hint=f"name drafts as the run does: {', '.join(known)}",
        )
    blocks: dict[Candidate, dict[int, Block]] = {}
    given_passes: set[int] = set()
    for concurrency, given in sorted(file.concurrency.items()):
        where, step, rate = f"`{path}`: concurrency", given.target_step_s, given.tokens_per_second
        if (step is None) == (rate is None):
            text = f"{where} {concurrency} needs one of target_step_s and tokens_per_second"
            raise UsageError(text, hint=_HINT)
        passes = {1: step or concurrency / (rate or 1.0), **given.verify}
        rising = [passes[tokens] for tokens in sorted(passes)]
        if rising != sorted(rising):
            raise UsageError(
                f"{where} {concurrency}: a pass over more tokens takes less time than one over "
                "fewer, or than a step",
                hint="all are seconds of all requests together; average over more passes",
            )
        target = exactly(passes)
        given_passes.update(passes if len(passes) < max(passes) else ())
        for name in given.drafts.keys() & known.keys():
            lookup = kind_of(known[name].draft).from_text
            own = exactly({1: given.drafts[name].step_s})
            blocks.setdefault(known[name], {})[concurrency] = Block(
                target=target,
                draft=None if lookup else own,
                proposal=own if lookup else None,
                longest=max(passes),
            )
    caveats = (
        f"costs come from {file.engine}, in `{path}`: all speed-ups here are "
        "predictions for it, and this run's own timings are ignored; without prefill, and with "
        "steps equally long at every context",
        f"`{path}` has one time for each pass: how much times vary is unknown (c and v show "
        "±0.00), and no interval or probability here includes it",
    )
    return CostSource(
        blocks,
        runner=file.engine,
        origin=f"`{path}`",
        caveats=caveats,
        passes_given=tuple(sorted(given_passes)),
    )
