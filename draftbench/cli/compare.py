"""`draftbench compare`: run folders → what differs. No model runs here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import read
from draftbench.cli.output import TextOutput, width
from draftbench.flags import flag
from draftbench.gate.compare import (
    OTHER_KEYS,
    CandidateChange,
    Comparison,
    FigureChange,
    SideBySide,
    compare_runs,
    side_by_side,
    why_unpaired,
)
from draftbench.planner.passes import MIN_PROCESSES
from draftbench.records import SELF, to_json
from draftbench.report.answer import DECISIONS
from draftbench.report.text import (
    Cell,
    Section,
    counted,
    filled,
    render_sections,
    sentence,
    shortened,
)
from draftbench.run_folder.manifest import flag_of

_LEGEND = (
    "A, B and B − A cover the requests in both runs; B − A has its 95% interval, paired as in "
    "`gate` (c: over repeated timings, not paired); if it contains 0, the change is unclear. "
    "Speed-up: measured, prefill excluded. – is unknown; two k's are each run's best."
)
_SELDOM = (
    f"Times (speed-up, c) come from fewer than {MIN_PROCESSES} processes. Restarts can differ by "
    "more than these intervals, so no change in times is called higher or lower."
)
_SHORT_LEGEND = "Everything covers the requests in both runs; B − A has its 95% interval."
_ANSWERS_LEGEND = (
    "Speed-up: the one that `recommend` prints first. ±: half of that run's 95% interval."
)
_MORE = "Every figure and every difference in the settings: the same command with --all."
_FIGURES = {"tokens per round": "tok/round", "S measured": "speed-up"}  # as `recommend` has them
# Most characters of the three cells of a row that fit next to each other on 80 columns.
_WIDE = 74
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
    # JSON holds everything that two runs differ in.
    if more or (output.style != "json" and why_unpaired(*runs)):
        output.write(
            render_answers(side_by_side(names, runs), output.style, width(), everything=everything)
        )
    else:
        comparison = compare_runs((names[0], names[1]), runs[0], runs[1])
        output.write(render(comparison, output.style, width(), everything=everything))
    return 0


def render(comparison: Comparison, style: str, width: int, *, everything: bool = False) -> str:
    """The comparison as table, json or markdown. JSON and Markdown always have everything, a table
    is one screen unless `everything` is asked for.
    """
    if style == "json":
        return to_json(comparison)
    everything = everything or style == "markdown"
    a, b = comparison.requests_a, comparison.requests_b
    title = _title((comparison.a, comparison.b), comparison.common_requests, f" (A: {a}, B: {b})")
    notes = [] if comparison.candidates else ["No candidate is in both runs."]
    for side, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        notes += [f"Only in {side}: {', '.join(only)}"] if only else []
    differences = {
        "settings": [(flag_of(each.fact), each.a, each.b) for each in comparison.question],
        "models": [(each.fact, each.a, each.b) for each in comparison.models],
    }
    caveats = _caveats(comparison)
    if everything:
        sections = [
            caveats,
            _changes(comparison, everything=True),
            Section("How to read this", notes=[*notes, _LEGEND]),
            *(_differences(f"Differences in the {name}", d) for name, d in differences.items()),
            Section("Differences in the environment", notes=comparison.environment),
        ]
        return render_sections([title, *filled(sections)], style, width)
    for name, rows in differences.items():
        notes += _different(f"{name.capitalize()} that differ", [row[0] for row in rows])
    notes += _different("Environment that differs", comparison.environment)
    changes = _changes(comparison, everything=False)
    legend = [_SHORT_LEGEND] if changes.rows else []
    changes = replace(changes, notes=[*legend, *changes.notes, *notes, _MORE])
    return render_sections([title, *filled([caveats, changes])], style, width, "--all")


def _title(runs: Sequence[str], requests: int | None, sizes: str = "") -> Section:
    lines = [f"{chr(ord('A') + at)}: {run}" for at, run in enumerate(runs)]
    common = sentence(OTHER_KEYS)
    if requests is not None:
        common = f"{counted(requests, 'request')} in common{sizes}"
    return Section("\n".join([*lines, common]))


def _caveats(comparison: Comparison | SideBySide) -> Section:
    """All caveats except the one in the title."""
    return Section("Caveats", notes=[text for text in comparison.caveats if text != OTHER_KEYS])


def _different(what: str, facts: Sequence[str]) -> list[str]:
    """A note that names what differs, without explanations after a comma; none if nothing does."""
    names = [fact.partition(",")[0] for fact in facts]
    return [f"{what}: {', '.join(names)}"] if names else []


def _changes(comparison: Comparison, *, everything: bool) -> Section:
    """The figures of every candidate, all or the main ones, and why some cannot be compared."""
    rows: list[list[Cell]] = []
    obstacles: dict[str, dict[str, None]] = {}
    for change in comparison.candidates:
        figures = change.figures if everything else _main_figures(change)
        rows += [[shortened(change.candidate, _SHORT_NAME), *_row(row)] for row in figures]
        for row in change.figures:
            if row.obstacle and row.a and row.b:
                obstacles.setdefault(row.obstacle, {})[_named(row)] = None
    notes = [f"{', '.join(figures)}: {why}" for why, figures in obstacles.items()]
    shown = [row for change in comparison.candidates for row in change.figures if row.difference]
    notes += [_SELDOM] if any(row.timed_too_seldom for row in shown) else []
    head = ["draft", "", "k", "A", "B", "B − A", "B is"]
    return Section("What changed", head, rows, notes, names=3)


def _main_figures(change: CandidateChange) -> Iterable[FigureChange]:
    """The comparable figures that are paired by request (so not c), each at the k where it was
    largest in A; none for the control.
    """
    main: dict[str, FigureChange] = {}
    for row in change.figures if change.candidate != SELF else ():
        best = main.get(row.figure)
        better = best is None or (row.a and best.a and row.a.value > best.a.value)
        if row.difference and row.requests and row.k_a == row.k_b and better:
            main[row.figure] = row
    return main.values()


def _row(row: FigureChange) -> list[Cell]:
    change = row.difference
    # Both ends, since an interval may be lopsided.
    difference = change and f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
    ks = None if row.k_a is None else ", ".join(map(str, dict.fromkeys((row.k_a, row.k_b))))
    return [_named(row), ks, row.a, row.b, difference, _reading(row)]


def _named(row: FigureChange) -> str:
    return _FIGURES.get(row.figure, row.figure)


def _reading(row: FigureChange) -> str:
    difference, ratio = row.difference, row.ratio
    if difference is None or ratio is None:
        if row.requests:
            return "too few requests"
        return "–" if row.a is None or row.b is None else "not comparable"
    if difference.low == difference.high == 0:
        return "the same"
    if row.k_a != row.k_b:
        return "another k"
    if row.timed_too_seldom:
        return "unclear"
    if difference.low > 0 and ratio.low > 1:
        return "higher"
    return "lower" if difference.high < 0 and ratio.high < 1 else "unclear"


def _differences(title: str, differences: Sequence[tuple[str, str | None, str | None]]) -> Section:
    rows = [[fact, a or "–", b or "–"] for fact, a, b in differences]
    if any(len(fact) + len(a) + len(b) > _WIDE for fact, a, b in rows):
        return Section(title, notes=[f"{fact}: {a} → {b}" for fact, a, b in rows])
    return Section(title, ["", "A", "B"], rows)


def render_answers(
    comparison: SideBySide, style: str, width: int, *, everything: bool = False
) -> str:
    """The answers of several runs as table (one screen, or everything), json or markdown."""
    if style == "json":
        return to_json(comparison)
    everything = everything or style == "markdown"
    letters = {run: chr(ord("A") + at) for at, run in enumerate(comparison.runs)}
    answers: list[list[Cell]] = []
    for each in comparison.answers:
        draft = each.draft and (each.draft if everything else shortened(each.draft, _NAME))
        k = None if each.k is None else str(each.k)
        figures = (each.speedup_deciding, each.alpha, each.mean_accepted_length)
        answer = DECISIONS[each.decision].lower()
        answers.append([letters[each.run], each.load, answer, draft, k, *figures])
    head = ["", "load", "answer", "best draft", "k", "speed-up ×", "α", "τ"]
    runners = {
        each.run: f"{counted(each.requests, 'request')}, {each.runner}"
        for each in comparison.answers
    }
    named = [f"{run} ({runners[run]})" if run in runners else run for run in comparison.runs]
    facts = [flag_of(each.fact) for each in comparison.question]
    title, caveats = _title(named, comparison.common_requests), _caveats(comparison)
    if everything:
        rows = [
            [fact, *(shortened(value or "–", 24) for value in each.values)]
            for fact, each in zip(facts, comparison.question, strict=True)
        ]
        columns = ["", *(letters[run] for run in comparison.runs)]
        listed = Section("Answers", head, answers, [_ANSWERS_LEGEND])
        settings = Section("Differences in the settings", columns, rows)
        return render_sections([title, *filled([listed, caveats, settings])], style, width)
    without_lengths = [row[:-1] for row in answers]
    notes = [_ANSWERS_LEGEND, *_different("Settings that differ", facts), _MORE]
    listed = Section("Answers", head[:-1], without_lengths, notes)
    return render_sections([title, *filled([listed, caveats])], style, width, "--all")
