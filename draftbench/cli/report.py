"""`draftbench report`: a run folder → a page, charts, or text. No model runs here."""

from __future__ import annotations

from pathlib import Path

from draftbench.cli.flags import Decision, RunArgument, flag, in_output, read
from draftbench.cli.output import FORMATS, ResultFile, check_output, note, width, write_result


def report(
    *,
    run: RunArgument,
    html: Path | None = flag(None, "Write one self-contained HTML page.", "FILE"),
    plots: Path | None = flag(
        None, "Write every chart into this folder, as SVG and PNG.", "FOLDER"
    ),
    decision: Decision,
    output: ResultFile,
    style: str | None = in_output(
        None,
        "Print the answer too, as a table, json, markdown or csv.",
        "FORMAT",
        ("--format",),
        among=FORMATS,
    ),
) -> int:
    """Write a run as one HTML page that explains itself, or as charts.

    draftbench report results/runs/RUN --html report.html
    draftbench report results/runs/RUN --plots charts
    """
    from draftbench.planner.recommend import recommend as decide

    if html is not None:
        check_output(html)
    observed = read(run)
    answer = decide(observed, decision.options(observed))
    if html is not None:
        from draftbench.report.page import page

        write_result(page(str(run), observed, answer), html)
        note(f"wrote {html}")
    if plots is not None:
        from draftbench.report.charts import charts_of

        for chart in charts_of(observed, answer).values():
            chart.save(plots)
        note(f"wrote charts to {plots}")
    if style is not None or (html is None and plots is None):
        from draftbench.report.terminal.recommendation import render

        output.write(render(answer, style or "table", width()))
    if style is None and html is None and plots is None:
        note("no page was written: --html FILE writes one")
    return 0
