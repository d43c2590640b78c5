"""`draftbench compare`: run folders → what differs. No model runs here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import read
from draftbench.cli.output import TextOutput
from draftbench.flags import flag
from draftbench.gate.compare import (
    OTHER_KEYS,
    Comparison,
    Difference,
    FigureChange,
    SideBySide,
    compare_runs,
    side_by_side,
    why_unpaired,
)
from draftbench.planner.passes import MIN_PROCESSES
from draftbench.report.answer import DECISIONS
from draftbench.report.text import Section, TableCell, counted, filled, sentence, shortened
from draftbench.run_folder.manifest import flag_of, in_words

_LEGEND = (
    "A, B and B − A cover the requests in both runs; B − A has its 95% interval, paired as in "
    "`gate` (c: over repeated timings, not paired); if it contains 0, the change is unclear. "
    "measured ×: the speed-up as timed, prefill excluded; `recommend` has the expected one. – is "
    "unknown; two k's are each run's best."
)
_SELDOM = (
    f"Times (speed-up, c) come from fewer than {MIN_PROCESSES} processes. Restarts can differ by "
    "more than these intervals, so no change in times is called higher or lower."
)
_ANSWERS_LEGEND = (
    "Speed-up: the one that `recommend` prints first. ±: half of that run's 95% interval."
)
_MORE = "Every figure and every difference in the settings: the same command with --all."
# As on screen.
_FIGURES = {"tokens per round": "tok/round", "S measured": "measured ×"}
# Most characters of a draft's name beside an answer, and beside a change.
_NAME, _SHORT_NAME = 20, 16


def compare(
    run_a: Annotated[Path, typer.Argument(help="The earlier run folder.", metavar="RUN_A")],
    run_b: Annotated[
        Path, typer.Argument(help="The run folder to compare with it.", metavar="RUN_B")
    ],
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="More runs, to list the answers of all.", metavar="RUN"),
    ] = None,
    *,
    everything: bool = flag(
        False, "Show every figure and what differs in each setting.", names=("--all",)
    ),
    output: TextOutput,
) -> int:
    """Show what differs between two runs: acceptance, costs and speed-up, paired by request, and
    every setting. For runs that cannot be paired, and for three or more, list the answers.

    draftbench compare results/runs/A results/runs/B
    draftbench compare results/runs/A results/runs/B --format json
    draftbench compare results/runs/built-in results/runs/vllm results/runs/llama
    """
    names = [str(path) for path in (run_a, run_b, *(more or ()))]
    runs = [read(Path(name)) for name in names]
    rest = "" if everything else "--all"
    everything = everything or output.style == "markdown"
    # JSON holds everything that two runs differ in.
    if more or (output.style != "json" and why_unpaired(*runs)):
        listed = side_by_side(names, runs)
        output.show(listed, answers(listed, everything=everything), rest)
    else:
        comparison = compare_runs((names[0], names[1]), runs[0], runs[1])
        output.show(comparison, changes(comparison, everything=everything), rest)
    return 0


def changes(comparison: Comparison, *, everything: bool = False) -> list[Section]:
    """What changed between two runs, on one screen: of each candidate the figures that are paired
    by request (so not c), at the k where A's is largest, and the settings by name; or everything.
    """
    rows: list[list[TableCell]] = []
    obstacles: dict[str, dict[str, None]] = {}
    seldom = False
    for change in comparison.candidates:
        for row in change.figures:
            seldom = seldom or (row.difference is not None and row.timed_too_seldom)
            if row.obstacle and row.a and row.b:
                figure = _shown(row.figure).partition(",")[0]
                obstacles.setdefault(row.obstacle, {})[figure] = None
        name = shortened(change.candidate, _SHORT_NAME)
        rows += [[name, *_row(row)] for row in (change.figures if everything else change.main)]
    notes = [f"{', '.join(figures)}: {why}" for why, figures in obstacles.items()]
    notes += [_SELDOM] if seldom else []
    if not comparison.candidates:
        notes.append("No candidate is in both runs.")
    for side, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        notes += [f"Only in {side}: {', '.join(only)}"] if only else []
    settings = [
        Difference(flag_of(c.fact), *map(in_words, (c.a, c.b))) for c in comparison.question
    ]
    differing = {"settings": settings, "models": comparison.models}
    notes = [*([_LEGEND] if rows else []), *notes]
    if not everything:
        for what, facts in differing.items():
            notes += _names(what, [each.fact for each in facts])
        notes += [*_names("environment", comparison.environment), _MORE]
    a, b = comparison.requests_a, comparison.requests_b
    sizes = f" (A: {a}, B: {b})"
    head = ["draft", "", "k", "A", "B", "B − A", "B is"]
    title, caveats = _top((comparison.a, comparison.b), comparison, sizes)
    sections = [Section("What changed", head, rows, notes, names=3)]
    if everything:
        for what, facts in differing.items():
            lines = [f"{each.fact}: {each.a or '–'} → {each.b or '–'}" for each in facts]
            sections.append(Section(f"Differences in the {what}", notes=lines))
        sections.append(Section("Differences in the environment", notes=comparison.environment))
    return [title, *filled([*sections, caveats])]


def _top(runs: Sequence[str], compared: Comparison | SideBySide, sizes: str = "") -> list[Section]:
    """The runs by letter, how many requests they share or that keys differ, and the caveats."""
    common = sentence(OTHER_KEYS)
    if compared.common_requests is not None:
        common = f"{counted(compared.common_requests, 'request')} in common{sizes}"
    lines = [f"{chr(ord('A') + at)}: {run}" for at, run in enumerate(runs)]
    caveats = [text for text in compared.caveats if text != OTHER_KEYS]
    return [Section("\n".join([*lines, common])), Section("Caveats", notes=caveats)]


def _names(what: str, facts: Sequence[str]) -> list[str]:
    """A note that names what differs, without explanations after a comma; none if nothing does."""
    names = [fact.partition(",")[0] for fact in facts]
    return [f"Different {what}: {', '.join(names)}"] if names else []


def _shown(figure: str) -> str:
    """A figure's name in the table; that of a rule's speed-up names the rule too."""
    name, comma, rule = figure.partition(", ")
    return _FIGURES.get(name, name) + comma + rule


def _row(row: FigureChange) -> list[TableCell]:
    """A figure in both runs, and whether it changed."""
    # Both ends, since an interval may be lopsided.
    change = row.difference
    difference = change and f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
    b_is = "–" if row.change == "unknown" else row.change
    ks = None if row.k_a is None else ", ".join(map(str, dict.fromkeys((row.k_a, row.k_b))))
    return [_shown(row.figure), ks, row.a, row.b, difference, b_is]


def answers(compared: SideBySide, *, everything: bool = False) -> list[Section]:
    """The answers of several runs, and the settings in which they differ."""
    letters = {run: chr(ord("A") + at) for at, run in enumerate(compared.runs)}
    runners: dict[str, str] = {}
    rows: list[list[TableCell]] = []
    for each in compared.answers:
        runners[each.run] = f"{each.run} ({counted(each.requests, 'request')}, {each.runner})"
        draft = each.draft and shortened(each.draft, 200 if everything else _NAME)
        k = None if each.k is None else str(each.k)
        answer = DECISIONS[each.decision].lower()
        figures = [each.speedup_deciding, each.alpha]
        figures += [each.mean_accepted_length] * everything
        rows.append([letters[each.run], each.load, answer, draft, k, *figures])
    head = ["", "load", "answer", "best draft", "k", "speed-up ×", "α", *["τ"] * everything]
    facts = [flag_of(each.fact) for each in compared.question]
    notes = [_ANSWERS_LEGEND, *([] if everything else [*_names("settings", facts), _MORE])]
    title, caveats = _top([runners.get(run, run) for run in compared.runs], compared)
    settings = []
    for differing in compared.question:
        values = zip(compared.runs, differing.values, strict=True)
        of_each = "; ".join(f"{letters[run]}: {in_words(value)}" for run, value in values)
        settings.append(f"{flag_of(differing.fact)}: {of_each}")
    sections = [Section("Answers", head, rows, notes), caveats]
    if everything:
        sections.append(Section("Differences in the settings", notes=settings))
    return [title, *filled(sections)]
