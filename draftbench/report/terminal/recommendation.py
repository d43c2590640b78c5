"""A recommendation on one screen: the decision, what it rests on, the candidates, and what to run
next. Everything else is in `details`, in JSON and in CSV.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from draftbench.acceptance.intervals import Estimate
from draftbench.memory import format_size
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.records import to_json
from draftbench.report.terminal.details import all_sections
from draftbench.report.terminal.text import (
    SCREEN_COLUMNS,
    SCREEN_LINES,
    Table,
    columns,
    counted,
    csv_text,
    figure,
    markdown_table,
    paragraph,
    plain,
    shortened,
    times,
)
from draftbench.safe_files import markdown_escaped

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
_DECISIONS = {
    "speculate": "Speculate",
    "do_not_speculate": "Do not speculate",
    "inconclusive": "Inconclusive",
}
_MOST_ROWS, _MOST_CAVEATS = 6, 2
_NAME, _SHORTEST_NAME = 40, 12
_LEGEND = "± half a 95% interval; τ accepted length; c draft step / target step"
# Caveats of the short answer, where they do not already make it provisional.
_URGENT = (
    "output-differs",
    "suspected-fault",
    "failed",
    "revised",
    "borrowed-costs",
    "not-measured",
    "looping",
    "stalled",
    "throttled",
    "pass-timings",
    "no-fast-kernel",
)


def render(
    answer: Recommendation,
    style: str,
    width: int,
    *,
    everything: bool = False,
    commands: Sequence[str] = (),
) -> str:
    """As table, json, markdown or csv; JSON and CSV always hold everything.

    `commands` are what to run next, named below a table.
    """
    if style == "json":
        return to_json(answer)
    if style == "csv":
        return _csv(answer)
    if everything and style == "markdown":
        lines = [f"## {markdown_escaped(headline(answer))}"]
        sections = [section.markdown() for section in all_sections(answer)]
        return "\n\n".join([*lines, *map(markdown_escaped, _reasons(answer)), *sections])
    if everything:
        top = [headline(answer), *_reasons(answer)]
        blocks = ["\n".join(paragraph(line, width) for line in top)]
        blocks += [section.text(width) for section in all_sections(answer)]
        return "\n\n".join(blocks)
    return _markdown(answer) if style == "markdown" else _screen(answer, width, commands)


def headline(answer: Recommendation) -> str:
    """The decision in one line."""
    several = len(answer.levels) > 1 or answer.concurrency != 1
    decision = _DECISIONS[answer.decision]
    if several:
        decision += f" at concurrency {answer.concurrency}"
    if answer.choice is not None:
        return f"{decision}: {_named(answer.choice)}"
    if answer.speedup_without_interval is not None:
        return (
            f"{decision}: {answer.speedup_without_interval:.2f}×, but too few requests for an "
            "interval"
        )
    if answer.decision == "inconclusive" and answer.requests_needed:
        return f"{decision}: about {answer.requests_needed} requests would settle it"
    return decision


def provisional(answer: Recommendation) -> str | None:
    """Why a longer or quieter run could decide otherwise; None where nothing speaks for that, and
    where no speed is known.
    """
    if answer.leader is None:
        return None
    reasons = dict.fromkeys(caveat.short or caveat.text for caveat in answer.decisive_caveats)
    return f"Provisional: {'; '.join(reasons)}." if reasons else None


def speed_up(answer: Recommendation) -> str:
    """The speed-up that decides, with its interval and what it rests on."""
    leader, deciding = answer.leading_evaluation, answer.speedup_deciding
    if leader is None:
        unknown = [caveat.text for caveat in answer.caveats if caveat.kind == "no-speed"]
        return _sentence(unknown[0]) if unknown else "No candidate's speed is known."
    included = "prefills included" if answer.objective == "latency" else "decode only"
    subject = "Speed-up" if answer.choice else f"Best: {_named(leader.configuration)},"
    asked = "" if answer.min_speedup == 1 else f"; {answer.min_speedup:g}× is asked for"
    figure = "unknown (too few requests for an interval)" if deciding is None else times(deciding)
    return f"{subject} {figure}, {included}, {_basis(answer, leader)}{asked}"


def _basis(answer: Recommendation, leader: Evaluation) -> str:
    if not leader.requests_measured:
        return f"predicted for {counted(answer.requests, 'request')}, never decoded"
    if not leader.corrected:
        few = counted(leader.requests_measured, "decoded request")
        return f"predicted for {counted(answer.requests, 'request')}, {few} too few to correct it"
    if leader.requests_measured == answer.requests:
        return f"measured on {counted(answer.requests, 'request')}"
    return f"measured on {leader.requests_measured} of {counted(answer.requests, 'request')}"


def _reasons(answer: Recommendation) -> list[str]:
    """What stands below the headline."""
    lines = [provisional(answer), speed_up(answer), _settle(answer)]
    return [line for line in lines if line]


def _settle(answer: Recommendation) -> str | None:
    """What to run where the decision is open."""
    leader = answer.leading_evaluation
    if answer.decision != "inconclusive":
        return None
    if leader is not None and 0 < leader.requests_measured < answer.requests:
        return (
            f"To settle it: the same sweep with --measure-requests {answer.requests}, or a larger "
            "--sample in another --out."
        )
    return "To settle it: a larger --sample in another --out."


def _runner_up(answer: Recommendation) -> str | None:
    if answer.runner_up is None:
        return None
    second = answer.evaluation_of(answer.runner_up)
    return f"Runner-up: {_named(answer.runner_up)}, {second.reason}." if second.reason else None


def _unknown(answer: Recommendation) -> str | None:
    """Why the speed of the first candidate is unknown or out of the question, where none leads."""
    if answer.leader is not None or not answer.by_candidate:
        return None
    first = answer.by_candidate[0]
    return f"{_named(first.configuration)}: {first.reason}" if first.reason else None


def schedule(answer: Recommendation) -> str | None:
    """k by concurrency with the leader's draft, which is what an engine loads."""
    if len(answer.schedule) < 2 or answer.leader is None:
        return None
    ks = ", ".join(
        f"{entry.concurrency} → {'open' if entry.k is None else entry.k}"
        for entry in answer.schedule
    )
    off = " (0: do not speculate)" if any(entry.k == 0 for entry in answer.schedule) else ""
    name = shortened(str(answer.leader.candidate), _NAME)
    return f"k by concurrency with {name}: {ks}{off}"


def _below(answer: Recommendation) -> list[str]:
    """What stands below the table."""
    lines = (_unknown(answer), _runner_up(answer), schedule(answer))
    return [line for line in lines if line]


def _urgent(answer: Recommendation) -> list[str]:
    """The other caveats that matter most."""
    rest = [caveat for caveat in answer.caveats if not caveat.decisive and caveat.kind in _URGENT]
    rest.sort(key=lambda caveat: _URGENT.index(caveat.kind))
    return [f"Caveat: {caveat.text}" for caveat in rest[:_MOST_CAVEATS]]


def _table(answer: Recommendation, longest_name: int, most: int) -> Table:
    shown = answer.by_candidate[:most]
    speeds = [figure(_ranked_by(answer, each)) for each in shown]
    predicted = [
        speed != "–" and not each.corrected for speed, each in zip(speeds, shown, strict=True)
    ]
    if any(predicted):
        speeds = [f"{s} {'*' if p else ' '}" for s, p in zip(speeds, predicted, strict=True)]
    rows = [
        [
            "→" if each.configuration == answer.choice else "",
            shortened(str(each.candidate), longest_name),
            str(each.k),
            figure(each.alpha),
            figure(each.mean_accepted_length),
            figure(each.draft_cost_ratio),
            speed,
            "–" if each.memory_bytes is None else format_size(each.memory_bytes),
        ]
        for each, speed in zip(shown, speeds, strict=True)
    ]
    return ["", "draft", "k", "α", "τ", "c", "speed-up ×", "memory"], rows


def _ranked_by(answer: Recommendation, each: Evaluation) -> Estimate | None:
    if answer.objective == "latency":
        return each.speedup_end_to_end_expected or each.speedup_end_to_end
    return each.speedup_expected or each.speedup_predicted


def _legend(rows: Sequence[Sequence[str]]) -> str:
    return f"{_LEGEND}; * predicted only" if any("*" in row[-2] for row in rows) else _LEGEND


def _fitting_table(answer: Recommendation, width: int) -> str:
    """The first rows, with names as long as the width allows, and the legend."""
    for longest in range(_NAME, _SHORTEST_NAME - 1, -1):
        head, rows = _table(answer, longest, _MOST_ROWS)
        text = columns(head, rows)
        if max(map(len, text.split("\n"))) <= width:
            break
    left_out = len(answer.by_candidate) - len(rows)
    more = [f"   and {left_out} more: --all"] if left_out else []
    return "\n".join([text, *more, paragraph(_legend(rows), width)])


def _screen(answer: Recommendation, width: int, commands: Sequence[str]) -> str:
    width = min(width, SCREEN_COLUMNS)
    top = [_two_lines(line, width) for line in (headline(answer), *_reasons(answer))]
    below = [_two_lines(line, width) for line in _below(answer)]
    following = [f"{'next:' if at == 0 else '     '} {c}" for at, c in enumerate(commands)]
    fixed = ["\n".join(top), _fitting_table(answer, width), "\n".join(following)]
    for caveat in _urgent(answer):
        longer = [*below, _two_lines(caveat, width)]
        if _lines(*fixed, "\n".join(longer)) <= SCREEN_LINES:
            below = longer
    blocks = [*fixed[:2], "\n".join(below), fixed[2]]
    return "\n\n".join(block for block in blocks if block)


def _lines(*blocks: str) -> int:
    return "\n\n".join(block for block in blocks if block).count("\n") + 1


def _two_lines(text: str, width: int) -> str:
    """Wrapped; cut where it takes more than two lines."""
    return textwrap.fill(
        plain(text), max(width, 40), subsequent_indent="  ", max_lines=2, placeholder=" …"
    )


def _markdown(answer: Recommendation) -> str:
    head, rows = _table(answer, 200, len(answer.by_candidate))
    below = [*_below(answer), *_urgent(answer)]
    return "\n\n".join(
        [
            f"## {markdown_escaped(headline(answer))}",
            *map(markdown_escaped, _reasons(answer)),
            markdown_table(head, rows),
            markdown_escaped(_legend(rows)),
            "\n".join(f"- {markdown_escaped(line)}" for line in below),
        ]
    ).rstrip()


def _csv(answer: Recommendation) -> str:
    spread = [f"{name}{end}" for name in FIGURES for end in ("", "_low", "_high")]
    head = ["draft", "quant", "k", "best", *spread, "prediction_error", "memory_bytes"]
    rows = []
    for each in answer.evaluations:
        figures: list[float | None] = []
        for name in FIGURES:
            value: Estimate | None = getattr(each, name)
            figures += [None] * 3 if value is None else [value.value, value.low, value.high]
        keys = [each.draft, each.quant, each.k, int(each.best)]
        rows.append([*keys, *figures, each.prediction_error, each.memory_bytes])
    return csv_text(head, rows)


def _named(configuration: Configuration) -> str:
    return f"{shortened(str(configuration.candidate), _NAME)}, k = {configuration.k}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
