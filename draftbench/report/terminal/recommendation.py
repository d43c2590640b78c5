"""A recommendation → a table for people, Markdown for a page, JSON and CSV for programs.

Renders what the planner decided and computes nothing. JSON is the recommendation's own fields with
the run's failures beside them; CSV holds one line per candidate and k with every figure's interval.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from textwrap import indent

import msgspec

from draftbench.acceptance.intervals import Estimate
from draftbench.memory import format_size
from draftbench.planner.options import RANKS_BY
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.records import Failure
from draftbench.report.terminal.load import (
    Table,
    at_load,
    break_even,
    by_concurrency,
    of_load,
    of_waits,
    waits,
)
from draftbench.report.terminal.speedups import (
    by_name,
    cell_of,
    deciding,
    end_to_end,
    without_interval,
)
from draftbench.report.terminal.text import columns, figure, paragraph, plain
from draftbench.safe_files import markdown_escaped

HEADLINES = {
    "speculate": "Speculate",
    "do_not_speculate": "Do not speculate",
    "inconclusive": "Inconclusive",
}
FIGURES = (
    "alpha",
    "mean_accepted_length",
    "tokens_per_round",
    "accepted_per_drafted",
    "draft_cost_ratio",
    "verify_ratio",
    "speedup_predicted",
    "speedup_measured",
    "speedup_expected",
    "speedup_end_to_end",
    "speedup_end_to_end_expected",
    "mean_accepted_length_measured",
    "accepted_per_drafted_measured",
)
LEGEND = (
    "± is half of a 95 % interval: over requests, of c over timing repeats; times are within one "
    "process; τ, the mean accepted length, is tokens per round that drafted, the bonus token "
    "included; tokens per round (below) count rounds without a draft too; c is per draft token; "
    "expected is the prediction times measured / predicted on the measured requests"
)
MEMORY_LEGEND = "; memory is a draft's weights and its cache for the longest request"
ROOMY, WIDE, WIDEST = 88, 100, 112


def render(answer: Recommendation, style: str, width: int) -> str:
    """The answer as table, json, markdown or csv; `width` in columns matters to the table only."""
    if style == "json":
        return _json(answer)
    if style == "csv":
        return _csv(answer)
    if style == "markdown":
        return _markdown(answer)
    return _text(answer, width)


def headline(answer: Recommendation) -> str:
    """The decision in one line."""
    words = f"{HEADLINES[answer.decision]}{at_load(answer)}"
    if answer.choice is not None:
        return f"{words}: {_name(answer.choice)}, k = {answer.choice.k}"
    if answer.speedup_without_interval is not None:
        return f"{words}: {without_interval(answer)}: too few for an interval"
    if answer.decision == "inconclusive" and answer.requests_needed:
        return f"{words}: about {answer.requests_needed} requests would settle it"
    return words


def provisional(answer: Recommendation) -> str | None:
    """Why the decision may not last, for the line below it; None where nothing is known to."""
    doubts = [caveat.text for caveat in answer.decisive_caveats]
    return f"Provisional: {'; '.join(doubts)}." if doubts else None


def evidence(answer: Recommendation) -> list[str]:
    """The figures behind the decision, a sentence each."""
    if answer.leader is None and answer.decision == "do_not_speculate":
        return ["No candidate keeps the limits."]
    if answer.leader is None:
        return ["No candidate's speed is known."]
    leader, cell = _name(answer.leader), cell_of(answer, answer.leader)
    subject = "" if answer.choice else f"Best was {leader}, k = {answer.leader.k}. "
    lines = [f"{subject}{by_name(cell, answer.requests)}"]
    lines += [line for line in (deciding(answer, cell), end_to_end(cell)) if line]
    if answer.probability_best is not None and answer.expected_regret is not None:
        lines.append(
            f"The right answer with probability {answer.probability_best:.2f}; "
            f"expected loss against the best {answer.expected_regret:.1%}."
        )
    if answer.runner_up is not None:
        second = cell_of(answer, answer.runner_up)
        speed = second.speedup_expected or second.speedup_predicted
        slower = speed is not None and speed.value < 1
        name = f"{_name(answer.runner_up)}, k = {answer.runner_up.k}"
        lines.append(f"Runner-up: {'plain decoding' if slower else name}.")
    lines += [line for line in (break_even(answer),) if line]
    if answer.objective != "speedup":
        lines.append(f"Ranked by {RANKS_BY[answer.objective]}.")
    if answer.decision == "inconclusive":
        lines.append(_would_tell(cell, answer.requests))
    return lines


def _would_tell(cell: Evaluation, requests: int) -> str:
    """What to run where the answer is open."""
    if 0 < cell.requests_measured < requests:
        return (
            f"The same sweep with `--measure-requests {requests}` decodes all {requests} requests, "
            "which may tell; if not, a larger `--sample` in another `--out`."
        )
    return "More requests would tell: a larger `--sample` in another `--out`."


def _name(pick: Configuration) -> str:
    return str(pick.candidate)


Column = tuple[str, Callable[[Evaluation], str]]


def _columns(width: int) -> list[Column]:
    verify: list[Column] = [("v(k+1)", lambda c: figure(c.verify_ratio))]
    predicted: list[Column] = [("predicted ×", lambda c: figure(c.speedup_predicted))]
    bytes_too: list[Column] = [
        ("memory", lambda c: "–" if c.memory_bytes is None else format_size(c.memory_bytes))
    ]
    return [
        ("draft", lambda c: _name(c.configuration)),
        ("k", lambda c: str(c.k)),
        ("α", lambda c: figure(c.alpha)),
        ("τ", lambda c: figure(c.mean_accepted_length)),
        ("c", lambda c: figure(c.draft_cost_ratio)),
        *(verify if width >= WIDEST else []),
        *(predicted if width >= WIDE else []),
        ("measured ×", lambda c: figure(c.speedup_measured)),
        ("expected ×", lambda c: figure(c.speedup_expected)),
        *(bytes_too if width >= ROOMY else []),
    ]


def _rows(answer: Recommendation, width: int) -> tuple[list[str], list[list[str]]]:
    wanted = _columns(width)
    rows = []
    for cell in answer.by_candidate:
        chosen = answer.choice == cell.configuration
        rows.append(["→" if chosen else "", *(show(cell) for _, show in wanted)])
    return ["", *(head for head, _ in wanted)], rows


def _losers(answer: Recommendation) -> list[str]:
    return [f"{_name(c.configuration)}: {c.reason}" for c in answer.by_candidate if c.reason]


def _failures(failures: Sequence[Failure]) -> list[str]:
    return [f"{plain(str(f.candidate or 'target'))}: {plain(f.reason)}" for f in failures]


def _text(answer: Recommendation, width: int) -> str:
    head, rows = _rows(answer, width)
    doubt = provisional(answer)
    top = [headline(answer), *([paragraph(doubt, width, "")] if doubt else [])]
    blocks = ["\n".join(top), "\n".join(paragraph(s, width, "  ") for s in evidence(answer))]
    blocks.append(columns(head, rows))
    blocks.append(paragraph(LEGEND + (MEMORY_LEGEND if width >= ROOMY else ""), width, ""))
    for title, table, lines in _sections(answer):
        shown = [indent(columns(*table), "  ")] if table else []
        shown += [paragraph(line, width, "  ") for line in lines]
        blocks.append("\n".join([title, *shown]))
    return "\n\n".join(blocks)


def _sections(answer: Recommendation) -> list[tuple[str, Table | None, list[str]]]:
    """What follows the candidates: a title, perhaps a table, and sentences; empty ones left out."""
    waited = answer.latency
    sections = [
        ("By concurrency", by_concurrency(answer), of_load(answer)),
        ("Why the others lost", None, _losers(answer)),
        ("Not measured", None, _failures(answer.failures)),
        ("Checks", None, list(answer.checks)),
        (
            "Latency, measured",
            waits(waited) if waited else None,
            of_waits(waited) if waited else [],
        ),
        ("Caveats", None, [c.text for c in answer.caveats if not c.decisive]),
        (
            "Rules of thumb",
            None,
            [f"{one.sentence} ({one.source})" for one in answer.advice],
        ),
    ]
    return [section for section in sections if section[1] or section[2]]


def _markdown(answer: Recommendation) -> str:
    doubt = provisional(answer)
    lines = [
        f"## {markdown_escaped(headline(answer))}",
        "",
        *([markdown_escaped(doubt), ""] if doubt else []),
    ]
    lines += [*(markdown_escaped(s) for s in evidence(answer)), ""]
    lines += [*_piped(_rows(answer, 200)), "", markdown_escaped(LEGEND + MEMORY_LEGEND)]
    for title, table, items in _sections(answer):
        lines += ["", f"### {title}", ""]
        lines += [*_piped(table), ""] if table else []
        lines += [f"- {markdown_escaped(item)}" for item in items]
    return "\n".join(lines)


def _piped(table: Table) -> list[str]:
    head, rows = table
    return [
        "| " + " | ".join(map(markdown_escaped, row)) + " |"
        for row in [head, ["---"] * len(head), *rows]
    ]


def _json(answer: Recommendation) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def _csv(answer: Recommendation) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    spread = [f"{name}{end}" for name in FIGURES for end in ("", "_low", "_high")]
    writer.writerow(["draft", "quant", "k", "best", *spread, "prediction_error", "memory_bytes"])
    for cell in answer.evaluations:
        figures: list[float | None] = []
        for name in FIGURES:
            value: Estimate | None = getattr(cell, name)
            figures += [None] * 3 if value is None else [value.value, value.low, value.high]
        own = [cell.draft, cell.quant, cell.k, int(cell.best)]
        writer.writerow([*own, *figures, cell.prediction_error, cell.memory_bytes])
    return stream.getvalue().rstrip("\n")
