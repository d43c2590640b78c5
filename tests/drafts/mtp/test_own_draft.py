"""Targets that carry their own draft: which kind, by config.json, by model type, by name, and for
whom.
"""

import json
import statistics

import pytest
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from draftbench.drafts.mtp.families import FAMILIES
from draftbench.drafts.mtp.own_draft import own_draft_of, sheet_of
from draftbench.models.known_pairs import known_own_drafts
from draftbench.models.source import ModelSource

NOT_READ = ["llama.cpp", "TensorRT-LLM"]
NEXTN, HIDDEN = "num_nextn_predict_layers", "mtp_num_hidden_layers"
MODULES = "num_mtp_modules"
# As DeepSeek-V4-Flash-0731 has them: the stages are counted where MTP layers were.
DSPARK = {
    "model_type": "deepseek_v4",
    NEXTN: 3,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [40, 41, 42],
}


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
        assert found.method == "mtp"
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
    ("config", "field"),
    [
        (DSPARK, "dspark_block_size"),
        # One field is enough, whatever the others are, at the top or one level down.
        ({"model_type": "deepseek_v4", "dspark_markov_rank": 256}, "dspark_markov_rank"),
        ({"model_type": "unheard_of", "dspark_noise_token_id": 7}, "dspark_noise_token_id"),
        (
            {"model_type": "deepseek_v41", "text_config": {"dspark_target_layer_ids": [37]}},
            "dspark_target_layer_ids",
        ),
    ],
)
def test_a_dspark_field_says_that_the_target_carries_a_dspark_drafter_and_no_mtp(config, field):
    """Known fault: the count of its stages was taken for that of MTP layers."""
    found = own_draft_of(config)
    assert (found.method, found.field) == ("dspark", field)
    assert f"{field} is " in found.why


@pytest.mark.parametrize(
    "fields",
    [
        {"dspark_block_size": 0, "dspark_target_layer_ids": [40, 41, 42]},
        {"dspark_block_size": None, "dspark_target_layer_ids": []},
        {"dspark_enabled": False},
        {"dspark_config": {"markov_rank": 256}},  # a drafter's own file
    ],
)
def test_dspark_fields_without_a_value_or_with_a_block_of_0_say_nothing(fields):
    assert own_draft_of({"model_type": "deepseek_v4", NEXTN: 1, **fields}).method == "mtp"
    assert own_draft_of({"model_type": "llama", **fields}) is None


def test_a_type_that_never_had_mtp_layers_has_none_however_its_file_counts():
    """vLLM refuses MTP of it: what is counted are the stages of DSpark."""
    assert own_draft_of({"model_type": "deepseek_v41", NEXTN: 3}) is None


def test_engines_are_passed_dspark_with_the_block_of_the_configuration():
    found = own_draft_of(DSPARK)
    assert (found.k, found.layers, found.source) == (5, 3, None)
    assert found.options == {
        "vLLM": '--speculative-config \'{"method":"dspark","num_speculative_tokens":5}\'',
        "SGLang": "--speculative-algorithm DSPARK --speculative-dspark-block-size 5",
        "llama.cpp": "-md DSPARK.gguf --spec-type draft-dspark --spec-draft-n-max 5",
        "TensorRT-LLM": "speculative_config: {decoding_type: DSpark, max_draft_len: BLOCK, "
        "speculative_model: TARGET}",
    }
    assert found.unused == ("transformers",)
    # A type whose stages vLLM and SGLang do not load.
    other = own_draft_of({**DSPARK, "model_type": "unheard_of"})
    assert sorted(other.options) == sorted(NOT_READ)


def test_mtp_is_refused_of_a_target_that_carries_a_dspark_drafter_with_what_measures_it():
    sheet = sheet_of("V4", own_draft_of(DSPARK))
    (obstacle,) = sheet.obstacles
    assert obstacle == (
        "`V4` carries a DSpark drafter (dspark_block_size is 5 in its configuration), not an MTP "
        "head"
    )
    assert "spec:FILE.json" in " ".join(sheet.caveats)
    assert '{"method": "dspark", "num_speculative_tokens": "{k}"}' in " ".join(sheet.caveats)
    assert sheet.engines == ()


@pytest.mark.parametrize(
    ("target", "method", "k", "using"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "mtp", 3, "vLLM SGLang"),
        ("Qwen/Qwen3.5-27B", "mtp", 1, "vLLM SGLang"),
        ("Qwen/Qwen3.8-27B", "mtp", 3, "vLLM SGLang"),
        ("zai-org/GLM-4.6", "mtp", 1, "vLLM SGLang transformers"),
        ("zai-org/GLM-4.7-Flash", "mtp", 3, "vLLM SGLang"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", "mtp", 1, "vLLM SGLang"),
        # The same weights as a preview, and as released with another drafter.
        ("deepseek-ai/DeepSeek-V4-Flash", "mtp", 2, "vLLM SGLang"),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "dspark", 7, "vLLM SGLang"),
        ("deepseek-ai/DeepSeek-V4-Flash-DSpark@main", "dspark", 7, "vLLM SGLang"),
        ("DeepSeek-AI/deepseek-v4-pro-0813", "dspark", 7, "vLLM SGLang"),
        ("deepseek-ai/DeepSeek-V4.1-Flash", "dspark", 5, "vLLM SGLang"),
    ],
)
def test_a_name_says_what_is_known_of_that_very_name_with_source_and_date(target, method, k, using):
    """Known fault: every name that began like DeepSeek-V4's was said to carry MTP layers."""
    found = own_draft_of(None, target)
    assert (found.method, found.k) == (method, k)
    assert sorted(found.options) == sorted([*using.split(), *NOT_READ])
    assert found.source.startswith("https://")
    assert "its configuration was not read" in found.why


@pytest.mark.parametrize(
    "target",
    [
        "Qwen/Qwen3-32B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        # Likely, but unknown: conversions may drop the layers, and the next release may differ.
        "someone/DeepSeek-V3.2-AWQ",
        "someone/DeepSeek-V4-Flash-0731",
        "deepseek-ai/DeepSeek-V4.2-Flash",
        "/models/DeepSeek-V3.2",
    ],
)
def test_of_any_other_name_it_is_not_guessed(target):
    assert own_draft_of(None, target) is None


def test_the_file_decides_and_the_name_gives_only_the_length_of_the_same_kind_of_draft():
    name = "deepseek-ai/DeepSeek-V4-Flash-0731"
    read = own_draft_of(DSPARK, name)
    assert (read.method, read.k, read.field) == ("dspark", 7, "dspark_block_size")
    assert read.source is not None
    other = own_draft_of({"model_type": "deepseek_v4", NEXTN: 1}, name)
    assert (other.method, other.k, other.source) == ("mtp", 3, None)
    assert own_draft_of({"model_type": "llama"}, name) is None


@pytest.mark.parametrize(("layers", "k"), [(1, 3), (2, 2), (3, 3), (7, 3), (None, 3)])
def test_without_a_recipe_as_many_tokens_are_drafted_as_in_most_of_them(layers, k):
    """vLLM refuses more tokens than layers unless they are a multiple."""
    counted = {} if layers is None else {NEXTN: layers}
    found = own_draft_of({"model_type": "glm4_moe", **counted})
    assert found.k == k
    assert f'"num_speculative_tokens":{k}}}' in found.options["vLLM"]
    _, known = known_own_drafts()
    assert statistics.median(row.k for row in known if row.method == "mtp") == 3
