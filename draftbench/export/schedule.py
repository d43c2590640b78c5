"""A recommendation's schedule → ranges of load with the draft length of each, for an engine.

Beyond the largest load that was measured nothing is known; engines go on with its length.
"""

from __future__ import annotations

from itertools import groupby

from draftbench.planner.recommendation import Recommendation

# First and last number of requests at once, and the draft length there; 0 is plain decoding.
Schedule = tuple[tuple[int, int, int], ...]


def schedule_of(answer: Recommendation, k: int) -> tuple[Schedule, tuple[str, ...]]:
    """Ranges from 1 request on, and what they cannot say; none where one length serves all.

    Args:
        k: the length before the first load whose answer is settled.
    """
    steps: list[tuple[int, int]] = []
    notes = []
    for step in answer.schedule:
        before = steps[-1][1] if steps else k
        if step.k is None:
            notes.append(
                f"from {step.concurrency} requests at once on the run is undecided: k = {before} "
                "goes on"
            )
        steps.append((step.concurrency, before if step.k is None else step.k))
    firsts = [next(group) for _, group in groupby(steps, key=lambda step: step[1])]
    if len(firsts) < 2:
        return (), tuple(notes)
    starts = [1, *(at for at, _ in firsts[1:])]
    ends = [*(start - 1 for start in starts[1:]), steps[-1][0]]
    lengths = [length for _, length in firsts]
    notes.append(
        f"beyond {ends[-1]} requests at once nothing was measured; k = {lengths[-1]} goes on"
    )
    return tuple(zip(starts, ends, lengths, strict=True)), tuple(notes)


def in_words(schedule: Schedule) -> str:
    """The ranges as a sentence's end."""
    steps = (f"k = {k} from {first} to {last}" for first, last, k in schedule)
    return f"{', '.join(steps)} requests at once"
