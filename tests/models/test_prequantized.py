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
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.errors import ModelError
from draftbench.models import prequantized
from draftbench.models.prequantized import StoredLinear, missing_packages, stored_level
from draftbench.models.quantize import Build, build_runner, check_level
from draftbench.models.source import ModelSource

LINEAR, NORMS, EMBEDDING = 73_728, 320, 19_200
IDS = torch.arange(5, 25)
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
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


def requantized(source, folder, config):
    """As transformers saves it."""
    model = AutoModelForCausalLM.from_pretrained(
        source.spec, dtype=torch.bfloat16, quantization_config=config
    )
    model.save_pretrained(folder)
    return ModelSource(str(folder))


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


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


@pytest.mark.parametrize(
    ("quantization", "level"),
    [
        (GPTQ, "gptq-int4"),
        (AWQ, "awq-int4"),
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

    plain = workshop.weighted("plain")
    source = requantized(plain, tmp_path / "ao", TorchAoConfig(Int8WeightOnlyConfig(version=2)))
    runner, facts = built(source, "torchao-int8weightonly", "draft")
    assert isinstance(runner, TransformersRunner)
    assert_kept_as("torchao-int8weightonly", runner, facts, plain)
    # A byte a weight, a float32 scale and a byte of offset an output; the rest is bfloat16.
    outputs = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64)
    assert facts.weight_bytes == LINEAR + 5 * outputs + 2 * (NORMS + 2 * EMBEDDING)


@needs("bitsandbytes")
@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize(
    ("config", "level", "least"),
    [
        ({"load_in_8bit": True}, "bitsandbytes-int8", 0.99),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes-nf4", 0.95),
    ],
)
def test_bitsandbytes_weights_stay_as_they_are_stored(workshop, tmp_path, config, level, least):
    plain = workshop.weighted("plain")
    runner, facts = built(requantized(plain, tmp_path / "packed", BitsAndBytesConfig(**config)))
    assert_kept_as(level, runner, facts, plain, least)
    assert facts.weight_bytes < 2 * facts.parameters


@needs("gptqmodel")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("quantization", [GPTQ, AWQ], ids=["gptq", "awq"])
def test_gptq_and_awq_weights_stay_as_they_are_stored(workshop, quantization, capfd):
    """4 bits with a scale and an offset for every 32 inputs: the logits are those of the rounded
    weights, and nothing but this tool writes on stdout.
    """
    method = quantization["quant_method"]
    rounded, packed = in_two_forms(workshop, quantization, lambda *one: int4(method, *one))
    runner, facts = built(packed)
    assert_kept_as(f"{method}-int4", runner, facts, rounded, 0.999)
    assert facts.weight_bytes < 2 * facts.parameters
    assert capfd.readouterr().out == ""


@needs("compressed_tensors")
def test_compressed_tensors_are_unpacked_and_have_no_cost_of_their_own(workshop):
    """fp8 with a scale for each output: the logits are those of the rounded weights."""
    rounded, packed = in_two_forms(workshop, FP8, fp8)
    runner, facts = built(packed)
    assert_kept_as("compressed-tensors-fp8", runner, facts, rounded, has_kernel=False)
    assert "unpacked here" in " ".join(facts.caveats)
    assert all(not layer.packed for layer in runner.modules() if isinstance(layer, StoredLinear))
    same = TransformersRunner(rounded.load(torch.bfloat16, "cpu"), "none")
    torch.testing.assert_close(logits_of(runner), logits_of(same))


def in_two_forms(workshop, quantization, pack):
    """A model with rounded weights, and one that stores the same as a format does. `pack` takes a
    weight's name and values, and gives the rounded weight and the tensors that are stored.
    """
    plain, packed = workshop.weighted("plain"), workshop.weighted("packed")
    tensors = load_file(f"{plain.spec}/model.safetensors")
    rounded, stored = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj" in name:
            del stored[name]
            rounded[name], parts = pack(name.removesuffix(".weight"), weight.float())
            stored |= parts
    for source, kept in ((plain, rounded), (packed, stored)):
        save_file(kept, f"{source.spec}/model.safetensors", metadata={"format": "pt"})
    return plain, described(packed, quantization)


def fp8(base, weight):
    scale = (weight.abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    small = (weight / scale.float()).to(torch.float8_e4m3fn)
    parts = {f"{base}.weight": small, f"{base}.weight_scale": scale}
    return small.to(torch.bfloat16) * scale, parts


def int4(method, base, weight):
    """Codes with the zero 8. GPTQ packs them along the inputs and keeps the zero less one, AWQ
    along the outputs in an order of its own.
    """
    groups = weight.unflatten(1, (-1, 32))
    scale = (groups.abs().amax(2) / 7).half()
    steps = (groups / scale.float()[:, :, None]).round().clamp(-8, 7)
    rounded = (steps * scale.float()[:, :, None]).flatten(1).to(torch.bfloat16)
    codes = (steps + 8).flatten(1).long()
    zeros = torch.full((scale.shape[1], len(codes)), 7 if method == "gptq" else 8)
    if method == "gptq":
        weights, order = eight_in_one(codes, range(8)).t(), range(8)
    else:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        weights = eight_in_one(codes.t(), order)
    parts = {
        f"{base}.scales": scale.t().contiguous(),
        f"{base}.qweight": weights.contiguous(),
        f"{base}.qzeros": eight_in_one(zeros, order).contiguous(),
    }
    if method == "gptq":
        parts[f"{base}.g_idx"] = torch.arange(codes.shape[1], dtype=torch.int32) // 32
    return rounded, parts


def eight_in_one(codes, order):
    """[n, 8 m] codes of 4 bits → int32 [n, m]."""
    eights = codes.unflatten(1, (-1, 8))[:, :, list(order)]
    packed = (eights << (4 * torch.arange(8))).sum(2)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
