"""Whether the last sweep of a run went to its end, so that an answer on half a run says so."""

from __future__ import annotations

from draftbench.run_folder.run import Run


def unfinished(run: Run) -> str | None:
    """How far a sweep came that did not end, in words; None where it did, or is older than this
    record. A candidate that failed is not waited for.
    """
    asked = run.manifest.under_way
    if asked is None:
        return None
    responses = run.manifest.traffic.requests * run.manifest.question.samples
    begun = {*run.candidates, *(failure.candidate for failure in run.failures)}
    return (
        f"this run is not finished ({len(run.trajectories)} of {responses} responses, "
        f"{len(begun.intersection(asked))} of {len(asked)} candidates begun): the same command "
        "resumes it"
    )
