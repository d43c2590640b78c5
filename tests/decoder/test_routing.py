"""The experts that a pass reads are counted as the layers of a mixture are handed them."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftbench.decoder.routing import counted_experts, expert_layers

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_an_expert_that_two_tokens_are_sent_to_is_read_once(kind):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL)).eval()
    layer, _ = expert_layers(model.modules())
    # Experts 0, 1, 3 and 7 of 8.
    sent = torch.tensor([[0, 1], [1, 3], [3, 7]])
    with counted_experts(model.modules()) as counts, torch.no_grad():
        layer(torch.randn(3, 32), sent, torch.full((3, 2), 0.5))
    assert counts == [4]
    with torch.no_grad():
        layer(torch.randn(3, 32), sent, torch.full((3, 2), 0.5))
    assert counts == [4]  # nothing is left behind in the model


def test_a_pass_of_one_token_reads_its_own_experts_in_every_layer():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **SMALL)).eval()
    with counted_experts(model.modules()) as counts, torch.no_grad():
        model(torch.tensor([[5]]))
    assert counts == [2, 2]


def test_a_model_without_experts_has_none():
    with counted_experts([nn.Linear(4, 4)]) as counts:
        pass
    assert (expert_layers([nn.Linear(4, 4), nn.Conv1d(2, 2, 2)]), counts) == ([], [])
