"""Checkpoints that are stored quantized → a level of their own, counted by what is really kept.

The workshop's Llama has 73 728 weights in the linear layers of its blocks, 320 in its norms, and
300 · 64 = 19 200 in the head and as many in the embedding. The formats here leave the head alone.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scenes import with_fields
from transformers import AutoModelForCausalLM, TorchAoConfig

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.errors import ModelError
from draftbench.models import prequantized
from draftbench.models.prequantized import StoredLinear, missing_packages, stored_level
from draftbench.models.quantize import Build, build_runner, check_level
from draftbench.models.source import ModelSource

LINEAR, NORMS, EMBEDDING = 73_728, 320, 19_200
IDS = torch.arange(5, 25)
GPTQ = {"quant_method": "gptq", "bits": 4}
FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}


def described(source, quantization):
    """The same files with a quantization configuration beside the model's own."""
    with_fields(Path(source.spec) / "config.json", quantization_config=quantization)
    return ModelSource(source.spec)


def built(source, level="none", draft=None):
    return build_runner(source, Build(torch.bfloat16, level, "cpu"), draft)


def logits_of(runner):
    return runner.forward(IDS, runner.new_cache(32), every=True).float()


def assert_kept_as(level, runner, facts, plain, least=0.99, *, has_kernel=True):
    """Counts, and logits at least so close to those of plain weights."""
    assert (facts.quant, facts.has_kernel) == (level, has_kernel)
    assert facts.quantized_share == LINEAR / (LINEAR + EMBEDDING)
    assert facts.parameters == LINEAR + NORMS + 2 * EMBEDDING
    one, other = logits_of(runner), logits_of(built(plain)[0])
    assert torch.nn.functional.cosine_similarity(one, other, dim=-1).min() > least


@pytest.mark.parametrize(
    ("quantization", "level"),
    [
        (GPTQ, "gptq-int4"),
        ({"quant_method": "awq", "bits": 4}, "awq-int4"),
        (FP8, "compressed-tensors-fp8"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "bitsandbytes-nf4",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes-int8"),
        ({"quant_method": "torchao", "quant_type": "int4-weight"}, "torchao-int4weight"),
        (
            {"quant_method": "torchao", "quant_type": "int8_dynamic_activation_int4_weight"},
            "torchao-int8_dynamic_activation_int4_weight",
        ),
        ({"quant_method": "fp8"}, "fp8-stored"),
        ({"quant_method": "Hqq ../4", "bits": 4}, "hqq4-stored"),
        (None, None),
    ],
)
def test_a_stored_level_has_its_name_from_the_configuration(workshop, quantization, level):
    source = described(workshop.source("packed"), quantization)
    assert stored_level(source) == level
    assert level is None or prequantized.format_of(level) is not None


def test_a_format_without_its_package_names_what_to_install(workshop, monkeypatch):
    monkeypatch.setattr(prequantized, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"stored as gptq-int4.*gptqmodel and optimum") as caught:
        built(described(workshop.source("packed"), GPTQ))
    assert caught.value.hint.startswith("pip install gptqmodel optimum")
    assert missing_packages("compressed-tensors-int4") == ["compressed-tensors"]


@pytest.mark.parametrize(
    ("quantization", "level", "words"),
    [
        (GPTQ, "int8", r"`model` is already quantized \(gptq-int4\)"),
        (None, "gptq-int4", "`model` is not stored as gptq-int4"),
    ],
)
def test_a_level_that_the_checkpoint_cannot_have_is_refused(workshop, quantization, level, words):
    with pytest.raises(ModelError, match=words):
        built(described(workshop.source("model"), quantization), level)


def test_only_formats_that_compute_with_stored_weights_have_a_kernel():
    names = ("gptq-int4", "awq-int4", "bitsandbytes-nf4", "torchao-int8weightonly")
    assert all(check_level(name, "cpu", simulate=False) for name in names)
    unpacked = ("compressed-tensors-int4", "gguf-q4_k", "mxfp4-stored")
    assert not any(check_level(name, "cuda", simulate=False) for name in unpacked)


def test_torchao_weights_stay_as_they_are_stored(workshop, tmp_path):
    from torchao.quantization import Int8WeightOnlyConfig

    plain, config = workshop.weighted("plain"), TorchAoConfig(Int8WeightOnlyConfig(version=2))
    how = {"dtype": torch.bfloat16, "quantization_config": config}
    AutoModelForCausalLM.from_pretrained(plain.spec, **how).save_pretrained(tmp_path / "ao")
    runner, facts = built(ModelSource(str(tmp_path / "ao")), "torchao-int8weightonly", "draft")
    assert isinstance(runner, TransformersRunner)
    assert_kept_as("torchao-int8weightonly", runner, facts, plain)
    # A byte a weight, a float32 scale and a byte of offset an output; the rest is bfloat16.
    outputs = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64)
    assert facts.weight_bytes == LINEAR + 5 * outputs + 2 * (NORMS + 2 * EMBEDDING)


@pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="it is not installed")
def test_compressed_tensors_are_unpacked_and_have_no_cost_of_their_own(workshop):
    """fp8 with a scale for each output: the logits are those of the rounded weights."""
    plain, packed = workshop.weighted("plain"), workshop.weighted("packed")
    tensors = load_file(f"{plain.spec}/model.safetensors")
    rounded, stored = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj" in name:
            scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
            stored[name] = (weight.float() / scale.float()).to(torch.float8_e4m3fn)
            stored[f"{name}_scale"] = scale
            rounded[name] = stored[name].to(torch.bfloat16) * scale
    for source, kept in ((plain, rounded), (packed, stored)):
        save_file(kept, f"{source.spec}/model.safetensors", metadata={"format": "pt"})
    runner, facts = built(described(packed, FP8))
    assert_kept_as("compressed-tensors-fp8", runner, facts, plain, has_kernel=False)
    assert "unpacked here" in " ".join(facts.caveats)
    assert all(not layer.packed for layer in runner.modules() if isinstance(layer, StoredLinear))
    same = TransformersRunner(plain.load(torch.bfloat16, "cpu"), "none")
    torch.testing.assert_close(logits_of(runner), logits_of(same))
