"""The limits, set by the user or the engine, that a configuration may break; and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftbench.memory import Footprint, bytes_to_serve, format_size
from draftbench.models.engine_rules import fewest_drafted, too_short
from draftbench.planner.latency import tail_ratio
from draftbench.planner.options import DecisionOptions
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

if TYPE_CHECKING:
    from draftbench.planner.decide import Alternative


def broken_limits(alternative: Alternative, limits: DecisionOptions, run: Run) -> tuple[str, ...]:
    """The user's and the engine's limits that an alternative breaks, or cannot be shown to keep, in
    words.
    """
    broken, question = [], run.manifest.question
    configuration = alternative.configuration
    fewest = fewest_drafted(question.engine, configuration.draft, question.lookup_shortest)
    if configuration.k < fewest:
        broken.append(too_short(fewest))
    if (most := limits.max_memory) is not None:
        at_once = question.max_concurrency or configuration.concurrency
        needed = memory_needed(run, configuration.candidate, at_once)
        if needed is None:
            broken.append("its memory is unknown, so it cannot be shown to keep --max-memory")
        elif needed > most:
            broken.append(
                f"it needs {format_size(needed)} with its target, {needed / most - 1:.0%} over "
                f"--max-memory ({format_size(most)})"
            )
    if (limit := limits.max_p99_ratio) is not None:
        tail = tail_ratio(alternative)
        if tail is None:
            broken.append("its latency is unknown, so it cannot be shown to keep --max-p99-ratio")
        elif tail[0] > limit:
            broken.append(
                f"a request's time per output token grows to {tail[0]:.2f} times that of plain "
                f"decoding ({tail[1]}), {tail[0] / limit - 1:.0%} over --max-p99-ratio ({limit:g})"
            )
    return tuple(broken)


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
    a second cache, prompt lookup nothing.
    """
    if candidate.draft == LOOKUP:
        return Footprint(0, 0)
    facts = run.facts_of(None if candidate.draft == SELF else candidate)
    if facts is None:
        return None
    return Footprint(0 if candidate.draft == SELF else facts.weight_bytes, facts.kv_bytes_per_token)


@remembered
def _longest_context(run: Run) -> int:
    """Tokens of the longest prompt with its response."""
    return max((t.prompt_tokens + t.output_tokens for t in run.trajectories), default=0)
