"""Replays a draft over the responses that a server wrote, without the server: prompt lookup from
token ids alone, a draft model by one pass on this machine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import chain

import msgspec
import torch

from draftbench.engines.start import MODEL_RUNNER
from draftbench.measure.replay import (
    VLLM,
    VLLM_CPU,
    lookup_index,
    replay_lookup,
    replay_model,
    stepping_disagreement,
)
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.check import engine_sheet
from draftbench.models.quantize import build_runner
from draftbench.records import LOOKUP, NEAR_TIE_MARGIN, Candidate, EngineFacts, Observation
from draftbench.sweep.engine_arms import Serving
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.resume import Measured

# Records to keep together.
Batches = Generator[Sequence[Observation], None, None]


def replays_here(
    prepared: Prepared,
    measured: Measured,
    candidate: Candidate,
    groups: Sequence[Sequence[ScoredResponse]],
) -> Batches:
    """The facts of a draft model, unless they are recorded already, then the replays of one group
    of responses after the other.
    """
    serving, options = prepared.serving, prepared.options
    assert serving is not None
    if candidate.draft == LOOKUP:
        rule, window = _lookup_rule(serving, measured.engines), max(options.ks)
        for group in groups:
            yield [
                replay_lookup(r, candidate, lookup_index(rule, *options.lookup), window)
                for r in group
            ]
        return
    source = prepared.drafts[candidate.draft]
    least = measured.least_rows(candidate)
    build = replace(prepared.build, level=candidate.quant, least_rows=least)
    runner, facts = build_runner(source, build, candidate.draft)
    longest = max(chain(*groups), key=lambda response: response.length)
    held = engine_sheet(source, serving.dtype)
    facts = msgspec.structs.replace(
        facts,
        weight_bytes=held.bytes_at(candidate.quant),
        kv_bytes_per_token=held.kv_bytes_per_token,
        replay_disagreement=stepping_disagreement(runner, longest, NEAR_TIE_MARGIN[facts.dtype]),
        caveats=(*prepared.caveats.get(candidate.draft, ()), *facts.caveats),
    )
    if facts not in measured.facts.get(candidate, []):
        yield [facts]
    for group in groups:
        yield replay_model(runner, serving.target, group, candidate, options.mode)


def _lookup_rule(serving: Serving, engines: Sequence[EngineFacts]) -> str:
    """The engine whose rule of prompt lookup holds: vLLM has another one on a CPU, and in its older
    model runner.
    """
    runners = [facts.settings.get(MODEL_RUNNER) for facts in engines if facts.started]
    older = "0" in runners or not torch.cuda.is_available()
    return VLLM_CPU if serving.engine == VLLM and runners and older else serving.engine
