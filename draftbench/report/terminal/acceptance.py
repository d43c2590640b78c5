"""The output of `draftbench acceptance`: one screen or all figures, as text, Markdown, JSON or CSV.

JSON holds the report's fields with the definitions and the engines' names for them, CSV one line
per figure of the candidates and of their differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draftbench.acceptance.breakdown import Disagreement
from draftbench.acceptance.definitions import (
    FIGURES,
    MEAN_ACCEPTED_LENGTH,
    TOKENS_PER_ROUND,
    Figure,
)
from draftbench.acceptance.intervals import FEW_REQUESTS, Estimate
from draftbench.acceptance.summary import AcceptanceReport, CandidateAcceptance, FigureEstimate
from draftbench.records import SELF, to_json
from draftbench.report.terminal.text import Section, csv_text, figure

Texts = Mapping[int, str]

_ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "llama_cpp": "llama.cpp",
    "aiperf": "AIPerf",
}
_LEGEND = (
    "± is half of a 95 % interval over requests, – means unknown. All figures are expectations "
    "from replay: nothing here was decoded. Responses that repeat one passage inflate acceptance; "
    "`recommend` warns of them."
)
_SHORT_LEGEND = (
    "α: acceptance rate. τ: mean accepted length at that k. h: acceptance at a round's first → "
    "last position. ±: half of a 95 % interval. `--all` shows everything."
)
_FEW = f"under {FEW_REQUESTS} requests the intervals are too narrow"
_USUAL_K = 4
# One screen: candidates that get a row, drafts that get a column, and rows of both tables together.
_MOST_CANDIDATES, _MOST_COLUMNS, _MOST_ROWS = 8, 4, 15
_SCREEN_GROUPS = ("segment", "temperature", "third")


def render(
    report: AcceptanceReport,
    style: str,
    width: int,
    texts: Texts | None = None,
    *,
    everything: bool = True,
) -> str:
    """The report as table, json, markdown or csv; `width` in columns wraps the table's sentences.

    Args:
        texts: the text of token ids; ids are shown for those it lacks.
        everything: all figures of all candidates, or one screen of table or Markdown.
    """
    texts = texts or {}
    if style == "json":
        return _json(report, texts)
    if style == "csv":
        return _csv(report)
    sections = _all(report) if everything else _screen(report)
    sections += [
        _disagreements(candidate, costly, texts)
        for candidate, costly in (report.disagreements or {}).items()
    ]
    if everything:
        definitions = [f"{_definition(known)}." for known in FIGURES]
        sections.append(Section("Definitions", notes=[_LEGEND, *definitions]))
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    return "\n\n".join(section.text(width) for section in sections)


def _screen(report: AcceptanceReport) -> list[Section]:
    """A line per candidate, α by group, and what stands out."""
    candidates = report.candidates
    ks = _shown_ks(r.k for c in candidates for r in c.at_each_k if r.k is not None)
    shown = candidates[:_MOST_CANDIDATES]
    rows = []
    for c in shown:
        lengths = {r.k: r.pooled for r in c.at_each_k if r.symbol == MEAN_ACCEPTED_LENGTH.symbol}
        ends = [r.pooled for r in (*c.hazards[:1], *c.hazards[-1:])]
        hazards = " → ".join("–" if h is None else f"{h.value:.2f}" for h in ends)
        alpha = figure(c.alpha.pooled if c.alpha else None)
        rows.append([c.candidate, alpha, *(figure(lengths.get(k)) for k in ks), hazards or "–"])
    modes = " and ".join(dict.fromkeys(f"{c.mode} drafting" for c in candidates if c.mode))
    requests = max((c.requests for c in candidates), default=0)
    count = f"{len(candidates)} candidate{'s' * (len(candidates) != 1)}"
    title = f"Acceptance of {count} on {requests} requests"
    head = ["candidate", "α", *(f"τ k={k}" for k in ks), "h"]
    more = len(candidates) - len(shown)
    return [
        Section(
            f"{title}, {modes}" if modes else title,
            head,
            rows,
            [f"{more} more candidates: `--all` or `--candidate NAME`"] if more else [],
        ),
        _screen_groups(shown, _MOST_ROWS - len(shown), [*_findings(report), _SHORT_LEGEND]),
    ]


def _shown_ks(ks: Iterable[int]) -> list[int]:
    """The smallest, the usual and the largest."""
    known = sorted(set(ks))
    if not known:
        return []
    usual = min(known, key=lambda k: (abs(k - _USUAL_K), k))
    return sorted({known[0], usual, known[-1]})


def _screen_groups(
    candidates: Sequence[CandidateAcceptance], most: int, notes: Sequence[str]
) -> Section:
    """α by segment, temperature and third of the response, a column per model draft; at most `most`
    rows, cut where a grouping has most of them.
    """
    columns = [c for c in candidates if c.breakdown and c.candidate != SELF][:_MOST_COLUMNS]
    rows: dict[str, dict[str, list[str]]] = {by: {} for by in _SCREEN_GROUPS}
    for at, candidate in enumerate(columns):
        for group in candidate.breakdown.groups if candidate.breakdown else ():
            if group.by in rows:
                row = rows[group.by].setdefault(group.name, ["–"] * len(columns))
                row[at] = figure(group.alpha)
    counts = {by: len(groups) for by, groups in rows.items() if len(groups) > 1}
    left = dict(counts)
    while sum(left.values()) > max(most, 2 * len(left)):
        left[max(left, key=lambda by: left[by])] -= 1
    lines = [
        [by, name, *row] for by, most in left.items() for name, row in list(rows[by].items())[:most]
    ]
    cut = [f"{counts[by] - left[by]} more by {by}" for by in left if left[by] < counts[by]]
    notes = [*([", ".join(cut)] if cut else []), *notes]
    head = ["by", "", *(c.candidate for c in columns)]
    title = "α by group of requests and along the response" if lines else "Findings"
    return Section(title, head, lines, notes)


def _findings(report: AcceptanceReport) -> list[str]:
    """Suspected faults, trends along the response, near ties, and too few requests."""
    candidates = report.candidates
    lines = [
        f"{c.candidate}: suspected fault: {fault.message}; {fault.advice}"
        for c in candidates
        for fault in c.faults
    ]
    trends: dict[str, list[str]] = {}
    for c in candidates:
        if c.breakdown and c.breakdown.reading and c.candidate != SELF:
            trends.setdefault(c.breakdown.reading, []).append(c.candidate)
    lines += [f"{', '.join(names)}: {reading}" for reading, names in trends.items()]
    if report.near_tie_share:
        share = f"{report.near_tie_share:.1%} of the target's tokens are near ties"
        lines.append(f"{share}, where decoding may write another token")
    if min((c.requests for c in candidates), default=0) < FEW_REQUESTS:
        lines.append(_FEW)
    return lines


def _all(report: AcceptanceReport) -> list[Section]:
    sections = [section for c in report.candidates for section in _of_candidate(c, report.width)]
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
    differences = [Section("Differences, paired by request", head, rows)] if rows else []
    return [*sections, *differences]


def _of_candidate(c: CandidateAcceptance, width: float) -> list[Section]:
    drafting = f"{c.mode} drafting" if c.mode else "prompt lookup"
    title = f"{c.candidate}: {drafting}, {c.requests} requests, {c.responses} responses"
    if c.alpha is None:
        notes = ["No α: what prompt lookup proposes depends on where a round starts."]
    else:
        means = f"α {figure(c.alpha.pooled)}, mean of requests {figure(c.alpha.per_request)}"
        needed = c.alpha.requests_needed
        enough = "" if needed is None else f"; {needed} requests for ±{width:.1%}"
        notes = [f"{means} ({c.alpha.figure}, {c.mode} drafting){enough}"]
    notes += [f"suspected fault: {fault.message}; {fault.advice}" for fault in c.faults]
    if c.requests < FEW_REQUESTS:
        notes.append(_FEW)
    tables = [*_at_each_k(c, width), _positions(c), *_groups(c), _stopping(c), _trees(c)]
    return [Section(title, notes=notes), *(table for table in tables if table.rows)]


def _at_each_k(c: CandidateAcceptance, width: float) -> list[Section]:
    by_k: dict[int | None, list[FigureEstimate]] = {}
    for each in c.at_each_k:
        by_k.setdefault(each.k, []).append(each)
    symbols = [each.symbol for each in next(iter(by_k.values()), [])]
    speed, pooled, means = TOKENS_PER_ROUND.symbol, [], []
    for k, figures in by_k.items():
        needed = {each.symbol: each.requests_needed for each in figures}[speed]
        values = [figure(each.pooled) for each in figures]
        pooled.append([str(k), *values, "–" if needed is None else str(needed)])
        means.append([str(k), *(figure(each.per_request) for each in figures)])
    title, enough = f"{c.candidate} by draft length", f"n for ±{100 * width:g} %"
    needs = f"n: how many requests like these give {speed} within ±{100 * width:g} %."
    return [
        Section(f"{title}, pooled", ["k", *symbols, enough], pooled, [needs]),
        Section(f"{title}, mean of requests", ["k", *symbols], means),
    ]


def _positions(c: CandidateAcceptance) -> Section:
    rows = [
        [str(i), *(figure(e) for each in both for e in (each.pooled, each.per_request))]
        for i, both in enumerate(zip(c.hazards, c.survivals, strict=True), start=1)
    ]
    head = ["position", "hazard", "mean of requests", "survival", "mean of requests"]
    return Section(f"{c.candidate} by draft position, k = {len(rows)}", head, rows)


def _groups(c: CandidateAcceptance) -> list[Section]:
    """α by group, by segment and temperature at once, and tokens per round by group."""
    sections = []
    if c.breakdown is not None:
        change = c.breakdown.late_less_early
        notes = [] if change is None else [f"late less early: {_signed(change)}"]
        accepted = [
            [g.by, g.name, f"{g.requests}", f"{g.positions:.0f}", f"{g.confidence:.2f}",
             figure(g.alpha)]
            for g in c.breakdown.groups
        ]  # fmt: skip
        crossed = [
            [g.segment, f"{g.temperature:g}", f"{g.requests}", f"{g.positions:.0f}",
             figure(g.alpha)]
            for g in c.breakdown.crossings
        ]  # fmt: skip
        sections += [
            Section(
                f"{c.candidate}: where tokens are accepted",
                ["by", "group", "requests", "positions", "confidence", "α"],
                accepted,
                [*notes, *([c.breakdown.reading] if c.breakdown.reading else [])],
            ),
            Section(
                f"{c.candidate}: segment × temperature",
                ["segment", "temperature", "requests", "positions", "α"],
                crossed,
            ),
        ]
    ks = _shown_ks(group.k for group in c.rounds_by_group)
    rows: dict[tuple[str, str, int], dict[int, str]] = {}
    for group in c.rounds_by_group:
        row = rows.setdefault((group.by, group.name, group.requests), {})
        row[group.k] = figure(group.tokens_per_round)
    lines = [
        [by, name, str(requests), *(row.get(k, "–") for k in ks)]
        for (by, name, requests), row in rows.items()
    ]
    head = ["by", "group", "requests", *(f"k = {k}" for k in ks)]
    return [*sections, Section(f"{c.candidate}: tokens per round by group", head, lines)]


def _stopping(c: CandidateAcceptance) -> Section:
    rows = []
    for rule in c.stopping:
        least, most = ("", "") if rule.threshold is None else ("≥ ", "≤ ")
        rows.append(
            [
                "never" if rule.threshold is None else f"{rule.threshold:g}",
                figure(rule.tokens_per_round),
                least + figure(rule.draft_steps_per_round),
                most + figure(rule.accepted_per_drafted),
            ]
        )
    note = (
        "Rounds are exact; what would be drafted after a wrong token is unknown. Whether a rule "
        "gains time takes a decoding run to tell."
    )
    head = ["confidence under", "tokens per round", "draft steps per round", "accepted/drafted"]
    k = c.stopping[0].k if c.stopping else None
    return Section(f"{c.candidate}: drafting that stops when unsure, k = {k}", head, rows, [note])


def _trees(c: CandidateAcceptance) -> Section:
    rows = [
        [
            str(tree.nodes),
            figure(tree.tokens_per_round),
            figure(tree.accepted_length),
            "·".join(str(count) for _, count in sorted(Counter(map(len, tree.tree)).items())),
        ]
        for tree in c.trees
    ]
    note = (
        "What an engine that drafts fixed trees could reach at temperature 0. The target verifies "
        "all nodes, so these figures are not comparable with those of chains. Each tree is judged "
        "on the requests that did not choose it."
    )
    head = ["nodes", "tokens per round", "uncut accepted length", "nodes by depth"]
    depth = c.trees[0].depth if c.trees else None
    return Section(f"{c.candidate}: best trees, at most {depth} deep", head, rows, [note])


def _disagreements(candidate: str, costly: Sequence[Disagreement], texts: Texts) -> Section:
    def shown(token: int) -> str:
        return repr(texts[token]) if token in texts else f"#{token}"

    rows = [
        [shown(d.drafted), shown(d.target), str(d.times), f"{d.rounds_lost:.1f}", f"{d.share:.1%}"]
        for d in costly
    ]
    head = ["drafted", "target", "times", "rounds lost", "share"]
    return Section(f"{candidate}: the most costly disagreements", head, rows)


def _signed(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _definition(known: Figure) -> str:
    names = [
        f"{engine}: {name}" for key, engine in _ENGINES.items() if (name := getattr(known, key))
    ]
    return "; ".join([f"{known.symbol}, {known.name}: {known.formula}", *names])


def _json(report: AcceptanceReport, texts: Texts) -> str:
    fields = msgspec.to_builtins(report)
    fields["definitions"] = msgspec.to_builtins(FIGURES)
    for costly in (fields["disagreements"] or {}).values():
        for each in costly:
            each["drafted_text"] = texts.get(each["drafted"])
            each["target_text"] = texts.get(each["target"])
    return to_json(fields)


def _csv(report: AcceptanceReport) -> str:
    def ends(*estimates: Estimate | None) -> Iterable[float | None]:
        for each in estimates:
            yield from (None,) * 3 if each is None else (each.value, each.low, each.high)

    spread = [f"{name}{end}" for name in ("pooled", "per_request") for end in ("", "_low", "_high")]
    head = ["candidate", "against", "figure", "k", *spread, "requests", "requests_needed"]
    rows: list[list[object]] = []
    for c in report.candidates:
        alpha = () if c.alpha is None else (c.alpha,)
        for each in (*alpha, *c.at_each_k, *c.hazards, *c.survivals):
            row = [c.candidate, None, each.figure, each.k, *ends(each.pooled, each.per_request)]
            rows.append([*row, c.requests, each.requests_needed])
    for d in report.differences:
        row = [d.candidate, d.against, d.figure, d.k, *ends(d.value, None)]
        rows.append([*row, d.requests, None])
    return csv_text(head, rows)
