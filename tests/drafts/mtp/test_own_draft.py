"""Targets that carry their own draft: by config.json, by model type, by name, and for whom."""

import json

import pytest
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from draftbench.drafts.mtp.families import FAMILIES
from draftbench.drafts.mtp.own_draft import own_draft_of
from draftbench.models.source import ModelSource

NOT_READ = ["llama.cpp", "TensorRT-LLM"]
NEXTN, HIDDEN = "num_nextn_predict_layers", "mtp_num_hidden_layers"
MODULES = "num_mtp_modules"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "deepseek_v3", NEXTN: 1}, (NEXTN, 1)),
        ({"model_type": "glm4_moe", "num_mtp_layers": 2}, ("num_mtp_layers", 2)),
        # Counted in a part of the file.
        ({"model_type": "qwen3_5", "text_config": {HIDDEN: 1}}, (HIDDEN, 1)),
        ({"model_type": "minimax_m3_vl", "text_config": {MODULES: 7}}, (MODULES, 7)),
        ({"model_type": "unheard_of", NEXTN: 1}, (NEXTN, 1)),
        # Types whose files do not count them.
        ({"model_type": "qwen3_next"}, (None, None)),
        ({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}}, (None, None)),
        # What counts none, or as Kimi K2 is a DeepSeek-V3 without the layers.
        ({}, None),
        ({"model_type": "llama"}, None),
        ({"model_type": "llama", NEXTN: True}, None),
        ({"model_type": "llama", NEXTN: "1"}, None),
        ({"model_type": "deepseek_v3", NEXTN: 0}, None),
        ({"model_type": "qwen3_5", "text_config": {HIDDEN: 0}}, None),
        # Types of which only some models have them, and then count them.
        ({"model_type": "nemotron_h"}, None),
    ],
)
def test_a_file_that_counts_the_layers_is_believed_and_then_its_type(config, why):
    found = own_draft_of(config)
    assert (found and (found.field, found.layers)) == why
    if found is not None:
        assert (found.field or f"models of type {config['model_type']} do") in found.why


def test_what_a_configurations_class_fills_in_is_not_in_the_file(workshop):
    """Known fault: the default of transformers' class was told as the file's own figure."""
    source = workshop.source("model")
    (workshop.folder / "model" / "config.json").write_text(
        json.dumps({"model_type": "deepseek_v3"})
    )
    read = ModelSource(source.spec)
    assert read.config.num_nextn_predict_layers == 1
    found = own_draft_of(read.raw_config)
    assert (found.field, found.layers) == (None, None)
    assert found.why == "models of type deepseek_v3 do; its configuration does not count them"


@pytest.mark.parametrize(
    ("config", "using"),
    [
        ({"model_type": "deepseek_v3"}, ["vLLM", "SGLang", "transformers"]),
        # Its class has no `num_mtp_layers`: generate(use_mtp=True) raises.
        ({"model_type": "deepseek_v32"}, ["vLLM", "SGLang"]),
        # Its weights for it are not loaded, and it keeps a recurrent state.
        ({"model_type": "qwen3_5"}, ["vLLM", "SGLang"]),
        ({"model_type": "bailing_hybrid", "num_nextn_predict_layers": 1}, ["vLLM", "SGLang"]),
        ({"model_type": "kimi_k3"}, ["vLLM"]),
        ({"model_type": "mellum", "num_mtp_layers": 1}, ["transformers"]),
        ({"model_type": "unheard_of", "num_nextn_predict_layers": 1}, []),
    ],
)
def test_only_engines_that_use_the_layers_are_offered(config, using):
    found = own_draft_of(config)
    assert sorted(found.options) == sorted([*using, *NOT_READ])
    assert sorted([*found.options, *found.unused]) == sorted(
        ["vLLM", "SGLang", "transformers", *NOT_READ]
    )


def _taken_by_transformers(model_type):
    """Its own rule: the text part knows `num_mtp_layers`, and no state must be taken back."""
    config = CONFIG_MAPPING[model_type]
    known = hasattr(config().get_text_config(), "num_mtp_layers")
    models = MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model = next((mapping[config] for mapping in models if config in mapping), None)
    return known and not getattr(model, "_is_stateful", False)


@pytest.mark.parametrize(
    "family",
    [f for f in FAMILIES if any(kind in CONFIG_MAPPING for kind in f.types.split())],
    ids=lambda family: family.types.split()[0],
)
def test_transformers_uses_the_layers_of_the_types_that_are_said(family):
    for kind in family.types.split():
        if kind in CONFIG_MAPPING:
            assert _taken_by_transformers(kind) == ("transformers" in family.engines), kind


@pytest.mark.parametrize(
    ("target", "using"),
    [
        ("deepseek-ai/DeepSeek-R1", "vllm sglang transformers"),
        ("deepseek-ai/DeepSeek-V3.2", "vllm sglang"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", None),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", None),
        ("jukofyork/DeepSeek-V3-0324-DRAFT-0.5B-v1.0", None),
        ("Qwen/Qwen3.5-27B", "vllm sglang"),
        ("Qwen/Qwen3-32B", None),
        ("zai-org/GLM-4.6", "vllm sglang transformers"),
        ("zai-org/GLM-4.7-Flash", "vllm sglang"),
        ("zai-org/GLM-4.5V", None),
        ("baidu/ERNIE-4.5-21B-A3B-PT", "vllm sglang"),
        ("baidu/ERNIE-4.5-0.3B-PT", None),
        ("FreedomIntelligence/openPangu-Ultra-MoE-718B-V1.1", "vllm"),
        ("moonshotai/Kimi-K2-Instruct", None),
        ("meta-llama/Llama-3.3-70B-Instruct", None),
    ],
)
def test_names_tell_it_where_no_file_can_be_read(target, using):
    found = own_draft_of(target)
    assert (found is None) == (using is None)
    if found is not None and using is not None:
        names = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "transformers"}
        assert sorted(found.options) == sorted([*map(names.get, using.split()), *NOT_READ])
        assert "its configuration was not read" in found.why
