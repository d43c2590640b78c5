"""`draftbench export`: a run's recommendation → the configuration of a serving engine."""

from __future__ import annotations

from draftbench.cli.flags import Decision, RunArgument, candidate_named, flag, read
from draftbench.cli.output import ResultFile, note


def _engines(incomplete: str) -> list[str]:
    from draftbench.models.engine_rules import ENGINES

    return list(ENGINES)


def export(
    *,
    run: RunArgument,
    engine: str = flag(
        ...,
        "The engine: vllm, sglang, llamacpp, tensorrt-llm or transformers.",
        "ENGINE",
        complete=_engines,
    ),
    engine_version: str | None = flag(
        None,
        "The engine's version, e.g. 0.26; for llamacpp before-rename or after-rename.",
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
    force: bool = flag(
        False, "Export the candidate that ranks first even if it is not recommended."
    ),
    decision: Decision,
    output: ResultFile,
) -> int:
    """Print the configuration with which an engine serves what the run recommends.

    draftbench export results/runs/RUN --engine vllm --draft org/small
    draftbench export results/runs/RUN --engine vllm --costs vllm.yaml
    draftbench export results/runs/RUN --engine llamacpp
    """
    from draftbench.export.configurations import configure, known_engine
    from draftbench.export.setting import setting_of
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.text import plain

    known_engine(engine)
    observed = read(run)
    options = decision.options(observed)
    answer = recommend(observed, options)
    wanted = None if candidate is None else candidate_named(observed, candidate)
    setting = setting_of(
        answer, observed, candidate=wanted, target=target, draft=draft, force=force
    )
    configuration = configure(setting, engine, engine_version)
    for remark in (*configuration.notes, *(options.costs.caveats if options.costs else ())):
        note(f"note: {plain(remark)}")
    output.write(configuration.text)
    return 0
