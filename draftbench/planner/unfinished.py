"""Whether the last sweep of a run went to its end, so that an answer on half a run says so."""

from __future__ import annotations

from draftbench.run_folder.run import Run


def unfinished(run: Run) -> str | None:
    """A sentence on where the last sweep was cut off, or how many responses are missing; None if
    the run is finished. Neither a candidate that failed nor a response that a server did not write
    is waited for.
    """
    asked, written = run.manifest.under_way, len(run.trajectories)
    responses = run.manifest.traffic.requests * run.manifest.question.samples
    known = run.responses.keys() | {row.key for row in run.unanswered}
    if asked is None and len(known) >= responses:
        return None
    found = f"{written} of {responses} responses"
    if asked is not None:
        tried = {*run.candidates, *(failure.candidate for failure in run.failures)}
        begun = len(tried.intersection(asked))
        where = f"at candidate {begun} of {len(asked)}" if begun else "before the first candidate"
        found = f"cut off {where}, with {found}"
    return f"this run is not finished ({found}): the same command resumes it"
