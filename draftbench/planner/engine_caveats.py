"""The caveats of a run on a serving engine: requests without an answer, servers that differ, drafts
that were not timed, rounds that it does not report, and cached prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.planner.cost_sources import engine_name
from draftbench.planner.decide import DecisionAt, Evaluator
from draftbench.planner.recommendation import Caveat
from draftbench.records import DRAFTING_SETTINGS, EngineFacts
from draftbench.run_folder.run import Run
from draftbench.run_folder.served import MOST_CACHED, cached_share, not_answered

# Requests that came at a smaller share of the log's load say little of that load.
_WHOLE_LOAD = 0.9


def unanswered(run: Run) -> Iterator[Caveat]:
    """Requests that servers were asked and did not answer, with speculation and without."""
    for candidate in dict.fromkeys(row.candidate for row in run.unanswered):
        reasons = {r.request: str(r.error) for r in run.unanswered if r.candidate == candidate}
        asked = {row.request for row in run.served if row.candidate == candidate}
        who = "the server without speculation" if candidate is None else str(candidate)
        short = f"{who}: {not_answered(reasons.values(), len(asked))}"
        yield Caveat(
            "unanswered",
            f"{short}; every figure is of the others: look at the server's log, and repeat the "
            "command, which asks them again",
            decisive=True,
            short=short,
        )


def engine_caveats(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
    """The caveats of a run on a serving engine; where costs are not its own, only what it did not
    answer.
    """
    run = evaluator.run
    yield from unanswered(run)
    if run.manifest.question.engine is None or evaluator.foreign:
        return
    yield from _of_two_servers(run)
    yield from _of_structured_output(run)
    yield from _of_a_thinned_log(run)
    yield from _of_untimed(run, decided)
    yield from _of_unreported_rounds(run, decided)
    yield from _of_cached_prompts(evaluator, decided)


def _of_structured_output(run: Run) -> Iterator[Caveat]:
    """Requests whose answers the engine held to a grammar, which replays do not know."""
    traffic = run.manifest.traffic
    if traffic.constrained:
        share = 1 - traffic.constrained / traffic.requests
        yield Caveat(
            "structured-output",
            f"{traffic.constrained} of {traffic.requests} requests have structured output: what "
            "the engine measured includes its grammar; drafts are replayed without it, so replay "
            f"speaks for the other {share:.0%}",
        )


def _of_two_servers(run: Run) -> Iterator[Caveat]:
    """The user's servers, with and without speculation, as far as both report their settings."""
    given = [facts for facts in run.engines if not facts.started]
    plain, drafting = (
        [_shared_settings(facts) for facts in given if (facts.candidate is None) is without]
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


def _shared_settings(facts: EngineFacts) -> dict[str, str]:
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


def _of_untimed(run: Run, decided: DecisionAt) -> Iterator[Caveat]:
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


def _of_unreported_rounds(run: Run, decided: DecisionAt) -> Iterator[Caveat]:
    """An engine that reports no drafting: its speed is measured, its k is what the user says."""
    for each in decided.alternatives:
        runs = each.measured.runs if each.measured else ()
        if runs and each.k and not any(timed.row.proposed for timed in runs):
            yield Caveat(
                "untold-rounds",
                f"{engine_name(run)} tells nothing of its drafting: its acceptance is unknown, and "
                f"that it drafts {each.k} tokens a round is taken from --k",
            )


def _of_cached_prompts(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
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
