"""Several runs → the head of their page: the answers in one table, each draft run by run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftbench.report.charts.across import across, by_candidate
from draftbench.report.markup import Html, element
from draftbench.report.page import tables
from draftbench.report.page.decision import leader
from draftbench.report.page.sections import Run, figure
from draftbench.report.terminal.recommendation import headline
from draftbench.run_folder.manifest import differing_question


def side_by_side(runs: Sequence[Run]) -> Html:
    """What the runs answer, what they did not ask alike, and every draft in each of them."""
    answers = [(Path(run.name).name, run.answer) for run in runs]
    figures = [figure(drawing, "") for drawing in across(answers)]
    return element(
        "header",
        element("p", element("b", "draftbench"), f" · {len(runs)} runs", class_="eyebrow"),
        element("h1", "Runs side by side"),
        _answers(runs),
        element("p", _questions(runs)),
        element("div", *figures, element("aside", _drafts(runs)), class_="figures"),
    )


def _answers(runs: Sequence[Run]) -> Html:
    rows = []
    for at, run in enumerate(runs, 1):
        cell = leader(run.answer)
        rows.append(
            [
                element("a", f"{at}: {run.name}", href=f"#run-{at}-run"),
                f"{headline(run.answer)}{' (provisional)' if run.answer.provisional else ''}",
                run.answer.machine,
                str(run.answer.requests),
                tables.number(cell.speedup_predicted if cell else None, "×"),
                tables.number(cell.speedup_measured if cell else None, "×"),
                tables.number(cell.speedup_expected if cell else None, "×"),
            ]
        )
    head = ["run", "decision", "machine", "requests", "predicted", "measured", "expected"]
    return tables.table(head, rows, words=3, cards=True)


def _questions(runs: Sequence[Run]) -> str:
    first = runs[0].observed.manifest
    changed = {
        name for run in runs[1:] for name in differing_question(first, run.observed.manifest)
    }
    if not changed:
        return "The runs asked the same question."
    return (
        f"The runs asked different questions ({', '.join(sorted(changed))}): "
        "compare their figures with that in mind."
    )


def _drafts(runs: Sequence[Run]) -> Html:
    """Each draft's best k and speed-up, a row per run."""
    rows = []
    for name, cells in by_candidate([(run.name, run.answer) for run in runs]).items():
        for at, cell in enumerate(cells, 1):
            if cell is not None:
                rows.append(
                    [
                        name,
                        str(at),
                        str(cell.k),
                        tables.number(cell.speedup_measured, "×"),
                        tables.number(cell.speedup_expected, "×"),
                    ]
                )
    return tables.table(["draft", "run", "k", "measured", "expected"], rows)
