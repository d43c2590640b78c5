"""Rules of thumb: when each fits a run, what it says, and who says so. At most three are
shown; a rule is silent where the figures of the run contradict it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from draftbench.planner.formula import speedup
from draftbench.planner.recommendation import Advice, Evaluation, Recommendation
from draftbench.records import LOOKUP, SELF
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


class _Case(NamedTuple):
    """An answer and its run; the best evaluation of every draft model, the fastest first, and that
    one if its speed-up may not reach the asked one.
    """

    answer: Recommendation
    run: Run
    models: list[Evaluation]
    losing: Evaluation | None


def rules_of_thumb(answer: Recommendation, run: Run) -> tuple[Advice, ...]:
    """The first three rules that fit this run."""
    models = [each for each in answer.by_candidate if each.draft not in (LOOKUP, SELF)]
    models.sort(key=lambda e: -(e.speedup_expected.value if e.speedup_expected else 0.0))
    losing = models[0] if models and not _pays(models[0], answer) else None
    case = _Case(answer, run, models, losing)
    fitting = [
        Advice(rule=rule, sentence=sentence, reason=reason, source=source)
        for rule, says, reason, source in RULES
        if (sentence := says(case)) is not None
    ]
    return tuple(fitting[:_MOST])


def _pays(evaluation: Evaluation, answer: Recommendation) -> bool:
    speed = evaluation.speedup_expected
    if answer.objective == "latency":
        speed = evaluation.speedup_end_to_end_expected
    return speed is not None and speed.low > answer.min_speedup


def _family(case: _Case) -> str | None:
    draft = case.losing
    if draft is None or draft.alpha is None:
        return None
    from draftbench.planner.known_pairs import kinship  # with the pages of `suggest`

    given = (case.run.manifest.specs or {}).get(draft.draft, draft.draft)
    related = kinship(case.run.manifest.question.target, given)
    if related is None:
        return None
    low, high = _EXPECTED_ALPHA[related]
    same = related.startswith("same")
    words = (
        f"α of {draft.candidate} is {draft.alpha.value:.0%}, where {low:.0%} to {high:.0%} is "
        f"usual for {'the ' if same else ''}{related}"
    )
    if same and draft.alpha.high < low:
        suspect = "its files" if draft.quant == "none" else "its quantization"
        return f"{words}: suspect its template or {suspect}"
    if not same and draft.alpha.low <= high:
        return f"{words}: try a draft of the target's own family and generation first"
    return None


def _low_alpha(case: _Case) -> str | None:
    draft = case.losing
    if draft is None or draft.alpha is None or draft.alpha.value >= 0.65:
        return None
    return (
        f"α of {draft.candidate} is only {draft.alpha.value:.0%}; below 65%, look for another "
        "draft (`draftbench acceptance` shows where this one is rejected)"
    )


def _size_ratio(case: _Case) -> str | None:
    target = case.run.facts_of(None)
    facts = case.run.facts_of(case.losing.candidate) if case.losing else None
    if case.losing is None or facts is None or target is None:
        return None
    if 10 <= target.parameters / facts.parameters <= 50:
        return None
    return (
        f"{case.losing.candidate} has {facts.parameters / target.parameters:.1%} of the target's "
        "parameters; usual drafts are 10 to 30 times smaller than the target"
    )


def _high_alpha(case: _Case) -> str | None:
    draft = next((e for e in case.models if e.alpha and e.alpha.value > 0.9), None)
    if draft is None or draft.alpha is None or draft.speedup_expected is None:
        return None
    if _pays(draft, case.answer):
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
    quantized, unquantized = (
        max(speedup(max(rate, 0.0), k, c, verify=verify.value) for k in ks)
        for rate, c in ((alpha.value - 0.03, 0.6 * cost.value), (alpha.value, cost.value))
    )
    then = now.value * quantized / unquantized
    if then <= 1.02 * now.value:
        return None
    return (
        f"{draft.draft} was measured unquantized only; quantized, c is usually 30 to 50% lower and "
        f"α 2 to 4 points, which would give about {then:.2f}× instead of {now.value:.2f}×"
    )


def _many_rows(case: _Case) -> str | None:
    many = any(level.concurrency >= _MANY_ROWS for level in case.answer.levels)
    if many or case.answer.decision != "speculate":
        return None
    most = max(case.run.manifest.question.batches)
    measured = "one request" if most == 1 else f"up to {most} requests"
    return (
        f"measured with {measured} at a time; from 32 on, speculation usually stops paying: before "
        "serving such loads, sweep there too (`--concurrency 32`)"
    )


# Name, sentence where it fits, reason, source.
RULES: tuple[tuple[str, Callable[[_Case], str | None], str, str], ...] = (
    (
        "same-family",
        _family,
        "models trained on the same data with the same tokens agree more often",
        _GUIDE,
    ),
    (
        "low-alpha",
        _low_alpha,
        "most rounds then end after a token or two, which hardly pays for drafting them",
        f"{_GUIDE}; gianlucamazza/xllama pull request 202 (α 43%: 0.81×)",
    ),
    (
        "size-ratio",
        _size_ratio,
        "a larger draft costs too much of a target step, a much smaller one is rejected too often",
        _GUIDE,
    ),
    (
        "high-alpha-without-speed",
        _high_alpha,
        "accepted tokens still cost their draft steps and their verification",
        f"{_GUIDE}; nibor1896/Crow issue 29 (85% accepted, no faster)",
    ),
    (
        "quantize-the-draft",
        _quantize,
        "a draft's errors cost some rounds, its bytes cost every step",
        f"{_GUIDE}; alexziskind1/draftbench (1.5B: 2.80× in 16 bits, 2.96× in 4)",
    ),
    (
        "many-requests-at-once",
        _many_rows,
        "a full batch already uses the arithmetic that verifying needs",
        f"{_GUIDE}; vllm-project/vllm issue 17984 (Llama 70B with 1B loses from 32 on)",
    ),
)
