"""Rules of thumb: when each fits a run, what it says, and who says so. At most three are
shown; a rule is silent where the figures of the run contradict it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from draftbench.planner.formula import speedup
from draftbench.planner.known_pairs import kinship
from draftbench.planner.recommendation import Advice, Evaluation, Recommendation
from draftbench.records import LOOKUP, SELF, ModelFacts
from draftbench.run_folder.run import Run

_MOST = 3
_GUIDE = "generalcompute.com, Draft Model Selection for Speculative Decoding"
# α that practice expects of such pairs.
_EXPECTED_ALPHA = {
    "same family and generation": (0.75, 0.85),
    "another generation": (0.70, 0.80),
    "another family": (0.40, 0.60),
}
_MANY_ROWS = 32


@dataclass(frozen=True)
class _Case:
    """An answer and its run, seen from the fastest draft that is a model."""

    answer: Recommendation
    run: Run

    @cached_property
    def models(self) -> list[Evaluation]:
        """The best evaluation of every draft model, the fastest first."""
        models = [e for e in self.answer.by_candidate if e.draft not in (LOOKUP, SELF)]
        speeds = {e.configuration: e.speedup_expected for e in models}
        return sorted(models, key=lambda e: -(s.value if (s := speeds[e.configuration]) else 0.0))

    @property
    def best(self) -> Evaluation | None:
        return self.models[0] if self.models else None

    @property
    def losing(self) -> Evaluation | None:
        """The fastest draft model, if its speed-up is not clearly above the asked one."""
        return self.best if self.best is not None and not self.pays(self.best) else None

    def pays(self, evaluation: Evaluation) -> bool:
        whole = self.answer.objective == "latency"
        speed = evaluation.speedup_end_to_end_expected if whole else evaluation.speedup_expected
        return speed is not None and speed.low > self.answer.min_speedup

    @property
    def target(self) -> ModelFacts | None:
        return self.run.facts_of(None)


def _size_ratio(case: _Case) -> str | None:
    draft = case.losing
    facts = None if draft is None else case.run.facts_of(draft.candidate)
    if draft is None or facts is None or case.target is None:
        return None
    times = case.target.parameters / facts.parameters
    if 10 <= times <= 50:
        return None
    return (
        f"{draft.candidate} has {1 / times:.1%} of the target's parameters; usual drafts are 10 to "
        "30 times smaller than the target"
    )


def _family(case: _Case) -> str | None:
    draft = case.losing
    if draft is None or draft.alpha is None:
        return None
    given = (case.run.manifest.specs or {}).get(draft.draft, draft.draft)
    related = kinship(case.run.manifest.question.target, given)
    if related is None:
        return None
    low, high = _EXPECTED_ALPHA[related]
    words = (
        f"α of {draft.candidate} is {draft.alpha.value:.0%}, where {low:.0%} to {high:.0%} is "
        f"usual for {'the ' if related.startswith('same') else ''}{related}"
    )
    if related.startswith("same"):
        suspect = "its files" if draft.quant == "none" else "its quantization"
        return None if draft.alpha.high >= low else f"{words}: suspect its template or {suspect}"
    if draft.alpha.low > high:
        return None
    return f"{words}: try a draft of the target's own family and generation first"


def _low_alpha(case: _Case) -> str | None:
    draft = case.losing
    if draft is None or draft.alpha is None or draft.alpha.value >= 0.65:
        return None
    return (
        f"α of {draft.candidate} is {draft.alpha.value:.0%}: under 65 % it is probably the wrong "
        "draft; `draftbench acceptance` shows where it is rejected"
    )


def _high_alpha(case: _Case) -> str | None:
    draft = next((e for e in case.models if e.alpha and e.alpha.value > 0.9), None)
    if draft is None or draft.alpha is None or draft.speedup_expected is None or case.pays(draft):
        return None
    return (
        f"α of {draft.candidate} is {draft.alpha.value:.0%} and its speed-up "
        f"{draft.speedup_expected.value:.2f}× at k = {draft.k}: the draft is too slow or k too high"
    )


def _quantize(case: _Case) -> str | None:
    draft = next((e for e in case.models if e.quant == "none"), None)
    if draft is None or any(e.quant != "none" and e.draft == draft.draft for e in case.models):
        return None
    alpha, cost, verify = draft.alpha, draft.draft_cost_ratio, draft.verify_ratio
    now = draft.speedup_expected
    if alpha is None or cost is None or verify is None or now is None:
        return None
    ks = sorted({e.k for e in case.answer.evaluations})

    def closed_form(points: float, factor: float) -> float:
        rate = max(alpha.value + points, 0.0)
        return max(speedup(rate, k, factor * cost.value, verify=verify.value) for k in ks)

    then = now.value * closed_form(-0.03, 0.6) / closed_form(0.0, 1.0)
    if then <= 1.02 * now.value:
        return None
    return (
        f"{draft.draft} was measured unquantized only: a c lower by 30 to 50 % and an α lower by 2 "
        f"to 4 points, as is usual, would give about {then:.2f}× instead of {now.value:.2f}×"
    )


def _many_rows(case: _Case) -> str | None:
    levels = [level for level in case.answer.levels if level.concurrency >= _MANY_ROWS]
    if levels or case.answer.decision != "speculate":
        return None
    most = max(case.run.manifest.question.batches)
    measured = "one request" if most == 1 else f"up to {most} requests"
    return (
        f"measured with {measured} at a time: from 32 on, speculation usually stops paying; sweep "
        "there (`--concurrency`) before serving such loads"
    )


@dataclass(frozen=True)
class _Rule:
    name: str
    sentence: Callable[[_Case], str | None]
    reason: str
    source: str


RULES = (
    _Rule(
        "same-family",
        _family,
        "models trained on the same data with the same tokens agree more often",
        _GUIDE,
    ),
    _Rule(
        "low-alpha",
        _low_alpha,
        "most rounds then end after a token or two, which hardly pays for drafting them",
        f"{_GUIDE}; gianlucamazza/xllama pull request 202 (α 43 %: 0.81×)",
    ),
    _Rule(
        "size-ratio",
        _size_ratio,
        "a larger draft costs too much of a target step, a much smaller one is rejected too often",
        _GUIDE,
    ),
    _Rule(
        "high-alpha-without-speed",
        _high_alpha,
        "accepted tokens cost their draft steps and their verification all the same",
        f"{_GUIDE}; nibor1896/Crow issue 29 (85 % accepted, no faster)",
    ),
    _Rule(
        "quantize-the-draft",
        _quantize,
        "a draft's errors only cost rounds, its bytes cost every step",
        f"{_GUIDE}; alexziskind1/draftbench (1.5B: 2.80× in 16 bits, 2.96× in 4)",
    ),
    _Rule(
        "many-requests-at-once",
        _many_rows,
        "a full batch already uses the arithmetic that verifying needs",
        f"{_GUIDE}; vllm-project/vllm issue 17984 (Llama 70B with 1B loses from 32 on)",
    ),
)


def rules_of_thumb(answer: Recommendation, run: Run) -> tuple[Advice, ...]:
    """The first three rules that fit this run."""
    case = _Case(answer, run)
    fitting = [
        Advice(rule=rule.name, sentence=text, reason=rule.reason, source=rule.source)
        for rule in RULES
        if (text := rule.sentence(case)) is not None
    ]
    return tuple(fitting[:_MOST])
