"""The numbers behind a drawing, and what they say, for the place beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftbench.acceptance.breakdown import TENTHS, THIRDS
from draftbench.memory import format_size
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF
from draftbench.report.figures import ByGroup, Figures
from draftbench.report.markup import Html, element, together
from draftbench.report.page.tables import number, size, table
from draftbench.report.terminal.load import by_concurrency, of_load, of_waits, waits
from draftbench.report.terminal.recommendation import evidence


def beside(key: str, answer: Recommendation, figures: Figures) -> Html | None:
    """What stands beside the drawing of a section; None where it stands alone."""
    write = _WRITERS.get(key)
    return None if write is None else element("aside", *write(answer, figures))


def _economy(answer: Recommendation, _: Figures) -> list[Html]:
    rows = []
    for cell in answer.by_candidate:
        if cell.draft == SELF:
            continue
        if cell.alpha is not None and cell.draft_cost_ratio is not None:
            least = cell.break_even_alpha
            needed = "none would do" if least is None else f"{least:.2f}"
            name = str(cell.candidate)
            cost = number(cell.draft_cost_ratio)
            rows.append([name, str(cell.k), number(cell.alpha), cost, needed])
    return [
        table(["draft", "k", "α", "c", "α needed"], rows),
        element(
            "p", "α needed: from which this k pays for this c and this v(k+1), by the closed form."
        ),
    ]


def _glance(answer: Recommendation, _: Figures) -> list[Html]:
    return [element("ul", *(element("li", line) for line in evidence(answer)))]


def _positions(_: Recommendation, figures: Figures) -> list[Html]:
    head = ["draft", "", *(f"i = {i}" for i in range(1, figures.positions[0].k + 1))]
    rows = [
        [found.candidate if what == "survival" else "", what, *map(number, values)]
        for found in figures.positions
        for what, values in (("survival", found.survival), ("hazard", found.hazard))
    ]
    return [_numbers(table(head, rows, words=2))]


def _lengths(_: Recommendation, figures: Figures) -> list[Html]:
    most = max(len(found.expected) for found in figures.lengths)
    rows = [
        [name if of == "replay" else "", k if of == "replay" else "", of, *_shares(shares, most)]
        for found in figures.lengths
        for name, k in [(found.candidate, str(found.k))]
        for of, shares in (("replay", found.expected), ("measured", found.counted))
        if shares is not None
    ]
    words = (
        "Replay covers all requests, the runs some of them. Far apart, the draft in the decoder is "
        "not the draft that was replayed."
    )
    head = ["draft", "k", "", *(f"{n} accepted" for n in range(most))]
    return [element("p", words), _numbers(table(head, rows, words=3), "The numbers")]


def _shares(shares: Sequence[float], most: int) -> list[str]:
    """Percentages with their exact values, padded to as many columns as the longest row."""
    known = [element("data", f"{share:.1%}", value=repr(share)) for share in shares]
    return [*known, *[""] * (most - len(known))]


def _crossed(_: Recommendation, figures: Figures) -> list[Html]:
    found = figures.crossed
    assert found is not None
    rows = [
        [segment, f"{temperature:g}", str(requests), number(rate)]
        for segment, counts, rates in zip(found.segments, found.requests, found.alpha, strict=True)
        for temperature, requests, rate in zip(found.temperatures, counts, rates, strict=True)
        if requests
    ]
    known = [
        (rate.value, f"{segment} at temperature {temperature:g}", rate)
        for segment, rates in zip(found.segments, found.alpha, strict=True)
        for temperature, rate in zip(found.temperatures, rates, strict=True)
        if rate is not None
    ]
    ends = [("Accepted most", max(known)), ("Accepted least", min(known))] if len(known) > 1 else []
    lines = [
        element("li", f"{words}: {where}, α ", number(rate)) for words, (_, where, rate) in ends
    ]
    head = ["segment", "temperature", "requests", "α"]
    return [element("ul", *lines), _numbers(table(head, rows))]


def _segments(_: Recommendation, figures: Figures) -> list[Html]:
    return _by_group(figures.segments)


def _temperatures(_: Recommendation, figures: Figures) -> list[Html]:
    return _by_group(figures.temperatures)


def _by_group(found: ByGroup | None) -> list[Html]:
    assert found is not None
    rows = [
        [name if first else "", what, *map(number, values)]
        for name, rates, tokens in zip(
            found.candidates, found.alpha, found.tokens_per_round, strict=True
        )
        for first, what, values in ((True, "α", rates), (False, "tokens per round", tokens))
    ]
    names = zip(found.groups, found.requests, strict=True)
    head = ["draft", "", *(f"{name} (n = {n})" for name, n in names)]
    return [_numbers(table(head, rows, words=2))]


def _numbers(of: Html, words: str = "The numbers, with their intervals") -> Html:
    """A table that is read when it is asked for."""
    return element("details", element("summary", words), of)


def _response(_: Recommendation, figures: Figures) -> list[Html]:
    rows = []
    said: dict[str, list[str]] = {}
    for name, found in figures.breakdowns.items():
        groups = {group.name: group.alpha for group in found.groups if group.by == "third"}
        rows.append([name, *(number(groups.get(third)) for third in THIRDS)])
        if found.reading is not None and name != SELF:
            said.setdefault(found.reading, []).append(name)
    lines = [element("li", f"{', '.join(names)}: {text}.") for text, names in said.items()]
    words = element("ul", *lines) if lines else element("p", "No draft differs clearly at one end.")
    shares = [
        [name, *map(number, found.rejections)]
        for name, found in figures.breakdowns.items()
        if found.rejections
    ]
    tenths = ["rejections in tenth", *map(str, range(1, TENTHS + 1))]
    parts = [table(["α of", *THIRDS], rows), *([table(tenths, shares)] if shares else [])]
    return [words, _numbers(together(parts))]


def _prediction(answer: Recommendation, _: Figures) -> list[Html]:
    rows = [
        [
            str(cell.candidate),
            str(cell.k),
            number(cell.speedup_measured, "×"),
            f"{cell.prediction_error:+.1%}",
        ]
        for cell in answer.evaluations
        if cell.speedup_measured is not None and cell.prediction_error is not None
    ]
    error = answer.prediction_error
    words = (
        None
        if error is None
        else f"Off by {error.median:.1%} in the median and {error.worst:.1%} at worst."
    )
    head = ["draft", "k", "measured", "prediction off by"]
    return [element("p", words), _numbers(table(head, rows))]


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
    few = "–: too few values for that percentile."
    return [*blocks, *(element("p", line) for line in (*of_waits(answer.latency), few))]


def _memory(answer: Recommendation, figures: Figures) -> list[Html]:
    cells = answer.by_candidate
    rows = [[str(c.candidate), size(c.memory_bytes)] for c in cells]
    target = format_size(figures.target_bytes or 0)
    return [
        table(["draft", "weights and cache"], rows),
        element("p", f"The target's weights take {target}."),
    ]


_WRITERS: dict[str, Callable[[Recommendation, Figures], list[Html]]] = {
    "economy": _economy,
    "glance": _glance,
    "positions": _positions,
    "lengths": _lengths,
    "crossed": _crossed,
    "segments": _segments,
    "temperatures": _temperatures,
    "response": _response,
    "load": _load,
    "prediction": _prediction,
    "times": _times,
    "memory": _memory,
}
