"""Heads, held against the target by their configurations alone."""

import json

import pytest
import random_heads
import torch
from transformers import LlamaConfig

from draftbench.drafts.check import check_models
from draftbench.drafts.heads.config import (
    check_fit,
    check_head,
    checkpoint_of,
    misread_by,
    read_otherwise,
)
from draftbench.errors import ModelError, PairError
from draftbench.hub import Trust
from draftbench.models.source import ModelSource

# A Llama of 8 layers and width 64 with 300 words.
LAYER = {"model_type": "llama", "hidden_size": 64, "vocab_size": 300, "num_hidden_layers": 1}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 300,
    "norm_before_residual": True,
    "transformer_layer_config": LAYER,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
}
AUTHORS = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 300}
NO_IDS = "it reads no layer ids but those in eagle_config, and takes what enters [2, 4, 5]"
DFLASH = {
    **LAYER, "architectures": ["DFlashDraftModel"], "num_target_layers": 8,
    "dflash_config": {"target_layer_ids": [1, 3, 6]},
}  # fmt: skip


@pytest.fixture
def target(workshop):
    return workshop.source("target", num_hidden_layers=8)


@pytest.fixture
def head_of(target, tmp_path):
    def made(config, method="eagle3"):
        folder = tmp_path / "head"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return check_head(target, f"{method}:{folder}")

    return made


@pytest.mark.parametrize(
    ("config", "method", "caveats"),
    [
        (SPECULATORS, "eagle3", []),
        (AUTHORS, "eagle3", []),
        (DFLASH, "dflash", []),
    ],
)
def test_a_head_for_this_target_can_work_on_the_engines_that_know_it(
    head_of, config, method, caveats
):
    head = head_of(config, method)
    assert (head.method, head.obstacles) == (method, ())
    assert [text.split(",")[0] for text in head.caveats] == caveats
    standings = {answer.engine: answer.standing for answer in head.engines}
    engines = ("vLLM", "SGLang", "llama.cpp", "TensorRT-LLM")
    assert standings == {**dict.fromkeys(engines, "accepts"), "transformers": "refuses"}
    (option,) = [answer.option for answer in head.engines if answer.engine == "vLLM"]
    assert f'{{"method":"{method}","model":"' in option


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        ({"target_hidden_size": 32}, "reads states of width 32, and the target's have 64"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 9]}, "layer 9, and the target has 8"),
        (
            {"transformer_layer_config": {**LAYER, "vocab_size": 400}},
            "its vocabulary has 400 rows, and the target's 300",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}},
            # There they count what leaves a layer.
            "it names the target's layers twice, differently: [2, 4, 5] and [1, 2, 3]",
        ),
        ({"speculators_model_type": "dflash", "architectures": ["Other"]}, "name it `dflash:"),
    ],
)
def test_a_head_for_another_width_depth_or_vocabulary_cannot_work(head_of, changed, obstacle):
    head = head_of(SPECULATORS | changed)
    (found,) = head.obstacles
    assert obstacle in found
    assert head.engines == ()


def test_ids_that_count_what_leaves_a_layer_are_read_by_sglang_and_by_no_default(head_of):
    """SpecForge's `eagle_config`; the default is what enters the layers 2, 4 and 5 of 8."""
    in_config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    usual = head_of(AUTHORS | in_config)
    assert {e.engine for e in usual.engines if e.standing == "accepts"} >= {"vLLM", "SGLang"}


def test_ids_in_eagle_config_other_than_the_usual_ones_are_not_read_by_vllm(head_of):
    in_config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 4]}}
    refused = {e.engine: e.reason for e in head_of(AUTHORS | in_config).engines}
    assert "does not read the layer ids in eagle_config" in refused["vLLM"]
    assert "eagle3" in refused["SGLang"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"norm_before_residual": "false"}, r"\$\.norm_before_residual"),
        ({"eagle_aux_hidden_state_layer_ids": "2,4,5"}, r"\$\.eagle_aux_hidden_state_layer_ids"),
        ({"transformer_layer_config": [LAYER]}, r"\$\.transformer_layer_config"),
    ],
)
def test_a_field_of_another_type_is_refused(head_of, changed, field):
    with pytest.raises(ModelError, match=f"config.json: Expected .* at `{field}"):
        head_of(SPECULATORS | changed)


def test_what_a_head_lacks_or_leaves_open_is_said(head_of):
    verifier = {"verifier": {"name_or_path": "org/Another-8B"}}
    open_ = {k: v for k, v in SPECULATORS.items() if k != "norm_before_residual"}
    short = {**LAYER, "max_position_embeddings": 8}
    changed = {"draft_vocab_size": 200, "speculators_config": verifier}
    changed |= {"transformer_layer_config": short}
    caveats = head_of(open_ | changed).caveats
    assert [text.split(",")[0] for text in caveats] == [
        "its draft vocabulary covers 200 of the target's 300 tokens",
        "it was trained for Another-8B",
        "it was made for 8 positions: beyond these it may accept less",
        "it does not say norm_before_residual",
    ]


@pytest.mark.parametrize(
    ("changed", "refusals"),
    [
        (
            {"eagle_aux_hidden_state_layer_ids": [5, 2, 4]},
            {
                "vLLM": "it sorts the layers that a head reads, and this one reads [5, 2, 4]",
                "SGLang": NO_IDS,
            },
        ),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 4]},
            dict.fromkeys(
                ("vLLM", "llama.cpp"), "it takes the states of three layers, and this head reads 2"
            )
            | {"SGLang": NO_IDS},
        ),
        ({"norm_output": True}, {"llama.cpp": "it knows neither fc_norm nor norm_output"}),
    ],
)
def test_an_engine_refuses_what_it_would_read_otherwise_than_it_was_trained(
    target, head_of, changed, refusals
):
    head = head_of(SPECULATORS | changed)
    unable = ("TensorRT-LLM", "transformers")
    refused = {e.engine: e.reason for e in head.engines if e.standing == "refuses"}
    assert {name: why for name, why in refused.items() if name not in unable} == refusals
    # A sweep by the built-in decoder says so too, before the head is exported.
    (caveat, *_) = check_fit(target, ModelSource(head.name.removeprefix("eagle3:")), "eagle3")
    named, _ = caveat.split(" cannot serve it as it was trained")
    assert set(refusals) == set(named.replace(" and ", ", ").split(", ")) - set(unable)


@pytest.mark.parametrize(("name", "meant"), [("suffx", "suffix"), ("ngrm", "ngram")])
def test_a_misspelt_way_to_draft_is_not_looked_for_on_the_hub(name, meant):
    with pytest.raises(ModelError) as refused:
        checkpoint_of(name, Trust())
    assert f"did you mean `{meant}`?" in refused.value.hint


def test_a_folder_without_a_configuration_says_so(target, tmp_path):
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(PairError, match=r"it has no config\.json"):
        check_fit(target, ModelSource(str(empty)), "dflash")


@pytest.mark.parametrize(
    ("config", "refusing"),
    [
        (DFLASH, set()),
        # SGLang, and TensorRT-LLM as far as is known, read the authors' format alone.
        (
            {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [2, 4, 5]},
            {"sglang", "tensorrt-llm", "llama.cpp"},
        ),
        # They draft nothing at the place of the last known token.
        (
            {**DFLASH, "dflash_config": {"sample_from_anchor": True}},
            {"vllm", "sglang", "llama.cpp"},
        ),
        ({**DFLASH, "hidden_size": 16, "target_hidden_size": 32}, {"llama.cpp"}),
        # What places of sliding layers see is said for one engine, and not for the other.
        ({**DFLASH, "layer_types": ["sliding_attention"]}, {"llama.cpp"}),
        ({**DFLASH, "layer_types": ["sliding_attention"], "is_causal": True}, set()),
        ({**DFLASH, "dflash_config": {"target_layer_ids": [3, 1, 6]}}, {"vllm", "tensorrt-llm"}),
    ],
)
def test_engines_refuse_a_block_drafter_that_they_cannot_run_as_it_was_trained(config, refusing):
    assert misread_by(config, "dflash", 8).keys() == refusing


def test_what_engines_read_otherwise_than_the_one_that_measured_is_known():
    silent = {k: v for k, v in SPECULATORS.items() if k != "norm_before_residual"}
    true, false = (
        f"takes norm_before_residual for {value}, which config.json does not say"
        for value in ("true", "false")
    )
    assert read_otherwise(SPECULATORS, "eagle3", None, 8) == {}
    assert read_otherwise(silent, "eagle3", None, 8) == {"vllm": true}
    assert read_otherwise(silent, "eagle3", "vllm", 8) == dict.fromkeys(
        ("sglang", "llama.cpp", "tensorrt-llm", "transformers"), false
    )
    swapped = read_otherwise(
        silent | {"eagle_aux_hidden_state_layer_ids": [4, 2, 5]}, "eagle3", "vllm", 8
    )
    assert swapped["vllm"].startswith("sorts the layers")
    assert "norm_before_residual" in swapped["sglang"]


def test_a_model_is_no_head(head_of):
    (found,) = head_of(LlamaConfig(architectures=["LlamaForCausalLM"]).to_dict()).obstacles
    said = (
        "its config.json is not that of a head for eagle3 (it says llamaforcausallm): if it is a "
    )
    assert found.startswith(f"{said}model, name it `")


@pytest.mark.parametrize("layers", [0, 1])
def test_mtp_needs_layers_that_the_target_carries(target, monkeypatch, layers):
    monkeypatch.setattr(ModelSource, "check_weights", lambda self: None)
    config = json.loads((target._path / "config.json").read_text())
    (target._path / "config.json").write_text(
        json.dumps(config | {"num_nextn_predict_layers": layers})
    )
    (head,) = check_models(target, [], 1 << 40, heads=["mtp"]).heads
    if not layers:
        assert head.obstacles == ("`target` carries no layers that draft for it",)
        assert head.engines == ()
    else:
        assert head.obstacles == ()
        assert "llama.cpp" in [e.engine for e in head.engines if e.standing == "accepts"]


def test_check_refuses_a_head_whose_tensors_are_not_those_of_one_for_the_target(target, tmp_path):
    config = random_heads.config(300, 200, hidden=64, eagle_aux_hidden_state_layer_ids=[2, 4, 5])
    weights = random_heads.tensors(config)
    heads = {
        "sound": weights,
        "wrong": weights | {"d2t": weights["d2t"] + 300},
        "unknown": weights | {"bias": torch.zeros(1)},
    }
    names = [f"eagle3:{random_heads.save(tmp_path / n, config, w)}" for n, w in heads.items()]
    sound, wrong, unknown = check_models(target, [], 1 << 40, heads=names).heads
    assert sound.caveats[-1] == "the built-in decoder drafts with it, without an engine"
    assert (wrong.obstacles, wrong.engines) == (
        ("its d2t leads to token 599, and the target has 300",), ()
    )  # fmt: skip
    # Another decoder may know what the built-in one does not.
    assert unknown.obstacles == ()
    assert unknown.caveats[-1] == (
        "the built-in decoder refuses it: it has a tensor that such a head does not have, bias"
    )
    assert unknown.engines
