"""The self-check passes, and fails when the acceptance rule is broken."""

import pytest
import torch

from draftbench.decoder import speculate
from draftbench.decoder.sampling import target_tokens
from draftbench.drafts.model import self_check
from draftbench.records import DraftingMode


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(DraftingMode))
def test_the_outputs_have_the_targets_distribution(mode):
    assert self_check.distribution_fault(mode) is None


def accept_all(p, q, proposed, uniforms):
    tokens = target_tokens(p, q, proposed, uniforms)
    drafted = q.gather(1, proposed[:, None])[:, 0] > 0
    return torch.where(drafted, proposed, tokens)


def one_number_for_everything(p, q, proposed, uniforms):
    return target_tokens(p, q, proposed, (uniforms[0],) * 3)


@pytest.mark.parametrize(
    "broken", [accept_all, pytest.param(one_number_for_everything, marks=pytest.mark.slow)]
)
def test_a_broken_rule_is_found(monkeypatch, broken):
    monkeypatch.setattr(speculate, "target_tokens", broken)
    assert "differ from the target's distribution" in self_check.distribution_fault(
        DraftingMode.SAMPLED
    )
