"""A run → whether what it counted is what replay says, and if not, the hypothesis that explains it.

The hypotheses are replayed on a few requests at a time, always on the same ones, so that any two
are compared round by round. One leaves as soon as it cannot explain what a right one would, or
another explains clearly more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import partial
from math import comb
from typing import Any, Literal, Protocol, get_args

from msgspec.structs import replace

from draftbench.audit.explained import (
    ByLength,
    Compared,
    Outcome,
    Recorded,
    ReplayedResponse,
    recorded,
    tie_margin,
)
from draftbench.audit.hypotheses import HYPOTHESES, OTHER_WEIGHTS, Hypothesis, other_weights
from draftbench.audit.replaying import RememberedTarget, Replaying, replaying
from draftbench.drafts.kinds import kind_of, parsed
from draftbench.drafts.laws import AnyReplay
from draftbench.drafts.stack.replay import StackReplay
from draftbench.errors import DraftbenchError, UsageError
from draftbench.measure.trajectories import recorded_responses
from draftbench.records import Candidate, DraftLength, Key, Record
from draftbench.run_folder.run import Run

# How often a sound decoder's round is not as replayed without a near tie (in the kept runs two of
# 13,000 were not), or an answer's sums; how often with one; and how often one is not as a right
# hypothesis says, which imitates the decoder's arithmetic only nearly.
UNEXPLAINED = {"rounds": 1 / 2000, "sums": 1 / 100}
TIES = {"rounds": 1 / 100, "sums": 1 / 50}
UNEXPLAINED_BY_ONE = 1 / 50
# How unlikely chance must be before it is no explanation; before a hypothesis explains more than
# the run's own replay, which is five of five that differ; and before it leaves, of which forty are
# tried.
CHANCE, CHANCE_OF_BETTER, CHANCE_OF_MANY = 0.01, 0.05, 0.0005
# Fewer rounds, or answers of which only sums are known, show nothing.
LEAST = {"rounds": 50, "sums": 5}
# Requests in the first turn; each later turn has as many again as there were before.
FIRST_TURN = 4

Counted = Literal["rounds", "sums", "nothing"]
Said = Literal["sound", "explained", "not explained", "too few", "nothing counted", "not replayed"]


class Tally(Record, frozen=True):
    """Rounds, or the sums of answers, beside a replay."""

    equal: int = 0  # as replayed
    near_ties: int = 0  # not as replayed, where the draft's two best tokens nearly tie
    differ: int = 0  # not as replayed

    @property
    def compared(self) -> int:
        return self.equal + self.near_ties + self.differ

    @property
    def share(self) -> float | None:
        """The share explained, near ties left out; None: nothing is left."""
        clear = self.equal + self.differ
        return self.equal / clear if clear else None

    def within(self, share: float, chance: float) -> bool:
        """Whether chance explains what differs, of a decoder that differs in such a share."""
        return at_least(self.differ, self.equal + self.differ, share) >= chance


class Tried(Record, frozen=True):
    """A hypothesis, replayed on some of the requests."""

    hypothesis: str  # as `draftbench audit --list` names it
    detail: str  # which of its variants
    requests: int  # on how many
    tally: Tally  # under the hypothesis
    before: Tally  # the run's own replay, on the same rounds
    says: str  # what is then so
    advice: str  # what to do


class CandidateAudit(Record, frozen=True):
    """What was found about one draft."""

    candidate: str
    verdict: Said
    counted: Counted  # what of its rounds is known: each, their sums in an answer, or nothing
    requests: int
    tally: Tally  # beside the run's own replay
    named: tuple[Tried, ...] = ()  # those that explain the rounds; several: they draft alike
    others: tuple[Tried, ...] = ()  # those that do not, the nearest first
    not_tried: tuple[str, ...] = ()  # some that could not be, and why
    examples: tuple[str, ...] = ()  # some of the differences
    idle: bool = False  # whether any draft that is never right explains its rounds as well


class Audit(Record, frozen=True):
    """What was found about a run."""

    run: str  # its path
    decoder: str  # what drafted
    near_tie: float  # logits that differ by no more nearly tie
    candidates: tuple[CandidateAudit, ...]

    @property
    def exit_code(self) -> int:
        """1: something is wrong; 3: there is too little to say; else 0."""
        said = {each.verdict for each in self.candidates}
        if said & {"explained", "not explained"}:
            return 1
        return 0 if "sound" in said else 3


def at_least(count: int, of: int, share: float) -> float:
    """The probability of so many or more, each with a probability of `share`."""
    return 1 - sum(comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(count))


def better(one: Sequence[Compared], other: Sequence[Compared], chance: float) -> bool:
    """Whether the first explains more of the same rounds than the second, beyond chance (McNemar's
    exact test). A token that only one of them explains counts once, whichever rounds reach it.
    """
    gained, lost = set(), set()
    for mine, theirs in zip(one, other, strict=True):
        if mine.outcome == "equal" != theirs.outcome:
            gained.add(theirs.of)
        elif theirs.outcome == "equal" != mine.outcome:
            lost.add(mine.of)
    more, fewer = len(gained), len(lost)
    return more > fewer and at_least(more, more + fewer, 0.5) < chance


def never_right(compared: Iterable[Compared]) -> list[Compared]:
    """The same rounds beside a draft of which no token is right, as of any that is quite broken."""
    return [replaced(each, outcome="equal" if each.idle else "differs") for each in compared]


def is_idle(compared: Iterable[Compared]) -> bool:
    """Whether a draft that is never right would be counted nearly the same."""
    return once(never_right(compared)).within(UNEXPLAINED_BY_ONE, CHANCE)


def tally_of(compared: Iterable[Compared]) -> Tally:
    """How often each outcome occurs."""
    count = Counter(each.outcome for each in compared)
    return Tally(equal=count["equal"], near_ties=count["near tie"], differ=count["differs"])


def once(compared: Iterable[Compared]) -> Tally:
    """How often each outcome occurs if a token at which rounds part counts once: it shows in the
    rounds of every k that reach it.
    """
    return tally_of({each.of: each for each in sorted(compared, key=_badness)}.values())


def _badness(one: Compared) -> int:
    return get_args(Outcome).index(one.outcome)


class Watcher(Protocol):
    """Follows the trials of hypotheses."""

    def stage(self, what: str, total: int, candidate: Candidate | None = None) -> None:
        """This many units of work begin."""

    def advance(self) -> None:
        """One of them is done."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class Unwatched:
    """Follows nothing."""

    def stage(self, what: str, total: int, candidate: Candidate | None = None) -> None: ...

    def advance(self) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass
class _Trial:
    """A variant of a hypothesis while it is tried."""

    kind: str
    hypothesis: Hypothesis
    detail: str
    make: Callable[[], Any]
    compared: list[Compared] = field(default_factory=list)
    requests: int = 0

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(each.outcome for each in self.compared)


@dataclass(frozen=True)
class _Case:
    """One candidate of a run, with what was counted of it by response."""

    run: Run
    candidate: Candidate
    margin: float
    answers: Mapping[Key, Sequence[Recorded]]

    def compared(
        self, replays: Mapping[Key, AnyReplay | ByLength], keys: Sequence[Key]
    ) -> Iterator[Compared]:
        """Each round, or each answer's sums, beside some replays."""
        for key in keys:
            for answer in self.answers[key]:
                replayed = ReplayedResponse.of(self.run, replays[key], answer.length, self.margin)
                yield from replayed.compared(answer)

    @property
    def counted(self) -> Counted:
        every = [answer for answers in self.answers.values() for answer in answers]
        if any(answer.rounds is not None for answer in every):
            return "rounds"
        return "sums" if any(answer.sums is not None for answer in every) else "nothing"

    @property
    def lengths(self) -> set[int]:
        """The k's of its rounds."""
        return {a.length.k for answers in self.answers.values() for a in answers}

    @property
    def stops(self) -> bool:
        """Whether a rule stopped any of its rounds."""
        every = (answer for answers in self.answers.values() for answer in answers)
        return any(answer.length.stop is not None for answer in every)


def audit(
    run: Run,
    candidates: Sequence[Candidate],
    *,
    weights: str | None = None,
    requests: int | None = None,
    dtype: str | None = None,
    watcher: Watcher | None = None,
) -> Audit:
    """Compare, and find out why where it differs.

    Args:
        weights: another checkpoint that the decoder may have loaded.
        requests: the most that are replayed for a candidate, those first in which rounds differ.
        dtype: in which an engine computes, if not the run's.
        watcher: shows what is tried.
    """
    margin = tie_margin(run, dtype)
    found = [
        _audit_of(_case(run, candidate, margin), weights, requests, watcher or Unwatched())
        for candidate in candidates
    ]
    version = next((facts.version for facts in run.engines if facts.version), None)
    engine = run.manifest.question.engine
    decoder = " ".join(filter(None, (engine, version))) if engine else "the built-in decoder"
    return Audit(
        run=str(run.path or run.manifest.run),
        decoder=decoder,
        near_tie=margin,
        candidates=tuple(found),
    )


def _case(run: Run, candidate: Candidate, margin: float) -> _Case:
    answers: dict[Key, dict[DraftLength, Recorded]] = {}
    replayed = {replay.key for replay in run.replays if replay.candidate == candidate}
    for answer in recorded(run, candidate):
        if answer.key in replayed:  # a repeat says nothing new
            answers.setdefault(answer.key, {}).setdefault(answer.length, answer)
    return _Case(
        run, candidate, margin, {key: (*of.values(),) for key, of in sorted(answers.items())}
    )


def _audit_of(
    case: _Case, weights: str | None, most: int | None, watcher: Watcher
) -> CandidateAudit:
    run, name, counted = case.run, str(case.candidate), case.counted
    keys = list(case.answers)
    replays = {r.key: r for r in run.replays if r.candidate == case.candidate}
    compared = list(case.compared(replays, keys))
    tally, tokens = tally_of(compared), once(compared)
    examples = tuple(each.words for each in compared if each.outcome == "differs")[:5]
    found = CandidateAudit(
        candidate=name,
        verdict="sound",
        counted=counted,
        requests=len(keys),
        tally=tally,
        examples=examples,
    )
    with_verdict = partial(replace, found)
    if not replays:
        return with_verdict(verdict="not replayed")
    if counted == "nothing" or not compared:
        return with_verdict(verdict="nothing counted")
    sound = tokens.within(UNEXPLAINED[counted], CHANCE)
    if most is not None:  # only where something differs can a hypothesis explain more
        differing = {each.of[0] for each in compared if each.outcome == "differs"}
        keys = sorted(keys, key=lambda key: key not in differing)[:most]
    alike = Tally(equal=tokens.equal, differ=tokens.near_ties + tokens.differ)
    if sound and alike.within(TIES[counted], CHANCE):
        return with_verdict(verdict="sound" if tally.compared >= LEAST[counted] else "too few")
    method, _ = parsed(case.candidate.draft)
    rows = dict(HYPOTHESES)
    if weights is not None:
        rows[OTHER_WEIGHTS] = Hypothesis(
            "the decoder drafts with the other weights",
            rows["changed-since"].of,
            "a path that names another checkpoint",
            "replay the checkpoint that is served, or serve the one that was replayed",
            other_weights(weights),
        )
    # Near ties alone are a matter of number types.
    rows = {k: row for k, row in rows.items() if method in row.of and (not sound or row.numeric)}
    if not rows:
        why = f"no hypothesis is known for {kind_of(case.candidate.draft).noun}"
        return with_verdict(verdict="sound" if sound else "not explained", not_tried=(why,))
    watcher.note(f"{name}: {tally.differ} of {tally.compared} are not as replayed")
    try:
        # Where nothing but near ties differs, one must explain more of them.
        chance = CHANCE if sound else CHANCE_OF_BETTER
        named, others, not_tried = _Trials(case, rows, replays, keys, chance).run(watcher)
    except UsageError as error:  # the texts were deleted, or the models are elsewhere
        named, others, not_tried = (), (), (f"{error.message} ({error.hint})",)
    verdict: Said = "explained" if named else "sound" if sound else "not explained"
    if not named and tally.compared < LEAST[counted]:
        verdict = "too few"
    return with_verdict(
        verdict=verdict,
        named=named,
        others=others,
        not_tried=not_tried,
        idle=not sound and is_idle(compared),
    )


def _behind(of_run: AnyReplay, found: AnyReplay | ByLength) -> AnyReplay | ByLength:
    """A new replay of a draft, behind prompt lookup if the run's is.

    Raises:
        NotImplementedError: it depends on the rounds before, of which lookup drafted some.
    """
    if not isinstance(of_run, StackReplay):
        return found
    if isinstance(found, ByLength | StackReplay):
        raise NotImplementedError("prompt lookup drafts some of the rounds")
    return replace(of_run, draft=found)


class _Trials:
    """Hypotheses replayed in turns."""

    def __init__(
        self,
        case: _Case,
        rows: Mapping[str, Hypothesis],
        replays: Mapping[Key, AnyReplay],
        keys: Sequence[Key],
        chance: float,
    ) -> None:
        self.case, self.rows, self.replays, self.chance = case, rows, replays, chance
        kept = recorded_responses(case.run, "to replay")
        self.responses = {each.key: each for each in kept if each.key in set(keys)}
        self.keys = [key for key in keys if key in self.responses]
        self.base = list[Compared]()
        self.not_tried = defaultdict[str, list[str]](list)  # by why

    def run(self, watcher: Watcher) -> tuple[tuple[Tried, ...], tuple[Tried, ...], tuple[str, ...]]:
        """Those that explain the rounds, the others, and why some were not tried."""
        watcher.stage("loading", 1, self.case.candidate)
        loaded = replaying(self.case.run, self.case.candidate, self.case.answers)
        trying, left = self._variants(loaded), list[_Trial]()
        watcher.advance()
        at, turn = 0, FIRST_TURN
        while trying and at < len(self.keys):
            some = self.keys[at : at + turn]
            at, turn = at + len(some), at + turn
            self.base += self.case.compared(self.replays, some)
            what = f"hypotheses on requests {at - len(some) + 1} to {at} of {len(self.keys)}"
            watcher.stage(what, len(trying), self.case.candidate)
            for trial in list(trying):
                if not self._replay(loaded, trial, some):
                    trying.remove(trial)
                watcher.advance()
            if isinstance(loaded.runner, RememberedTarget):
                loaded.runner.forget()
            gone = [trial for trial in trying if not self._may_hold(trial, trying)]
            left += gone
            trying = [trial for trial in trying if trial not in gone]
            alike = len({trial.outcomes for trial in trying}) == 1
            if alike and self._holds(trying[0]) and (len(trying) == 1 or at >= 2 * FIRST_TURN):
                break
        named = [trial for trial in trying if self._holds(trial)]
        usual = UNEXPLAINED[self.case.counted]
        # Where one explains as much as of a sound decoder, the others must too.
        exact = [trial for trial in named if once(trial.compared).within(usual, CHANCE)]
        # What any broken draft explains nearly, a right one explains exactly.
        named = exact or ([] if is_idle(self.base) else named)
        left += [trial for trial in trying if trial not in named]
        named.sort(key=lambda trial: -trial.outcomes.count("equal"))
        left.sort(key=lambda trial: -(tally_of(trial.compared).share or 0.0))
        shown = tuple(map(self._tried, named)), tuple(map(self._tried, left))
        whys = (f"{', '.join(dict.fromkeys(of))} ({why})" for why, of in self.not_tried.items())
        return (*shown, (*whys, *self._since_changed(left)))

    def _since_changed(self, left: Sequence[_Trial]) -> Iterator[str]:
        """That the hypotheses were tried on another draft than was replayed, if they were."""
        for trial in left:
            if trial.kind == "changed-since":
                pairs = zip(trial.compared, self.base, strict=False)
                same = [today.outcome == then.outcome for today, then in pairs]
                tally = Tally(equal=sum(same), differ=len(same) - sum(same))
                if not tally.within(UNEXPLAINED_BY_ONE, CHANCE):
                    yield (
                        "all on the draft that was swept (its files have changed: replayed today, "
                        f"they say otherwise of {tally.differ} of {tally.compared})"
                    )

    def _variants(self, loaded: Replaying) -> list[_Trial]:
        found = list[_Trial]()
        for kind, row in self.rows.items():
            try:
                found += [_Trial(kind, row, detail, make) for detail, make in row.variants(loaded)]
            except (DraftbenchError, NotImplementedError) as error:
                self.not_tried[str(error)].append(kind)
        return found

    def _replay(self, loaded: Replaying, trial: _Trial, keys: Sequence[Key]) -> bool:
        """Replay a trial on some requests; whether that was possible."""
        group = [self.responses[key] for key in keys]
        try:
            replays = loaded.replay(trial.make(), group, self.case.lengths, stops=self.case.stops)
            found = {each.key: _behind(self.replays[each.key], each) for each in replays}
        except (DraftbenchError, NotImplementedError, RuntimeError) as error:
            self.not_tried[str(error).partition("\n")[0]].append(trial.kind)
            return False
        trial.compared += self.case.compared(found, keys)
        trial.requests += len(keys)
        return True

    def _may_hold(self, trial: _Trial, trying: Sequence[_Trial]) -> bool:
        """Whether it explains nearly all, and no other explains clearly more."""
        if not once(trial.compared).within(UNEXPLAINED_BY_ONE, CHANCE_OF_MANY):
            return False
        if better(self.base, trial.compared, CHANCE_OF_MANY):
            return False
        return not any(better(other.compared, trial.compared, CHANCE) for other in trying)

    def _holds(self, trial: _Trial) -> bool:
        """Whether it explains what a right one would, and clearly more than the run's replay."""
        share = tally_of(trial.compared).share
        right = share is not None and share >= 1 - UNEXPLAINED_BY_ONE
        return right and better(trial.compared, self.base, self.chance)

    def _tried(self, trial: _Trial) -> Tried:
        return Tried(
            hypothesis=trial.kind,
            detail=trial.detail,
            requests=trial.requests,
            tally=tally_of(trial.compared),
            before=tally_of(self.base[: len(trial.compared)]),
            says=trial.hypothesis.says,
            advice=trial.hypothesis.advice,
        )
