"""Checks by simulation that speculative sampling leaves the target's distribution unchanged.

A scripted pair is decoded many times. Its vocabulary is so small that the probability of every
output is known.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from statistics import NormalDist

import torch

from draftbench.decoder.runner import DecodeTask, HostClock
from draftbench.decoder.sampling import Uniforms, distribution
from draftbench.decoder.scripted_model import ScriptedRunner, markov
from draftbench.decoder.speculate import decode_all
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.records import DraftingMode, Sampling, StopRule

VOCABULARY, LENGTH, K, ROWS = 4, 4, 2, 4
SAMPLINGS = (Sampling(temperature=1.0), Sampling(temperature=0.8, top_p=0.8))
OUTPUTS, FALSE_ALARMS = 2000, 1e-7
# Outcomes that are expected less often than this are counted together, since χ² needs some of each.
LEAST_EXPECTED = 5.0


def distribution_fault(mode: DraftingMode, stop: StopRule | None = None) -> str | None:
    """How a drafting mode's outputs, whose rounds a rule may stop, differ from the target's
    distribution; None if they do not.
    """
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    noise = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    target = ScriptedRunner(markov(table), VOCABULARY)
    draft = ScriptedRunner(markov(table + noise), VOCABULARY)
    for sampling in SAMPLINGS:
        tasks = [
            DecodeTask(
                [0], LENGTH, sampling, Uniforms("audit", seed, LENGTH + 1), lambda output: False
            )
            for seed in range(OUTPUTS)
        ]
        drafter = ModelDrafter(draft, mode)
        responses = decode_all(tasks, target, drafter, K, HostClock(), ROWS, stop)
        seen = Counter(tuple(response.tokens[:3]) for response in responses)
        step = distribution(table, sampling).double()
        often = {
            (a, b, c): n
            for a, b, c in product(range(VOCABULARY), repeat=3)
            if (n := OUTPUTS * float(step[0, a] * step[a, b] * step[b, c])) >= LEAST_EXPECTED
        }
        # Pearson's χ², and the value that chance exceeds with probability FALSE_ALARMS (Wilson and
        # Hilferty 1931).
        rare = OUTPUTS - sum(often.values())
        rare_seen = OUTPUTS - sum(seen[outcome] for outcome in often)
        distance = sum((seen[outcome] - n) ** 2 / n for outcome, n in often.items())
        distance += (rare_seen - rare) ** 2 / max(rare, 1.0)
        spread, z = 2 / (9 * len(often)), NormalDist().inv_cdf(1 - FALSE_ALARMS)
        limit = len(often) * (1 - spread + z * spread**0.5) ** 3
        if distance > limit:
            return (
                f"{OUTPUTS} outputs of {mode} drafting at temperature {sampling.temperature:g} "
                f"differ from the target's distribution (χ² {distance:.0f}, limit {limit:.0f})"
            )
    return None
