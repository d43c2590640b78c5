"""What may not be chosen: configurations that break a limit of the user or of the engine, and k's
that a running server does not draft.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.drafts.kinds import kind_of
from draftbench.memory import Footprint, bytes_to_serve, format_size
from draftbench.planner.evidence import Evidence
from draftbench.planner.latency import tail_ratio
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommendation import Configuration
from draftbench.records import SELF, Candidate
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run


def broken_limits(
    run: Run, limits: DecisionOptions, evidence: Evidence, expected: float | None
) -> Iterator[str]:
    """Which limits of the engine and of the user a configuration breaks, or may break: sentences.

    Args:
        expected: its speed-up of decoding; None where unknown.
    """
    configuration, question = evidence.configuration, run.manifest.question
    if question.engine is not None:
        from draftbench.engines.every import ENGINES  # not for runs of the built-in decoder

        engine = ENGINES.get(question.engine)
        fewest = engine.minimum_k(configuration.draft, question.lookup_shortest) if engine else 1
        if engine and configuration.k < fewest:
            yield engine.too_short(fewest)
    if (most := limits.max_memory) is not None:
        concurrency = question.max_concurrency or configuration.concurrency
        needed = memory_needed(run, configuration.candidate, concurrency)
        if needed is None:
            yield "its memory is unknown, so it cannot be shown to keep --max-memory"
        elif needed > most:
            over = max(needed / most - 1, 0.01)  # 0% would keep it
            yield (
                f"it needs {format_size(needed)} with its target, {over:.0%} over --max-memory "
                f"({format_size(most)})"
            )
    if (limit := limits.max_p99_ratio) is not None:
        tail = tail_ratio(evidence, expected)
        if tail is None:
            yield "its latency is unknown, so it cannot be shown to keep --max-p99-ratio"
        elif tail[0] > limit:
            over = max(tail[0] / limit - 1, 0.01)
            yield (
                f"a request's time per output token grows to {tail[0]:.2f} times that of plain "
                f"decoding ({tail[1]}), {over:.0%} over --max-p99-ratio ({limit:g})"
            )


def not_run(run: Run, configuration: Configuration) -> str | None:
    """Why it cannot be chosen, though its speed may be predicted: a running server drafts at the k
    that it was started with. None if it can.
    """
    if not run.manifest.question.running:
        return None
    ks = {row.k for row in run.served if row.candidate == configuration.candidate}
    if not ks or configuration.k in ks:
        return None
    measured, k = ", ".join(map(str, sorted(ks))), configuration.k
    return f"the server that was measured drafts with k = {measured}: start one with k = {k}"


def memory_needed(run: Run, candidate: Candidate, concurrency: int) -> float | None:
    """Bytes that target and draft take at a concurrency, with the traffic's longest context and the
    largest k; None unless facts of both are known.
    """
    target, draft = run.facts_of(None), _footprint(run, candidate)
    if target is None or draft is None:
        return None
    return bytes_to_serve(
        Footprint(target.weight_bytes, target.kv_bytes_per_token),
        draft,
        concurrency=concurrency,
        context=_longest_context(run),
        k=max(run.manifest.question.ks),
        vocabulary=target.vocab_size,
    )


@remembered
def draft_memory(run: Run, candidate: Candidate) -> int | None:
    """Bytes of a draft's weights and its cache at the traffic's longest context."""
    draft, tokens = _footprint(run, candidate), _longest_context(run)
    if draft is None:
        return None
    facts = run.facts_of(None if candidate.draft == SELF else candidate)
    if facts is not None:
        tokens = min(tokens, facts.context_length)
    return int(draft.weight_bytes + tokens * draft.cache_bytes_per_token)


def _footprint(run: Run, candidate: Candidate) -> Footprint | None:
    """A draft's weights and cache; None if its facts are unknown. The target as its own draft adds
    a second cache.
    """
    if candidate.draft == SELF:
        facts = run.facts_of(None)
        return None if facts is None else Footprint(0, facts.kv_bytes_per_token)
    return kind_of(candidate.draft).footprint(run.facts_of(candidate))


@remembered
def _longest_context(run: Run) -> int:
    """Tokens of the longest prompt with its response."""
    return max((t.prompt_tokens + t.output_tokens for t in run.trajectories), default=0)
