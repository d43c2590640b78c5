"""`draftbench report`: a run folder → a page or charts. No model runs here."""

from __future__ import annotations

from pathlib import Path

from draftbench.cli.flags import COSTS, RunArgument, read, with_costs
from draftbench.cli.output import check_output, note, write_result
from draftbench.errors import UsageError
from draftbench.flags import flag, in_output
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend


def report(
    *,
    run: RunArgument,
    html: Path | None = flag(None, "Write one self-contained HTML page.", "FILE"),
    plots: Path | None = flag(
        None, "Write every chart into this folder, as SVG and PNG.", "FOLDER"
    ),
    force: bool = in_output(False, "Replace files that draftbench did not write."),
    options: DecisionOptions,
    costs: Path | None = COSTS,
) -> int:
    """Write a run as one HTML page that explains itself, or as charts.

    draftbench report results/runs/RUN --html report.html
    draftbench report results/runs/RUN --plots charts
    """
    if html is None and plots is None:
        raise UsageError(
            "nothing to write: give --html FILE for a page, or --plots FOLDER for charts",
            hint=f"`draftbench recommend {run}` prints the answer",
        )
    if html is not None:
        check_output(html, force)
    observed = read(run)
    answer = recommend(observed, with_costs(options, costs, observed))
    if html is not None:
        from draftbench.report.page import page

        write_result(page(str(run), observed, answer), html)
        note(f"wrote {html}")
    if plots is not None:
        from draftbench.report.charts import charts_of
        from draftbench.report.plot import KINDS

        charts = charts_of(observed, answer).values()
        for chart in charts if plots.is_dir() else ():
            for kind in KINDS:
                check_output(plots / f"{chart.name}.{kind}", force)
        for chart in charts:
            chart.save(plots)
        note(f"wrote charts to {plots}")
    return 0
