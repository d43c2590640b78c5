"""The embedded target and a draft of half its vocabulary: rounds by one pass and by decoding."""

from __future__ import annotations

import pytest
import torch
from measure.conftest import _source

from draftbench.acceptance.rounds import expected_rounds, law_of
from draftbench.decoder.drafters import ModelDrafter
from draftbench.decoder.runner import HostClock, Task
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode
from draftbench.measure.replay import replay_model
from draftbench.models.quantize import Build, build_runner
from draftbench.models.translation import translated
from draftbench.records import Candidate, DraftingMode, Sampling

FOREIGN = Candidate(draft="foreign")
GREEDY = DraftingMode.GREEDY


@pytest.fixture(scope="module")
def foreign(text_source):
    source = _source("foreign")
    runner, _ = build_runner(source, Build(torch.float32, "none", "cpu"), "foreign")
    return translated(runner, text_source, source)


def asked(prompt, limit, sampling):
    # Of draws that are no near ties: other streams meet one, whatever drafts.
    return Task(list(prompt), limit, sampling, Uniforms("r1", 0, limit + 1), lambda output: False)


@pytest.mark.parametrize("mode", list(DraftingMode))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoded_rounds_are_those_of_replay_and_the_output_is_the_targets(
    target, foreign, text, make, mode, temperature
):
    sampling = Sampling(temperature=temperature)
    greedy = mode is GREEDY or temperature == 0
    prompt, limit = text.tokenizer("class Reader:\n    def read(self):\n")["input_ids"], 40
    plain = decode(asked(prompt, limit, sampling), target, None, 0, HostClock())
    if greedy:
        response = make.unscored(tuple(plain.tokens), tuple(prompt), sampling)
        (record,) = replay_model(foreign, target, [response], FOREIGN, mode)
        assert 0 < sum(record.accept) < limit - 1
    for k in (1, 3, 6):
        drafter = ModelDrafter(foreign, mode)
        fast = decode(asked(prompt, limit, sampling), target, drafter, k, HostClock())
        assert sum(fast.accepted) > 0
        if greedy:
            assert fast.tokens == plain.tokens
            rounds = expected_rounds([law_of(response.trajectory, record)], k)
            assert rounds.target_passes[0] == len(fast.proposed)
            assert rounds.accepted[0] == sum(fast.accepted)
