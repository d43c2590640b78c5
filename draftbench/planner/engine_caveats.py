"""The caveats of a run on a serving engine: servers that differ, drafts that were not timed, rounds
that differ from replay's, and cached prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.intervals import estimate, paired_difference
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.decide import Evaluator, LoadDecision
from draftbench.planner.recommendation import Caveat
from draftbench.records import DRAFTING_SETTINGS, EngineFacts
from draftbench.run_folder.run import Run
from draftbench.run_folder.served import MOST_CACHED, cached_share

# An engine whose tokens per round are off replay's by a larger share accepts by other rules.
_OTHER_ACCEPTANCE = 0.2
# Requests that came at a smaller share of the log's load say little of that load.
_WHOLE_LOAD = 0.9


def engine_caveats(evaluator: Evaluator, decided: LoadDecision) -> Iterator[Caveat]:
    """The caveats of a run on a serving engine; none where costs are not its own."""
    run = evaluator.run
    if run.manifest.question.engine is None or evaluator.foreign:
        return
    yield from _of_two_servers(run)
    yield from _of_a_thinned_log(run)
    yield from _of_untimed(run, decided)
    yield from _of_unreported_rounds(run, decided)
    yield from _of_other_acceptance(run, decided)
    yield from _of_cached_prompts(evaluator, decided)


def _of_two_servers(run: Run) -> Iterator[Caveat]:
    """The user's servers, with and without speculation, as far as both report their settings."""
    given = [facts for facts in run.engines if not facts.started]
    plain, drafting = (
        [_settings(facts) for facts in given if (facts.candidate is None) is without]
        for without in (True, False)
    )
    if not plain or not drafting:
        return
    one, other = drafting[-1], plain[-1]
    differing = [n for n in one if n in other and one[n] != other[n]]
    if differing:
        named = ", ".join(f"{name} {one[name]} and {other[name]}" for name in differing)
        yield Caveat(
            "other-server",
            f"the servers with speculation and without differ in more than their drafting ({named})"
            ": the speed-up includes that difference",
            decisive=True,
            short=f"the two servers differ in {', '.join(differing)}",
        )


def _settings(facts: EngineFacts) -> dict[str, str]:
    """The settings that servers which are compared should have in common."""
    limits = {"context length": facts.context_length, "prefix cache": facts.prefix_cache}
    shared = {name: str(value) for name, value in limits.items() if value is not None}
    return shared | {n: v for n, v in facts.settings.items() if n not in DRAFTING_SETTINGS}


def _of_a_thinned_log(run: Run) -> Iterator[Caveat]:
    """A sample of the log, sent at the log's times, is a lighter load than the log."""
    question, rows = run.manifest.question, run.manifest.traffic.rows
    answers, scale = len(run.trajectories), question.time_scale or 1.0
    if question.arrivals == "log" and answers * scale < _WHOLE_LOAD * rows:
        short = f"requests came at {answers * scale / rows:.0%} of the log's load"
        yield Caveat(
            "thinned-log",
            f"{short}: {answers} answers of its {rows} rows, {scale:g} times as fast; "
            f"--time-scale {rows / answers:.3g} would make up for it",
            decisive=True,
            short=short,
        )


def _of_untimed(run: Run, decided: LoadDecision) -> Iterator[Caveat]:
    """Drafts that the engine was not started with, where it was with others."""
    shown = decided.alternatives
    timed = {a.candidate for a in shown if a.decoding is not None or a.measured}
    names = dict.fromkeys(str(each.candidate) for each in shown if each.candidate not in timed)
    if timed and names:
        yield Caveat(
            "not-timed",
            f"{', '.join(names)}: replayed but not timed in {engine_name(run)}, so whether it pays "
            "there is unknown",
        )


def _of_unreported_rounds(run: Run, decided: LoadDecision) -> Iterator[Caveat]:
    """An engine that reports no drafting: its speed is measured, its k is what the user says."""
    for each in decided.alternatives:
        runs = each.measured.runs if each.measured else ()
        if runs and each.k and not any(timed.row.proposed for timed in runs):
            yield Caveat(
                "untold-rounds",
                f"{engine_name(run)} tells nothing of its drafting: its acceptance is unknown, and "
                f"that it drafts {each.k} tokens a round is taken from --k",
            )


def _of_other_acceptance(run: Run, decided: LoadDecision) -> Iterator[Caveat]:
    """An engine that accepts more or fewer tokens than replay, by more than chance."""
    for each in decided.alternatives:
        if each.measured is None or not each.responses.along.replays:
            continue
        served = tokens_per_round(*each.measured.counted)
        along = each.responses.along
        replayed = tokens_per_round(along.trajectories, along.at(each.k))
        gap = estimate(paired_difference(served, replayed))
        luck = each.acceptance_luck
        if gap and luck and abs(luck) > _OTHER_ACCEPTANCE and gap.low * gap.high > 0:
            more = "fewer" if luck < 0 else "more"
            short = f"{engine_name(run)} gave {abs(luck):.0%} {more} tokens per round than replay"
            yield Caveat(
                "other-acceptance",
                f"{each.name}: {short}, more than chance explains: suspect the engine or its "
                "set-up; the expected speed-up goes by the replay",
                decisive=True,
                short=short,
            )


def _of_cached_prompts(evaluator: Evaluator, decided: LoadDecision) -> Iterator[Caveat]:
    """Decisive where requests wait for each other's prefills, or where latency is ranked by."""
    run, concurrency = evaluator.run, decided.concurrency
    rows = run.answers_at(concurrency)
    shares = {
        word: cached_share(row for row in rows if (row.k > 0) == drafting)
        for word, drafting in (("without", False), ("with", True))
    }
    most = max(shares.values())
    if most > MOST_CACHED:
        sides = ", ".join(f"{share:.0%} {word} speculation" for word, share in shares.items())
        waits = concurrency > 1 or run.manifest.question.arrivals != "closed"
        yield Caveat(
            "cached-prompts",
            f"the server had prompts cached ({sides}): times to the first token are too short, and "
            "requests waited less for each other's prompts; switch its prefix cache off",
            decisive=waits or evaluator.options.objective == "latency",
            short=f"up to {most:.0%} of the prompts were cached",
        )
