"""Pair the requests of two baselines, or say why the two cannot be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from draftbench.errors import IncomparableError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.limits import TIMED, Limit
from draftbench.records import LOOKUP, NUMBER_TYPES
from draftbench.run_folder.key import VARIABLE
from draftbench.run_folder.manifest import flag_of

# Requests that the new run lacks may be those on which it failed, so most must be there.
MIN_OVERLAP = 0.8

Pair = tuple[RequestCounts, RequestCounts]


class Differing(NamedTuple):
    """What differs between two baselines, with what to do about it, if there is anything."""

    what: str
    hint: str = ""
    refuses: bool = True  # whether it alone forbids a comparison


def pair_up(old: Baseline, new: Baseline, limits: Sequence[Limit]) -> tuple[Pair, ...]:
    """The counts of each request in the old run and in the new, for those that both have.

    Raises:
        IncomparableError: as `refusal`.
    """
    if refused := refusal(old, new, limits):
        raise refused
    by_id = {counts.id: counts for counts in new.requests}
    return tuple((counts, by_id[counts.id]) for counts in old.requests if counts.id in by_id)


def refusal(
    old: Baseline,
    new: Baseline,
    limits: Sequence[Limit] = (),
    measured: Sequence[str] | None = None,
) -> IncomparableError | None:
    """Why two baselines cannot be compared, by all that differs, the most important first; None if
    they can. Another target or draft is named beside what forbids the comparison.

    Args:
        limits: on times, they ask for one machine and load.
        measured: the candidates of the new run, if the old one's is not among them.
    """
    found = [
        *_of_target(old, new),
        *_of_draft(old, new, measured),
        *_of_requests(old, new),
        *_of_settings(old, new),
        *_of_times(old, new, limits),
    ]
    if not any(each.refuses for each in found):
        return None
    return IncomparableError(
        f"the baseline cannot be compared: {'; '.join(each.what for each in found)}",
        hint=next(each.hint for each in found if each.hint),
    )


def came_at_other_times(old: Baseline, new: Baseline) -> bool:
    """Whether requests arrived at other times, so that others were in flight together: this changes
    times, but not the accepted tokens.
    """
    before, now = old.question.arrivals_digest, new.question.arrivals_digest
    return None not in (before, now) and before != now


def one_was_counted(old: Baseline, new: Baseline) -> bool:
    """Whether a server counted the rounds of one run and the other was replayed: the server's α is
    over the tokens that it tried, a replay's over the whole output.
    """
    return (old.question.concurrency is None) != (new.question.concurrency is None)


def one_looks_up(old: Baseline, new: Baseline) -> bool:
    """Whether one drafts by prompt lookup and the other with a model: a round of lookup costs next
    to nothing, so acceptance does not say which of the two is better.
    """
    return (old.candidate == LOOKUP) != (new.candidate == LOOKUP)


def by_segment(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs by their segment in the old run; empty if there is only one segment."""
    names = sorted({old.segment for old, _ in pairs if old.segment is not None})
    if len(names) < 2:
        return {}
    return {name: [pair for pair in pairs if pair[0].segment == name] for name in names}


def other_target(old: Baseline, new: Baseline) -> str | None:
    """The fact that shows another target; None if it is the same or unknown. The target is judged
    by the hash of its files if both runs have one (a server's is unknown), else by its name and
    that of the file or folder that the server read.
    """
    for fact in ("target fingerprint", "target", "target weights"):
        before, now = old.tested.get(fact), new.tested.get(fact)
        if None not in (before, now) and before != now:
            return fact
        if before == now is not None and fact == "target fingerprint":
            return None
    return None


def _of_target(old: Baseline, new: Baseline) -> Iterator[Differing]:
    """Another target, and one that is held in another number type or quantization."""
    held = [f"target {name}" for name in ("quant", *NUMBER_TYPES)]
    facts = [fact for fact in held if None not in (old.tested.get(fact), new.tested.get(fact))]
    if other := other_target(old, new):
        named = old.tested.get("target") != new.tested.get("target")
        facts.insert(0, "target" if named else other)
    for fact in facts:
        before, now = old.tested[fact], new.tested[fact]
        if before != now:
            yield Differing(
                f"{fact} was {before}, is {now}",
                "gate a run of the target as in the baseline, or save a new baseline if it changed "
                "on purpose",
                refuses=fact in held,
            )


def _of_draft(old: Baseline, new: Baseline, measured: Sequence[str] | None) -> Iterator[Differing]:
    if measured is not None:
        yield Differing(
            f"the draft was {old.candidate}, which this run did not measure",
            f"its candidates are {', '.join(measured) or 'none'}; name the draft that replaces it "
            "with --candidate, or gate a run of the same draft and level",
        )
    elif old.candidate != new.candidate:
        yield Differing(f"the draft was {old.candidate}, is {new.candidate}", refuses=False)


def _of_requests(old: Baseline, new: Baseline) -> Iterator[Differing]:
    """Other requests, or the same with another sampling."""
    if old.question.key_id != new.question.key_id:  # then no hash is the same
        yield Differing(
            f"{flag_of('key_id')} was {old.question.key_id}, is {new.question.key_id}",
            f"set {VARIABLE} to the first run's key: the {VARIABLE} of its machine, or `hex:` and "
            "the content of ~/.config/draftbench/key there",
        )
        return
    known = {counts.id: counts.sampling for counts in old.requests}
    # What was not answered was asked for all the same.
    sampling = {request: known[request] for request in known.keys() & new.unanswered.keys()}
    sampling |= {counts.id: counts.sampling for counts in new.requests}
    common = known.keys() & sampling.keys()
    if len(common) < MIN_OVERLAP * len(known):
        yield Differing(
            f"other traffic: only {len(common)} of the baseline's {len(known)} requests are among "
            f"the {len(sampling)} of this run",
            "run the same traffic and sample, or save a new baseline if the traffic changed on "
            "purpose",
        )
    different = sorted(request for request in common if known[request] != sampling[request])
    if different:
        was, now = known[different[0]], sampling[different[0]]
        yield Differing(
            f"the sampling of {len(different)} of {len(common)} requests differs (one was {was}, "
            f"is {now})",
            "run with the baseline's temperature and sampling, or save a new baseline",
        )


def _of_settings(old: Baseline, new: Baseline) -> Iterator[Differing]:
    before, now = msgspec.structs.asdict(old.question), msgspec.structs.asdict(new.question)
    if old.alpha_definition and new.alpha_definition and not one_was_counted(old, new):
        before["definition of α"] = old.alpha_definition
        now["definition of α"] = new.alpha_definition
    for field in ("key_id", "arrivals_digest"):
        del before[field]
    for field in ("arrivals", "concurrency", "time_scale", "max_concurrency"):
        value = before.pop(field)
        if None not in (value, now[field]):  # a replay has no load
            before[field] = value  # last, so that other differences are named first
    differing = {field: (was, now[field]) for field, was in before.items() if now[field] != was}
    setting = "setting" if len(differing) == 1 else "settings"
    for field, (was, is_now) in differing.items():
        # Two of them are set by no flag.
        flagless = field in ("metric_version", "definition of α")
        name = field.replace("_", " ") if flagless else flag_of(field)
        hint = f"run with the baseline's {setting}, or save a new baseline"
        if field == "metric_version":
            hint = "save the baseline again with this draftbench"
        yield Differing(f"{name} was {was}, is {is_now}", hint)


def _of_times(old: Baseline, new: Baseline, limits: Sequence[Limit]) -> Iterator[Differing]:
    """Another machine or load, if times are limited."""
    timed = next((limit.metric for limit in limits if limit.metric in TIMED), None)
    if timed is None:
        return
    otherwise = "or gate on alpha and mean_accepted_length only"
    for fact in ("machine", "target runner"):
        there, here = old.tested.get(fact), new.tested.get(fact)
        if there != here:
            yield Differing(
                f"{timed} was measured elsewhere: {fact} was {there}, is {here}",
                f"compare times on one machine, {otherwise}",
            )
    then, now_at = old.concurrency, new.concurrency
    # Otherwise it is among the settings.
    if then != now_at and None in (old.question.concurrency, new.question.concurrency):
        yield Differing(
            f"{timed} was measured at concurrency {then}, and now at {now_at}",
            f"sweep with the baseline's --concurrency, {otherwise}",
        )
    if came_at_other_times(old, new):
        yield Differing(
            f"{timed} was measured while requests came at other times than in the baseline",
            f"send the same log or `--seed` as for the baseline, {otherwise}",
        )


def same_run(old: Baseline, new: Baseline) -> bool:
    """Whether both are of one candidate in one run, so that nothing new was measured."""
    return (old.run, old.candidate) == (new.run, new.candidate)


def question_digest(baseline: Baseline) -> str:
    """A hash of question and requests: runs with the same one can be shown in one history."""
    content = msgspec.json.encode((baseline.question, [counts.id for counts in baseline.requests]))
    return hashlib.sha256(content).hexdigest()[:12]
