"""`draftbench recommend`: a run folder → the decision. No model runs here."""

from __future__ import annotations

from draftbench.cli.flags import (
    FORMATS,
    Decision,
    FormatOption,
    OutputOption,
    RunArgument,
    decides,
    one_of,
)
from draftbench.cli.output import check_output, width, write_result


@decides
def recommend(
    run: RunArgument,
    decision: Decision,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Decide whether to speculate, with which draft, quantization and k, and say how sure that is.

    draftbench recommend results/runs/RUN
    draftbench recommend results/runs/RUN --concurrency 1,8,32 --max-memory 20GB
    draftbench recommend results/runs/RUN --costs vllm.yaml
    draftbench recommend results/runs/RUN --format json | jq .choice
    """
    from draftbench.planner.recommend import recommend as decide
    from draftbench.report.terminal.recommendation import render
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    one_of("--format", output_format, FORMATS)
    check_output(output)
    observed = read_run(RunFolder(run))
    answer = decide(observed, decision.options(observed))
    write_result(render(answer, output_format, width()), output)
    return 0
