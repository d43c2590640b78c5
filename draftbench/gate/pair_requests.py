"""Pair the requests of two baselines, or say why the two cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from draftbench.errors import IncomparableError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.limits import TIMED, Limit
from draftbench.records import LOOKUP, NUMBER_TYPES
from draftbench.run_folder.key import VARIABLE
from draftbench.run_folder.manifest import flag_of, in_words

# Requests that the new run lacks may be those on which it failed, so most must be there.
MIN_OVERLAP = 0.8

Pair = tuple[RequestCounts, RequestCounts]


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
    # What differs, what to do about it, and whether it alone forbids a comparison.
    found: list[tuple[str, str, bool]] = []

    # Another target, and one that is held in another number type or quantization.
    held = [f"target {name}" for name in ("quant", *NUMBER_TYPES)]
    facts = [fact for fact in held if None not in (old.tested.get(fact), new.tested.get(fact))]
    if other := other_target(old, new):
        renamed = old.tested.get("target") != new.tested.get("target")
        facts.insert(0, "target" if renamed else other)
    hint = (
        "gate a run of the target as in the baseline, or save a new baseline if it changed on "
        "purpose"
    )
    found += [
        (f"{fact} was `{old.tested[fact]}`, is `{new.tested[fact]}`", hint, fact in held)
        for fact in facts
        if old.tested[fact] != new.tested[fact]
    ]

    if measured is not None:
        hint = (
            "measure it too (--drafts, --quant), or name the draft that replaces it with "
            f"--candidate: this run has {', '.join(measured) or 'none'}"
        )
        found.append((f"the draft was {old.candidate}, which this run did not measure", hint, True))
    elif old.candidate != new.candidate:
        found.append((f"the draft was {old.candidate}, is {new.candidate}", "", False))

    # Other requests, or the same with another sampling.
    before, now = msgspec.structs.asdict(old.question), msgspec.structs.asdict(new.question)
    was, is_now = before.pop("key_id"), now["key_id"]
    if was != is_now:  # then no hash is the same
        hint = (
            f"set {VARIABLE} to the first run's key: the {VARIABLE} of its machine, or `hex:` and "
            "the content of ~/.config/draftbench/key there"
        )
        found.append((f"{flag_of('key_id')} was {was}, is {is_now}", hint, True))
    else:
        known = {counts.id: counts.sampling for counts in old.requests}
        # What was not answered was asked for all the same.
        sampling = {request: known[request] for request in known.keys() & new.unanswered.keys()}
        sampling |= {counts.id: counts.sampling for counts in new.requests}
        common = known.keys() & sampling.keys()
        if len(common) < MIN_OVERLAP * len(known):
            what = (
                f"other traffic: only {len(common)} of the baseline's {len(known)} requests are "
                f"among the {len(sampling)} of this run"
            )
            hint = (
                "run the same traffic and sample, or save a new baseline if the traffic changed on "
                "purpose"
            )
            found.append((what, hint, True))
        different = sorted(request for request in common if known[request] != sampling[request])
        if different:
            what = (
                f"the sampling of {len(different)} of {len(common)} requests differs (one was "
                f"{known[different[0]]}, is {sampling[different[0]]})"
            )
            hint = "run with the baseline's temperature and sampling, or save a new baseline"
            found.append((what, hint, True))

    # Settings; those of the load last, where both runs have one, as a replay has not.
    if old.alpha_definition and new.alpha_definition and not one_was_counted(old, new):
        before["definition of α"] = old.alpha_definition
        now["definition of α"] = new.alpha_definition
    del before["arrivals_digest"]
    for field in ("arrivals", "concurrency", "time_scale", "max_concurrency"):
        if None not in (value := before.pop(field), now[field]):
            before[field] = value
    differing = [field for field, value in before.items() if value != now[field]]
    setting = "setting" if len(differing) == 1 else "settings"
    for field in differing:
        hint = f"run with the baseline's {setting}, or save a new baseline"
        if field == "metric_version":
            hint = "save the baseline again with this draftbench"
        # Two of them are set by no flag.
        flagless = field in ("metric_version", "definition of α")
        name = field.replace("_", " ") if flagless else flag_of(field)
        was, is_now = in_words(before[field]), in_words(now[field])
        found.append((f"{name} was {was}, is {is_now}", hint, True))

    # Another machine or load, if times are limited.
    timed = next((limit.metric for limit in limits if limit.metric in TIMED), None)
    if timed is not None:
        otherwise = "or gate on alpha and mean_accepted_length only"
        for fact in ("machine", "target runner"):
            if old.tested.get(fact) != new.tested.get(fact):
                what = f"{fact} was {old.tested.get(fact)}, is {new.tested.get(fact)}"
                hint = f"compare times on one machine, {otherwise}"
                found.append((f"{timed} was measured elsewhere: {what}", hint, True))
        # If both runs are of an engine, their loads are among the settings.
        replayed = None in (old.question.concurrency, new.question.concurrency)
        if replayed and old.concurrency != new.concurrency:
            what = f"at concurrency {old.concurrency}, and now at {new.concurrency}"
            hint = f"sweep with the baseline's --concurrency, {otherwise}"
            found.append((f"{timed} was measured {what}", hint, True))
        if came_at_other_times(old, new):
            what = f"{timed} was measured while requests came at other times than in the baseline"
            hint = f"send the same log or `--seed` as for the baseline, {otherwise}"
            found.append((what, hint, True))

    if not any(forbids for _, _, forbids in found):
        return None
    return IncomparableError(
        f"the baseline cannot be compared: {'; '.join(what for what, _, _ in found)}",
        hint=next(hint for _, hint, _ in found if hint),
    )


def same_run(old: Baseline, new: Baseline) -> bool:
    """Whether both are of one candidate in one run, so that nothing new was measured."""
    return (old.run, old.candidate) == (new.run, new.candidate)


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
