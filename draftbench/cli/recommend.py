"""`draftbench recommend`: a run folder → the decision. No model runs here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from draftbench.cli.flags import COSTS, RunArgument, read, with_costs
from draftbench.cli.invocation import command, words_of
from draftbench.cli.output import Output, width
from draftbench.engines.every import STARTED
from draftbench.errors import DraftbenchError
from draftbench.export.configurations import configure
from draftbench.export.serve_plan import engines_for, serve_plan
from draftbench.flags import flag, flag_name, flags_of
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend as decide
from draftbench.planner.recommendation import Caveat, Recommendation
from draftbench.records import to_json
from draftbench.report.answer import (
    LONGEST_NAME,
    better_draft,
    candidates,
    contexts,
    crossover,
    every_section,
    explained_by,
    headline,
    limits_kept,
    next_sweep,
    on_engines,
    over_limits,
    reasons,
    runner_up,
    schedule,
    stopping,
    unmeasured,
)
from draftbench.report.text import (
    SCREEN_COLUMNS,
    SCREEN_LINES,
    Section,
    columns,
    command_lines,
    counted,
    csv_text,
    ends,
    markdown_table,
    paragraph,
    render_sections,
)
from draftbench.run_folder.run import Run
from draftbench.safe_files import markdown_escaped

CSV_FIGURES = (
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
_MOST_ROWS, _MOST_CAVEATS = 6, 2
_SHORTEST_NAME, _TELLING_NAME = 12, 24
_HALF = "± half a 95% interval"


def recommend(
    *,
    run: RunArgument = None,
    everything: bool = flag(
        False, "Also print every speed-up, loads, latency, checks and caveats.", names=("--all",)
    ),
    options: DecisionOptions,
    costs: Path | None = COSTS,
    output: Output,
) -> int:
    """Decide whether to speculate, with which draft, quantization and k, and say how sure that is.

    draftbench recommend results/runs/RUN
    draftbench recommend results/runs/RUN --all
    draftbench recommend results/runs/RUN --concurrency 1,8,32 --max-memory 20GB
    draftbench recommend results/runs/RUN --costs vllm.yaml
    draftbench recommend results/runs/RUN --format json | jq .choice
    """
    observed = read(run)
    answer = decide(observed, with_costs(options, costs, observed))
    repeated = words_of({"--costs", *map(flag_name, flags_of(options))})
    name = str(observed.path)
    same = [name, *repeated]
    again = next_sweep(answer, observed.manifest, name)
    following = [f"{command()} {again}"] if again else []
    following += [command("acceptance", name)] if answer.leader is None else []
    following += [] if everything else [command("recommend", *same, "--all")]
    following.append(command("report", *same, "--html", "report.html"))
    if engine := _serving(answer, observed):
        following.append(command("export", *same, "--engine", engine))
    text = render(answer, output.style, width(), everything=everything, commands=following)
    output.write(text)
    return 0


def _serving(answer: Recommendation, run: Run) -> str | None:
    """The first engine that can serve the choice, or else what it can do of it; None without a
    choice.
    """
    served = [(answer.choice, engine.key) for engine in engines_for(answer, run)]
    served += [
        (at.leader, at.engine or next(iter(STARTED)))
        for at in answer.on_engines
        if answer.choice and at.decision == "speculate"
    ]
    for configuration, engine in served:
        with suppress(DraftbenchError):
            configure(serve_plan(replace(answer, choice=configuration), run), engine)
            return engine
    return None


def render(
    answer: Recommendation,
    style: str,
    width: int,
    *,
    everything: bool = False,
    commands: Sequence[str] = (),
) -> str:
    """The answer as table, json, markdown or csv; JSON and CSV always hold everything.

    `commands`, what to run next, stand below a table.
    """
    if style == "json":
        return to_json(answer)
    if style == "csv":
        spread = [f"{name}{end}" for name in CSV_FIGURES for end in ("", "_low", "_high")]
        head = ["draft", "quant", "k", "best", *spread, "prediction_error", "memory_bytes", "stop"]
        rows = [
            [
                *(each.draft, each.quant, each.k, int(each.best)),
                *(value for name in CSV_FIGURES for value in ends(getattr(each, name))),
                *(each.prediction_error, each.memory_bytes, each.stop),
            ]
            for each in answer.evaluations
        ]
        return csv_text(head, rows)
    top = [headline(answer), *reasons(answer)]
    if style == "markdown":
        title, *lines = map(markdown_escaped, top)
        if everything:
            rest = [render_sections(every_section(answer), style, width)]
        else:
            table = candidates(answer)
            urgent = answer.urgent_caveats[:_MOST_CAVEATS]
            after = [*_below(answer), *(f"{_label(each)} {each.text}" for each in urgent)]
            below = [f"- {markdown_escaped(line)}" for line in after]
            rest = [
                markdown_table(table.head, table.rows),
                markdown_escaped("; ".join([_HALF, *table.notes])),
            ]
            rest.append("\n".join(below))
        return "\n\n".join([f"## {title}", *lines, *rest]).rstrip()
    if everything:
        first = "\n".join(paragraph(line, width) for line in top)
        sections = render_sections(every_section(answer), style, width)
        return "\n\n".join(
            filter(None, (first, sections, "\n".join(command_lines(commands, width))))
        )
    return _screen(answer, top, min(width, SCREEN_COLUMNS), commands)


def _screen(answer: Recommendation, top: list[str], width: int, commands: Sequence[str]) -> str:
    """The first lines, the first rows of the table, as many notes as fit, and what to run next."""
    table, narrow = _fitted_table(answer, width)
    shown = [columns(table.head, table.rows)]
    if (left_out := len(answer.by_candidate) - _MOST_ROWS) > 0:
        shown.append(f"   and {left_out} more: --all")
    legend = [_HALF, *table.notes]
    if narrow:
        legend.append(f"left out: {' and '.join(narrow)} (--all)")
    notes = [paragraph(text, width) for text in _below(answer)]
    for caveat in answer.urgent_caveats[:_MOST_CAVEATS]:
        # In its short form if the long one takes more than two lines.
        long = paragraph(f"{_label(caveat)} {caveat.text}", width)
        short = long.count("\n") > 1 and caveat.short
        notes.append(paragraph(f"{_label(caveat)} {caveat.short}", width) if short else long)
    first = [paragraph(line, width) for line in top]
    following = command_lines(commands, width)
    for most in range(len(notes), -1, -1):
        more = [f"{counted(len(notes) - most, 'more note')} (--all)"] if most < len(notes) else []
        below = paragraph("; ".join([*legend, *more]), width)
        blocks = (first, [*shown, below], notes[:most], following)
        text = "\n\n".join("\n".join(block) for block in blocks if block)
        if text.count("\n") < SCREEN_LINES:
            break
    return text


def _label(caveat: Caveat) -> str:
    """What stands before a caveat: the command that explains it."""
    return f"Caveat ({explained_by([caveat.kind])}):"


def _fitted_table(answer: Recommendation, width: int) -> tuple[Section, list[str]]:
    """The first rows of the table, and the columns left out for its width. Memory and c, which
    --all shows, are left out before names become hard to tell apart.
    """
    every_column: Sequence[str] = ()
    for without in ((), ("memory",), ("memory", "c")):
        table = candidates(answer, LONGEST_NAME, without, _MOST_ROWS)
        every_column = every_column or table.head
        over = max(map(len, columns(table.head, table.rows).split("\n"))) - width
        longest = max((len(str(row[1])) for row in table.rows), default=0) - max(over, 0)
        if over <= 0 or longest >= _TELLING_NAME:
            break
    if over > 0:
        table = candidates(answer, max(longest, _SHORTEST_NAME), without, _MOST_ROWS)
    return table, [name for name in every_column if name in without]


def _below(answer: Recommendation) -> list[str]:
    """What stands below the table, before the caveats."""
    known = (
        over_limits(answer),
        runner_up(answer),
        crossover(answer) if answer.crossover_between else None,
        on_engines(answer) or stopping(answer),
        schedule(answer),
        contexts(answer),
        better_draft(answer),
        unmeasured(answer),
    )
    return [*filter(None, known), *limits_kept(answer)]
