"""A run → what a reader must know before trusting its figures, one plain sentence each.

Knows the run and its cells; the decision is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from draftbench.acceptance.faults import suspected_faults
from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.acceptance.ties import near_tie, near_tie_share
from draftbench.planner.choice import Cell
from draftbench.planner.disturbed import LOAD, disturbances
from draftbench.planner.drift import baseline_drift
from draftbench.planner.measured import ENOUGH_PROCESSES, audit
from draftbench.planner.passes_alone import plain_overhead, round_overhead
from draftbench.planner.predict import Entrant, outside_hull
from draftbench.planner.standing import Field, Standing
from draftbench.planner.unfinished import unfinished
from draftbench.records import Candidate, Decode, Trajectory
from draftbench.run_folder.run import Run

_DISAGREEMENT = 0.02
_TIE_SHARE = 0.01
_LOOPING = 0.05
_DRIFT = 0.05
_STALL, _ROUNDS_TO_JUDGE = 20.0, 5
# Intervals of speed-ups are about a tenth wide to either side at the usual thirty requests. Rounds
# further than that from what their passes take move a prediction by more than it says of itself.
_OVERHEAD = 0.1


def caveats(field: Field, standing: Standing) -> tuple[str, ...]:
    """Every caveat once, those on the whole run first; what is said of several candidates names
    them all.
    """
    observed, cells, timing = field.observed, standing.cells, field.timing
    found = [text for text in (unfinished(observed),) if text]
    found += [*field.source.caveats, *_of_sample(observed, standing.leader), *_of_processes(cells)]
    found += [*_of_batches(standing), *_of_rounds(cells)]
    if timing is not None:
        found += [*_of_machine(timing), *_of_drift(timing)]
    found += _of_outputs(observed)
    entrants = {cell.entrant.candidate: cell.entrant for cell in cells}
    said: dict[str, list[str]] = {}
    for candidate, entrant in entrants.items():
        own = [cell for cell in cells if cell.entrant.candidate == candidate]
        for text in dict.fromkeys(_of_candidate(field, entrant, own)):
            said.setdefault(text, []).append(str(candidate))
    found += [f"{', '.join(names)}: {text}" for text, names in said.items()]
    found += _of_levels(list(entrants.values()))
    target = observed.facts_of(None)
    found += [f"target: {text}" for text in (target.caveats if target else ())]
    found += _of_failures(observed)
    return tuple(dict.fromkeys(found))


def _of_sample(observed: Run, leader: Cell | None) -> Iterable[str]:
    requests = len({t.request for t in observed.trajectories})
    timed = (
        len({t.request for t, _ in leader.measured.runs}) if leader and leader.measured else None
    )
    for count, what in ((requests, "replayed"), (timed, "decoded with a watch")):
        if count is not None and count < FEW_REQUESTS:
            were = "request was" if count == 1 else "requests were"
            yield f"{count} {were} {what}; under {FEW_REQUESTS} the intervals are too narrow"
    if any(t.origin == "log" for t in observed.trajectories):
        yield "the responses come from the log, not from this target"


def _of_processes(cells: Sequence[Cell]) -> Iterable[str]:
    processes = [cell.measured.processes for cell in cells if cell.measured is not None]
    if processes and min(processes) < ENOUGH_PROCESSES:
        yield (
            "measured speed-ups are within one process: they move more from process to process "
            "than their intervals say"
        )


def _of_batches(standing: Standing) -> Iterable[str]:
    if standing.concurrency == 1:
        return
    yield (
        f"speeds at concurrency {standing.concurrency} are those of full batches between prompts: "
        "what reading other requests' prompts takes from running ones is not in them"
    )
    if any(cell.measured is not None for cell in standing.cells):
        yield (
            "requests that ran side by side share their rounds: intervals of measured speed-ups "
            "are approximate there"
        )


def _of_rounds(cells: Sequence[Cell]) -> Iterable[str]:
    """Rounds that took more or less than their passes, which is all that predictions count where
    nothing was decoded; what plain steps did alike cancels in a speed-up.
    """
    known = [
        (rounds / plain, rounds, plain, cell.name)
        for cell in cells
        if (rounds := round_overhead(cell)) and (plain := plain_overhead(cell))
    ]
    far = [each for each in known if abs(each[0] - 1) > _OVERHEAD]
    if far:
        _, rounds, plain, name = max(far, key=lambda each: abs(each[0] - 1))
        yield (
            "beside their passes when timed alone, rounds and plain steps took unlike times in "
            f"{len(far)} of {len(known)} measured cells, {rounds:.2f} and {plain:.2f} times as "
            f"long for {name}: predictions of what was not decoded count passes alone"
        )


def _of_machine(observed: Run) -> Iterable[str]:
    load = observed.manifest.environment.load
    if load is not None and load > LOAD:
        yield (
            f"the machine was busy when the run began, with a load of {load:.1f} for each core: "
            "its times are noisy, its acceptance is not"
        )
    stalled = sum(_stalled(row) for row in observed.decodes)
    if stalled:
        yield (
            f"{stalled} decoding runs stood still in a round (a suspended process, a clock's jump, "
            "another job): their seconds are too long"
        )
    yield from disturbances(observed.states)


def _stalled(row: Decode) -> bool:
    rounds = row.verify_seconds
    return len(rounds) >= _ROUNDS_TO_JUDGE and max(rounds) > _STALL * median(rounds)


def _of_drift(observed: Run) -> Iterable[str]:
    drift = baseline_drift(observed.decodes)
    if drift is not None and abs(drift.change) > max(_DRIFT, drift.scatter):
        word = "slower" if drift.change > 0 else "faster"
        yield (
            f"plain decoding became {abs(drift.change):.0%} {word} from the first candidate's runs "
            "to the last's: speeds of different candidates are not from the same machine state"
        )


def _of_outputs(observed: Run) -> Iterable[str]:
    share = near_tie_share(observed)
    if share is not None and share >= _TIE_SHARE:
        yield (
            f"{share:.1%} of the target's tokens are near ties: "
            "there either token is right and two runs may part"
        )
    written = sum(t.output_tokens for t in observed.trajectories)
    looping = sum(t.looping for t in observed.trajectories)
    if looping > _LOOPING * written:
        yield (
            f"{looping / written:.0%} of the output is the target repeating itself: acceptance is "
            "inflated there, that of prompt lookup most"
        )
    checked = audit(observed)
    if checked is not None and checked.faults:
        yield (
            f"{checked.faults} of {checked.requests} requests decoded at temperature 0 differ from "
            "the target's own output where it is no near tie: suspect the decoder or a kernel"
        )


def _of_candidate(field: Field, entrant: Entrant, cells: Sequence[Cell]) -> Iterable[str]:
    observed = field.observed
    facts = observed.facts_of(entrant.candidate)
    if facts is not None:
        yield from facts.caveats
        if facts.replay_disagreement is not None and facts.replay_disagreement > _DISAGREEMENT:
            yield (
                f"stepping chose another token than the replay at {facts.replay_disagreement:.1%} "
                "of positions, so its acceptance in a decoder differs from this one"
            )
    replayable = [t for t in observed.trajectories if _decodes(t)]
    if len(entrant.replays) < len(replayable):
        yield f"replayed on {len(entrant.replays)} of {len(replayable)} responses only"
    if entrant.costs is not None and entrant.note is not None:
        yield f"its costs are {entrant.note}"
    bare = entrant.costs is not None and all(cell.measured is None for cell in cells)
    if bare and not field.foreign and entrant.note is None:
        yield "not decoded: its predicted speed-up counts the timed passes alone"
    yield from outside_hull(entrant, max(cell.k for cell in cells))
    rounds = [cell.forecast.rounds for cell in cells]
    for fault in suspected_faults(entrant.candidate, entrant.replays, rounds, near_tie(observed)):
        yield f"suspected fault: {fault.message}; {fault.advice}"


def _of_levels(entrants: Sequence[Entrant]) -> Iterable[str]:
    """A level whose step is no cheaper than the unquantized one's has no kernel worth the name."""
    ratios = {
        entrant.candidate: entrant.costs.draft_cost_ratio(entrant.context).value
        for entrant in entrants
        if entrant.costs is not None
    }
    for candidate, ratio in ratios.items():
        plain = ratios.get(Candidate(draft=candidate.draft))
        if candidate.quant != "none" and plain is not None and ratio >= plain:
            yield (
                f"{candidate} steps no faster than unquantized (c {ratio:.2f}, {plain:.2f}): "
                f"{candidate.quant} has no real kernel for it here"
            )


def _of_failures(observed: Run) -> Iterable[str]:
    for failure in observed.failures:
        if failure.candidate is not None:
            yield f"{failure.candidate} was not measured to the end: {failure.reason}"


def _decodes(trajectory: Trajectory) -> bool:
    return trajectory.output_tokens > 1
