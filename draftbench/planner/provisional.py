"""A decision → what it hangs on that a better run would not, a few words each: for the line below
the answer. The caveats say the same at length, and from smaller amounts on.

Knows the run and its cells; the decision is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.planner.disturbed import LOAD, busy_share
from draftbench.planner.drift import baseline_drift
from draftbench.planner.standing import Field, Standing
from draftbench.planner.unfinished import unfinished
from draftbench.run_folder.run import Run

# A measurement corrects the prediction for all requests: it takes fewer of them than an interval.
FEW_DECODED = 10
# An interval is about a tenth wide to either side: a machine that changed by more moved it.
FAR = 0.1
_SHARE_OF_TIME = 0.1


def provisional(field: Field, standing: Standing) -> tuple[str, ...]:
    """Why the decision may change with a whole run, more requests or a quieter machine; empty where
    nothing speaks for that, and where no speed is known.
    """
    if standing.leader is None:
        return ()
    found = [*_of_run(field.observed), *_of_decoding(standing)]
    if field.timing is not None:
        found += _of_machine(field.timing)
    return tuple(found)


def _of_run(observed: Run) -> Iterator[str]:
    if unfinished(observed):
        yield "the run is not finished"
    requests = len({t.request for t in observed.trajectories})
    if requests < FEW_REQUESTS:
        yield f"only {requests} requests"


def _of_decoding(standing: Standing) -> Iterator[str]:
    leader = standing.leader
    if leader is not None and leader.measured is not None:
        decoded = len({trajectory.request for trajectory, _ in leader.measured.runs})
        if decoded < FEW_DECODED:
            yield f"only {decoded} decoded with a watch"


def _of_machine(observed: Run) -> Iterator[str]:
    load = observed.manifest.environment.load
    if (load is not None and load > LOAD) or busy_share(observed.states) > _SHARE_OF_TIME:
        yield "the machine was busy"
    drift = baseline_drift(observed.decodes)
    if drift is not None and abs(drift.change) > max(FAR, drift.scatter):
        word = "slower" if drift.change > 0 else "faster"
        yield f"the machine became {abs(drift.change):.0%} {word} during the run"
