"""A run's recommendation → what an engine is to serve, by the names that it will find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.errors import DraftbenchError, UsageError
from draftbench.export.schedule import Schedule, schedule_of
from draftbench.planner.recommendation import Pick, Recommendation
from draftbench.records import LOOKUP, DraftingMode
from draftbench.run_folder.manifest import Question, short_name, unpinned
from draftbench.run_folder.observed import Observed


class NotRecommendedError(DraftbenchError):
    """There is nothing to serve: the answer of the run is not to speculate."""

    exit_code = 1


@dataclass(frozen=True)
class Setting:
    """What to serve.

    `draft` is None for prompt lookup, whose n-grams have `lookup` tokens, shortest and longest.
    `sampled` says whether any request of the traffic is drawn above temperature 0; at 0 the
    drafting mode makes no difference. `vocabularies` are the sizes of target and draft. `pinned`
    are hub ids that the run measured at one revision; `target` and `draft` come without it.
    `schedule` has the draft lengths by load, empty where `k` serves all; `notes` what it lacks.
    `unlike` says how it is not what the run recommends.
    """

    target: str
    target_quant: str
    draft: str | None
    quant: str
    k: int
    mode: DraftingMode
    sampled: bool
    lookup: tuple[int, int]
    vocabularies: tuple[int, int] | None
    on_gpu: bool
    pinned: tuple[str, ...] = ()
    schedule: Schedule = ()
    notes: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """The most tokens that are drafted at any load."""
        return max((k for _, _, k in self.schedule), default=self.k)


def setting_of(
    answer: Recommendation,
    observed: Observed,
    *,
    target: str | None = None,
    draft: str | None = None,
    force: bool = False,
) -> Setting:
    """The choice of a run, or with `force` the cell that came out first anyway.

    Args:
        target, draft: names that the engine knows, in place of the run's.

    Raises:
        NotRecommendedError: the run does not recommend to speculate, or no speed is known at all.
        UsageError: a name that cannot be written into a command.
    """
    pick = answer.leader if force else answer.choice
    if pick is None:
        raise _refusal(answer)
    question = observed.manifest.question
    served, own = _names(pick, question, target, draft)
    schedule, notes = schedule_of(answer, pick.k)
    return Setting(
        target=unpinned(served),
        target_quant=question.target_quant,
        draft=own and unpinned(own),
        quant=pick.quant,
        k=pick.k,
        mode=question.mode,
        sampled=any(t.sampling.temperature > 0 for t in observed.trajectories),
        lookup=(question.lookup_shortest, question.lookup_longest),
        vocabularies=_vocabularies(pick, observed),
        on_gpu=question.device.startswith("cuda"),
        pinned=tuple(name for name in (served, own) if name and unpinned(name) != name),
        schedule=schedule,
        notes=notes,
        unlike=() if answer.choice else (_forced(answer),),
    )


def _names(
    pick: Pick, question: Question, target: str | None, draft: str | None
) -> tuple[str, str | None]:
    """What target and draft are called, revisions and all; prompt lookup is no model."""
    own = None
    if pick.draft != LOOKUP:
        own = draft or _as_swept(pick.draft, question.drafts)
    elif draft is not None:
        raise UsageError("the choice is prompt lookup, which has no model", hint="omit --draft")
    served = target or question.target
    for name in filter(None, (served, own)):
        _require_writable(name)
    return served, own


def _forced(answer: Recommendation) -> str:
    """What an export says that nobody recommends."""
    return f"not recommended: the run's answer is `{_decision(answer)}`, and --force set it aside"


def _refusal(answer: Recommendation) -> NotRecommendedError:
    if answer.leader is None:
        return NotRecommendedError(
            "no candidate's speed is known, so there is nothing to export",
            hint="`draftbench recommend` says why",
        )
    return NotRecommendedError(
        f"the run's answer is `{_decision(answer)}`: no configuration would serve it better",
        hint="`draftbench recommend` says why; --force exports what came out first anyway",
    )


def _decision(answer: Recommendation) -> str:
    return answer.decision.replace("_", " ")


def _as_swept(name: str, specs: Sequence[str]) -> str:
    """The path or hub id that the sweep was given for a draft; its short name where two fit."""
    found = {spec for spec in specs if name in (spec, short_name(spec))}
    return found.pop() if len(found) == 1 else name


def _require_writable(name: str) -> None:
    if not name.isprintable() or name.startswith("-"):
        raise UsageError(
            f"the model name {name!r} cannot be written into a command",
            hint="give another one with --target or --draft",
        )


def _vocabularies(pick: Pick, observed: Observed) -> tuple[int, int] | None:
    facts = observed.facts_of(None)
    own = observed.facts_of(pick.candidate)
    return (facts.vocab_size, own.vocab_size) if facts and own else None
