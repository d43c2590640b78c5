"""What a run showed → the sentence of each rule of practice, or nothing where it contradicts it.

A rule speaks where the run's own figures agree with it or cannot tell, and is silent where they
contradict it, first of all where the draft that it warns of pays. Reasons and sources stand in
`advice`.
"""

from __future__ import annotations

from draftbench.acceptance.templating import template_may_differ
from draftbench.planner.choice import TIMING_NOISE
from draftbench.planner.evidence import Evidence, candidate_of
from draftbench.planner.formula import best_k
from draftbench.planner.pairings import kinship
from draftbench.planner.recommendation import CellFigures

# From an α on, practice drafts so many tokens; from the last on, more or a tree.
_LENGTHS = ((0.5, 3, 4), (0.675, 4, 6), (0.8, 6, 8), (0.9, 8, 64))
_EXPECTED_ALPHA = {
    "same family and generation": (0.75, 0.85),
    "another generation": (0.70, 0.80),
    "another family": (0.40, 0.60),
}
_SLIGHT, _MANY_ROWS = 0.02, 32


def size_ratio(run: Evidence) -> str | None:
    """The draft is out of proportion, and does not pay."""
    cell = run.first
    if cell is None or run.pays(cell):
        return None
    draft, target = run.facts(cell), run.target
    if draft is None or target is None:
        return None
    times = target.parameters / draft.parameters
    if 10 <= times <= 50:
        return None
    return (
        f"{name_of(cell)} is {1 / times:.1%} of the target's parameters, 1 in {times:.3g}; "
        "practice takes drafts 10 to 30 times smaller, 2 to 5 % of a large target"
    )


def tiny(run: Evidence) -> str | None:
    """The draft is very small, and does not pay."""
    cell = run.first
    facts = None if cell is None else run.facts(cell)
    if cell is None or facts is None or facts.parameters >= 500e6 or run.pays(cell):
        return None
    return (
        f"{name_of(cell)} has {facts.parameters / 1e6:.3g} M parameters; practice takes nothing "
        "under 500 M for general traffic"
    )


def one_to_three(run: Evidence) -> str | None:
    """No draft of the usual size was tried for a large target."""
    target = run.target
    sizes = [facts.parameters for cell in run.cells if (facts := run.facts(cell)) is not None]
    if target is None or target.parameters < 30e9 or any(1e9 <= size <= 3.5e9 for size in sizes):
        return None
    return (
        f"for a target of {target.parameters / 1e9:.3g} B practice takes a draft of 1 to 3 B, and "
        "this run measured none: `draftbench suggest` names some"
    )


def small_target(run: Evidence) -> str | None:
    """The target is small, and speculation was not found to pay."""
    target = run.target
    if target is None or target.parameters >= 30e9 or run.answer.decision == "speculate":
        return None
    small = target.parameters < 10e9
    word = "usually not worth it" if small else "one to be careful with"
    speed = None if run.first is None else run.first.speedup_expected
    here = "" if speed is None else f"; the best draft here reaches {speed.value:.2f}×"
    return f"a target of {target.parameters / 1e9:.2g} B is {word}{here}"


def family(run: Evidence) -> str | None:
    """The draft is no close kin, or agrees less than close kin should; and does not pay."""
    cell = run.first
    if cell is None or cell.alpha is None or run.pays(cell):
        return None
    related = kinship(run.observed.manifest.question.target, cell.draft)
    if related is None:
        return None
    low, high = _EXPECTED_ALPHA[related]
    words = (
        f"{name_of(cell)} is of {'the ' if related.startswith('same') else ''}{related}, where "
        f"practice expects an α of {low:.0%} to {high:.0%}; here it is"
    )
    if related.startswith("same"):
        if cell.alpha.high >= low:
            return None
        other = template_may_differ(run.observed, candidate_of(cell))
        template = ("its chat template",) if other else ()
        rest = "its files" if cell.quant == "none" else "its quantization"
        return f"{words} {cell.alpha.value:.0%}: suspect {' or '.join((*template, rest))}"
    if cell.alpha.low > high:
        return None
    return f"{words} {cell.alpha.value:.0%}: try the target's own family and generation first"


def low_alpha(run: Evidence) -> str | None:
    """Too little is accepted, and the draft does not pay."""
    cell = run.first
    if cell is None or cell.alpha is None or cell.alpha.value >= 0.65 or run.pays(cell):
        return None
    worst = _worst_segment(run, cell)
    where = f", worst on {worst[0]} ({worst[1]:.0%})" if worst else ""
    return (
        f"α of {name_of(cell)} is {cell.alpha.value:.0%}{where}: under 65 % it is probably the "
        "wrong draft; `draftbench acceptance` shows where it is rejected"
    )


def high_alpha(run: Evidence) -> str | None:
    """Nearly all is accepted, and it is known not to pay."""
    cell = next((c for c in run.cells if c.alpha and c.alpha.value > 0.9), None)
    if cell is None or cell.alpha is None or cell.speedup_expected is None or run.pays(cell):
        return None
    cost = cell.draft_cost_ratio
    price = "" if cost is None else f" at c = {cost.value:.2f}"
    return (
        f"α of {name_of(cell)} is {cell.alpha.value:.0%} and its speed-up "
        f"{cell.speedup_expected.value:.2f}× at k = {cell.k}{price}: the draft is too dear, or k "
        "too high"
    )


def quantize(run: Evidence) -> str | None:
    """Whether the best quantized level of a draft beats the unquantized one, or would."""
    plain = next((cell for cell in run.cells if cell.quant == "none"), None)
    if plain is None or plain.speedup_expected is None:
        return None
    levels = [c for c in run.cells if c.draft == plain.draft and c.quant != "none"]
    now = plain.speedup_expected.value
    if not levels:
        then = run.changed(plain, points=-0.03, cost=0.6)
        if then is None or then <= (1 + TIMING_NOISE) * now:
            return None
        return (
            f"{plain.draft} was measured unquantized only: a c lower by 30 to 50 % and an α lower "
            f"by 2 to 4 points, as practice has it, would make about {then:.2f}× of {now:.2f}×"
        )
    best = levels[0]
    speed, before, after = best.speedup_expected, plain.draft_cost_ratio, best.draft_cost_ratio
    rates = plain.alpha, best.alpha
    if speed is None or speed.value <= (1 + TIMING_NOISE) * now or not (before and after):
        return None
    points = "unknown" if not (rates[0] and rates[1]) else (
        f"{100 * (rates[1].value - rates[0].value):+.1f} points"
    )  # fmt: skip
    return (
        f"{name_of(best)} against unquantized: c {after.value / before.value - 1:+.0%} (practice: "
        f"-30 to -50 %), α {points} (practice: -2 to -4), {speed.value:.2f}× instead of "
        f"{now:.2f}×: this run agrees that quantizing the draft pays"
    )


def distill(run: Evidence) -> str | None:
    """A little more α would buy much, and more than plain decoding."""
    cell = run.first
    if cell is None or cell.speedup_expected is None or (cell.alpha and cell.alpha.value > 0.9):
        return None
    some, more = run.changed(cell, 0.05), run.changed(cell, 0.10)
    now = cell.speedup_expected.value
    if some is None or more is None or more <= run.answer.min_speedup or some < 1.05 * now:
        return None
    return (
        f"distilling {name_of(cell)} on this traffic usually adds 5 to 10 points to α: by the "
        f"closed form {some:.2f}× to {more:.2f}× instead of {now:.2f}×"
    )


def k_by_alpha(run: Evidence) -> str | None:
    """No k was tried that practice would draft at this α, and of those tried the one nearest to
    them is the best, or none is known to be.
    """
    cell = run.first
    if cell is None or cell.alpha is None or cell.alpha.value < _LENGTHS[0][0]:
        return None
    low, high = next((a, b) for rate, a, b in reversed(_LENGTHS) if cell.alpha.value >= rate)
    below, above = ([k for k in run.lengths if k < low], [k for k in run.lengths if k > high])
    nearest = {*below[-1:], *above[:1]}
    if any(low <= k <= high for k in run.lengths) or (cell.best and cell.k not in nearest):
        return None
    range_ = "8 tokens, or a tree" if low == 8 else f"{low} to {high} tokens"
    return (
        f"at an α of {cell.alpha.value:.0%} practice drafts {range_}; this run tried k = "
        f"{', '.join(map(str, run.lengths))}"
    )


def temperature(run: Evidence) -> str | None:
    """Hotter requests accept less, so that fewer tokens are worth drafting. How many is not said:
    the closed form takes all positions alike, and this run's own k is of all temperatures.
    """
    cell = run.first
    if cell is None or cell.draft_cost_ratio is None or cell.verify_ratio is None:
        return None
    rates = run.alpha_by(cell, lambda t: t.sampling.temperature)
    if len(rates) < 2 or rates[max(rates)] > rates[min(rates)] - _SLIGHT:
        return None
    cold, hot = (
        best_k(
            rates[at],
            cell.draft_cost_ratio.value,
            largest=max(run.lengths),
            verify=cell.verify_ratio.value,
        )
        for at in (min(rates), max(rates))
    )
    if hot >= cold:
        return None
    over_all = f"; over all of them k = {cell.k} was best" if cell.best else ""
    return (
        f"α of {name_of(cell)} is {rates[min(rates)]:.0%} at temperature {min(rates):g} and "
        f"{rates[max(rates)]:.0%} at {max(rates):g}: draft fewer tokens for hotter requests than "
        f"for colder ones{over_all}"
    )


def many_rows(run: Evidence) -> str | None:
    """Many requests at once were not measured, or were and nothing paid."""
    levels = [level for level in run.answer.levels if level.concurrency >= _MANY_ROWS]
    if any(level.decision == "speculate" for level in levels):
        return None
    lost = [level for level in levels if level.decision == "do_not_speculate"]
    if lost:
        least = min(level.concurrency for level in lost)
        return f"no draft pays at {least} requests at once, as practice has it from 32 on"
    if run.answer.decision != "speculate":
        return None
    most = max(run.observed.manifest.question.batches)
    measured = "one request" if most == 1 else f"up to {most} requests"
    return (
        f"measured with {measured} at a time: from 32 on, and for offline work, speculation "
        "usually stops paying; sweep there before serving"
    )


def _worst_segment(run: Evidence, cell: CellFigures) -> tuple[str, float] | None:
    rates = run.alpha_by(cell, lambda t: t.segment)
    if len(rates) < 2:
        return None
    worst = min(rates, key=lambda name: rates[name])
    return str(worst or "no segment"), rates[worst]


def name_of(cell: CellFigures) -> str:
    """A draft at its level in words."""
    return str(candidate_of(cell))
