"""Rules of thumb: where a run's figures fit one, what it says of them, why, and who says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from draftbench.planner.decide import decide
from draftbench.planner.formula import speedup
from draftbench.planner.recommendation import Advice, Evaluation, Recommendation
from draftbench.records import LOOKUP, SELF
from draftbench.run_folder.run import Run

_MOST_SHOWN = 3
_HIGH_ALPHA, _LOW_ALPHA = 0.9, 0.65
_GUIDE = "generalcompute.com, Draft Model Selection for Speculative Decoding"
_SAME = "same family and generation"
# α that practice expects of such pairs.
_USUAL_ALPHA = {_SAME: (0.75, 0.85), "another generation": (0.7, 0.8), "another family": (0.4, 0.6)}


def rules_of_thumb(answer: Recommendation, run: Run) -> tuple[Advice, ...]:
    """The first three rules that fit this run."""
    models = [each for each in answer.by_candidate if each.draft not in (LOOKUP, SELF)]
    fitting = chain(
        _of_slow_drafts(answer, run, models),
        _of_unquantized(answer, models),
        _of_many_requests(answer, run),
    )
    return tuple(islice(fitting, _MOST_SHOWN))


def _of_slow_drafts(
    answer: Recommendation, run: Run, models: Sequence[Evaluation]
) -> Iterator[Advice]:
    """Unless the best draft model surely reaches `min_speedup`."""

    def pays(draft: Evaluation) -> bool:
        latency = answer.objective == "latency"
        speed = draft.speedup_end_to_end_expected if latency else draft.speedup_expected
        return decide(speed, answer.min_speedup) == "speculate"

    if not models or pays(models[0]):
        return
    draft = models[0]
    if alpha := draft.alpha:
        yield from _of_kinship(draft, run)
        if alpha.value < _LOW_ALPHA:
            yield Advice(
                rule="low-alpha",
                sentence=f"α of {draft.candidate} is only {alpha.value:.0%}; below "
                f"{_LOW_ALPHA:.0%}, look for another draft (`draftbench acceptance` shows where "
                "this one is rejected)",
                reason="most rounds then end after a token or two, which hardly pays for drafting "
                "them",
                source=f"{_GUIDE}; gianlucamazza/xllama pull request 202 (α 43%: 0.81×)",
            )
    target, facts = run.facts_of(None), run.facts_of(draft.candidate)
    size = facts.active_parameters / target.active_parameters if target and facts else None
    active = "active " * any(each.mixture is not None for each in (target, facts) if each)
    if size is not None and not 1 / 50 <= size <= 1 / 10:
        yield Advice(
            rule="size-ratio",
            sentence=f"{draft.candidate} has {size:.1%} of the target's {active}parameters; usual "
            "drafts are 10 to 30 times smaller than the target",
            reason="a larger draft costs too much of a target step, a much smaller one is rejected "
            "too often",
            source=_GUIDE,
        )
    for each in models:
        speed = each.speedup_expected
        if each.alpha and each.alpha.value > _HIGH_ALPHA and speed and not pays(each):
            yield Advice(
                rule="high-alpha-without-speed",
                sentence=f"α of {each.candidate} is {each.alpha.value:.0%} and its speed-up "
                f"{speed.value:.2f}× at k = {each.k}: the draft is too slow or k too high",
                reason="accepted tokens still cost their draft steps and their verification",
                source=f"{_GUIDE}; nibor1896/Crow issue 29 (85% accepted, no faster)",
            )
            return


def _of_kinship(draft: Evaluation, run: Run) -> Iterator[Advice]:
    """Of a draft that agrees less than its kin does, or is no kin, by the names of models."""
    from draftbench.planner.known_pairs import kinship  # with the pages of `suggest`

    spec = run.manifest.specs.get(draft.draft, draft.draft)
    related = kinship(run.manifest.question.target, spec)
    if related is None or (alpha := draft.alpha) is None:
        return
    least, most = _USUAL_ALPHA[related]
    known = f"α of {draft.candidate} is {alpha.value:.0%}, where {least:.0%} to {most:.0%} is usual"
    suspect = "files" if draft.quant == "none" else "quantization"
    sentence = None
    if related == _SAME and alpha.high < least:
        sentence = f"{known} for the {related}: suspect its template or its {suspect}"
    elif related != _SAME and alpha.low <= most:
        sentence = (
            f"{known} for {related}: try a draft of the target's own family and generation first"
        )
    if sentence:
        yield Advice(
            rule="same-family",
            sentence=sentence,
            reason="models trained on the same data with the same tokens agree more often",
            source=_GUIDE,
        )


def _of_unquantized(answer: Recommendation, models: Sequence[Evaluation]) -> Iterator[Advice]:
    """A draft model of which no quantized level was measured, where one should be faster by the
    closed form.
    """
    draft = next((each for each in models if each.quant == "none"), None)
    if draft is None or any(e.quant != "none" and e.draft == draft.draft for e in models):
        return
    alpha, cost, verify = draft.alpha, draft.draft_cost_ratio, draft.verify_ratio
    if alpha is None or cost is None or verify is None or draft.speedup_expected is None:
        return
    ks = {each.k for each in answer.evaluations}
    quantized, unquantized = (
        max(speedup(max(rate, 0.0), k, c, verify=verify.value) for k in ks)
        for rate, c in ((alpha.value - 0.03, 0.6 * cost.value), (alpha.value, cost.value))
    )
    now = draft.speedup_expected.value
    if_quantized = now * quantized / unquantized
    if if_quantized > 1.02 * now:
        yield Advice(
            rule="quantize-the-draft",
            sentence=f"{draft.draft} was measured unquantized only; quantizing usually cuts c by "
            f"30 to 50% and α by 2 to 4 points, which would give about {if_quantized:.2f}× instead "
            f"of {now:.2f}×",
            reason="a draft's errors cost some rounds, its bytes cost every step",
            source=f"{_GUIDE}; alexziskind1/draftbench (1.5B: 2.80× in 16 bits, 2.96× in 4)",
        )


def _of_many_requests(answer: Recommendation, run: Run) -> Iterator[Advice]:
    measured = max(run.manifest.question.concurrency)
    largest = max([measured, *(level.concurrency for level in answer.levels)])
    if answer.decision == "speculate" and largest < 32:
        yield Advice(
            rule="many-requests-at-once",
            sentence=f"measured up to concurrency {measured}; from 32 on, speculation usually "
            "stops paying: sweep at your real load first (`--concurrency 32`)",
            reason="many concurrent requests already use the arithmetic that verifying needs",
            source=f"{_GUIDE}; vllm-project/vllm issue 17984 (Llama 70B with 1B loses from 32 on)",
        )
