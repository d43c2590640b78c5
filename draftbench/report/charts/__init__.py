"""An answer and its figures → the drawings of a report, by the section that they belong to.

Only what was measured is drawn. The functions get axes; matplotlib is not imported here.
"""

from __future__ import annotations

from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts import groups, load, resources, rounds, speed
from draftbench.report.figures import Figures
from draftbench.report.plots import Drawing


def drawings(answer: Recommendation, figures: Figures) -> dict[str, list[Drawing]]:
    """Every drawing, in the order of the report; an empty list where nothing was measured."""
    return {
        "glance": speed.glance(answer),
        "speed": speed.speed_by_k(answer),
        "economy": speed.economy(answer),
        "positions": rounds.positions(figures, answer),
        "lengths": rounds.lengths(figures),
        "crossed": groups.crossed(figures.crossed),
        "segments": groups.by_group(figures.segments),
        "temperatures": groups.by_group(figures.temperatures),
        "response": groups.response(figures, answer),
        "load": load.concurrency(answer),
        "prediction": speed.prediction(answer),
        "times": resources.times(figures.times),
        "memory": resources.memory(figures, answer),
    }
