"""Checkpoints of heads: both formats, and what does not fit, found before anything runs."""

import math
from pathlib import Path

import numpy as np
import pytest
import random_heads
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

from draftbench.drafts.eagle3.draft import build_head, check_eagle, misfits, shape_of
from draftbench.errors import ModelError, PairError
from draftbench.hub import Trust
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from embedded_gguf import write_head

FLOAT32 = Build(torch.float32, "none", "cpu")
WORDS = 300


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "target"
    random_heads.target(WORDS).save_pretrained(folder)
    return ModelSource(str(folder))


@pytest.fixture
def saved(tmp_path):
    def make(config, weights, name="head"):
        return ModelSource(str(random_heads.save(tmp_path / name, config, weights)))

    return make


def made(**fields):
    config = random_heads.config(WORDS, 200, **fields)
    return config, random_heads.tensors(config)


STATES = torch.randn(30, 96, generator=torch.Generator().manual_seed(3))


def drafts(source, target, states=STATES, level="none"):
    """What a head drafts along a text, and its facts."""
    runner, _ = build_runner(target, FLOAT32, None)
    build = Build(torch.float32, level, "cpu")
    head, facts = build_head(source, build, "eagle3:head", runner, random_heads.LAYERS)
    return torch.cat([part.tokens for part in head.along(list(range(31)), states, 3, 4)]), facts


def authors(config, weights):
    """The same head in the format of the head's authors."""
    renamed = {name.replace("layers.0.", "midlayer."): weight for name, weight in weights.items()}
    flat = {
        **config["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_config": {
            # Of what leaves a layer.
            "eagle_aux_hidden_state_layer_ids": [
                i - 1 for i in config["eagle_aux_hidden_state_layer_ids"]
            ]
        },
    }
    return flat, renamed


def test_both_formats_hold_the_same_head(saved, target):
    config, weights = made()
    one, other = saved(config, weights), saved(*authors(config, weights), name="authors")
    # Engines read layer ids in one of the two.
    said = [
        [c for c in check_eagle(target, s) if "layer ids" not in c and "cannot serve" not in c]
        for s in (one, other)
    ]
    assert said[0] == said[1]
    (drafted, facts), (again, _) = (drafts(source, target) for source in (one, other))
    assert torch.equal(drafted, again)
    # All of its numbers, and the bytes of those that a step reads.
    assert facts.parameters == sum(w.numel() for w in weights.values() if w.is_floating_point())
    assert facts.vocab_size == 200
    assert facts.kv_bytes_per_token == 2 * 2 * 8 * 4


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"eagle_config": {"use_aux_hidden_state": False}}, "only the target's last state"),
        (
            {"num_aux_hidden_states": 5},
            "of 5 layers, and its config.json does not say which",
        ),
    ],
)
def test_states_that_are_not_read_here_are_no_misfit_of_the_files(saved, target, said, why):
    config, weights = authors(*made())
    del config["eagle_config"]
    wrong, (not_run,) = misfits(target, saved(config | said, weights))
    assert wrong == []
    assert why in not_run


def test_a_gguf_file_holds_the_same_head(saved, embedded, tmp_path):
    config = random_heads.config(2048, 200, hidden=256)
    config["transformer_layer_config"]["rope_parameters"] = {"rope_theta": 5000.0}
    config |= {"target_hidden_size": 256, "norm_before_residual": True}
    folder, file = saved(config, random_heads.tensors(config)), tmp_path / "head.gguf"
    write_head(file, folder._path, embedded / "target", Kind.F32)
    target, stored = ModelSource(str(embedded / "target")), ModelSource(str(file))
    assert check_eagle(target, stored) == check_eagle(target, folder)
    states = torch.randn(30, 768, generator=torch.Generator().manual_seed(3))
    (drafted, facts), (again, other) = (drafts(s, target, states) for s in (folder, stored))
    assert torch.equal(drafted, again)
    assert facts.parameters == other.parameters
    assert len(set(drafted.flatten().tolist())) > 20


def test_a_gguf_file_that_does_not_say_all_of_a_head_is_refused(tmp_path):
    writer = GGUFWriter(str(tmp_path / "head.gguf"), "eagle3")
    writer.add_tensor("output.weight", np.zeros((4, 4), np.float32))
    for write in (
        writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file
    ):  # fmt: skip
        write()
    writer.close()
    with pytest.raises(ModelError, match=r"it does not say `eagle3\.embedding_length`"):
        _ = ModelSource(str(tmp_path / "head.gguf")).raw_config


def test_a_pickled_head_is_read_where_that_is_allowed(saved, target):
    config, weights = made()
    folder = saved(config, weights)
    drafted, _ = drafts(folder, target)
    (folder._path / "model.safetensors").unlink()
    torch.save(weights, folder._path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no file `model\.safetensors`") as caught:
        check_eagle(target, ModelSource(folder.spec))
    assert "--allow-pickle" in caught.value.hint
    again, _ = drafts(ModelSource(folder.spec, Trust(pickle=True)), target)
    assert torch.equal(drafted, again)


def test_ids_may_be_stored_as_any_numbers(saved, target):
    config, weights = made()
    whole, other = saved(config, weights), {"d2t": weights["d2t"].float()}
    floats = saved(config, weights | other, name="floats")
    assert check_eagle(target, whole) == check_eagle(target, floats)
    (drafted, _), (again, _) = (drafts(source, target) for source in (whole, floats))
    assert torch.equal(drafted, again)
    assert again.dtype == torch.int64


def test_a_head_without_an_embedding_reads_the_targets(saved, target):
    config, weights = made()
    runner, _ = build_runner(target, FLOAT32, None)
    shared = {name: w for name, w in weights.items() if name != "embed_tokens.weight"}
    given = shared | {"embed_tokens.weight": runner.embedding.float().clone()}
    without, own = saved(config, shared), saved(config, given, name="own")
    (drafted, facts), (again, larger) = (drafts(source, target) for source in (without, own))
    assert torch.equal(drafted, again)
    assert larger.weight_bytes - facts.weight_bytes == WORDS * 32 * 4


def test_a_head_is_quantized_as_draft_models_are(saved, target):
    source = saved(*made())
    plain = drafts(source, target)[1].weight_bytes
    for level in ("int8", "int4"):
        _, facts = drafts(source, target, level=level)
        assert facts.quant == level
        assert facts.weight_bytes < plain


def test_layers_that_no_file_names_are_those_of_the_authors():
    config = {k: v for k, v in made()[0].items() if k != "eagle_aux_hidden_state_layer_ids"}
    assert shape_of(config, 32).reads == (2, 16, 29)


def next_ids(weights):
    """Every drafted token has the id of the one before it."""
    own = torch.arange(200)
    return weights | {"d2t": (own + weights["d2t"]).roll(1) - own}


def without(weights, name):
    return {n: w for n, w in weights.items() if n != name}


def spoiled(weights, name, value):
    """One number of a tensor is replaced."""
    weights[name].view(-1)[-1] = value
    return weights


def layer(**fields):
    return {"layer": fields}


@pytest.mark.parametrize(
    ("fields", "change", "words"),
    [
        ({}, lambda w: without(w, "norm.weight"), "it has no tensor norm.weight"),
        ({}, lambda w: without(w, "d2t"), "200 of the target's 300 tokens, and has no d2t, which"),
        ({"fc_norm": True}, lambda w: without(w, "fc_norm.1.weight"), "no tensor fc_norm.1.weight"),
        ({}, lambda w: w | {"fc.weight": torch.zeros(32, 64)}, "is [32, 64], not [32, 96]"),
        (
            {},
            lambda w: w | {"fc.weight": w["fc.weight"].to(torch.float8_e4m3fn)},
            "fc.weight is stored as float8_e4m3fn, without a scale",
        ),
        (
            {},
            lambda w: w | {"layers.1.hidden_norm.weight": torch.ones(32)},
            "it has a tensor that such a head does not have, layers.1.hidden_norm.weight",
        ),
        ({}, lambda w: w | {"d2t": w["d2t"] + torch.arange(200)}, "and the target has 300"),
        ({}, lambda w: without(w, "t2d") | {"d2t": -torch.arange(200)}, "to the same token twice"),
        ({}, lambda w: w | {"d2t": w["d2t"].roll(1)}, "d2t and t2d name different tokens"),
        ({}, next_ids, "or the same in another order"),
        # What a failed conversion leaves.
        ({}, lambda w: spoiled(w, "norm.weight", math.inf), "1 of the 32 numbers of norm.weight"),
        ({}, lambda w: spoiled(w, "fc.weight", math.nan), "fc.weight are not finite"),
        ({"model_type": "gemma"}, dict, "its layer's family is not supported here: gemma"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]},
            dict,
            "it reads what enters the layers [1, 3, 6], and the target's are 0 to 5",
        ),
        ({"target_hidden_size": 64}, dict, "it reads states of width 64"),
        # What its layer is.
        (layer(num_attention_heads=3), dict, "hidden size (32) is not a multiple of the number of"),
        (layer(num_attention_heads=0), dict, "cannot be built from its config.json: integer"),
        (layer(rope_parameters={"rope_theta": None}), dict, "cannot be built from its config.json"),
        (layer(hidden_act="gelu"), dict, "its activation is not supported here: gelu"),
        (layer(num_hidden_layers=2), dict, "heads of 2 layers are not supported here"),
        (
            layer(layer_types=["sliding_attention"]),
            dict,
            "sliding-window attention is not",
        ),
        (
            layer(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
            dict,
            "its rope type is not supported here: dynamic",
        ),
        (
            layer(rope_parameters={"partial_rotary_factor": 0.5}),
            dict,
            "a partial rotary factor",
        ),
    ],
)
def test_what_does_not_fit_or_is_not_run_here_is_refused_in_words(
    saved, target, fields, change, words
):
    config, weights = made(**{name: fields[name] for name in fields if name != "layer"})
    config["transformer_layer_config"] |= fields.get("layer", {})
    with pytest.raises(PairError, match="cannot draft for `target`") as caught:
        check_eagle(target, saved(config, change(weights)))
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("name", "fits"),
    # Engines may take the last norm and lm_head from the target, and nobody else has the layer.
    [("norm.weight", True), ("layers.0.input_layernorm.weight", False), ("fc.weight", False)],
)
def test_a_head_without_its_own_layer_fits_no_engine(saved, target, name, fits):
    config, weights = made()
    wrong, not_run = misfits(target, saved(config, without(weights, name)))
    assert (wrong == [], any(name in each for each in (*wrong, *not_run))) == (fits, True)
