"""What a step of a mixture of experts reads, by the public configurations of known ones, and which
experts a pass reads, as its layers are handed them.
"""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftbench.decoder.mixture import counted_experts, expert_layers, mixture_of
from draftbench.models.check import engine_sheet
from draftbench.models.source import ModelSource
from draftbench.records import Mixture

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
# What their config.json say of sizes: E, K, and parameters in billions, all and active. Publishers
# state 46.7 and 12.9, 30.5 and 3.3, 671 and 37, 20.9 and (without the table of tokens) 3.6.
PUBLIC = {
    "Mixtral-8x7B": (
        {
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "tie_word_embeddings": False,
        },
        (8, 2, 32, 46.7, 12.9),
    ),
    "Qwen3-30B-A3B": (
        {
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "tie_word_embeddings": False,
        },
        (128, 8, 48, 30.5, 3.35),
    ),
    "DeepSeek-V3": (  # three dense layers first, one shared expert in each other
        {
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "tie_word_embeddings": False,
        },
        (256, 8, 58, 671, 37.6),
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss",
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "tie_word_embeddings": False,
        },
        (32, 4, 24, 20.9, 4.19),
    ),
}


def sheet_of(config, folder):
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return engine_sheet(ModelSource(str(folder)), "bfloat16")


@pytest.fixture(autouse=True)
def of_configurations_alone(monkeypatch):
    monkeypatch.setattr(ModelSource, "check_weights", lambda self: None)


@pytest.mark.parametrize("name", PUBLIC)
def test_active_parameters_are_those_that_publishers_state(tmp_path, name):
    config, (experts, per_token, layers, billions, active) = PUBLIC[name]
    sheet = sheet_of(config, tmp_path)
    mixture = sheet.mixture
    assert (mixture.experts, mixture.per_token, mixture.layers) == (experts, per_token, layers)
    assert sheet.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert sheet.active_parameters / 1e9 == pytest.approx(active, rel=0.003)
    # Two bytes each; a row of the table of tokens is looked up, the rest of it is not read.
    table = config["vocab_size"] * config["hidden_size"]
    assert sheet.read_at("none") == 2 * (sheet.active_parameters - table)
    if name == "gpt-oss-20b":
        assert sheet.read_at("none") / 2e9 == pytest.approx(3.61, rel=0.003)


def test_further_tokens_read_further_experts_and_all_else_once(tmp_path):
    """By hand, two of four experts: 1 - (1 - 1/2)^n of them, 1/2, 3/4, 7/8, 15/16."""
    mixture = Mixture(experts=4, per_token=2, layers=1, parameters=400)
    assert [mixture.most_read(n) for n in (1, 2, 3, 4)] == [2, 3, 3.5, 3.75]
    assert mixture.idle == 0.5
    sheet = sheet_of(PUBLIC["Mixtral-8x7B"][0], tmp_path)
    # 45.10 of 46.70 billion are experts, of which 2 of 8 are 11.27; 12.75 are read by one token,
    # and by two 2 · (1 - (3/4)²) = 1.75 times those experts: (12.75 + 0.75 · 11.27) / 12.75.
    assert sheet.most_read(1) == 1
    assert sheet.most_read(2) == pytest.approx(1.663, abs=0.001)


@given(experts=st.integers(1, 512), per_token=st.integers(1, 512))
def test_the_bound_rises_from_k_to_all_experts(experts, per_token):
    mixture = Mixture(
        experts=experts, per_token=min(per_token, experts), layers=1, parameters=experts
    )
    bounds = [mixture.most_read(n) for n in range(1, 50)]
    assert bounds[0] == pytest.approx(mixture.per_token)
    assert all(few <= many for few, many in pairwise(bounds))
    assert bounds[-1] <= experts


@pytest.mark.parametrize(
    ("kind", "changes", "found"),
    [
        ("qwen2_moe", {"num_experts": 60, "num_experts_per_tok": 4}, (60, 4)),
        ("granitemoe", {"num_local_experts": 8, "num_experts_per_tok": 2}, (8, 2)),
        ("olmoe", {"num_experts": 64, "num_experts_per_tok": 8}, (64, 8)),
        ("glm4_moe", {"n_routed_experts": 16, "num_experts_per_tok": 4}, (16, 4)),
        ("deepseek_v2", {"n_routed_experts": 16, "num_experts_per_tok": 6}, (16, 6)),
        ("llama4_text", {"num_local_experts": 16, "num_experts_per_tok": 1}, (16, 1)),
        ("ernie4_5_moe", {"moe_num_experts": 16, "moe_k": 6}, (16, 6)),
        ("minimax_m2", {"num_local_experts": 16, "num_experts_per_tok": 8}, (16, 8)),
        ("llama", {}, None),
        ("qwen3", {}, None),
    ],
)
def test_every_family_says_how_many_experts_a_token_is_sent_to(kind, changes, found):
    small = {"num_hidden_layers": 4, "vocab_size": 100, "hidden_size": 64}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, **changes}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **small))
    mixture = mixture_of(model)
    assert (mixture and (mixture.experts, mixture.per_token)) == found


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
