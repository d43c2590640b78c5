"""Finds signs that the set-up is broken, as opposed to a draft that is merely bad.

A serving engine with a broken draft rarely fails: it runs on with acceptance 0 and looks like a
slow model. Each check looks for a result that a working pair hardly ever shows, over so many tokens
that it cannot be chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftbench.acceptance.rounds import Floats, Pairs, Rounds, model_pairs
from draftbench.records import NEAR_TIE_MARGIN, SELF, Candidate, Record
from draftbench.run_folder.run import Run

# A draft position is suspect if it accepted nothing where ten tokens were expected at half the
# hazard of the position before it: that is less likely than e^-10.
_EXPECTED = 10
# Fewer tokens or rounds than this show nothing.
_MIN_TRIED = 50
# Shares of drafted tokens accepted, and of rounds whose first token was, that no working pair has.
_ALMOST_ALL, _ALMOST_NONE = 0.99, 0.02
# Kinds of faults, with what to do.
CONTROL_FAILED, CONTRADICTED = "control failed", "decoding contradicts replay"
ZERO, ONE_TOKEN = "zero acceptance", "one token per round"
NEARLY_ALL, CLIFF = "nearly all accepted", "hazard falls to zero"
DOUBLED = "doubled first token"  # seen in prompts, by the gate
_ADVICE = {
    CONTROL_FAILED: "replay and decoding disagree; trust no acceptance figure of this run",
    CONTRADICTED: "only what was decoded counts; suspect its position embedding, its cache, or "
    "that other weights were replayed",
    ZERO: "compare the tokenizers and, for chats, the templates; look for weights destroyed by "
    "quantization",
    ONE_TOKEN: "either it does not suit this traffic, or it does not see the prompt or its cache, "
    "or its proposals do not reach the verifier",
    NEARLY_ALL: "check that the target is not its own draft, and read some responses: repetition "
    "is easy to draft",
    CLIFF: "suspect the drafting loop: cache positions, the attention window, a repeated step",
    DOUBLED: "let one of the two write it",
}
# Forms of traffic whose prompts are plain texts.
_PLAIN = frozenset({"prompt", "--prompt-field", "vLLM custom", "SGLang", "TGI", "text"})


class SuspectedFault(Record, frozen=True):
    """A sign of a broken set-up. Two faults are the same if their `kind` is; the message has counts
    of the run.
    """

    kind: str
    message: str

    @property
    def advice(self) -> str:
        """What to do; empty for an unknown kind, in a baseline that was edited."""
        return _ADVICE.get(self.kind, "")


def suspected_faults(
    candidate: Candidate,
    pairs: Pairs,
    rounds: Sequence[Rounds],
    near_tie: float,
) -> tuple[SuspectedFault, ...]:
    """The suspected faults of one candidate.

    Args:
        rounds: expected or counted, at any k's.
        near_tie: the logit margin within which numeric noise can swap two tokens.
    """
    faults: dict[str, str] = {}  # messages by kind
    wrong, compared = _rejected_itself(pairs, near_tie) if str(candidate) == SELF else (0, 0)
    if wrong:
        faults[CONTROL_FAILED] = (
            f"the target rejects its greedy draft of itself at {wrong} of {compared} positions, "
            "near ties not counted"
        )
    replays = [replay for _, replay in model_pairs(pairs)]
    positions = sum(min(len(replay.accept), replay.draftable) for replay in replays)
    # NaN where an engine did not report its rounds.
    rounds = [at_k for at_k in rounds if np.isfinite(at_k.with_draft).all()]
    fruitless = [poor for at_k in rounds if (poor := _almost_none(at_k)) is not None]
    longest = max(rounds, key=lambda at_k: at_k.k, default=None)
    perfect = longest and _almost_all(longest)
    if positions >= _MIN_TRIED and not any(
        any(replay.accept[: replay.draftable]) for replay in replays
    ):
        faults[ZERO] = f"not one token in {positions} positions was accepted"
    elif fruitless:
        faults[ONE_TOKEN] = fruitless[0]
    elif perfect and candidate.draft != SELF:
        faults[NEARLY_ALL] = perfect
    cliffs = [cliff for at_k in rounds if (cliff := _cliff(at_k)) is not None]
    if cliffs:
        faults[CLIFF] = cliffs[0]
    return tuple(SuspectedFault(kind=kind, message=faults[kind]) for kind in faults)


def _almost_none(rounds: Rounds) -> str | None:
    """That hardly any round accepted a token."""
    drafted, fruitful = float(rounds.with_draft.sum()), float(rounds.survived[:, 0].sum())
    if np.isnan(fruitful):  # the engine reported sums; no more rounds than tokens were accepted
        fruitful = float(rounds.accepted.sum())
    if drafted < _MIN_TRIED or fruitful >= _ALMOST_NONE * drafted:
        return None
    if fruitful == 0:
        return (
            f"the mean accepted length is exactly 1 at k = {rounds.k}: none of {drafted:.0f} "
            "rounds accepted a token"
        )
    share = f"{fruitful / drafted:.1%} of {drafted:.0f}"
    return f"only {share} rounds accepted a token at k = {rounds.k}"


def _almost_all(rounds: Rounds) -> str | None:
    """That nearly every drafted token was accepted."""
    tried, accepted = float((rounds.proposed - rounds.cut).sum()), float(rounds.accepted.sum())
    if tried < _MIN_TRIED or accepted < _ALMOST_ALL * tried:
        return None
    share = "every one" if accepted == tried else f"{accepted / tried:.1%}"
    verb = "was" if accepted == tried else "were"
    return f"{share} of {tried:.0f} drafted tokens {verb} accepted at k = {rounds.k}"


def _cliff(rounds: Rounds) -> str | None:
    """That a draft position never accepted anything, though the one before it did."""
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
    """At how many positions the target, as a greedy draft of itself, was rejected at temperature 0
    without a near tie, and at how many it was compared.
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
    """The logit margin within which numeric noise can swap two tokens, for the target's dtype."""
    return NEAR_TIE_MARGIN[run.manifest.question.dtype]


def near_tie_share(run: Run) -> float | None:
    """Share of output positions whose two best target tokens are a near tie; None if unknown."""
    noise = near_tie(run)
    margins = [np.asarray(t.margins) for t in run.trajectories if t.margins]
    return float((np.concatenate(margins) <= noise).mean()) if margins else None


def template_may_differ(run: Run, candidate: Candidate) -> bool:
    """Whether the draft may have been trained with another chat template than the target's, which
    renders all chats. True where a template is unknown; False where all prompts are plain texts.
    """
    if candidate.draft == SELF or _PLAIN.issuperset(run.manifest.traffic.form.split(", ")):
        return False
    # Hashes of the templates; None of a model that was not loaded here.
    of_target, of_draft = (
        facts.parts.get("chat template") if (facts := run.facts_of(model)) else None
        for model in (None, candidate)
    )
    return of_target is None or of_target != of_draft
