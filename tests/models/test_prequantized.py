"""Checkpoints that are stored quantized → a level of their own, counted by what is really kept.

The workshop's Llama has 73 728 weights in the linear layers of its blocks, 320 in its norms, and
300 · 64 = 19 200 in the head and as many in the embedding. The formats here leave the head alone.
"""

import json
from importlib.util import find_spec

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.errors import ModelError
from draftbench.models import prequantized
from draftbench.models.prequantized import StoredLinear, missing_packages, stored_level
from draftbench.models.quantize import Build, build_runner, check_level
from draftbench.models.source import ModelSource

LINEAR, NORMS, EMBEDDING = 73_728, 320, 19_200
SHARE = LINEAR / (LINEAR + EMBEDDING)
IDS = torch.arange(5, 25)


def described(source, quantization):
    """The same files with a quantization configuration beside the model's own."""
    file = prequantized.Path(source.spec) / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": quantization}))
    return ModelSource(source.spec)


def requantized(source, folder, config):
    model = AutoModelForCausalLM.from_pretrained(
        source.spec, dtype=torch.bfloat16, quantization_config=config
    )
    model.save_pretrained(folder)
    return ModelSource(str(folder))


def built(source, level="none", draft=None):
    return build_runner(source, Build(torch.bfloat16, level, "cpu"), draft)


def logits_of(runner):
    return runner.forward(IDS, runner.new_cache(32), every=True).float()


def closeness(one, other):
    return torch.nn.functional.cosine_similarity(logits_of(one), logits_of(other), dim=-1).min()


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


@pytest.mark.parametrize(
    ("quantization", "level"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq-int4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "awq-int4"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "bitsandbytes-nf4",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes-int8"),
        ({"quant_method": "fp8"}, "fp8-stored"),
        ({"quant_method": "Hqq ../4", "bits": 4}, "hqq4-stored"),
    ],
)
def test_a_stored_level_has_its_name_from_the_configuration(workshop, quantization, level):
    assert stored_level(described(workshop.weighted("packed"), quantization)) == level


def test_plain_weights_have_no_level_of_their_own(workshop):
    assert stored_level(workshop.weighted("plain")) is None


def test_a_format_without_its_package_names_what_to_install(workshop, monkeypatch):
    monkeypatch.setattr(prequantized, "find_spec", lambda name: None)
    source = described(workshop.weighted("packed"), {"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match=r"stored as gptq-int4.*gptqmodel and optimum") as caught:
        built(source)
    assert caught.value.hint.startswith("pip install gptqmodel optimum")
    assert missing_packages("compressed-tensors-int4") == ["compressed-tensors"]


def test_another_level_of_a_stored_checkpoint_is_refused(workshop):
    source = described(workshop.weighted("packed"), {"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match=r"`packed` is already quantized \(gptq-int4\)"):
        built(source, "int8")


def test_a_stored_level_of_a_plain_checkpoint_is_refused(workshop):
    with pytest.raises(ModelError, match="`plain` is not stored as gptq-int4"):
        built(workshop.weighted("plain"), "gptq-int4")


def test_only_formats_that_compute_with_stored_weights_have_a_kernel():
    names = ("gptq-int4", "awq-int4", "bitsandbytes-nf4", "torchao-int8weightonly")
    assert all(check_level(name, "cpu", simulate=False) for name in names)
    unpacked = ("compressed-tensors-int4", "gguf-q4_k", "mxfp4-stored")
    assert not any(check_level(name, "cuda", simulate=False) for name in unpacked)


def test_torchao_weights_stay_as_they_are_stored(workshop, tmp_path):
    from torchao.quantization import Int8WeightOnlyConfig

    plain = workshop.weighted("plain")
    config = TorchAoConfig(Int8WeightOnlyConfig(version=2))
    source = requantized(plain, tmp_path / "torchao", config)
    runner, facts = built(source, "torchao-int8weightonly", "draft")
    assert isinstance(runner, TransformersRunner)
    assert (facts.quant, facts.has_kernel) == ("torchao-int8weightonly", True)
    assert facts.parameters == LINEAR + NORMS + 2 * EMBEDDING
    assert facts.quantized_share == SHARE
    # A byte a weight, a float32 scale and a byte of offset an output; the rest is bfloat16.
    outputs = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64)
    assert facts.weight_bytes == LINEAR + 5 * outputs + 2 * (NORMS + 2 * EMBEDDING)
    assert closeness(runner, built(plain)[0]) > 0.99


@needs("bitsandbytes")
@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize(
    ("config", "level", "least"),
    [
        (BitsAndBytesConfig(load_in_8bit=True), "bitsandbytes-int8", 0.99),
        (
            BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
            "bitsandbytes-nf4",
            0.95,
        ),
    ],
)
def test_bitsandbytes_weights_stay_as_they_are_stored(workshop, tmp_path, config, level, least):
    plain = workshop.weighted("plain")
    source = requantized(plain, tmp_path / "packed", config)
    runner, facts = built(source)
    assert (facts.quant, facts.has_kernel, facts.quantized_share) == (level, True, SHARE)
    assert facts.parameters == LINEAR + NORMS + 2 * EMBEDDING
    assert facts.weight_bytes < 2 * facts.parameters
    assert closeness(runner, built(plain)[0]) > least


@needs("gptqmodel")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_gptq_and_awq_weights_stay_as_they_are_stored(workshop, method, capfd):
    """4 bits with a scale and an offset for every 32 inputs: the logits are those of the rounded
    weights, and nothing but this tool writes on stdout.
    """
    plain, source = workshop.weighted("plain"), workshop.weighted("packed")
    rounded = pack_int4(plain, source, method)
    runner, facts = built(source)
    assert (facts.quant, facts.has_kernel) == (f"{method}-int4", True)
    assert facts.quantized_share == SHARE
    assert facts.parameters == LINEAR + NORMS + 2 * EMBEDDING
    assert facts.weight_bytes < 2 * facts.parameters
    assert closeness(runner, built(rounded)[0]) > 0.999
    assert capfd.readouterr().out == ""


def pack_int4(plain, packed, method):
    """Write one directory as GPTQ or AWQ would and round the other to the same values."""
    tensors = load_file(f"{plain.spec}/model.safetensors")
    rounded, stored_tensors = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj" in name:
            groups = weight.float().unflatten(1, (-1, 32))
            scale = (groups.abs().amax(2) / 7).half()
            codes = (groups / scale.float()[:, :, None]).round().clamp(-8, 7)
            rounded[name] = (codes * scale.float()[:, :, None]).flatten(1).to(torch.bfloat16)
            stored_tensors |= int4_tensors(name, (codes + 8).flatten(1).long(), scale, method)
            del stored_tensors[name]
    for source, kept in ((plain, rounded), (packed, stored_tensors)):
        save_file(kept, f"{source.spec}/model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": method, "bits": 4, "group_size": 32}
    own = {"gptq": {"sym": True, "desc_act": False}, "awq": {"version": "gemm", "zero_point": True}}
    described(packed, quantization | own[method])
    packed.__dict__.pop("config", None)
    return plain


def int4_tensors(name, codes, scale, method):
    """What the format keeps of codes [out, in] whose zero is 8. GPTQ packs them along the inputs
    and keeps the zero less one, AWQ along the outputs in an order of its own.
    """
    base, outputs = name.removesuffix(".weight"), len(codes)
    kept = {f"{base}.scales": scale.t().contiguous()}
    zeros = torch.full((scale.shape[1], outputs), 7 if method == "gptq" else 8)
    if method == "gptq":
        kept[f"{base}.g_idx"] = torch.arange(codes.shape[1], dtype=torch.int32) // 32
        weights, order = eight_in_one(codes, range(8)).t(), range(8)
    else:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        weights = eight_in_one(codes.t(), order)
    return kept | {
        f"{base}.qweight": weights.contiguous(),
        f"{base}.qzeros": eight_in_one(zeros, order).contiguous(),
    }


def eight_in_one(codes, order):
    """[n, 8 m] codes of 4 bits → int32 [n, m]."""
    eights = codes.unflatten(1, (-1, 8))[:, :, list(order)]
    packed = (eights << (4 * torch.arange(8))).sum(2)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


@needs("compressed_tensors")
def test_compressed_tensors_are_unpacked_and_have_no_cost_of_their_own(workshop):
    """fp8 with a scale for each output: the logits are those of the rounded weights."""
    plain, source = workshop.weighted("plain"), workshop.weighted("packed")
    rounded = pack_fp8(plain, source)
    runner, facts = built(source)
    assert (facts.quant, facts.has_kernel) == ("compressed-tensors-fp8", False)
    assert facts.quantized_share == SHARE
    assert facts.parameters == LINEAR + NORMS + 2 * EMBEDDING
    assert "unpacked here" in " ".join(facts.caveats)
    assert all(not layer.packed for layer in runner.modules() if isinstance(layer, StoredLinear))
    same = TransformersRunner(rounded.load(torch.bfloat16, "cpu"), "none", simulate=False)
    torch.testing.assert_close(logits_of(runner), logits_of(same))


def pack_fp8(plain, packed):
    """Write one directory as fp8 and round the other to the same values."""
    tensors = load_file(f"{plain.spec}/model.safetensors")
    rounded, stored_tensors = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj" in name:
            scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
            small = (weight.float() / scale.float()).to(torch.float8_e4m3fn)
            stored_tensors[name], stored_tensors[f"{name}_scale"] = small, scale
            rounded[name] = small.to(torch.bfloat16) * scale
    for source, kept in ((plain, rounded), (packed, stored_tensors)):
        save_file(kept, f"{source.spec}/model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    described(packed, quantization)
    packed.__dict__.pop("config", None)
    return plain


def write_gguf(path, kind):
    """A file with one weight of a kind and one of float32, twice as many weights in the former."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, rows, quantized in (("a.weight", 64, True), ("b.weight", 32, False)):
        weight = np.ones((rows, 64), np.float32)
        if quantized:
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (gguf.GGMLQuantizationType.Q8_0, "gguf-q8_0"),
        (gguf.GGMLQuantizationType.Q4_0, "gguf-q4_0"),
        (gguf.GGMLQuantizationType.BF16, None),
    ],
)
def test_a_gguf_file_counts_as_the_type_of_most_of_its_weights(tmp_path, kind, level):
    path = tmp_path / "model.gguf"
    write_gguf(path, kind)
    source = ModelSource(str(path))
    source.__dict__["config"] = object()  # the header is all that is read
    assert stored_level(source) == level
