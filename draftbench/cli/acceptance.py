"""`draftbench acceptance`: every figure of acceptance that a run's replays yield."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from draftbench.acceptance.breakdown import GROUPINGS
from draftbench.acceptance.definitions import (
    FIGURES,
    MEAN_ACCEPTED_LENGTH,
    TOKENS_PER_ROUND,
    Figure,
)
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
from draftbench.drafts.kinds import kind_of
from draftbench.engines.every import ENGINES, engine_called
from draftbench.flags import draft_lengths, flag
from draftbench.planner.doubts import about_acceptance
from draftbench.records import SELF
from draftbench.report.text import (
    Section,
    TableCell,
    counted,
    csv_text,
    ends,
    filled,
    known_columns,
    sentence,
    shortened,
    shown,
    signed,
)

# The programs whose names of figures are known, by their fields of `Figure`.
_PROGRAMS = {
    field.name: ENGINES[key].name
    for field in fields(Figure)
    if (key := engine_called(field.name)) in ENGINES
} | {"aiperf": "AIPerf"}
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
_NO_ALPHA = "no α: what it proposes depends on where a round starts; by position: --all"
_BEYOND = "unknown at these k: the sweep looked no further than its own"
# What the columns of the first screen mean.
_MEANINGS = {
    "α": "α: acceptance rate. ",
    "τ": "τ: mean accepted length at that k. ",
}
_TREES = (
    "Best trees: what an engine that drafts fixed trees could reach at temperature 0. The target "
    "verifies all nodes, so these figures are not comparable with those of chains. Trees are "
    "cross-fitted: evaluated on requests that were not used to choose them."
)
_NAME = 24  # characters of a draft's name on the first screen
_ENOUGH = 0.02  # how many requests would give each figure to within ± this share


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
    observed = read(run)
    ks = k or observed.manifest.question.ks
    names = map(str, require_measured(observed).candidates)
    chosen = [candidate_named(observed, name) for name in dict.fromkeys(candidate or names)]
    whole = everything or output.style in ("json", "csv")
    doubts = tuple(
        doubt.text
        for doubt in about_acceptance(observed)
        if any(map(doubt.concerns, chosen)) and (doubt.decisive or doubt.kind == "suspected-fault")
    )
    report = acceptance_report(observed, chosen, ks, _ENOUGH, everything=whole, doubts=doubts)
    if output.style == "csv":
        output.write(csv_of(report))
    else:
        sections = every_section(report) if everything else one_screen(report)
        output.show(report, sections, "" if everything else "--all")
    return 0


def one_screen(report: AcceptanceReport) -> list[Section]:
    """A line for each candidate with the findings, then α by group of requests with a column for
    each model draft.
    """
    ks = _shown_ks(each.k for c in report.candidates for each in (*c.at_each_k, *c.predicted))
    rows: list[list[TableCell]] = []
    findings: dict[str, list[str]] = {}
    drafts: dict[str, str] = {}  # names, as they are shown
    rates: dict[tuple[str, str], dict[str, Estimate | None]] = {}
    for c in report.candidates:
        tau, name = MEAN_ACCEPTED_LENGTH.symbol, shortened(c.candidate, _NAME)
        lengths = {e.k: _known(e) for e in c.at_each_k if e.symbol == tau}
        for each in c.predicted:
            if each.symbol == tau and each.pooled is not None:
                lengths[each.k] = f"{shown(each.pooled)} predicted"
        alpha = _known(c.alpha) if c.alpha else None
        rows.append([name, alpha, *(lengths.get(k) for k in ks)])
        found = [_counted(c)] if c.counted else []
        if c.requests and not (c.alpha or c.counted):
            found.append(_NO_ALPHA)
        if not (c.counted or any(map(_known, c.at_each_k))):
            found.append(_BEYOND)
        if c.breakdown and c.candidate != SELF:
            drafts[c.candidate] = name
            found += filter(None, [c.breakdown.reading])
            for group in c.breakdown.groups:
                if group.by in GROUPINGS:
                    rates.setdefault((group.by, group.name), {})[c.candidate] = group.alpha
        for finding in found:
            findings.setdefault(finding, []).append(name)
    head, rows = known_columns(["candidate", "α", *(f"τ k={k}" for k in ks)], rows)
    notes = [*report.doubts]
    notes += [f"{', '.join(names)}: {finding}" for finding, names in findings.items()]
    meanings = "".join(dict.fromkeys(_MEANINGS.get(name[0], "") for name in head))
    alone = any(c.alpha and c.alpha.without_interval is not None for c in report.candidates)
    legend = "± half a 95% interval. " * bool(meanings)
    legend += "Without ±: too few requests. " * alone
    notes += [*_of_grammars(report), *_few(report.candidates)]
    notes.append(f"{meanings}{legend}Everything: --all.")
    modes = " and ".join(dict.fromkeys(f"{c.mode} drafting" for c in report.candidates if c.mode))
    title = f"Acceptance of {counted(len(report.candidates), 'candidate')} on "
    title += counted(max((c.requests for c in report.candidates), default=0), "request")
    kinds = Counter(by for by, _ in rates)
    groups = [
        [by, name, *map(of.get, drafts)]
        for (by, name), of in rates.items()
        if kinds[by] > 1 and any(of.values())
    ]
    by_group = Section("α by group of requests", ["by", "", *drafts.values()], groups, names=2)
    return [
        Section(f"{title}, {modes}" if modes else title, head, rows, notes),
        *filled([by_group]),
    ]


def _known(figure: FigureEstimate) -> TableCell:
    """A figure with its interval; with too few requests for one, the value alone."""
    alone = figure.without_interval
    return figure.pooled if alone is None else f"{alone:.2f}"


def _shown_ks(ks: Iterable[int | None]) -> list[int]:
    """The smallest k, the usual one and the largest."""
    distinct = sorted({k for k in ks if k is not None})
    return sorted({distinct[0], usual_k(distinct), distinct[-1]}) if distinct else []


def _counted(c: CandidateAcceptance) -> str:
    """Where the figures of a candidate without replays come from."""
    if c.requests >= MIN_REQUESTS and all(each.pooled is None for each in c.at_each_k):
        return "unknown: it was not replayed, and the server does not report its drafting"
    return f"{_COUNTED}; {_PREDICTED}" if c.predicted else _COUNTED


def _of_grammars(report: AcceptanceReport) -> list[str]:
    """Which requests the figures of replay hold for."""
    replayed = [c.candidate for c in report.candidates if c.requests and not c.counted]
    if not (report.constrained and replayed):
        return []
    held = counted(report.constrained, "request")
    return [
        f"{', '.join(replayed)}: {held} with structured output replayed without the grammar, so "
        "the figures hold only for the others"
    ]


def _few(candidates: Sequence[CandidateAcceptance]) -> list[str]:
    """A note if the requests, or those of a segment, are too few or too unequal in length for tight
    intervals.
    """
    least = {"all": math.inf}
    for c in candidates:
        groups = c.breakdown.groups if c.breakdown else c.rounds_by_group
        segments = [(group.name, group.equal_requests) for group in groups if group.by == "segment"]
        for name, count in [("all", c.equal_requests), *segments]:
            least[name] = min(least.get(name, count), count)
    few = [f"{name} {count:.0f}" for name, count in least.items() if count < FEW_REQUESTS]
    if least["all"] < FEW_REQUESTS:
        few = few[:1]
    counts = f"under {FEW_REQUESTS} requests, counted as if equally long"
    return few and [f"rough intervals ({counts}): {', '.join(few)}"]


def every_section(report: AcceptanceReport) -> list[Section]:
    """All figures of all candidates, and how each is defined."""
    sections = [Section("Doubts", notes=report.doubts)]
    sections += [part for each in report.candidates for part in _of_candidate(each, report.width)]
    symbols = {known.name: known.symbol for known in FIGURES}
    ks = {None, *_shown_ks(each.k for each in report.differences)}
    rows: list[list[TableCell]] = [
        [
            f"{each.candidate} − {each.against}",
            symbols.get(each.figure, each.figure),
            "" if each.k is None else str(each.k),
            str(each.requests),
            signed(each.value),
        ]
        for each in report.differences
        if each.k in ks
    ]
    head = ["candidates", "figure", "k", "requests", "difference"]
    sections.append(Section("Differences, paired by request", head, rows))
    notes = [*_of_grammars(report), _LEGEND]
    notes += [_TREES] if any(c.trees for c in report.candidates if c.candidate != SELF) else []
    if report.near_tie_share:
        notes.append(
            f"{report.near_tie_share:.1%} of the target's tokens are near ties (top two logits "
            "within numeric noise), where decoding may pick the other token"
        )
    within = f"{TOKENS_PER_ROUND.symbol} within ±{100 * report.width:g}%"
    notes.append(f"n: how many requests like these give {within}.")
    for known in FIGURES:
        names = {program: getattr(known, field) for field, program in _PROGRAMS.items()}
        named = [f"{program}: {name}" for program, name in names.items() if name]
        formula = f"{known.symbol}, {known.name}: {known.formula}"
        notes.append(f"{'; '.join([formula, *named])}.")
    return [*filled(sections), Section("Definitions", notes=notes)]


def _of_candidate(c: CandidateAcceptance, width: float) -> Iterator[Section]:
    """Every table of a candidate; some are empty."""
    by_start = kind_of(c.candidate).noun
    drafting = f"{c.mode} drafting" if c.mode else by_start
    unknown = f"No α: what {by_start} proposes depends on where a round starts."
    notes = []
    if c.counted:
        drafting = "counted while decoding"
        unknown = "No α: the engine did not say at which positions it accepted."
        notes = [sentence(_counted(c))]
    elif not any(map(_known, c.at_each_k)):
        notes = [sentence(_BEYOND)]
    if c.alpha is None:
        notes.append(unknown)
    else:
        means = f"α {shown(_known(c.alpha))}, mean of requests {shown(c.alpha.per_request)}"
        needed = c.alpha.requests_needed
        enough = "" if needed is None else f"; {needed} requests for ±{width:.1%}"
        basis = c.alpha.figure if c.counted else f"{c.alpha.figure}, {drafting}"
        notes.append(f"{means} ({basis}){enough}")
    asked = f"{counted(c.requests, 'request')}, {counted(c.responses, 'response')}"
    yield Section(f"{c.candidate}: {drafting}, {asked}", notes=[*notes, *_few([c])])

    at_each_k: dict[int | None, list[TableCell]] = {}
    requests_needed: dict[int | None, int | None] = {}
    for each in sorted((*c.at_each_k, *c.predicted), key=lambda each: each.k or 0):
        at_each_k.setdefault(each.k, []).append(_known(each))
        if each.symbol == TOKENS_PER_ROUND.symbol:
            requests_needed[each.k] = each.requests_needed
    predicted = {each.k: f"{each.k}, predicted" for each in c.predicted}
    yield Section(
        f"{c.candidate} by draft length",
        ["k", *dict.fromkeys(each.symbol for each in c.at_each_k), f"n for ±{100 * width:g}%"],
        [
            [predicted.get(k, str(k)), *figures, str(requests_needed[k] or "–")]
            for k, figures in at_each_k.items()
        ],
    )

    positions = enumerate(zip(c.hazards, c.survivals, strict=True), start=1)
    yield Section(
        f"{c.candidate} by draft position, k = {len(c.hazards)}",
        ["position", "hazard", "survival"],
        [[str(at), _known(hazard), _known(survival)] for at, (hazard, survival) in positions],
    )

    if c.breakdown:
        change = c.breakdown.late_less_early
        notes = [] if change is None else [f"α late in responses minus α early: {signed(change)}"]
        yield Section(
            f"{c.candidate}: where tokens are accepted",
            ["by", "group", "requests", "positions", "confidence", "α"],
            [
                [
                    *(g.by, g.name, str(g.requests), f"{g.positions:.0f}"),
                    "–" if g.confidence is None else f"{g.confidence:.2f}",
                    g.alpha,
                ]
                for g in c.breakdown.groups
            ],
            [*notes, *filter(None, [c.breakdown.reading])],
        )

    ks = _shown_ks(group.k for group in c.rounds_by_group)
    tokens: dict[tuple[str, str, str], dict[int, Estimate | None]] = {}
    for group in c.rounds_by_group:
        row = tokens.setdefault((group.by, group.name, str(group.requests)), {})
        row[group.k] = group.tokens_per_round
    yield Section(
        f"{c.candidate}: tokens per round by group",
        ["by", "group", "requests", *(f"k = {k}" for k in ks)],
        [[*names, *map(row.get, ks)] for names, row in tokens.items()],
    )

    if c.trees and c.candidate != SELF:
        yield Section(
            f"{c.candidate}: best trees, at most {c.trees[0].depth} deep",
            ["nodes", "tokens per round", "uncut accepted length", "nodes by depth"],
            [
                [
                    *(str(tree.nodes), tree.tokens_per_round, tree.accepted_length),
                    "·".join(str(n) for _, n in sorted(Counter(map(len, tree.tree)).items())),
                ]
                for tree in c.trees
            ],
        )


def csv_of(report: AcceptanceReport) -> str:
    """A line for each figure of each candidate, and for each difference."""
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
