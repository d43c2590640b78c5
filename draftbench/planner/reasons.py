"""A cell that was not chosen → why, in plain words with its numbers."""

from __future__ import annotations

from draftbench.acceptance.definitions import tokens_per_round
from draftbench.planner.choice import TIMING_NOISE, Cell, Contest
from draftbench.records import SELF
from draftbench.run_folder.run import Run


def why_not(cell: Cell, contest: Contest, leader: Cell | None, observed: Run) -> str:
    """Why `cell` lost: to plain decoding, to another k of its draft, or to another draft.

    `leader` is the cell that came out first, None where no speed is known. For the leader itself
    the answer says what it is worth.
    """
    candidate = cell.entrant.candidate
    speed = _value(cell, contest)
    if candidate.draft == SELF:
        return "a control: the target as its own draft is never recommended"
    if cell.breaks:
        return "; ".join(cell.breaks)
    if speed is None or leader is None or (best := _value(leader, contest)) is None:
        return f"its speed is unknown: {_unknown_speed(cell, observed)}"
    if cell not in contest.cells:
        return "not decoded: this draft is judged by the k's that were"
    if speed <= 1:
        return f"no faster than plain decoding: {_economy(cell, contest, speed)}"
    if cell is leader:
        return f"not clearly above the asked speed-up: {_economy(cell, contest, speed)}"
    if cell.measured is None and (1 - TIMING_NOISE) * speed > best:
        return (
            f"not decoded: {speed:.2f}× is predicted, but such predictions were off by up to "
            f"{max(contest.errors):+.0%} where others were decoded"
        )
    if speed >= (1 - TIMING_NOISE) * best:
        preferred = "smaller k" if candidate == leader.entrant.candidate else "smaller draft"
        verdict = f"a tie with {leader.name} ({best:.2f})"
        return f"{verdict}, which has the {preferred}" if speed > best else f"{verdict}, no faster"
    return f"slower: {_economy(cell, contest, speed)}"


def _economy(cell: Cell, contest: Contest, speed: float) -> str:
    """The two halves of a decode speed-up; with prefills it has more."""
    words = f"{speed:.2f}×"
    if contest.by == "whole":
        return f"{words} with both prefills"
    tokens = tokens_per_round(cell.forecast.trajectories, cell.forecast.rounds).value
    if tokens is None or speed <= 0:
        return words
    cost = tokens / speed
    return f"{words}, {tokens:.2f} tokens per round at the cost of {cost:.2f} target steps"


def _value(cell: Cell, contest: Contest) -> float | None:
    """The speed-up that the contest goes by."""
    sample = cell.speedup(contest.by)
    return None if sample is None else sample.value


def _unknown_speed(cell: Cell, observed: Run) -> str:
    candidate = cell.entrant.candidate
    if cell.entrant.costs is not None:
        return "its prefill was not timed"
    if cell.entrant.note is not None:
        return cell.entrant.note
    facts = observed.facts_of(candidate)
    if facts is not None and not facts.has_kernel:
        return f"no fast kernel for {candidate.quant} on this device"
    failed = [f.reason for f in observed.failures if f.candidate == candidate]
    return failed[-1] if failed else "its steps were not timed"
