"""Suspected faults: signs of a broken set-up rather than of a bad draft.

Serving stacks with a broken draft rarely fail: they carry on at acceptance 0 and look like a slow
model. Each check looks for a result that a working pair hardly ever shows, on so many tokens that
chance is no explanation. (Responses that repeat one passage are marked in their records,
`Trajectory.looping`; the planner warns of them.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftbench.acceptance.rounds import Floats, Pairs, Rounds, model_pairs
from draftbench.records import NEAR_TIE_MARGIN, SELF, Candidate
from draftbench.run_folder.run import Run

# Even at half the hazard before it, none accepted where ten are expected is less likely than e^-10.
_EXPECTED = 10
_MIN_TRIED = 50
# Shares of the drafted tokens, and of the first of each round, that no working pair reaches.
_ALMOST_ALL, _ALMOST_NONE = 0.99, 0.02
# Forms of traffic whose prompts are plain texts.
_PLAIN = frozenset({"prompt", "--prompt-field", "vLLM custom", "SGLang", "TGI"})


@dataclass(frozen=True)
class SetupFault:
    """A suspicion in plain words, with what to look at first."""

    candidate: str
    what: str  # which check raised it
    message: str
    advice: str  # what to do


def suspected_faults(
    candidate: Candidate,
    pairs: Pairs,
    rounds: Sequence[Rounds],
    near_tie: float,
) -> tuple[SetupFault, ...]:
    """List the suspected faults of one candidate.

    `rounds` are expected or counted ones, at any k; `near_tie` is the logit margin within which
    numeric noise can swap two tokens.
    """
    found: list[tuple[str, str, str]] = []
    wrong, compared = _rejected_itself(pairs, near_tie) if str(candidate) == SELF else (0, 0)
    if wrong:
        found.append((
            "control failed",
            f"the target rejects its greedy draft of itself at {wrong} of {compared} positions, "
            "near ties not counted",
            "replay and decoding disagree; trust no acceptance figure of this run",
        ))  # fmt: skip
    accepted = [replay.accept[: replay.draftable] for _, replay in model_pairs(pairs)]
    positions = sum(map(len, accepted))
    rounds = [at_k for at_k in rounds if np.isfinite(at_k.rounds).all()]  # that are known
    fruitless = [poor for at_k in rounds if (poor := _almost_none(at_k)) is not None]
    longest = max(rounds, key=lambda at_k: at_k.k, default=None)
    perfect = longest and _almost_all(longest)
    if positions >= _MIN_TRIED and not any(map(any, accepted)):
        found.append((
            "zero acceptance",
            f"not one token in {positions} positions was accepted",
            "compare the tokenizers and, for chats, the templates; look for weights destroyed by "
            "quantization",
        ))  # fmt: skip
    elif fruitless:
        found.append((
            "one token per round",
            fruitless[0],
            "check that the draft sees the prompt and its cache, and that its proposals reach the "
            "verifier",
        ))  # fmt: skip
    elif perfect and candidate.draft != SELF:
        found.append((
            "nearly all accepted",
            perfect,
            "check that the target is not its own draft, and read some responses: repetition is "
            "easy to draft",
        ))  # fmt: skip
    cliffs = [cliff for at_k in rounds if (cliff := _cliff(at_k)) is not None]
    if cliffs:
        found.append((
            "hazard falls to zero",
            cliffs[0],
            "suspect the drafting loop: cache positions, the attention window, a repeated step",
        ))  # fmt: skip
    return tuple(SetupFault(str(candidate), *each) for each in found)


def _almost_none(rounds: Rounds) -> str | None:
    tried, first = float(rounds.rounds.sum()), float(rounds.survived[:, 0].sum())
    if np.isnan(first):  # of sums alone: at most as many
        first = float(rounds.accepted.sum())
    if tried < _MIN_TRIED or first >= _ALMOST_NONE * tried:
        return None
    if first == 0:
        return (
            f"the mean accepted length is exactly 1 at k = {rounds.k}: none of {tried:.0f} rounds "
            "accepted a token"
        )
    return f"only {first / tried:.1%} of {tried:.0f} rounds accepted a token at k = {rounds.k}"


def _almost_all(rounds: Rounds) -> str | None:
    tried, accepted = float((rounds.proposed - rounds.cut).sum()), float(rounds.accepted.sum())
    if tried < _MIN_TRIED or accepted < _ALMOST_ALL * tried:
        return None
    share = "every one" if accepted == tried else f"{accepted / tried:.1%}"
    verb = "was" if accepted == tried else "were"
    return f"{share} of {tried:.0f} drafted tokens {verb} accepted at k = {rounds.k}"


def _cliff(rounds: Rounds) -> str | None:
    reached: Floats = rounds.reached.sum(axis=0)
    survived: Floats = rounds.survived.sum(axis=0)
    for i in range(1, rounds.k):
        expected = reached[i] * survived[i - 1] / max(reached[i - 1], 1e-9) / 2
        if survived[i] == 0 and expected >= _EXPECTED:
            before = ", ".join(f"{h:.2f}" for h in survived[:i] / reached[:i])
            return (
                f"draft position {i + 1} was never accepted in {reached[i]:.0f} tries at "
                f"k = {rounds.k}; the positions before it have hazards of {before}"
            )
    return None


def _rejected_itself(pairs: Pairs, near_tie: float) -> tuple[int, int]:
    """Rejections of the target as its own draft at temperature 0 that are no near ties, and the
    positions compared.
    """
    wrong = compared = 0
    for trajectory, replay in model_pairs(pairs):
        if trajectory.sampling.temperature > 0:
            continue
        end = 1 + min(replay.draftable, len(replay.accept))
        # A logged token that is not the target's best one is rightly rejected.
        best = np.array(trajectory.argmax[1:end]) == 1
        margins = np.minimum(trajectory.margins[1:end], replay.margin[: end - 1])
        wrong += int((best & (margins > near_tie) & (np.array(replay.accept[: end - 1]) < 1)).sum())
        compared += int(best.sum())
    return wrong, compared


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
    # The hash of a model's template; None in runs that did not record it.
    ours, theirs = (
        facts.parts.get("chat template") if (facts := run.facts_of(each)) else None
        for each in (None, candidate)
    )
    return ours is None or ours != theirs
