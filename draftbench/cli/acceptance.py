"""`draftbench acceptance`: every figure of acceptance that a run's replays yield."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from draftbench.acceptance.breakdown import Breakdown
from draftbench.acceptance.definitions import FIGURES, MEAN_ACCEPTED_LENGTH, TOKENS_PER_ROUND
from draftbench.acceptance.intervals import FEW_REQUESTS, MIN_REQUESTS, Estimate
from draftbench.acceptance.running import usual_k
from draftbench.acceptance.summary import (
    AcceptanceReport,
    CandidateAcceptance,
    FigureEstimate,
    acceptance_report,
)
from draftbench.cli.flags import RunArgument, candidate_named, read, require_measured
from draftbench.cli.output import Output
from draftbench.cli.output import width as columns
from draftbench.errors import UsageError
from draftbench.flags import draft_lengths, flag
from draftbench.records import LOOKUP, SELF, draft_of_stack, to_json
from draftbench.report.text import (
    Cell,
    Section,
    counted,
    csv_text,
    ends,
    filled,
    known_columns,
    render_sections,
    sentence,
    shown,
)

_ENGINE_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "llama_cpp": "llama.cpp",
    "aiperf": "AIPerf",
}
_LEGEND = (
    "± is half of a 95% interval over requests, – means unknown. Figures of replayed drafts are "
    "expectations: nothing was decoded for them. Responses that repeat a passage inflate "
    "acceptance; `recommend` warns about them."
)
_COUNTED = "not from replay, but from rounds counted at the k's that were decoded"
_PREDICTED = (
    "predicted, not measured, at k's that were not decoded: from how often each position was "
    "accepted at the largest"
)
_ALIKE = "as if every position were accepted alike, since the engine does not report positions"
# What the columns of the first screen mean.
_MEANINGS = {
    "α": "α: acceptance rate.",
    "τ": "τ: mean accepted length at that k.",
    "h": "h: acceptance at the first → last position of a round.",
}
_FEW = f"rough intervals (effective sample under {FEW_REQUESTS})"
_TREES = (
    "Best trees: what an engine that drafts fixed trees could reach at temperature 0. The target "
    "verifies all nodes, so these figures are not comparable with those of chains. Each tree is "
    "judged on the requests that did not choose it."
)
# One screen: the most candidates with a row, drafts with a column, and rows of both tables
# together.
_MOST_CANDIDATES, _MOST_COLUMNS, _MOST_ROWS = 7, 4, 14
_SCREEN_GROUPS = ("segment", "temperature", "third")


def acceptance(
    *,
    run: RunArgument = None,
    candidate: list[str] | None = flag(
        None,
        "Show this candidate, DRAFT[:QUANT]. Repeat the flag to compare the first with the others "
        "(default: all).",
        "NAME",
    ),
    k: tuple[int, ...] | None = flag(
        None, "The draft lengths, e.g. 1-16 (default: those swept).", "K,…", parse=draft_lengths
    ),
    width: float = flag(
        0.02, "Say how many requests would give each figure to within ± this share.", "SHARE"
    ),
    everything: bool = flag(
        False, "Show every definition, position and draft tree.", names=("--all",)
    ),
    output: Output,
) -> int:
    """Show how often drafts are accepted, on one screen; --all shows every definition and position.

    draftbench acceptance results/runs/RUN
    draftbench acceptance results/runs/RUN --all --k 1-16
    draftbench acceptance results/runs/RUN --candidate small:int4 --candidate tiny
    """
    if not 0 < width < 1:
        raise UsageError(
            f"--width {width:g}: expected a share between 0 and 1", hint="for example 0.02 for ±2%"
        )
    observed = read(run)
    ks = k or observed.manifest.question.ks
    names = map(str, require_measured(observed).candidates)
    chosen = [candidate_named(observed, name) for name in dict.fromkeys(candidate or names)]
    whole = everything or output.style in ("json", "csv")
    report = acceptance_report(observed, chosen, ks, width, everything=whole)
    output.write(render(report, output.style, columns(), everything=everything))
    return 0


def render(report: AcceptanceReport, style: str, width: int, *, everything: bool = True) -> str:
    """The report as table, json, markdown or csv; `width` in columns wraps the table's sentences.

    Args:
        everything: all figures of all candidates, or one screen of table or Markdown.
    """
    if style == "json":
        return to_json(msgspec.to_builtins(report) | {"definitions": FIGURES})
    if style == "csv":
        return _csv(report)
    sections = _screen(report)
    if everything:
        parts = [part for each in report.candidates for part in _of_candidate(each, report.width)]
        sections = filled([*parts, _differences(report)])
        trees = any(c.trees for c in report.candidates if c.candidate != SELF)
        notes = [_LEGEND, *([_TREES] if trees else []), *_definitions(report.width)]
        notes = [*_of_grammars(report), *notes]
        sections.append(Section("Definitions", notes=notes))
    return render_sections(sections, style, width)


def _screen(report: AcceptanceReport) -> list[Section]:
    """One screen: a line for each candidate, α by group, and the findings."""
    candidates = report.candidates[:_MOST_CANDIDATES]
    ks = _shown_ks(each.k for c in report.candidates for each in (*c.at_each_k, *c.predicted))
    rows: list[list[Cell]] = []
    for c in candidates:
        tau = MEAN_ACCEPTED_LENGTH.symbol
        lengths = {e.k: _known(e) for e in c.at_each_k if e.symbol == tau}
        for each in c.predicted:
            if each.symbol == tau and each.pooled is not None:
                lengths[each.k] = f"{shown(each.pooled)} predicted"
        at_ends = [
            each.pooled.value if each.pooled else each.without_interval
            for each in (*c.hazards[:1], *c.hazards[-1:])
        ]
        hazards = " → ".join("–" if value is None else f"{value:.2f}" for value in at_ends)
        alpha = _known(c.alpha) if c.alpha else None
        rows.append([c.candidate, alpha, *(lengths.get(k) for k in ks), hazards or None])
    head, rows = known_columns(["candidate", "α", *(f"τ k={k}" for k in ks), "h"], rows)
    meanings = dict.fromkeys(_MEANINGS.get(name[0], "") for name in head)
    modes = " and ".join(dict.fromkeys(f"{c.mode} drafting" for c in report.candidates if c.mode))
    requests = max((c.requests for c in report.candidates), default=0)
    title = f"Acceptance of {counted(len(report.candidates), 'candidate')} on "
    title += counted(requests, "request")
    more = len(report.candidates) - len(candidates)
    return [
        Section(
            f"{title}, {modes}" if modes else title,
            head,
            rows,
            [f"{counted(more, 'more candidate')}: `--all` or `--candidate NAME`"] if more else [],
        ),
        _screen_groups(report, " ".join(filter(None, meanings))),
    ]


def _known(figure: FigureEstimate) -> Cell:
    """A figure with its interval; with too few requests for one, the value alone."""
    alone = figure.without_interval
    return figure.pooled if alone is None else f"{alone:.2f}"


def _shown_ks(ks: Iterable[int | None]) -> list[int]:
    """The smallest k, the usual one and the largest."""
    distinct = sorted({k for k in ks if k is not None})
    if not distinct:
        return []
    return sorted({distinct[0], usual_k(distinct), distinct[-1]})


def _screen_groups(report: AcceptanceReport, meanings: str) -> Section:
    """α by segment, temperature and third of the response, with a column for each model draft; then
    the findings, and the meaning of this screen's columns.
    """
    first = report.candidates[:_MOST_CANDIDATES]
    drafts = [c for c in first if c.breakdown and c.candidate != SELF][:_MOST_COLUMNS]
    rates: dict[str, dict[str, dict[str, Estimate | None]]] = {by: {} for by in _SCREEN_GROUPS}
    segments: list[tuple[str, float]] = []
    most: dict[str, int] = {}
    for c in drafts:
        for group in c.breakdown.groups if c.breakdown else ():
            if group.by in rates:
                rates[group.by].setdefault(group.name, {})[c.candidate] = group.alpha
                most[group.by] = max(most.get(group.by, 0), group.requests)
            if group.by == "segment":
                segments.append((group.name, group.equal_requests))
    several = {by: groups for by, groups in rates.items() if len(groups) > 1}
    splitting = {by: groups for by, groups in several.items() if most[by] >= MIN_REQUESTS}
    room = {by: len(groups) for by, groups in splitting.items()}
    while sum(room.values()) > max(_MOST_ROWS - len(first) - len(_findings(report)), 2 * len(room)):
        room[max(room, key=lambda by: room[by])] -= 1
    rows: list[list[Cell]] = []
    more = []
    for by, groups in splitting.items():
        for name in list(groups)[: room[by]]:
            rows.append([by, name, *(groups[name].get(c.candidate) for c in drafts)])
        if len(groups) > room[by]:
            more.append(counted(len(groups) - room[by], f"more {by}"))
    notes = [
        f"no α by {by}: no group has the {MIN_REQUESTS} requests an interval needs"
        for by in several
        if by not in splitting
    ]
    title = "α by group of requests and along the response" if rows else "Findings"
    head = ["by", "", *(c.candidate for c in drafts)]
    few = _few(first, segments if "segment" in splitting else ())
    legend = f"{meanings} ± half a 95% interval" if meanings else ""
    alone = any(c.alpha and c.alpha.without_interval is not None for c in first)
    legend += "; without ±: too few requests. " if alone else ". " if meanings else ""
    legend += f"{' and '.join(more) or 'Everything'}: --all."
    return Section(title, head, rows, [*notes, *_findings(report), *few, legend])


def _findings(report: AcceptanceReport) -> list[str]:
    """Suspected faults, trends along the response and near ties."""
    findings: list[tuple[str, str]] = []
    findings += [(fault, c.candidate) for c in report.candidates for fault in _faults(c)]
    findings += [(_counted(c), c.candidate) for c in report.candidates if c.counted]
    findings += [
        (c.breakdown.reading, c.candidate)
        for c in report.candidates
        if c.breakdown and c.breakdown.reading and c.candidate != SELF
    ]
    candidates: dict[str, list[str]] = {}
    for finding, candidate in findings:
        candidates.setdefault(finding, []).append(candidate)
    lines = [f"{', '.join(names)}: {finding}" for finding, names in candidates.items()]
    lines += _of_grammars(report)
    if report.near_tie_share:
        lines.append(
            f"{report.near_tie_share:.1%} of the target's tokens are near ties (top two logits "
            "within numeric noise), where decoding may pick the other token"
        )
    return lines


def _of_grammars(report: AcceptanceReport) -> list[str]:
    """Which requests the figures of replay hold for."""
    replayed = [c.candidate for c in report.candidates if c.requests and not c.counted]
    if not (report.constrained and replayed):
        return []
    held = counted(report.constrained, "request")
    return [
        f"{', '.join(replayed)}: {held} with structured output counted here as if without it, "
        "since replay knows no grammar; the figures hold for the others"
    ]


def _counted(c: CandidateAcceptance) -> str:
    """Where the figures of a candidate without replays come from."""
    if c.requests >= MIN_REQUESTS and all(each.pooled is None for each in c.at_each_k):
        return "unknown: it was not replayed, and the server does not report its drafting"
    if not c.predicted:
        return _COUNTED
    alike = "" if c.hazards else f", {_ALIKE}"
    return f"{_COUNTED}; {_PREDICTED}{alike}"


def _few(
    candidates: Sequence[CandidateAcceptance], segments: Iterable[tuple[str, float]]
) -> list[str]:
    """A note if requests are too few or too unequal in length for a tight interval, about the
    candidate with the fewest.

    Args:
        segments: the names of the segments shown, and how many equally long requests each is worth.
    """
    fewest = min(candidates, key=lambda c: c.equal_requests, default=None)
    if fewest and fewest.equal_requests < FEW_REQUESTS:
        have = f"here {fewest.requests}"
        if any(c.requests > fewest.requests for c in candidates):
            have = f"{fewest.candidate} has {fewest.requests}"
        equal = round(fewest.equal_requests)
        unequal = f", of lengths so unequal that they count as {equal}"
        return [f"{_FEW}: {have}{unequal if equal != fewest.requests else ''}"]
    least: dict[str, float] = {}
    for name, count in segments:
        least[name] = min(least.get(name, count), count)
    few = [f"{name} {count:.0f}" for name, count in least.items() if count < FEW_REQUESTS]
    return [f"{_FEW}: {', '.join(few)}"] if few else []


def _faults(c: CandidateAcceptance) -> list[str]:
    return [f"suspected fault: {fault.message}; {fault.advice}" for fault in c.faults]


def _of_candidate(c: CandidateAcceptance, width: float) -> list[Section]:
    """Every table of a candidate; some are empty."""
    by_start = "prompt lookup" if c.candidate == LOOKUP else "a head"
    if draft_of_stack(c.candidate):
        by_start = "a stack"
    drafting = f"{c.mode} drafting" if c.mode else by_start
    unknown = f"No α: what {by_start} proposes depends on where a round starts."
    notes = []
    if c.counted:
        drafting = "counted while decoding"
        unknown = "No α: the engine did not say at which positions it accepted."
        notes = [sentence(_counted(c))]
    if c.alpha is None:
        notes.append(unknown)
    else:
        means = f"α {shown(_known(c.alpha))}, mean of requests {shown(c.alpha.per_request)}"
        needed = c.alpha.requests_needed
        enough = "" if needed is None else f"; {needed} requests for ±{width:.1%}"
        basis = c.alpha.figure if c.counted else f"{c.alpha.figure}, {drafting}"
        notes.append(f"{means} ({basis}){enough}")
    notes += _faults(c)
    groups = c.breakdown.groups if c.breakdown else c.rounds_by_group
    by_segment = [(g.name, g.equal_requests) for g in groups if g.by == "segment"]
    notes += _few([c], by_segment)
    positions = enumerate(zip(c.hazards, c.survivals, strict=True), start=1)
    return [
        Section(
            f"{c.candidate}: {drafting}, {counted(c.requests, 'request')}, "
            f"{counted(c.responses, 'response')}",
            notes=notes,
        ),
        _at_each_k(c, width),
        Section(
            f"{c.candidate} by draft position, k = {len(c.hazards)}",
            ["position", "hazard", "survival"],
            [[str(at), _known(hazard), _known(survival)] for at, (hazard, survival) in positions],
        ),
        *([_breakdown(c.candidate, c.breakdown)] if c.breakdown else []),
        _rounds_by_group(c),
        *([_trees(c)] if c.trees and c.candidate != SELF else []),
    ]


def _at_each_k(c: CandidateAcceptance, width: float) -> Section:
    figures: dict[int | None, list[Cell]] = {}
    needed: dict[int | None, int | None] = {}
    for each in sorted((*c.at_each_k, *c.predicted), key=lambda each: each.k or 0):
        figures.setdefault(each.k, []).append(_known(each))
        if each.symbol == TOKENS_PER_ROUND.symbol:
            needed[each.k] = each.requests_needed
    symbols = dict.fromkeys(each.symbol for each in c.at_each_k)
    enough = f"±{100 * width:g}%"
    predicted = {each.k for each in c.predicted}
    return Section(
        f"{c.candidate} by draft length",
        ["k", *symbols, f"n for {enough}"],
        [
            [f"{k}, predicted" if k in predicted else str(k), *values, str(needed[k] or "–")]
            for k, values in figures.items()
        ],
    )


def _breakdown(candidate: str, breakdown: Breakdown) -> Section:
    """α by group."""
    change = breakdown.late_less_early
    notes = [] if change is None else [f"α late in responses minus α early: {_signed(change)}"]
    return Section(
        f"{candidate}: where tokens are accepted",
        ["by", "group", "requests", "positions", "confidence", "α"],
        [
            [
                g.by,
                g.name,
                str(g.requests),
                f"{g.positions:.0f}",
                "–" if g.confidence is None else f"{g.confidence:.2f}",
                g.alpha,
            ]
            for g in breakdown.groups
        ],
        [*notes, *filter(None, [breakdown.reading])],
    )


def _rounds_by_group(c: CandidateAcceptance) -> Section:
    ks = _shown_ks(group.k for group in c.rounds_by_group)
    tokens: dict[tuple[str, str, str], dict[int, Estimate | None]] = {}
    for group in c.rounds_by_group:
        row = tokens.setdefault((group.by, group.name, str(group.requests)), {})
        row[group.k] = group.tokens_per_round
    return Section(
        f"{c.candidate}: tokens per round by group",
        ["by", "group", "requests", *(f"k = {k}" for k in ks)],
        [[*names, *map(row.get, ks)] for names, row in tokens.items()],
    )


def _trees(c: CandidateAcceptance) -> Section:
    rows: list[list[Cell]] = []
    for tree in c.trees:
        depths = sorted(Counter(map(len, tree.tree)).items())
        nodes = "·".join(str(count) for _, count in depths)
        rows.append([str(tree.nodes), tree.tokens_per_round, tree.accepted_length, nodes])
    title = f"{c.candidate}: best trees, at most {c.trees[0].depth} deep"
    head = ["nodes", "tokens per round", "uncut accepted length", "nodes by depth"]
    return Section(title, head, rows)


def _differences(report: AcceptanceReport) -> Section:
    symbols = {known.name: known.symbol for known in FIGURES}
    ks = {None, *_shown_ks(each.k for each in report.differences)}
    rows = [
        [
            f"{each.candidate} − {each.against}",
            symbols.get(each.figure, each.figure),
            "" if each.k is None else str(each.k),
            str(each.requests),
            _signed(each.value),
        ]
        for each in report.differences
        if each.k in ks
    ]
    head = ["candidates", "figure", "k", "requests", "difference"]
    return Section("Differences, paired by request", head, rows)


def _signed(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _definitions(width: float) -> list[str]:
    symbol = TOKENS_PER_ROUND.symbol
    lines = [f"n: how many requests like these give {symbol} within ±{100 * width:g}%."]
    for known in FIGURES:
        names = {engine: getattr(known, key) for key, engine in _ENGINE_NAMES.items()}
        named = [f"{engine}: {name}" for engine, name in names.items() if name]
        formula = f"{known.symbol}, {known.name}: {known.formula}"
        lines.append(f"{'; '.join([formula, *named])}.")
    return lines


def _csv(report: AcceptanceReport) -> str:
    spread = [f"{name}{end}" for name in ("pooled", "per_request") for end in ("", "_low", "_high")]
    head = ["candidate", "against", "figure", "k", *spread, "requests", "requests_needed"]
    rows: list[list[object]] = []
    for c in report.candidates:
        alpha = () if c.alpha is None else (c.alpha,)
        for each in (*alpha, *c.at_each_k, *c.hazards, *c.survivals):
            values = [*ends(each.pooled), *ends(each.per_request)]
            row = [c.candidate, None, each.figure, each.k, *values]
            rows.append([*row, c.requests, each.requests_needed])
        for each in c.predicted:
            row = [c.candidate, None, f"{each.figure}, predicted", each.k, *ends(each.pooled)]
            rows.append([*row, *ends(None), c.requests, each.requests_needed])
    for d in report.differences:
        row = [d.candidate, d.against, d.figure, d.k, *ends(d.value), *ends(None)]
        rows.append([*row, d.requests, None])
    return csv_text(head, rows)
