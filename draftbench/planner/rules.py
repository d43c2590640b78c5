"""Rules of thumb: a table of conditions on a run's figures, each with its sentence and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, nan

from draftbench.planner.formula import speedup
from draftbench.planner.recommendation import Advice, Evaluation, Recommendation
from draftbench.records import LOOKUP, SELF
from draftbench.run_folder.run import Run

_MOST = 3
_GUIDE = "generalcompute.com, Draft Model Selection for Speculative Decoding"
_SAME = "the same family and generation"
# α that practice expects of such pairs.
_USUAL_ALPHA = {_SAME: (0.75, 0.85), "another generation": (0.7, 0.8), "another family": (0.4, 0.6)}


@dataclass
class _Figures:
    """What the rules look at; an unknown figure is NaN, which fits no rule."""

    # Of the draft model that is fastest at its best k, if it may miss the asked speed-up.
    name: str = ""
    k: int = 0
    speed: float = nan
    alpha: float = nan
    lowest: float = nan  # lower end of α's interval
    highest: float = nan
    size: float = nan  # its parameters over the target's
    related: str = ""  # how its name is related to the target's
    usual: tuple[float, float] = (nan, nan)  # α of pairs so related
    suspect: str = ""  # what else of it may be wrong than its template
    # Of a draft model of which no quantized level was measured: its speed-up now, and quantized.
    unquantized: str = ""
    now: float = nan
    then: float = nan
    # Of the answer.
    speculate: bool = False
    most_measured: int = 0  # requests at a time
    most_asked: int = 0


# Name, condition, sentence, reason, source.
_RULES: tuple[tuple[str, Callable[[_Figures], bool], str, str, str], ...] = (
    (
        "same-family",
        lambda f: f.related == _SAME and f.highest < f.usual[0],
        "α of {f.name} is {f.alpha:.0%}, where {f.usual[0]:.0%} to {f.usual[1]:.0%} is usual for "
        "{f.related}: suspect its template or its {f.suspect}",
        "models trained on the same data with the same tokens agree more often",
        _GUIDE,
    ),
    (
        "same-family",
        lambda f: f.related != _SAME and f.lowest <= f.usual[1],
        "α of {f.name} is {f.alpha:.0%}, where {f.usual[0]:.0%} to {f.usual[1]:.0%} is usual for "
        "{f.related}: try a draft of the target's own family and generation first",
        "models trained on the same data with the same tokens agree more often",
        _GUIDE,
    ),
    (
        "low-alpha",
        lambda f: f.alpha < 0.65,
        "α of {f.name} is only {f.alpha:.0%}; below 65%, look for another draft (`draftbench "
        "acceptance` shows where this one is rejected)",
        "most rounds then end after a token or two, which hardly pays for drafting them",
        f"{_GUIDE}; gianlucamazza/xllama pull request 202 (α 43%: 0.81×)",
    ),
    (
        "size-ratio",
        lambda f: f.size > 1 / 10 or f.size < 1 / 50,
        "{f.name} has {f.size:.1%} of the target's parameters; usual drafts are 10 to 30 times "
        "smaller than the target",
        "a larger draft costs too much of a target step, a much smaller one is rejected too often",
        _GUIDE,
    ),
    (
        "high-alpha-without-speed",
        lambda f: f.alpha > 0.9 and not isnan(f.speed),
        "α of {f.name} is {f.alpha:.0%} and its speed-up {f.speed:.2f}× at k = {f.k}: the draft is "
        "too slow or k too high",
        "accepted tokens still cost their draft steps and their verification",
        f"{_GUIDE}; nibor1896/Crow issue 29 (85% accepted, no faster)",
    ),
    (
        "quantize-the-draft",
        lambda f: f.then > 1.02 * f.now,
        "{f.unquantized} was measured unquantized only; quantized, c is usually 30 to 50% lower "
        "and α 2 to 4 points, which would give about {f.then:.2f}× instead of {f.now:.2f}×",
        "a draft's errors cost some rounds, its bytes cost every step",
        f"{_GUIDE}; alexziskind1/draftbench (1.5B: 2.80× in 16 bits, 2.96× in 4)",
    ),
    (
        "many-requests-at-once",
        lambda f: f.speculate and f.most_asked < 32,
        "measured up to concurrency {f.most_measured}; from 32 on, speculation usually "
        "stops paying: before serving such loads, sweep there too (`--concurrency 32`)",
        "a full batch already uses the arithmetic that verifying needs",
        f"{_GUIDE}; vllm-project/vllm issue 17984 (Llama 70B with 1B loses from 32 on)",
    ),
)


def rules_of_thumb(answer: Recommendation, run: Run) -> tuple[Advice, ...]:
    """The first three rules that fit this run."""
    figures = _figures(answer, run)
    fitting = [
        Advice(rule=name, sentence=sentence.format(f=figures), reason=reason, source=source)
        for name, fits, sentence, reason, source in _RULES
        if fits(figures)
    ]
    return tuple(fitting[:_MOST])


def _figures(answer: Recommendation, run: Run) -> _Figures:
    question = run.manifest.question
    measured = max(question.batches)
    found = _Figures(
        speculate=answer.decision == "speculate",
        most_measured=measured,
        most_asked=max([measured, *(level.concurrency for level in answer.levels)]),
    )
    models = [each for each in answer.by_candidate if each.draft not in (LOOKUP, SELF)]
    models.sort(key=lambda e: -(e.speedup_expected.value if e.speedup_expected else 0.0))
    plain = next((e for e in models if e.quant == "none"), None)
    if plain and all(e.quant == "none" or e.draft != plain.draft for e in models):
        _if_quantized(found, plain, sorted({e.k for e in answer.evaluations}))
    latency = answer.objective == "latency"
    draft = models[0] if models else None
    speed = draft and (draft.speedup_end_to_end_expected if latency else draft.speedup_expected)
    if draft is None or (speed and speed.low > answer.min_speedup):
        return found
    found.name, found.k = str(draft.candidate), draft.k
    found.speed = draft.speedup_expected.value if draft.speedup_expected else nan
    target, facts = run.facts_of(None), run.facts_of(draft.candidate)
    if target and facts:
        found.size = facts.parameters / target.parameters
    if draft.alpha is None:
        return found
    found.alpha, found.lowest, found.highest = draft.alpha.value, draft.alpha.low, draft.alpha.high
    from draftbench.planner.known_pairs import kinship  # with the pages of `suggest`

    related = kinship(question.target, (run.manifest.specs or {}).get(draft.draft, draft.draft))
    if related is not None:
        found.related = _SAME if related.startswith("same") else related
        found.usual = _USUAL_ALPHA[found.related]
        found.suspect = "files" if draft.quant == "none" else "quantization"
    return found


def _if_quantized(found: _Figures, draft: Evaluation, ks: list[int]) -> None:
    """What quantizing a draft should make of its speed-up, by the closed form of all k's."""
    alpha, cost, verify = draft.alpha, draft.draft_cost_ratio, draft.verify_ratio
    if alpha is None or cost is None or verify is None or draft.speedup_expected is None:
        return
    then, now = (
        max(speedup(max(rate, 0.0), k, c, verify=verify.value) for k in ks)
        for rate, c in ((alpha.value - 0.03, 0.6 * cost.value), (alpha.value, cost.value))
    )
    found.unquantized, found.now = draft.draft, draft.speedup_expected.value
    found.then = found.now * then / now
