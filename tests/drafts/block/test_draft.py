"""A block drafter's files: both formats, what does not fit, and what is not known."""

import sys
from pathlib import Path

import pytest
import random_blocks
import random_heads
import torch
from scenes import EMBEDDED

from draftbench.decoder.attention import Sees
from draftbench.drafts.block.draft import build_block, check, misfits
from draftbench.drafts.block.shape import shape_of, unknown_keys
from draftbench.drafts.loading import Loading, Pairing
from draftbench.errors import PairError
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, DraftingMode

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from embedded_gguf import write_block

BUILD = Build(torch.float32, "none", "cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    random_heads.target().save_pretrained(folder)
    return ModelSource(str(folder))


@pytest.fixture
def saved(tmp_path):
    def save(config, weights, name="head"):
        return ModelSource(str(random_heads.save(tmp_path / name, config, weights)))

    return save


def made(variant="dflash", **fields):
    config = random_blocks.config(**random_blocks.VARIANTS[variant]) | fields
    return config, random_blocks.tensors(config)


def built(source, target):
    runner, _ = build_runner(target, BUILD, None)
    candidate = Candidate(draft="dflash:head")
    return build_block(
        Loading(candidate, source, BUILD, target, runner, DraftingMode.GREEDY), runner
    )


def drafts(source, target):
    head, facts = built(source, target)
    text = torch.arange(40) % 10
    width = 3 * target.config.hidden_size
    states = torch.randn(39, width, generator=torch.Generator().manual_seed(3))
    return head.along(text, states, 2, [5])[5].tokens, facts


def checked(target, source):
    return check(source, Pairing(target, {}, chats=False), "dflash")


@pytest.mark.parametrize("variant", ["dflash", "dflash, anchored", "dflash 2"])
def test_both_formats_hold_the_same_drafter(saved, target, variant):
    config, weights = made(variant)
    one = saved(config, weights)
    other = saved(random_blocks.authors_config(config), weights, "authors")
    (drafted, facts), (again, _) = (drafts(source, target) for source in (one, other))
    assert torch.equal(drafted, again)
    assert facts.parameters == sum(w.numel() for w in weights.values() if w.is_floating_point())
    # Two layers of two key heads with eight numbers each, for keys and for values.
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4


@pytest.mark.parametrize(
    "variant",
    ["dflash", "dflash, some tokens", "dflash 2", "dspark", "dspark, some tokens, not anchored"],
)
def test_a_gguf_file_holds_the_same_drafter(saved, target, tmp_path, variant):
    """llama.cpp's names of its parts, and ids of its tokens instead of offsets."""
    vocabulary = 2048
    fields = dict(random_blocks.VARIANTS[variant])
    config = random_blocks.config(vocabulary, **fields)
    layer = config["transformer_layer_config"]
    layer["rope_parameters"] = {"rope_type": "default", "rope_theta": layer.pop("rope_theta")}
    folder, file = saved(config, random_blocks.tensors(config)), tmp_path / "head.gguf"
    write_block(file, Path(folder.spec), EMBEDDED / "target")
    said, there = shape_of(folder.raw_config), shape_of(ModelSource(str(file)).raw_config)
    for name in ("reads", "drafted", "block", "mask", "anchored", "sees", "markov", "selector"):
        assert getattr(said, name) == getattr(there, name)
    ours, theirs = (source.tensors() for source in (folder, ModelSource(str(file))))
    assert ours.keys() - {"t2d"} == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(tensor.float(), ours[name].float().view_as(tensor))


def without(name):
    return lambda config, weights: weights.pop(name)


def setting(**fields):
    return lambda config, weights: config.update(fields)


def of_layer(**fields):
    return lambda config, weights: config["transformer_layer_config"].update(fields)


def wider(config, weights):
    weights["fc.weight"] = torch.zeros(32, 64)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("layers.1.mlp.up_proj.weight"), "it has no tensor layers.1.mlp.up_proj.weight"),
        (wider, r"fc.weight is \[32, 64\], not \[32, 96\]"),
        (without("hidden_norm.weight"), "it has no tensor hidden_norm.weight"),
        (setting(strange=1), "says strange, which is not known here"),
        (of_layer(rope_theta=None), "does not say rope_theta, which vLLM takes for 1,000,000"),
        (setting(mask_token_id=None), "does not say mask_token_id"),
        (setting(aux_hidden_state_layer_ids=[1, 3, 6]), "it reads what enters the layers"),
        (of_layer(model_type="gemma3_text"), "family is not supported here: gemma3_text"),
        (
            of_layer(layer_types=["sliding_attention"] * 2),
            "its layers have sliding windows, and its config.json does not say how long",
        ),
        (of_layer(hidden_act="gelu"), "its activation is not supported here: gelu"),
    ],
)
def test_what_does_not_fit_or_is_not_known_is_refused_before_anything_runs(
    saved, target, change, why
):
    config, weights = made()
    change(config, weights)
    with pytest.raises(PairError, match=why):
        checked(target, saved(config, weights))


def test_a_head_is_what_its_configuration_says_whatever_it_is_named(saved, target):
    for variant, named in (("dflash", "dspark"), ("dspark", "dflash")):
        source = saved(*made(variant, architectures=[]), variant)
        pairing = Pairing(target, {}, chats=False)
        with pytest.raises(PairError, match=rf"not that of a head for {named} \(it says {variant}"):
            check(source, pairing, named)


def test_layers_slide_by_themselves_or_all_as_vllm_reads_them():
    """`use_swa` is for layers of which none slides by itself; they see the block's later places."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
    config = random_blocks.authors_config(random_blocks.config(**layers, use_sliding_window=True))
    swa = {"use_swa": True, "swa_window_size": 5}
    mixed = shape_of(config | {"dflash_config": config["dflash_config"] | swa})
    assert mixed.sees == (Sees(True, 5), Sees(False, None))
    config["layer_types"] = ["full_attention"] * 2
    every = shape_of(config | {"dflash_config": config["dflash_config"] | swa})
    assert every.sees == (Sees(False, 5), Sees(False, 5))


def test_a_mask_outside_the_targets_vocabulary_needs_an_embedding_of_its_own(saved, target):
    config, weights = made(mask_token_id=10)
    del weights["embed_tokens.weight"]
    wrong, _ = misfits(target, saved(config, weights))
    assert wrong == ["its mask is token 10, and the target's vocabulary has 10"]


def test_without_embedding_and_output_head_it_uses_the_targets(saved, target):
    config, weights = made()
    model = random_heads.target()
    own = weights | {
        "embed_tokens.weight": model.get_input_embeddings().weight.detach(),
        "lm_head.weight": model.lm_head.weight.detach(),
    }
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del weights[name]
    (drafted, _), (again, _) = (
        drafts(saved(config, tensors, name), target)
        for tensors, name in ((weights, "shared"), (own, "own"))
    )
    assert torch.equal(drafted, again)


def test_keys_of_both_formats_are_known(saved):
    for variant in random_blocks.VARIANTS:
        config, _ = made(variant)
        assert unknown_keys(config) == []
        assert unknown_keys(random_blocks.authors_config(config)) == []
