"""`draftbench recommend`: a run folder → the decision. No model runs here."""

from __future__ import annotations

from pathlib import Path

from draftbench.cli.flags import COSTS, RunArgument, read, with_costs
from draftbench.cli.invocation import command, words_of
from draftbench.cli.output import Output, width
from draftbench.flags import flag, flag_name, flags_of
from draftbench.planner.options import DecisionOptions


def recommend(
    *,
    run: RunArgument,
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
    from draftbench.planner.recommend import recommend as decide
    from draftbench.report.terminal.recommendation import render

    observed = read(run)
    answer = decide(observed, with_costs(options, costs, observed))
    repeated = words_of({"--costs", *map(flag_name, flags_of(options))})
    same = [str(run), *repeated]
    following = [] if everything else [command("recommend", *same, "--all")]
    if answer.leader is None:
        following.insert(0, command("acceptance", str(run)))
    following.append(command("report", *same, "--html", "report.html"))
    text = render(answer, output.style, width(), everything=everything, commands=following)
    output.write(text)
    return 0
