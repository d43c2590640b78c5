"""Memory that a run's candidate takes beside its target, from the facts that the run recorded."""

from __future__ import annotations

from draftbench.memory import Footprint, MemoryPlan, Serving, plan_memory
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.run_folder.run import Run


def memory_plan(run: Run, candidate: Candidate, device_bytes: float) -> MemoryPlan | None:
    """What a run's candidate takes beside its target at the largest batch and the longest context
    that the run measured; None without the facts of both.

    The target as its own draft adds a second cache and no weights, prompt lookup adds nothing.
    """
    facts, own = run.facts_of(None), _footprint(run, candidate)
    if facts is None or own is None:
        return None
    question = run.manifest.question
    serving = Serving(
        device_bytes=device_bytes,
        concurrency=max(question.batches),
        context=_longest(run),
        k=max(question.ks, default=0),
        vocabulary=facts.vocab_size,
    )
    target = Footprint(facts.weight_bytes, facts.kv_bytes_per_token)
    return plan_memory(target, own, serving, facts.context_length)


def draft_memory(run: Run, candidate: Candidate) -> int | None:
    """Bytes of a draft's weights and its KV cache at the traffic's longest context.

    The target as its own draft adds a second cache, prompt lookup nothing. None without facts.
    """
    if candidate.draft == LOOKUP:
        return 0
    own = candidate.draft == SELF
    facts = run.facts_of(None if own else candidate)
    if facts is None:
        return None
    cache = min(_longest(run), facts.context_length) * facts.kv_bytes_per_token
    return cache if own else facts.weight_bytes + cache


def _longest(run: Run) -> int:
    return max((t.prompt_tokens + t.output_tokens for t in run.trajectories), default=0)


def _footprint(run: Run, candidate: Candidate) -> Footprint | None:
    if candidate.draft == LOOKUP:
        return Footprint(0, 0)
    own = candidate.draft == SELF
    facts = run.facts_of(None if own else candidate)
    if facts is None:
        return None
    return Footprint(0 if own else facts.weight_bytes, facts.kv_bytes_per_token)
