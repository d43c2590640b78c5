"""Rules of thumb: a table of conditions on a run's figures, each with its sentence and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.formula import speedup
from draftbench.planner.recommendation import Advice, Evaluation, Recommendation
from draftbench.records import LOOKUP, SELF
from draftbench.run_folder.run import Run

_MOST_SHOWN = 3
_HIGH_ALPHA = 0.9
_GUIDE = "generalcompute.com, Draft Model Selection for Speculative Decoding"
_SAME = "same family and generation"
# α that practice expects of such pairs.
_USUAL_ALPHA = {_SAME: (0.75, 0.85), "another generation": (0.7, 0.8), "another family": (0.4, 0.6)}


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """What the rules look at; None is unknown and fits no rule."""

    speculate: bool  # the decision
    most_measured: int  # largest concurrency of the sweep
    most_asked: int  # largest concurrency that was measured or asked about
    # A draft model of which no quantized level was measured: its speed-up now, and if quantized.
    unquantized: str = ""
    now: float | None = None
    if_quantized: float = 0.0
    # The best draft model, unless it surely reaches the asked speed-up.
    draft: Evaluation | None = None
    alpha: Estimate | None = None
    size: float | None = None  # its parameters over the target's
    related: str | None = None  # how its name is related to the target's, where α is known
    usual: tuple[float, float] = (0.0, 1.0)  # α of pairs so related
    suspect: str = "files"  # what may be wrong with the draft, besides its template
    # The best one with a high α, unless the best of all or itself surely reaches that speed-up.
    accepted: Evaluation | None = None


# Name, condition, sentence, reason, source.
_RULES: tuple[tuple[str, Callable[[_Figures], bool], str, str, str], ...] = (
    (
        "same-family",
        lambda f: f.related == _SAME and f.alpha is not None and f.alpha.high < f.usual[0],
        "α of {f.draft.candidate} is {f.alpha.value:.0%}, where {f.usual[0]:.0%} to "
        "{f.usual[1]:.0%} is usual for the {f.related}: suspect its template or its {f.suspect}",
        "models trained on the same data with the same tokens agree more often",
        _GUIDE,
    ),
    (
        "same-family",
        lambda f: (
            f.related not in (None, _SAME) and f.alpha is not None and f.alpha.low <= f.usual[1]
        ),
        "α of {f.draft.candidate} is {f.alpha.value:.0%}, where {f.usual[0]:.0%} to "
        "{f.usual[1]:.0%} is usual for {f.related}: try a draft of the target's own family and "
        "generation first",
        "models trained on the same data with the same tokens agree more often",
        _GUIDE,
    ),
    (
        "low-alpha",
        lambda f: f.alpha is not None and f.alpha.value < 0.65,
        "α of {f.draft.candidate} is only {f.alpha.value:.0%}; below 65%, look for another draft "
        "(`draftbench acceptance` shows where this one is rejected)",
        "most rounds then end after a token or two, which hardly pays for drafting them",
        f"{_GUIDE}; gianlucamazza/xllama pull request 202 (α 43%: 0.81×)",
    ),
    (
        "size-ratio",
        lambda f: f.size is not None and not 1 / 50 <= f.size <= 1 / 10,
        "{f.draft.candidate} has {f.size:.1%} of the target's parameters; usual drafts are 10 to "
        "30 times smaller than the target",
        "a larger draft costs too much of a target step, a much smaller one is rejected too often",
        _GUIDE,
    ),
    (
        "high-alpha-without-speed",
        lambda f: f.accepted is not None,
        "α of {f.accepted.candidate} is {f.accepted.alpha.value:.0%} and its speed-up "
        "{f.accepted.speedup_expected.value:.2f}× at k = {f.accepted.k}: the draft is too slow or "
        "k too high",
        "accepted tokens still cost their draft steps and their verification",
        f"{_GUIDE}; nibor1896/Crow issue 29 (85% accepted, no faster)",
    ),
    (
        "quantize-the-draft",
        lambda f: f.now is not None and f.if_quantized > 1.02 * f.now,
        "{f.unquantized} was measured unquantized only; quantized, c is usually 30 to 50% "
        "lower and α 2 to 4 points, which would give about {f.if_quantized:.2f}× instead of "
        "{f.now:.2f}×",
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
    return tuple(fitting[:_MOST_SHOWN])


def _figures(answer: Recommendation, run: Run) -> _Figures:
    measured = max(run.manifest.question.batches)
    models = [each for each in answer.by_candidate if each.draft not in (LOOKUP, SELF)]
    figures = _Figures(
        speculate=answer.decision == "speculate",
        most_measured=measured,
        most_asked=max([measured, *(level.concurrency for level in answer.levels)]),
    )
    plain = next((each for each in models if each.quant == "none"), None)
    if plain and all(each.quant == "none" or each.draft != plain.draft for each in models):
        figures = _with_quantized(figures, plain, {each.k for each in answer.evaluations})

    def pays(draft: Evaluation) -> bool:
        latency = answer.objective == "latency"
        speed = draft.speedup_end_to_end_expected if latency else draft.speedup_expected
        return speed is not None and speed.low > answer.min_speedup

    if not models or pays(models[0]):
        return figures
    draft = models[0]
    target, facts = run.facts_of(None), run.facts_of(draft.candidate)
    related = _related(draft, run) if draft.alpha else None
    accepted = (
        each
        for each in models
        if each.alpha and each.alpha.value > _HIGH_ALPHA and each.speedup_expected
        if not pays(each)
    )
    return replace(
        figures,
        draft=draft,
        alpha=draft.alpha,
        size=facts.parameters / target.parameters if target and facts else None,
        related=related,
        usual=_USUAL_ALPHA[related or _SAME],
        suspect="files" if draft.quant == "none" else "quantization",
        accepted=next(accepted, None),
    )


def _related(draft: Evaluation, run: Run) -> str | None:
    """How a draft is related to the target, by their names on the command line."""
    from draftbench.planner.known_pairs import kinship  # with the pages of `suggest`

    specs = run.manifest.specs or {}
    return kinship(run.manifest.question.target, specs.get(draft.draft, draft.draft))


def _with_quantized(figures: _Figures, draft: Evaluation, ks: set[int]) -> _Figures:
    """With what quantizing a draft should make of its speed-up, by the closed form."""
    alpha, cost, verify = draft.alpha, draft.draft_cost_ratio, draft.verify_ratio
    if alpha is None or cost is None or verify is None or draft.speedup_expected is None:
        return figures
    quantized, plain = (
        max(speedup(max(rate, 0.0), k, c, verify=verify.value) for k in ks)
        for rate, c in ((alpha.value - 0.03, 0.6 * cost.value), (alpha.value, cost.value))
    )
    now = draft.speedup_expected.value
    return replace(figures, unquantized=draft.draft, now=now, if_quantized=now * quantized / plain)
