"""What replay says of acceptance → sections of tables for people, JSON and CSV for programs.

Renders and computes nothing. JSON holds the report's own fields with the definitions and the
engines' names for them; CSV one line per figure of the cards and of the differences.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from draftbench.acceptance.breakdown import Breakdown, Disagreement
from draftbench.acceptance.card import AcceptanceReport, Card, Reading
from draftbench.acceptance.definitions import FIGURES, TOKENS_PER_ROUND, Figure
from draftbench.acceptance.intervals import FEW_REQUESTS, Estimate
from draftbench.report.overview import overview
from draftbench.report.terminal.text import Section, figure

ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "llama_cpp": "llama.cpp",
    "aiperf": "AIPerf",
}
LEGEND = (
    "± is half of a 95 % interval over requests, – is unknown. All figures are expectations from "
    "replay, none was decoded. Loops of repeated text inflate acceptance and are not looked "
    "for here."
)
Texts = Mapping[int, str]
_SPEED = TOKENS_PER_ROUND.symbol
_CROSSED = ("segment", "temperature", "requests", "positions", "α")


def render(
    report: AcceptanceReport,
    style: str,
    width: int,
    texts: Texts | None = None,
    *,
    whole: bool = True,
) -> str:
    """The report as table, json, markdown or csv; `width` in columns wraps the table's sentences.

    Args:
        texts: what token ids stand for; ids are shown for those it lacks.
        whole: every definition of every candidate, or one screen of table or Markdown.
    """
    if style == "json":
        return _json(report, texts or {})
    if style == "csv":
        return _csv(report)
    sections = _sections(report, texts or {}) if whole else overview(report)
    if not whole:
        sections += _all_disagreements(report, texts or {})
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    return "\n\n".join(section.text(width) for section in sections)


def _sections(report: AcceptanceReport, texts: Texts) -> list[Section]:
    found = [section for card in report.cards for section in _of_card(card, report.width)]
    if report.differences:
        found.append(_differences(report))
    found += _all_disagreements(report, texts)
    definitions = [f"{_definition(known)}." for known in FIGURES]
    return [*found, Section("Definitions", notes=[LEGEND, *definitions])]


def _of_card(card: Card, width: float) -> list[Section]:
    drafting = f"{card.mode} drafting" if card.mode else "prompt lookup"
    name = card.candidate
    doubts = [f"suspected fault: {fault.message}; {fault.advice}" for fault in card.faults]
    if card.requests < FEW_REQUESTS:
        doubts.append(f"under {FEW_REQUESTS} requests the intervals are too narrow")
    sections = [
        Section(
            f"{name}: {drafting}, {card.requests} requests, {card.responses} responses",
            notes=[*_alpha(card, width), *doubts],
        ),
        *_at_each_k(card, width),
        _positions(card),
        *_groups(card),
        _stopping(card),
        _temperatures(card),
        _trees(card),
    ]
    return [section for section in sections if section.rows or section is sections[0]]


def _alpha(card: Card, width: float) -> list[str]:
    rate = card.alpha
    if rate is None:
        return ["No α: what prompt lookup proposes depends on where a round starts."]
    needed = rate.requests_needed
    enough = "" if needed is None else f"; {needed} requests for ±{width:.1%}"
    return [
        f"α {figure(rate.pooled)}, mean of requests {figure(rate.per_request)} "
        f"({rate.figure}, {card.mode} drafting){enough}"
    ]


def _at_each_k(card: Card, width: float) -> list[Section]:
    by_k: dict[int | None, list[Reading]] = {}
    for reading in card.at_each_k:
        by_k.setdefault(reading.k, []).append(reading)
    symbols = [reading.symbol for reading in next(iter(by_k.values()), [])]
    pooled, means = [], []
    for k, readings in by_k.items():
        needed = {reading.symbol: reading.requests_needed for reading in readings}[_SPEED]
        own = [figure(reading.pooled) for reading in readings]
        pooled.append([str(k), *own, "–" if needed is None else str(needed)])
        means.append([str(k), *(figure(reading.per_request) for reading in readings)])
    title, enough = f"{card.candidate} by draft length", f"n for ±{100 * width:g} %"
    needs = f"n: requests like these for {_SPEED} within ±{100 * width:g} %."
    return [
        Section(f"{title}, pooled", ["k", *symbols, enough], pooled, [needs]),
        Section(f"{title}, mean of requests", ["k", *symbols], means),
    ]


def _positions(card: Card) -> Section:
    rows = [
        [str(i), *(figure(e) for r in pair for e in (r.pooled, r.per_request))]
        for i, pair in enumerate(zip(card.hazards, card.survivals, strict=True), start=1)
    ]
    k = card.hazards[0].k if card.hazards else None
    head = ["position", "hazard", "mean of requests", "survival", "mean of requests"]
    return Section(f"{card.candidate} by draft position, k = {k}", head, rows)


def _groups(card: Card) -> list[Section]:
    if card.breakdown is None:
        return []
    rows = [
        [
            g.by,
            g.name,
            str(g.requests),
            f"{g.positions:.0f}",
            f"{g.confidence:.2f}",
            figure(g.alpha),
        ]
        for g in card.breakdown.groups
    ]
    change, reading = card.breakdown.late_less_early, card.breakdown.reading
    notes = [] if change is None else [f"late less early: {_signed(change)}"]
    head = ["by", "group", "requests", "positions", "confidence", "α"]
    title = f"{card.candidate}: where tokens are accepted"
    both = Section(f"{card.candidate}: segment × temperature", _CROSSED, _crossed(card.breakdown))
    return [Section(title, head, rows, notes + ([reading] if reading else [])), both]


def _crossed(found: Breakdown) -> list[list[str]]:
    return [
        [c.segment, f"{c.temperature:g}", str(c.requests), f"{c.positions:.0f}", figure(c.alpha)]
        for c in found.crossings
    ]


def _stopping(card: Card) -> Section:
    rows = []
    for rule in card.stopping:
        least, most = ("", "") if rule.threshold is None else ("≥ ", "≤ ")
        rows.append(
            [
                "never" if rule.threshold is None else f"{rule.threshold:g}",
                figure(rule.tokens_per_round),
                least + figure(rule.draft_steps_per_round),
                most + figure(rule.accepted_per_drafted),
            ]
        )
    k = card.stopping[0].k if card.stopping else None
    note = (
        "Rounds are exact; what is drafted after a wrong token is not seen. No gain is claimed: "
        "that takes a decoding run at the threshold."
    )
    head = ["confidence under", "tokens per round", "draft steps per round", "accepted/drafted"]
    title = f"{card.candidate}: drafting that stops when unsure, k = {k}"
    return Section(title, head, rows, [note])


def _temperatures(card: Card) -> Section:
    rows = [
        [
            f"{each.temperature:g}",
            str(each.k),
            str(each.requests),
            figure(each.tokens_per_round),
            figure(each.draft_steps_per_round),
        ]
        for each in card.temperatures
    ]
    head = ["temperature", "k", "requests", "tokens per round", "draft steps per round"]
    return Section(f"{card.candidate}: k by temperature", head, rows)


def _trees(card: Card) -> Section:
    rows = [
        [
            str(found.nodes),
            figure(found.tokens_per_round),
            figure(found.accepted_length),
            "·".join(str(count) for _, count in sorted(Counter(map(len, found.tree)).items())),
        ]
        for found in card.trees
    ]
    depth = card.trees[0].depth if card.trees else None
    note = (
        "What an engine that drafts fixed trees could reach at temperature 0; the target verifies "
        "all nodes, so this is not comparable with the chain's figures. Judged on the requests "
        "that did not choose the tree."
    )
    head = ["nodes", "tokens per round", "uncut accepted length", "nodes by depth"]
    return Section(f"{card.candidate}: best trees, at most {depth} deep", head, rows, [note])


def _differences(report: AcceptanceReport) -> Section:
    symbols = {known.name: known.symbol for known in FIGURES}
    rows = [
        [
            f"{d.candidate} − {d.against}",
            symbols.get(d.figure, d.figure),
            "" if d.k is None else str(d.k),
            str(d.requests),
            _signed(d.value),
        ]
        for d in report.differences
    ]
    head = ["candidates", "figure", "k", "requests", "difference"]
    return Section("Differences, paired by request", head, rows)


def _all_disagreements(report: AcceptanceReport, texts: Texts) -> list[Section]:
    costly = (report.disagreements or {}).items()
    return [_disagreements(candidate, found, texts) for candidate, found in costly]


def _disagreements(candidate: str, found: Sequence[Disagreement], texts: Texts) -> Section:
    def shown(token: int) -> str:
        return repr(texts[token]) if token in texts else f"#{token}"

    rows = [
        [shown(d.drafted), shown(d.target), str(d.times), f"{d.rounds_lost:.1f}", f"{d.share:.1%}"]
        for d in found
    ]
    head = ["drafted", "target", "times", "rounds lost", "share"]
    return Section(f"{candidate}: the most costly disagreements", head, rows)


def _signed(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _definition(known: Figure) -> str:
    names = [
        f"{engine}: {name}" for key, engine in ENGINES.items() if (name := getattr(known, key))
    ]
    return "; ".join([f"{known.symbol}, {known.name}: {known.formula}", *names])


def _json(report: AcceptanceReport, texts: Texts) -> str:
    fields = msgspec.to_builtins(report)
    fields["definitions"] = msgspec.to_builtins(FIGURES)
    for found in (fields["disagreements"] or {}).values():
        for each in found:
            each["drafted_text"] = texts.get(each["drafted"])
            each["target_text"] = texts.get(each["target"])
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def _csv(report: AcceptanceReport) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    spread = [f"{name}{end}" for name in ("pooled", "per_request") for end in ("", "_low", "_high")]
    writer.writerow(["candidate", "against", "figure", "k", *spread, "requests", "requests_needed"])
    for card in report.cards:
        rate = () if card.alpha is None else (card.alpha,)
        for r in (*rate, *card.at_each_k, *card.hazards, *card.survivals):
            figures = [*_ends(r.pooled), *_ends(r.per_request)]
            own = [card.candidate, None, r.figure, r.k]
            writer.writerow([*own, *figures, card.requests, r.requests_needed])
    for d in report.differences:
        own = [d.candidate, d.against, d.figure, d.k]
        writer.writerow([*own, *_ends(d.value), *_ends(None), d.requests, None])
    return stream.getvalue().rstrip("\n")


def _ends(estimate: Estimate | None) -> list[float | None]:
    return [None] * 3 if estimate is None else [estimate.value, estimate.low, estimate.high]
