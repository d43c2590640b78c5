"""Pair the requests of two baselines, or say why the two cannot be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from draftbench.errors import IncomparableError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.limits import TIMED, Limit
from draftbench.records import LOOKUP, NUMBER_TYPES
from draftbench.run_folder.key import VARIABLE
from draftbench.run_folder.manifest import flag_of

# Requests that the new run lacks may be those on which it failed, so most must be there.
MIN_OVERLAP = 0.8

_SETTINGS = (
    "run with the baseline's setting, or save a new baseline",
    "run with the baseline's settings, or save a new baseline",
)

Pair = tuple[RequestCounts, RequestCounts]


def pair_up(old: Baseline, new: Baseline, limits: Sequence[Limit]) -> tuple[Pair, ...]:
    """The counts of each request in the old run and in the new, for those that both have.

    Raises:
        IncomparableError: the questions differ, too few requests are common, or a limit is on times
            of different machines or loads; names what differs.
    """
    before, now = msgspec.structs.asdict(old.question), msgspec.structs.asdict(new.question)
    if old.alpha_definition and new.alpha_definition and not one_was_counted(old, new):
        before["definition of α"] = old.alpha_definition
        now["definition of α"] = new.alpha_definition
    before.pop("arrivals_digest")
    for field in ("arrivals", "concurrency", "time_scale", "max_concurrency"):
        value = before.pop(field)
        if None not in (value, now[field]):  # a replay has no load
            before[field] = value  # last, so that other differences are named first
    differing = {field: (was, now[field]) for field, was in before.items() if now[field] != was}
    if differing:
        raise _another_question(differing)
    # What was not answered was asked for all the same.
    unanswered = {
        counts.id: counts.sampling for counts in old.requests if counts.id in new.unanswered
    }
    _check_requests(old, unanswered | {counts.id: counts.sampling for counts in new.requests})
    _check_target(old, new.tested)
    for metric in (limit.metric for limit in limits if limit.metric in TIMED):
        for fact in ("machine", "target runner"):
            there, here = old.tested.get(fact), new.tested.get(fact)
            if there != here:
                raise IncomparableError(
                    f"{metric} was measured elsewhere: {fact} was {there}, is {here}",
                    hint="compare times on one machine, or gate on alpha and mean_accepted_length "
                    "only",
                )
        then, now_at = old.concurrency, new.concurrency
        if then != now_at:
            raise IncomparableError(
                f"{metric} was measured at concurrency {then}, and now at {now_at}",
                hint="sweep with the baseline's --concurrency, or gate on alpha and "
                "mean_accepted_length only",
            )
        if came_at_other_times(old, new):
            raise IncomparableError(
                f"{metric} was measured while requests came at other times than in the baseline",
                hint="send the same log or `--seed` as for the baseline, or gate on alpha and "
                "mean_accepted_length only",
            )
    by_id = {counts.id: counts for counts in new.requests}
    return tuple((counts, by_id[counts.id]) for counts in old.requests if counts.id in by_id)


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
    to nothing, so that its acceptance does not say which of the two is better.
    """
    return (old.candidate == LOOKUP) != (new.candidate == LOOKUP)


def by_segment(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs by their segment in the old run; empty where there is only one segment."""
    names = sorted({old.segment for old, _ in pairs if old.segment is not None})
    if len(names) < 2:
        return {}
    return {name: [pair for pair in pairs if pair[0].segment == name] for name in names}


def _check_requests(old: Baseline, sampling: Mapping[str, str]) -> None:
    """Refuse a run over other requests; `sampling` has the label of each request's sampling by its
    hash.

    Raises:
        IncomparableError: other traffic, or another sampling.
    """
    known = {counts.id: counts.sampling for counts in old.requests}
    common = known.keys() & sampling.keys()
    if len(common) < MIN_OVERLAP * len(known):
        raise IncomparableError(
            f"other traffic: only {len(common)} of the baseline's {len(known)} requests are among "
            f"the {len(sampling)} of this run",
            hint="run the same traffic and sample, or save a new baseline if the traffic changed "
            "on purpose",
        )
    different = sorted(request for request in common if known[request] != sampling[request])
    if different:
        was, now = known[different[0]], sampling[different[0]]
        raise IncomparableError(
            f"the baseline cannot be compared: the sampling of {len(different)} of "
            f"{len(common)} requests differs (one was {was}, is {now})",
            hint="run with the baseline's temperature and sampling, or save a new baseline",
        )


def _check_target(old: Baseline, tested: Mapping[str, str]) -> None:
    """Refuse a target that is held in another number type or quantization, as far as it is known.

    Raises:
        IncomparableError: the target's responses are those of other weights.
    """
    for fact in (f"target {name}" for name in ("quant", *NUMBER_TYPES)):
        before, now = old.tested.get(fact), tested.get(fact)
        if None not in (before, now) and before != now:
            raise IncomparableError(
                f"the baseline cannot be compared: {fact} was {before}, is {now}",
                hint="serve the target as for the baseline, or save a new baseline if it changed "
                "on purpose",
            )


def same_run(old: Baseline, new: Baseline) -> bool:
    """Whether both are of one candidate in one run, so that nothing new was measured."""
    return (old.run, old.candidate) == (new.run, new.candidate)


def question_digest(baseline: Baseline) -> str:
    """A hash of question and requests: runs with the same one can be shown in one history."""
    content = msgspec.json.encode((baseline.question, [counts.id for counts in baseline.requests]))
    return hashlib.sha256(content).hexdigest()[:12]


def _another_question(differing: Mapping[str, tuple[object, object]]) -> IncomparableError:
    """The refusal of another question: all that differs, the most important first."""
    hints = {
        "key_id": f"set {VARIABLE} to the first run's key: the {VARIABLE} of its machine, or "
        "`hex:` and the content of ~/.config/draftbench/key there",
        "metric_version": "save the baseline again with this draftbench",
    }
    told = []
    for field, (before, now) in differing.items():
        # Two of them are set by no flag.
        flagless = field in ("metric_version", "definition of α")
        name = field.replace("_", " ") if flagless else flag_of(field)
        told.append(f"{name} was {before}, is {now}")
    return IncomparableError(
        f"the baseline cannot be compared: {'; '.join(told)}",
        hint=hints.get(next(iter(differing)), _SETTINGS[len(differing) > 1]),
    )
