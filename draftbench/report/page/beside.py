"""The numbers behind a drawing, and what they say, for the place beside it."""

from __future__ import annotations

from collections.abc import Callable

from draftbench.acceptance.breakdown import THIRDS
from draftbench.plan.formula import break_even_alpha
from draftbench.plan.recommendation import Recommendation
from draftbench.records import SELF, Candidate
from draftbench.report.figures import Figures
from draftbench.report.load import by_concurrency, of_load, of_waits, waits
from draftbench.report.markup import Html, element
from draftbench.report.page.tables import number, size, table
from draftbench.report.recommendation import shown
from draftbench.report.text import memory


def beside(key: str, answer: Recommendation, figures: Figures) -> Html | None:
    """What stands beside the drawing of a section; None where it stands alone."""
    write = _WRITERS.get(key)
    return None if write is None else element("aside", *write(answer, figures))


def _economy(answer: Recommendation, _: Figures) -> list[Html]:
    rows = []
    for cell in shown(answer):
        if cell.alpha is not None and cell.draft_cost_ratio is not None:
            least = break_even_alpha(cell.k, cell.draft_cost_ratio.value)
            needed = "none would do" if least is None else f"{least:.2f}"
            name = str(Candidate(draft=cell.draft, quant=cell.quant))
            cost = number(cell.draft_cost_ratio)
            rows.append([name, str(cell.k), number(cell.alpha), cost, needed])
    return [
        table(["draft", "k", "α", "c", "α needed"], rows),
        element("p", "α needed: from which this k pays for this c, by the same closed form."),
    ]


def _lengths(_: Recommendation, figures: Figures) -> list[Html]:
    found = figures.lengths
    assert found is not None
    counted = found.counted or [None] * len(found.expected)
    rows = [
        [str(at), f"{share:.1%}", "–" if ran is None else f"{ran:.1%}"]
        for at, (share, ran) in enumerate(zip(found.expected, counted, strict=True))
    ]
    words = (
        "Replay covers all requests, the runs some of them. Far apart, the draft in the decoder is "
        "not the draft that was replayed."
    )
    return [table(["accepted", "replay", "measured"], rows), element("p", words)]


def _thirds(_: Recommendation, figures: Figures) -> list[Html]:
    rows = []
    said: dict[str, list[str]] = {}
    for name, found in figures.breakdowns.items():
        groups = {group.name: group.alpha for group in found.groups if group.by == "third"}
        rows.append([name, *(number(groups.get(third)) for third in THIRDS)])
        if found.reading is not None and name != SELF:
            said.setdefault(found.reading, []).append(name)
    lines = [element("li", f"{', '.join(names)}: {text}.") for text, names in said.items()]
    words = element("ul", *lines) if lines else element("p", "No draft differs clearly at one end.")
    return [table(["draft", *THIRDS], rows), words]


def _prediction(answer: Recommendation, _: Figures) -> list[Html]:
    rows = [
        [
            str(Candidate(draft=cell.draft, quant=cell.quant)),
            str(cell.k),
            number(cell.speedup_measured, "×"),
            f"{cell.prediction_error:+.1%}",
        ]
        for cell in answer.candidates
        if cell.speedup_measured is not None and cell.prediction_error is not None
    ]
    error = answer.prediction_error
    words = (
        None
        if error is None
        else f"Off by {error.median:.1%} in the median and {error.worst:.1%} at worst."
    )
    return [table(["draft", "k", "measured", "prediction off by"], rows), element("p", words)]


def _load(answer: Recommendation, _: Figures) -> list[Html]:
    found = by_concurrency(answer)
    assert found is not None
    return [table(*found, words=0), *(element("p", line) for line in of_load(answer))]


def _times(answer: Recommendation, figures: Figures) -> list[Html]:
    assert figures.times is not None
    if answer.latency is None:
        return []
    (_, *head), rows = waits(answer.latency)
    blocks: list[Html] = []
    for at in range(0, len(rows), 2):
        pair = [row[1:] for row in rows[at : at + 2]]
        blocks += [element("h3", f"{rows[at][0]} (ms)"), table(head, pair)]
    return [*blocks, *(element("p", line) for line in of_waits(answer.latency))]


def _memory(answer: Recommendation, figures: Figures) -> list[Html]:
    cells = shown(answer)
    rows = [[str(Candidate(draft=c.draft, quant=c.quant)), size(c.memory_bytes)] for c in cells]
    target = memory(figures.target_bytes or 0)
    return [
        table(["draft", "weights and cache"], rows),
        element("p", f"The target's weights take {target}."),
    ]


_WRITERS: dict[str, Callable[[Recommendation, Figures], list[Html]]] = {
    "economy": _economy,
    "lengths": _lengths,
    "thirds": _thirds,
    "load": _load,
    "prediction": _prediction,
    "times": _times,
    "memory": _memory,
}
