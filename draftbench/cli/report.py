"""`draftbench report`: a run folder → a page or charts. No model runs here."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from draftbench.cli.flags import COSTS, RunArgument, read, with_costs
from draftbench.cli.output import check_output, note, write_result
from draftbench.flags import flag, in_output
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend


def report(
    *,
    run: RunArgument = None,
    html: Path | None = flag(
        None, "Write the page to this file (default: report.html in the run folder).", "FILE"
    ),
    plots: Path | None = flag(
        None, "Write every chart into this folder, as SVG and PNG.", "FOLDER"
    ),
    open_page: bool = flag(False, "Open the page in the browser.", names=("--open",)),
    force: bool = in_output(False, "Replace files that draftbench did not write."),
    options: DecisionOptions,
    costs: Path | None = COSTS,
) -> int:
    """Write a run as one HTML page that explains itself, or as charts.

    draftbench report results/runs/RUN --open
    draftbench report results/runs/RUN --html report.html
    draftbench report results/runs/RUN --plots charts
    """
    if html is not None:
        check_output(html, force)
    observed = read(run)
    if html is None and (open_page or plots is None):
        assert observed.path  # `read` sets it
        html = observed.path / "report.html"
        check_output(html, force)
    options = with_costs(options, costs, observed)
    answer = recommend(observed, options)
    if html is not None:
        from draftbench.report.page import page

        write_result(page(str(observed.path), observed, answer, options), html)
        note(f"wrote {html}")
        if open_page and not webbrowser.open(html.resolve().as_uri()):
            note("no browser can be started here; open the file yourself")
    if plots is not None:
        from draftbench.report.charts import charts_of
        from draftbench.report.plot import KINDS

        charts = list(charts_of(observed, answer))
        for chart in charts if plots.is_dir() else ():
            for kind in KINDS:
                check_output(plots / f"{chart.name}.{kind}", force)
        for chart in charts:
            chart.save(plots)
        note(f"wrote charts to {plots}")
    return 0
