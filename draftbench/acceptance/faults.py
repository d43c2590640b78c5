"""Suspected faults: signs of a broken set-up rather than of a bad draft.

Serving stacks with a broken draft rarely fail: they carry on at acceptance 0 and look like a slow
model. Each check looks for a result that a working pair hardly ever shows, on so many tokens that
chance is no explanation. Also here: how near two target tokens must be for numeric noise to swap
them, and whether a chat template can be the cause of poor acceptance. (Responses that repeat one
passage are marked in their records, `Trajectory.looping`; the planner warns of them.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftbench.acceptance.rounds import Floats, Pairs, Rounds, model_pairs
from draftbench.records import NEAR_TIE_MARGIN, SELF, Candidate, ModelFacts
from draftbench.run_folder.run import Run

# Even at half the hazard before it, none accepted where ten are expected is less likely than e^-10.
_EXPECTED = 10
_MIN_TRIED = 50
# Forms of traffic whose prompts are plain texts.
_PLAIN = frozenset({"prompt", "--prompt-field"})


@dataclass(frozen=True)
class Fault:
    """A suspicion in plain words, with what to look at first."""

    candidate: str
    what: str
    message: str
    advice: str


def suspected_faults(
    candidate: Candidate,
    pairs: Pairs,
    rounds: Sequence[Rounds],
    near_tie: float,
) -> tuple[Fault, ...]:
    """List the suspected faults of one candidate.

    `rounds` are expected or counted ones, at any k; `near_tie` is the logit margin within which
    numeric noise can swap two tokens.
    """
    name = str(candidate)
    faults = (
        _control(pairs, near_tie) if name == SELF else None,
        _nothing_accepted(name, pairs) or _no_round_accepts(name, rounds),
        next((fault for at_k in rounds if (fault := _cliff(name, at_k))), None),
    )
    return tuple(fault for fault in faults if fault is not None)


def _nothing_accepted(name: str, pairs: Pairs) -> Fault | None:
    accepted = [replay.accept[: replay.draftable] for _, replay in model_pairs(pairs)]
    tried = sum(map(len, accepted))
    if tried < _MIN_TRIED or any(map(any, accepted)):
        return None
    return Fault(
        name,
        "zero acceptance",
        f"not one token in {tried} positions was accepted",
        "compare the tokenizers and, for chats, the templates; look for weights destroyed by "
        "quantization: a draft that writes random text does better than this",
    )


def _no_round_accepts(name: str, rounds: Sequence[Rounds]) -> Fault | None:
    for at_k in rounds:
        tried = float(at_k.reached[:, 0].sum())
        if tried >= _MIN_TRIED and not at_k.accepted.any():
            return Fault(
                name,
                "one token per round",
                f"the mean accepted length is exactly 1 at k = {at_k.k}: "
                f"none of {tried:.0f} rounds accepted a token",
                "check that the draft sees the prompt and its cache, "
                "and that its proposals reach the verifier",
            )
    return None


def _cliff(name: str, rounds: Rounds) -> Fault | None:
    reached: Floats = rounds.reached.sum(axis=0)
    survived: Floats = rounds.survived.sum(axis=0)
    for i in range(1, rounds.k):
        expected = reached[i] * survived[i - 1] / max(reached[i - 1], 1e-9) / 2
        if survived[i] == 0 and expected >= _EXPECTED:
            before = ", ".join(f"{h:.2f}" for h in survived[:i] / reached[:i])
            return Fault(
                name,
                "hazard falls to zero",
                f"draft position {i + 1} was never accepted in {reached[i]:.0f} tries at "
                f"k = {rounds.k}; the positions before it have hazards of {before}",
                "suspect the loop that drafts: cache positions, attention window "
                "or a step that repeats itself",
            )
    return None


def _control(pairs: Pairs, near_tie: float) -> Fault | None:
    """The target as its own draft at temperature 0: every rejection must be a near tie."""
    wrong = tried = 0
    for trajectory, replay in model_pairs(pairs):
        if trajectory.sampling.temperature > 0:
            continue
        end = 1 + min(replay.draftable, len(replay.accept))
        # A logged token that is not the target's best one is rightly rejected.
        best = np.array(trajectory.argmax[1:end]) == 1
        margins = np.minimum(trajectory.margins[1:end], replay.margin[: end - 1])
        wrong += int((best & (margins > near_tie) & (np.array(replay.accept[: end - 1]) < 1)).sum())
        tried += int(best.sum())
    if not wrong:
        return None
    return Fault(
        "self",
        "control failed",
        f"the target rejects its greedy draft of itself at {wrong} of {tried} positions, "
        "near ties not counted",
        "replay and generation compute different things; trust no acceptance figure of this run",
    )


def near_tie(run: Run) -> float:
    """The logit margin within which numeric noise can swap two tokens, by the target's dtype."""
    return NEAR_TIE_MARGIN[run.manifest.question.dtype]


def near_tie_share(run: Run) -> float | None:
    """Share of the output's positions whose two best target tokens are nearly tied."""
    noise = near_tie(run)
    margins = [margin for trajectory in run.trajectories for margin in trajectory.margins]
    return sum(margin <= noise for margin in margins) / len(margins) if margins else None


def template_may_differ(run: Run, candidate: Candidate) -> bool:
    """Whether some prompts may be chats in a template that the draft did not learn.

    Prompts are rendered by the target's template; plain prompts are not rendered. An OpenAI request
    may hold either.
    """
    if candidate.draft == SELF or _PLAIN.issuperset(run.manifest.traffic.form.split(", ")):
        return False
    ours = _template(run.facts_of(None))
    return ours is None or ours != _template(run.facts_of(candidate))


def _template(facts: ModelFacts | None) -> str | None:
    """The hash of a model's template; None in runs that did not record it."""
    return None if facts is None else facts.parts.get("chat template")
