"""The requests of two runs, paired: which are the same, what sets the two runs apart, and whether
they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import paired
from draftbench.drafts.kinds import kind_of
from draftbench.engines.every import NUMBER_TYPES
from draftbench.errors import IncomparableError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.metrics import METRICS, TIMED, Limit
from draftbench.run_folder.key import VARIABLE
from draftbench.run_folder.manifest import flag_of, in_words

# Requests that the new run lacks may be those on which it failed, so most must be there.
MIN_OVERLAP = 0.8


def samples_of(
    metric: str, old: Iterable[RequestCounts], new: Iterable[RequestCounts]
) -> tuple[Sample, Sample] | None:
    """One metric before and after, over the requests for which both runs have it; None if there are
    none, or if it is not over requests.
    """
    if (over := METRICS[metric]) is None:
        return None
    samples = []
    for side in (old, new):
        known = [(counts, sums) for counts in side if (sums := over.addends(counts)) is not None]
        requests = tuple(counts.id for counts, _ in known)
        weights = np.array([counts.weight for counts, _ in known])
        addends = np.array([sums for _, sums in known])
        samples.append(Sample(over.figure, requests, weights, addends, over.combine))
    before, after = paired(*samples)
    return (before, after) if before.requests else None


class Obstacle(NamedTuple):
    """Something that sets two runs apart, and what to do about it."""

    what: str
    hint: str
    forbids: bool = True  # the comparison; else it is named beside what does


@dataclass(frozen=True)
class Pairing:
    """Two baselines, whose requests of one name are the same request."""

    old: Baseline
    new: Baseline

    @cached_property
    def pairs(self) -> tuple[tuple[RequestCounts, RequestCounts], ...]:
        """The counts of each request that both runs answered, in the old run and in the new."""
        by_id = {counts.id: counts for counts in self.new.requests}
        return tuple((old, by_id[old.id]) for old in self.old.requests if old.id in by_id)

    @property
    def missing(self) -> int:
        """How many requests of the old run the new one was not asked."""
        return len(self.old.asked - self.new.asked)

    @property
    def moved(self) -> float:
        """The share of the traffic's weight that moved between requests."""
        before, after = np.array([(old.weight, new.weight) for old, new in self.pairs]).T
        return float(abs(before / before.sum() - after / after.sum()).sum() / 2)

    @property
    def same_run(self) -> bool:
        """Whether both are of one candidate in one run, so that nothing new was measured."""
        return (self.old.run, self.old.candidate) == (self.new.run, self.new.candidate)

    @property
    def one_was_counted(self) -> bool:
        """Whether a server counted the rounds of one run and the other was replayed: the server's α
        is over the tokens that it tried, a replay's over the whole output.
        """
        return (self.old.question.concurrency is None) != (self.new.question.concurrency is None)

    @property
    def one_from_text(self) -> str:
        """What one drafts by, if from the text alone, and the other with a model: a round of lookup
        costs next to nothing, so acceptance does not say which of the two is better.
        """
        old, new = (kind_of(side.candidate) for side in (self.old, self.new))
        if old.from_text == new.from_text:
            return ""
        return old.noun if old.from_text else new.noun

    @property
    def came_at_other_times(self) -> bool:
        """Whether requests arrived at other times, so that others were in flight together: this
        changes times, but not the accepted tokens.
        """
        digests = self.old.question.arrivals_digest, self.new.question.arrivals_digest
        return None not in digests and digests[0] != digests[1]

    @property
    def elsewhere(self) -> list[str]:
        """The facts in which the places differ that times were taken at."""
        return [name for name in ("machine", "target runner") if len({*self.facts(name)}) > 1]

    @cached_property
    def longer_prompts(self) -> list[int]:
        """By how many tokens the prompts changed whose length did."""
        sizes = ((old.prompt_tokens, new.prompt_tokens) for old, new in self.pairs)
        changes = (new - old for old, new in sizes if old is not None and new is not None)
        return [change for change in changes if change]

    @cached_property
    def other_target(self) -> str | None:
        """The fact that shows another target; None if it is the same or unknown. The target is
        judged by the hash of its files if both runs have one (a server's is unknown), else by its
        name and that of the file or folder that the server read.
        """
        for fact in ("target fingerprint", "target", "target weights"):
            before, now = self.facts(fact)
            if None not in (before, now) and before != now:
                return fact
            if before == now is not None and fact == "target fingerprint":
                return None
        return None

    @property
    def maybe_easier(self) -> bool:
        """Whether the new run's responses may be easier to draft: other prompts, another target."""
        return bool(self.longer_prompts or self.other_target)

    def facts(self, name: str) -> tuple[str | None, str | None]:
        """A fact about what was tested, in the old run and in the new; None if it is unknown."""
        return self.old.tested.get(name), self.new.tested.get(name)

    def refuse_incomparable(self, limits: Sequence[Limit]) -> None:
        """Refuse two runs that cannot be compared. Limits on times ask for one machine and load.

        Raises:
            IncomparableError: names all that differs, the most important first.
        """
        found = [
            *self._other_models(),
            *self._other_requests(),
            *self._other_settings(),
            *self._other_times(limits),
        ]
        if any(obstacle.forbids for obstacle in found):
            raise IncomparableError(
                f"the baseline cannot be compared: {'; '.join(each.what for each in found)}",
                hint=next(obstacle.hint for obstacle in found if obstacle.hint),
            )

    def _other_models(self) -> Iterator[Obstacle]:
        """Another target is named; one in another number type or quantization is refused."""
        held = [f"target {name}" for name in ("quant", *NUMBER_TYPES)]
        facts = [fact for fact in held if None not in self.facts(fact)]
        if other := self.other_target:
            before, now = self.facts("target")
            facts.insert(0, "target" if before != now else other)
        hint = (
            "gate a run of the target as in the baseline, or save a new baseline if it changed on "
            "purpose"
        )
        for fact in facts:
            before, now = self.facts(fact)
            if before != now:
                yield Obstacle(f"{fact} was `{before}`, is `{now}`", hint, fact in held)
        if self.old.candidate != self.new.candidate:
            was, now = self.old.candidate, self.new.candidate
            yield Obstacle(f"the draft was {was}, is {now}", "", forbids=False)

    def _other_requests(self) -> Iterator[Obstacle]:
        """Other requests, or the same with another sampling."""
        old, new = self.old, self.new
        if old.question.key_id != new.question.key_id:  # then no hash is the same
            yield Obstacle(
                f"{flag_of('key_id')} was {old.question.key_id}, is {new.question.key_id}",
                f"set {VARIABLE} to the first run's key: the {VARIABLE} of its machine, or `hex:` "
                "and the content of ~/.config/draftbench/key there",
            )
            return
        known = {counts.id: counts.sampling for counts in old.requests}
        # What was not answered was asked for all the same.
        sampling = {request: known[request] for request in known.keys() & new.unanswered.keys()}
        sampling |= {counts.id: counts.sampling for counts in new.requests}
        common = known.keys() & sampling.keys()
        if len(common) < MIN_OVERLAP * len(known):
            yield Obstacle(
                f"other traffic: only {len(common)} of the baseline's {len(known)} requests are "
                f"among the {len(sampling)} of this run",
                "run the same traffic and sample, or save a new baseline if the traffic changed on "
                "purpose",
            )
        different = sorted(request for request in common if known[request] != sampling[request])
        if different:
            yield Obstacle(
                f"the sampling of {len(different)} of {len(common)} requests differs (one was "
                f"{known[different[0]]}, is {sampling[different[0]]})",
                "run with the baseline's temperature and sampling, or save a new baseline",
            )

    def _other_settings(self) -> Iterator[Obstacle]:
        """Other settings; those of the load last, where both runs have one, as a replay has not."""
        before, now = (msgspec.structs.asdict(side.question) for side in (self.old, self.new))
        del before["key_id"], before["arrivals_digest"]
        definitions = self.old.alpha_definition, self.new.alpha_definition
        if all(definitions) and not self.one_was_counted:
            before["definition of α"], now["definition of α"] = definitions
        for field in ("arrivals", "concurrency", "time_scale", "max_concurrency"):
            if None not in (value := before.pop(field), now[field]):
                before[field] = value
        differing = [field for field, value in before.items() if value != now[field]]
        settings = "setting" if len(differing) == 1 else "settings"
        for field in differing:
            hint = f"run with the baseline's {settings}, or save a new baseline"
            if field == "metric_version":
                hint = "save the baseline again with this draftbench"
            # Two of them are set by no flag.
            flagless = field in ("metric_version", "definition of α")
            name = field.replace("_", " ") if flagless else flag_of(field)
            yield Obstacle(f"{name} was {in_words(before[field])}, is {in_words(now[field])}", hint)

    def _other_times(self, limits: Sequence[Limit]) -> Iterator[Obstacle]:
        """Another machine or load, if times are limited."""
        timed = next((limit.metric for limit in limits if limit.metric in TIMED), None)
        if timed is None:
            return
        otherwise = "or gate on alpha and mean_accepted_length only"
        for fact in self.elsewhere:
            before, now = self.facts(fact)
            yield Obstacle(
                f"{timed} was measured elsewhere: {fact} was {before}, is {now}",
                f"compare times on one machine, {otherwise}",
            )
        # If both runs are of an engine, their loads are among the settings.
        replayed = None in (self.old.question.concurrency, self.new.question.concurrency)
        if replayed and self.old.concurrency != self.new.concurrency:
            yield Obstacle(
                f"{timed} was measured at concurrency {self.old.concurrency}, and now at "
                f"{self.new.concurrency}",
                f"sweep with the baseline's --concurrency, {otherwise}",
            )
        if self.came_at_other_times:
            yield Obstacle(
                f"{timed} was measured while requests came at other times than in the baseline",
                f"send the same log or `--seed` as for the baseline, {otherwise}",
            )
