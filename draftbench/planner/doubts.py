"""A run → what makes its figures doubtful, whatever is asked of them: one list that `recommend`,
`gate`, `compare`, `acceptance`, `export`, `report` and `train` read. `caveats` adds what concerns
the decision alone.

A doubt about acceptance needs no times, and one about times leaves acceptance as it is
(`caveat_kinds`). A decisive one says that the figures cannot be relied on
until something is measured again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.faults import CONTROL_FAILED, near_tie, suspected_faults
from draftbench.drafts.kinds import kind_of
from draftbench.planner.caveat_kinds import (
    ANSWER_STALL,
    BUSY_CORES,
    BUSY_TIME,
    COPIES,
    DISAGREEMENT,
    DRIFT,
    DRIFT_OF_STARTS,
    LOAD_AVERAGE,
    LOOPING,
    MISMATCH,
    MORE_THAN_ROUNDING,
    ROUND_STALL,
    ROUNDS_TO_JUDGE,
    STALLED,
    TELLING_TOKENS,
    TOKENS_APART,
)
from draftbench.planner.cells import Cell, baseline_drift, ks_of
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.output_check import audit
from draftbench.planner.recommendation import Caveat
from draftbench.records import Candidate, DraftLength, candidate_names
from draftbench.remembered import remembered
from draftbench.run_folder.manifest import differing_machine
from draftbench.run_folder.run import Run
from draftbench.run_folder.served import counts_contradict, not_answered, shared_answers


@remembered
def doubts(evaluator: Evaluator) -> tuple[Caveat, ...]:
    """Every doubt about a run's figures; about times, those of the run whose costs count."""
    timed = evaluator.source.run
    return (
        *about_acceptance(evaluator.run),
        *(Caveat("borrowed-costs", text) for text in evaluator.source.caveats),
        *(_of_machine(timed) if timed else ()),
        *(_of_servers(timed) if timed else ()),
        *_of_baseline(evaluator.effects.cells),
    )


@remembered
def about_acceptance(run: Run) -> tuple[Caveat, ...]:
    """Every doubt about what a run says of acceptance."""
    found = [*unanswered(run)]
    if missing := unfinished(run):
        short = "the run is not finished"
        found.append(Caveat("unfinished", missing, decisive=True, short=short))
    if any(t.origin == "log" for t in run.trajectories):
        text = "the responses come from the log, not from this target"
        found.append(Caveat("logged-responses", text))
    found += _of_outputs(run)
    found += _of_copies(run)
    for doubt in of_each(
        (each, doubt) for each in run.candidates for doubt in _of_replay(run, each)
    ):
        # If the target rejects itself, replay cannot be relied on for any draft.
        of_all = doubt.kind == "control-failed"
        found.append(msgspec.structs.replace(doubt, candidates=()) if of_all else doubt)
    faults = {each: candidate_rounds(run, each).contradiction for each in run.candidates}
    contradicted = {each: fault for each, fault in faults.items() if fault}
    named = candidate_names(contradicted)
    for candidate, fault in contradicted.items():
        found.append(
            Caveat(
                "contradiction",
                f"{candidate}: {fault.message}; {fault.advice}",
                decisive=True,
                short=f"decoding contradicts the replay of {named}, so only what was decoded "
                "counts",
                candidates=(str(candidate),),
            )
        )
    return tuple(found)


def of_each(found: Iterable[tuple[Candidate, Caveat]]) -> Iterator[Caveat]:
    """Caveats of single candidates, each once, with the names of those for which it holds."""
    names = defaultdict[Caveat, list[Candidate]](list)
    for candidate, caveat in found:
        if candidate not in names[caveat]:
            names[caveat].append(candidate)
    for caveat, candidates in names.items():
        named = candidate_names(candidates)
        yield msgspec.structs.replace(
            caveat,
            text=f"{named}: {caveat.text}",
            short=caveat.short and f"{named}: {caveat.short}",
            candidates=tuple(map(str, candidates)),
        )


def _of_replay(run: Run, candidate: Candidate) -> Iterator[Caveat]:
    """Doubts about the replays of one candidate, without its name."""
    rounds, facts = candidate_rounds(run, candidate), run.facts_of(candidate)
    share = (facts and facts.replay_disagreement) or 0.0
    if share > DISAGREEMENT:
        decisive = candidate.quant == "none" or share > MORE_THAN_ROUNDING
        short = f"stepping chose another token than replay at {share:.0%} of positions"
        yield Caveat(
            "replay-disagreement",
            f"{short}, so acceptance may differ while decoding: suspect a position embedding, "
            "or a quantization that depends on neighbouring tokens",
            decisive=decisive,
            short=short if decisive else "",
        )
    replayable = sum(t.output_tokens > 1 for t in run.trajectories)
    if rounds.replays and len(rounds.replays) < replayable:
        short = f"replayed on only {len(rounds.replays)} of {replayable} responses"
        text = f"{short}, so its figures do not cover the same requests as the others'"
        yield Caveat("partly-replayed", text, decisive=True, short=short)
    if rounds.replays and kind_of(candidate.draft).remembers:
        requests = len({trajectory.request for trajectory, _ in rounds.replays})
        short = f"as if {requests} requests were served one by one, as they are logged"
        yield Caveat(
            "earlier-responses",
            f"it remembers earlier responses: its figures are {short}; of a sample fewer came "
            "before than of the log, and of several at once fewer were finished",
            short=short,
        )
    at_each_k = [rounds.at(k) for k in ks_of(run) if rounds.reaches(k)]
    for fault in suspected_faults(candidate, rounds.replays, at_each_k, near_tie(run)):
        failed = fault.kind == CONTROL_FAILED
        yield Caveat(
            "control-failed" if failed else "suspected-fault",
            f"suspected fault: {fault.message}; {fault.advice}",
            decisive=failed,
            short=fault.message if failed else f"{fault.kind}: {fault.advice}",
        )


def _of_servers(run: Run) -> Iterator[Caveat]:
    """How the user's two servers differ in more than drafting, and what servers say that texts or
    their counters contradict.
    """
    # The user's two servers, as far as both report their settings.
    settings: dict[bool, dict[str, str]] = {}
    for facts in run.engines:
        if not facts.started:
            from draftbench.engines.every import DRAFTING_SETTINGS  # not for other runs

            limits = {"context length": facts.context_length, "prefix cache": facts.prefix_cache}
            every = {n: str(value) for n, value in limits.items() if value is not None}
            every |= {n: v for n, v in facts.settings.items() if n not in DRAFTING_SETTINGS}
            settings[facts.candidate is None] = every
    plain, one = settings.get(True, {}), settings.get(False, {})
    if differing := [n for n in one if n in plain and one[n] != plain[n]]:
        named = ", ".join(f"{name} {one[name]} and {plain[name]}" for name in differing)
        yield Caveat(
            "other-server",
            f"the servers with and without speculation differ in more than drafting ({named}): the "
            "speed-up includes that difference",
            decisive=True,
            short=f"the two servers differ in {', '.join(differing)}",
        )
    if apart := counts_contradict(run.served or (*run.trajectories, *run.decodes)):
        answers = f"{apart[0]} of {apart[1]} answers"
        short = f"equal texts have unequal counts of tokens ({answers})"
        text = f"{short}: tokens per second of servers that count differently cannot be compared"
        hint = "sweep again with --tokenizer, by which tokens are counted here"
        yield Caveat("miscounted", f"{text}; {hint}", decisive=True, short=short)
    if others := shared_answers(run.served):
        short = f"another user was served during {others[0]} of {others[1]} answers"
        text = f"{short}, by the server's own counters: speeds were shared, and rounds are unknown"
        hint = "repeat the sweep on servers that nobody else uses"
        yield Caveat("shared-server", f"{text}; {hint}", decisive=True, short=short)


def unanswered(run: Run) -> Iterator[Caveat]:
    """Requests that servers did not answer, with and without speculation."""
    for candidate in dict.fromkeys(row.candidate for row in run.unanswered):
        reasons = {r.request: str(r.error) for r in run.unanswered if r.candidate == candidate}
        sent = {row.request for row in run.served if row.candidate == candidate}
        who = "the server without speculation" if candidate is None else str(candidate)
        short = f"{who}: {not_answered(reasons.values(), len(sent))}"
        yield Caveat(
            "unanswered",
            f"{short}; every figure covers the others: look at the server's log, and repeat the "
            "command, which asks them again",
            decisive=True,
            short=short,
            candidates=(str(candidate),) if candidate else (),
        )


def unfinished(run: Run) -> str | None:
    """A sentence on where the last sweep was cut off, or how many responses are missing; None if
    the run is finished. Failed candidates, and responses that a server did not write, do not count
    as missing.
    """
    under_way, written = run.manifest.under_way, len(run.trajectories)
    responses = run.manifest.requests * run.manifest.question.samples
    known = run.responses.keys() | {row.key for row in run.unanswered}
    if under_way is None and run.manifest.sealed is None and run.path is not None:
        return (
            "nothing tells whether this run's files are whole (`run.json` has no seals, as those "
            "of an older draftbench): the same command measures what is missing and seals it"
        )
    if under_way is None and len(known) >= responses:
        return None
    found = f"{written} of {responses} responses"
    if under_way is not None:
        tried = {*run.candidates, *(failure.candidate for failure in run.failures)}
        begun = len(tried.intersection(under_way))
        where = (
            f"at candidate {begun} of {len(under_way)}" if begun else "before the first candidate"
        )
        found = f"cut off {where}, with {found}"
    return f"this run is not finished ({found}): the same command resumes it"


def _of_machine(run: Run) -> Iterator[Caveat]:
    load, busy = run.manifest.environment.load, ""
    crowded = sum(s.seconds for s in run.states if (s.others or 0.0) > BUSY_CORES)
    share = crowded / (sum(state.seconds for state in run.states) or 1.0)
    if share > BUSY_TIME:
        most = max(state.others or 0.0 for state in run.states)
        busy = f"other processes used up to {most:.0%} of the cores during {share:.0%} of the run"
    # The load is the mean of the minute before; what others used during the run says more.
    elif load and load > LOAD_AVERAGE and all(state.others is None for state in run.states):
        busy = f"the machine was busy when the run began (load {load:.1f} per core)"
    if busy:
        text = f"{busy}: timings are noisy, but acceptance is not affected"
        yield Caveat("busy-machine", text, decisive=True, short="the machine was busy")
    if throttled := sum(state.throttled or 0 for state in run.states):
        text = f"cores overheated and were slowed ({throttled} times): timings are unsteady"
        yield Caveat("throttled", text)
    here = run.manifest.environment
    elsewhere = [w.environment for w in run.workers if w.environment.machine != here.machine]
    if elsewhere:
        differ = dict.fromkeys(
            name for machine in elsewhere for name in differing_machine(here, machine)
        )
        yield Caveat(
            "other-machines",
            f"workers on machines that differ in {', '.join(differ)} shared the responses and "
            "replays, so near ties may fall differently; all times are from one machine",
        )
    # On an engine whole answers are judged: a client sees a server's rounds late, several at once.
    judged = [row for row in run.decodes if len(row.verify_seconds) >= ROUNDS_TO_JUDGE]
    word, how = "decoding run", f"a round took over {ROUND_STALL:g} times as long as usual"
    # Whether each stalled, and with a draft.
    stalls = [
        (max(row.verify_seconds) > ROUND_STALL * median(row.verify_seconds), row.k > 0)
        for row in judged
    ]
    if run.served:
        word, how = "answer", f"its rounds took over {ANSWER_STALL:g} times as long as in other "
        how += "answers of the same server"
        servers = defaultdict[Any, dict[Any, float]](dict)
        for row in judged:
            pace = row.decode_seconds / len(row.verify_seconds)
            servers[row.candidate, row.length, row.concurrency][row.key, row.repeat] = pace
        stalls = [
            (pace > ANSWER_STALL * median(paces.values()), length.k > 0)
            for (_, length, _), paces in servers.items()
            for pace in paces.values()
        ]
    if stalled := sum(stall for stall, _ in stalls):
        sides = {drafting for stall, drafting in stalls if stall}
        effect = "speed-ups are too low" if sides == {True} else "speed-ups are too high"
        effect = "speed-ups may be too low or too high" if len(sides) > 1 else effect
        short = f"{stalled} {word}{'s' * (stalled > 1)} stalled"
        yield Caveat(
            "stalled",
            f"{short}: {how}, as when the process is suspended or another job runs; {effect}",
            decisive=stalled > STALLED * len(stalls),
            short=short,
        )
    decodes, in_turn = run.decodes, run.manifest.question.in_turn
    if run.served and not in_turn:  # the one baseline is copied into every candidate's block
        decodes = tuple(row for row in decodes if row.block == decodes[0].block)
    drift = baseline_drift(decodes, by_start=bool(run.served))
    least = DRIFT_OF_STARTS if run.served else DRIFT
    if drift is not None and abs(drift.change) > max(least, drift.doubt):
        change = f"{abs(drift.change):.0%} {'longer' if drift.change > 0 else 'less time'}"
        turns = defaultdict[tuple[Candidate | None, DraftLength], set[int]](set)
        for answer in run.served:
            turns[answer.candidate, answer.length].add(answer.repeat)
        # If a server was started only once, and not beside its baseline, its speed-up includes the
        # drift until then.
        several = bool(turns) and all(len(turns_of) > 1 for turns_of in turns.values())
        effect = ", so candidates measured early and late are not compared fairly"
        if in_turn:
            effect = "; each draft is compared with the plain decoding that took turns with it"
        elif several:
            effect = "; every server was started in several turns, and what changed for all alike "
            effect += "is taken out of the speed-ups"
        yield Caveat(
            "drift",
            f"plain decoding took {change} in the second half of the run than in the first{effect}",
            decisive=not (in_turn or several),
            short=f"plain decoding took {change} in the second half of the run",
        )


def _of_copies(run: Run) -> Iterator[Caveat]:
    """Requests that a time stamp or an id alone sets apart: intervals take each for another one."""
    alike, copies = defaultdict[tuple[str, int], dict[str, int]](dict), set[str]()
    for response in run.trajectories:
        if response.digest and response.output_tokens >= TELLING_TOKENS:
            text = response.digest, response.output_tokens
            alike[text].setdefault(response.request, response.prompt_tokens)
    for prompts in alike.values():
        by_length = sorted(prompts.items(), key=lambda each: each[1])
        copies.update(
            request
            for (_, shorter), (request, tokens) in pairwise(by_length)
            if tokens - shorter <= TOKENS_APART
        )
    requests = {response.request for response in run.trajectories}
    if len(copies) > COPIES * len(requests):
        short = f"{len(copies)} of {len(requests)} requests were answered like another one"
        different = len(requests) - len(copies)
        yield Caveat(
            "copied-requests",
            f"{short}: they say as much as {different}, so every interval is too narrow; take "
            "requests that differ in more than a date or an id",
            decisive=different <= len(copies),
            short=short,
        )


def _of_outputs(run: Run) -> Iterator[Caveat]:
    written = sum(t.output_tokens for t in run.trajectories)
    looping = sum(t.looping for t in run.trajectories)
    if looping > LOOPING * written:
        yield Caveat(
            "looping",
            f"in {looping / written:.0%} of the output the target repeats itself, which inflates "
            "acceptance, especially for prompt lookup",
        )
    checked = audit(run)
    if checked and (other := checked.faults + checked.unknown):
        short = (
            f"{other} of {checked.requests} answers differ{'s' * (other == 1)} from those without "
        )
        short += "speculation"
        yield Caveat(
            "output-differs",
            f"at temperature 0, {short} ({checked.faults} with no near tie to explain it, "
            f"{checked.unknown} for an unknown cause): suspect another model, the decoder, or "
            "passes that round differently",
            decisive=other > checked.requests / 2,
            short=short,
        )


def _of_baseline(cells: Sequence[Cell]) -> Iterator[Caveat]:
    """Plain decoding that is slower or faster than its own timed steps, by more than the rounds of
    the draft beside it are than their passes; or rounds that are faster than theirs, which nothing
    honest makes them (slower they may be: a round takes more than its passes). Beside the draft and
    at the load where most of that is unexplained.
    """
    # By load and draft: the logarithms of what plain decoding and rounds took over what their
    # passes predict, what of that only one of the two has, and the error of that one.
    found = defaultdict[tuple[int, Candidate], list[tuple[float, float, float, float]]](list)
    beside = {(cell.configuration, cell.process): cell.log_slowdown for cell in cells}
    for cell in cells:
        own = cell.configuration
        log = beside.get((own.at(0), cell.process))
        if cell.predicted_by == "passes" and own.k and log is not None:
            plain, rounds = float(log[0]), float(cell.log_slowdown[0])
            both = min(max(rounds, min(plain, 0.0)), max(plain, 0.0))
            of_plain, of_rounds = plain - both, min(rounds - both, 0.0)
            apart = of_plain - of_rounds
            off = log if abs(of_plain) >= abs(of_rounds) else cell.log_slowdown
            error = float(off[1:].std())
            found[own.concurrency, own.candidate].append((plain, rounds, apart, error))
    means = {at: [fmean(side) for side in zip(*rows, strict=True)] for at, rows in found.items()}
    off_by = {
        at: abs(apart)
        for at, (_, _, apart, error) in means.items()
        if abs(apart) > max(math.log1p(MISMATCH), 2 * error)
    }
    if not off_by:
        return
    load, candidate = max(off_by, key=off_by.__getitem__)
    steps, passes, times, _ = map(math.exp, means[load, candidate])
    where = f"beside {candidate}"
    if len({load for load, _ in found}) > 1:
        where += f" at concurrency {load}"
    short = (
        f"speed-ups may be off by a factor of {max(times, 1 / times):.2f}: {where}, plain decoding "
        f"took {steps:.2f} times as long as its steps timed alone, rounds {passes:.2f} times as "
        "long as their passes"
    )
    yield Caveat(
        "baseline-mismatch",
        f"{short}; repeat the sweep on a quiet machine",
        decisive=True,
        short=short,
    )
