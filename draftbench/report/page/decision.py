"""An answer → the head of its report: the decision, why in two sentences, and its key figures."""

from __future__ import annotations

from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.report.markup import Html, element, together
from draftbench.report.page.tables import number, size
from draftbench.report.terminal.recommendation import headline, provisional
from draftbench.report.terminal.speedups import off
from draftbench.run_folder.manifest import Manifest

_SPEED_UP = "speed\N{NON-BREAKING HYPHEN}up"


def head(manifest: Manifest, answer: Recommendation) -> Html:
    """The decision in one large line, its reason, its key figures."""
    question = manifest.question
    eyebrow = element(
        "p",
        element("b", "draftbench"),
        f" · target: {_last(question.target)} · traffic: {_last(question.traffic)} · "
        f"{answer.requests} requests",
        class_="eyebrow",
    )
    cell = leader(answer)
    reason = together([*_speed(answer, cell), " ", *_doubt(answer, cell)])
    warning = provisional(answer)
    # A large line breaks before "concurrency 4" or behind it, not inside.
    title = headline(answer).replace("concurrency ", "concurrency\N{NO-BREAK SPACE}")
    return together(
        [
            eyebrow,
            element(
                "div",
                element("h1", title),
                element("p", warning, class_="provisional") if warning else None,
                element("p", reason, class_="lead"),
                _tiles(cell, answer) if cell else None,
                class_=f"decision {answer.decision}",
            ),
        ]
    )


def leader(answer: Recommendation) -> Evaluation | None:
    """The cell that came out first; None where no speed is known."""
    return next((c for c in answer.evaluations if _is_leader(answer, c)), None)


def _is_leader(answer: Recommendation, cell: Evaluation) -> bool:
    best = answer.leader
    return best is not None and (best.draft, best.quant, best.k) == (cell.draft, cell.quant, cell.k)


def _speed(answer: Recommendation, cell: Evaluation | None) -> list[str]:
    """How fast the best candidate is, and how that is known."""
    if cell is None:
        return ["No candidate's speed is known, so nothing can be recommended."]
    subject = "Decoding runs at" if answer.choice else f"The best candidate, {_name(cell)}, runs at"
    predicted = number(cell.speedup_predicted, "×")
    if answer.speedup_without_interval is not None:
        return [f"Too few requests for an interval of the speed-up of {_name(cell)}."]
    if not cell.requests_measured:
        return [subject, " ", predicted, " the speed of plain decoding, predicted, not measured."]
    return [
        subject,
        " ",
        number(cell.speedup_expected, "×"),
        " the speed of plain decoding, expected: ",
        predicted,
        f" predicted for all {answer.requests} requests, corrected by ",
        number(cell.speedup_measured, "×"),
        f" measured on {cell.requests_measured}",
        off(cell),
        ".",
    ]


def _doubt(answer: Recommendation, cell: Evaluation | None) -> list[str]:
    """How sure the decision is, or what would settle it."""
    if cell is None:
        return []
    if answer.decision == "inconclusive":
        more = f", and about {answer.requests_needed} would" if answer.requests_needed else ""
        asked = f"{answer.min_speedup:g}×"
        return [f"These requests cannot tell whether that is above the asked {asked}{more}."]
    sure = ""
    if answer.probability_best is not None:
        sure = f"the best answer, or as good, in {answer.probability_best:.0%} of resamples"
    if answer.decision == "do_not_speculate" and answer.min_speedup > 1:
        return [f"That is below the asked {answer.min_speedup:g}×."]
    if answer.decision == "do_not_speculate":
        return [f"Plain decoding is {sure or 'at least as fast'}."]
    other = answer.runner_up
    rival = f"; the runner-up is {other.draft}:{other.quant}, {_k(other.k)}" if other else ""
    return [f"It is {sure or 'ahead'}{rival.replace(':none', '')}."]


def _tiles(cell: Evaluation, answer: Recommendation) -> Html:
    measured, whole = cell.speedup_measured, cell.speedup_end_to_end
    tiles = [
        (f"expected {_SPEED_UP}", number(cell.speedup_expected, "×")) if measured else None,
        (f"measured {_SPEED_UP}", number(measured, "×")) if measured else None,
        (f"predicted {_SPEED_UP}", number(cell.speedup_predicted, "×")),
        ("predicted, with both prefills", number(whole, "×")) if whole else None,
        (f"mean accepted length τ at {_k(cell.k)}", number(cell.mean_accepted_length)),
        ("draft cost ratio c", number(cell.draft_cost_ratio)),
        ("memory: the draft's weights and cache", size(cell.memory_bytes)),
    ]
    shown = [tile for tile in tiles if tile is not None]
    return element(
        "dl",
        *(element("div", element("dt", what), element("dd", value)) for what, value in shown),
        class_="tiles",
    )


def _name(cell: Evaluation) -> str:
    level = "" if cell.quant == "none" else f":{cell.quant}"
    return f"{cell.draft}{level} at k = {cell.k}"


def _k(k: int) -> str:
    """A draft length that no line breaks."""
    return f"k = {k}".replace(" ", "\N{NO-BREAK SPACE}")


def _last(path: str) -> str:
    """A directory by its own name; hub ids and suites as they are."""
    return path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path
