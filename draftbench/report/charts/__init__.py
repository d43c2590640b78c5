"""An answer and its figures → the charts of a report, by the section they belong to."""

from __future__ import annotations

from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts import acceptance, load, segments, speedups
from draftbench.report.charts.chart import Chart
from draftbench.report.figures import Figures


def charts_of(answer: Recommendation, figures: Figures) -> dict[str, list[Chart]]:
    """Every chart in the order of the page; an empty list where nothing was measured."""
    return {
        "candidates": speedups.by_candidate(answer),
        "acceptance": [*acceptance.survival(figures, answer), *acceptance.tokens_by_k(answer)],
        "k": speedups.by_k(answer),
        "load": [*load.speedup(answer), *load.throughput(answer)],
        "segments": segments.by_group(figures, answer),
    }
