"""`draftbench export`: a run's recommendation → the configuration of a serving engine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import Decision, candidate_named, flag, read
from draftbench.cli.output import ResultFile, note, width
from draftbench.errors import UsageError

# How many notes on what to do are printed without --all.
SHOWN = 3


def _engines(incomplete: str) -> list[str]:
    from draftbench.models.engine_rules import ENGINE_RULES

    return list(ENGINE_RULES)


def export(
    *,
    run: Annotated[
        Path | None, typer.Argument(help="A run folder made by `sweep`.", metavar="RUN")
    ] = None,
    engine: str = flag(
        ...,
        "The engine: vllm, sglang, llama.cpp, tensorrt-llm or transformers.",
        "ENGINE",
        autocompletion=_engines,
    ),
    engine_version: str | None = flag(
        None,
        "The engine's version, e.g. 0.26; for llama.cpp a build, e.g. b11368.",
        "VERSION",
    ),
    target: str | None = flag(
        None, "What the engine calls the target (default: as swept).", "MODEL"
    ),
    draft: str | None = flag(None, "What the engine calls the draft (default: as swept).", "MODEL"),
    candidate: str | None = flag(
        None,
        "Export this candidate, DRAFT[:QUANT], at its best k (default: the recommended one).",
        "NAME",
    ),
    anyway: bool = flag(
        False, "Export the candidate that ranks first, even if it is not recommended."
    ),
    synthetic: bool = flag(
        False,
        "Make the engine accept drafts at the measured rates, so that any draft can be timed "
        "(vllm, llama.cpp; sglang at their mean).",
    ),
    everything: bool = flag(
        False, f"Print every note, not only the {SHOWN} most urgent.", names=("--all",)
    ),
    about: bool = flag(
        False, "Print which versions the engine's rules were read from; needs no RUN."
    ),
    decision: Decision,
    output: ResultFile,
) -> int:
    """Print the engine's configuration for what a run recommends.

    draftbench export results/runs/RUN --engine vllm --draft org/small
    draftbench export results/runs/RUN --engine vllm --costs vllm.yaml
    draftbench export results/runs/RUN --engine llama.cpp
    draftbench export --engine sglang --about
    """
    from draftbench.export.configurations import configure, known_engine
    from draftbench.export.setting import setting_of
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.text import (
        SCREEN_COLUMNS,
        continued,
        counted,
        paragraph,
        printable,
    )

    engine = known_engine(engine)
    if about:
        output.write(_about(engine))
        return 0
    if run is None:
        raise UsageError(
            "a run folder is missing", hint=f"for example: draftbench export RUN --engine {engine}"
        )
    observed = read(run)
    options = decision.options(observed)
    answer = recommend(observed, options)
    wanted = None if candidate is None else candidate_named(observed, candidate)
    setting = setting_of(
        answer,
        observed,
        candidate=wanted,
        target=target,
        draft=draft,
        anyway=anyway,
        synthetic=synthetic,
    )
    configuration = configure(setting, engine, engine_version)
    output.write(configuration.text)
    if configuration.command:
        piped = output.output == "-"
        named = configuration.command.replace(
            "FILE", "FILE" if piped else shlex.quote(output.output)
        )
        label = "serve, with -o FILE:" if piped else "serve:"
        note("\n".join(continued(printable(named), label, min(width(), SCREEN_COLUMNS))))
    costs = options.costs.caveats if options.costs else ()
    # That the costs were not measured in this run is said first.
    remarks = (*costs[:1], *configuration.to_do, *costs[1:])
    urgent = len(costs[:1]) + len(configuration.to_do[:SHOWN])
    shown = remarks if everything else remarks[:urgent]
    for remark in shown:
        note(paragraph(f"note: {remark}", min(width(), SCREEN_COLUMNS)))
    if hidden := len(remarks) - len(shown):
        note(f"… {counted(hidden, 'more note')}: --all")
    return 0


def _about(engine: str) -> str:
    from draftbench.models.engine_rules import ENGINE_RULES
    from draftbench.report.terminal.text import Section, render_sections

    rules = ENGINE_RULES[engine]
    rows = [
        [each.rule, f"{rules.name} {each.read}", each.tried or "nothing"] for each in rules.sources
    ]
    head = ["rule", "read in", "run with"]
    section = Section(f"What is known of {rules.name}", head, rows, [rules.form])
    return render_sections([section], "table", width())
