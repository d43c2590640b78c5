"""`draftbench recommend`: a run folder → the decision. No model runs here."""

from __future__ import annotations

from draftbench.cli.flags import Decision, RunArgument, flag, read
from draftbench.cli.invocation import command
from draftbench.cli.output import Output, width


def recommend(
    *,
    run: RunArgument,
    everything: bool = flag(
        False, "Also print every speed-up, loads, latency, checks and caveats.", names=("--all",)
    ),
    decision: Decision,
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
    from draftbench.report.answer import next_sweep
    from draftbench.report.terminal.recommendation import render

    observed = read(run)
    answer = decide(observed, decision.options(observed))
    same = [str(run), *decision.words()]
    following = [] if everything else [command("recommend", *same, "--all")]
    if answer.leader is None:
        following.insert(0, command("acceptance", str(run)))
    following.append(command("report", *same, "--html", "report.html"))
    if again := next_sweep(answer, observed.manifest, str(run)):
        following.insert(0, f"{command()} {again}")
    text = render(answer, output.style, width(), everything=everything, commands=following)
    output.write(text)
    return 0
