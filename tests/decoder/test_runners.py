"""Runners against transformers' own full pass, for every family: one token, several, after a
rewind, beyond a window.
"""

import copy
import gc
import pickle
import weakref
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from draftbench.decoder import cpu_kernels, cpu_layers, linear, llama_model
from draftbench.decoder.any_transformer import TransformersRunner, rewind_obstacle
from draftbench.decoder.llama import LlamaRunner, llama_obstacle
from draftbench.decoder.runner import HiddenStates

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ODD = {
    "vocab_size": 130,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
}
WINDOWS = {"sliding_window": 8, "head_dim": 16}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
OLD = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id")}
GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
LLAMA = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True),
    "llama, tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama of odd sizes": LlamaConfig(**SIZES | ODD),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
}
OTHERS = {
    "mistral with a window": MistralConfig(**SIZES, sliding_window=8),
    "gemma": GemmaConfig(**SIZES, head_dim=16),
    "gemma2": Gemma2Config(**SIZES, **WINDOWS),
    "gemma3": Gemma3TextConfig(**SIZES, **WINDOWS, layer_types=LAYERS),
    "phi": PhiConfig(**SIZES),
    "phi3": Phi3Config(**SIZES),
    "olmo2": Olmo2Config(**SIZES),
    "gpt neo": GPTNeoConfig(
        **OLD,
        num_layers=3,
        num_heads=4,
        attention_types=[[["global", "local", "local"], 1]],
        window_size=8,
        max_position_embeddings=128,
    ),
    "falcon with alibi": FalconConfig(
        **OLD, num_hidden_layers=3, num_attention_heads=4, alibi=True
    ),
    "gpt2": GPT2Config(**GPT2, bos_token_id=1, eos_token_id=2),
}
PASSES = ((5, 1), (5, 2), (20, 5), (30, 1), (30, 7))


def random_model(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().float().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.mul_(4)  # so that attention and masks matter to the logits
        else:  # every norm its own, and no bias 0
            weight.add_(0.3 * torch.randn(weight.shape))
    return model


def assert_agrees_with_full_pass(runner, expected, ids, widths=()):
    cache = runner.new_cache(64, widths=widths)
    assert_close(runner.forward(ids, cache, every=True), expected)
    for start, count in PASSES:
        cache.rewind(0, start)
        got = runner.forward(ids[start : start + count], cache, every=True)
        assert_close(got, expected[start : start + count])
    cache.rewind(0, 3)
    pieces = [runner.forward(ids[i : i + 4], cache, every=True) for i in range(3, 39, 4)]
    assert_close(torch.cat(pieces), expected[3:39])
    cache.rewind(0, 11)
    assert_close(runner.forward(ids[11:14], cache, every=False), expected[13:14])


# How many tokens three rows of one cache bring to each pass: alone, together, unevenly, none.
TURNS = ((7, 0, 0), (0, 12, 1), (1, 1, 1), (4, 2, 5), (0, 5, 3), (3, 0, 3), (1, 1, 1))


def assert_rows_do_not_meet(runner, model, widths=()):
    """Each row continues its own text, at its own length, rewound on its own."""
    texts = torch.randint(3, 128, (3, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(texts).logits
    cache, lengths = runner.new_cache(40, rows=3, widths=widths), [0, 0, 0]
    for turn, counts in enumerate(TURNS):
        spans = [slice(at, at + n) for at, n in zip(lengths, counts, strict=True)]
        new = torch.cat([text[span] for text, span in zip(texts, spans, strict=True)])
        got = runner.forward(new, cache, every=turn % 2 == 0, counts=counts)
        own = [logits[span] for logits, span in zip(expected, spans, strict=True)]
        wanted = own if turn % 2 == 0 else [z[-1:] for z in own]
        assert_close(got, torch.cat(wanted))
        lengths = [at + n for at, n in zip(lengths, counts, strict=True)]
        assert list(cache.lengths) == lengths
        if lengths[turn % 3] > 2:
            lengths[turn % 3] -= 2
            cache.rewind(turn % 3, lengths[turn % 3])


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def full_pass(model, length=40):
    """Ids, and transformers' logits of all of them."""
    ids = torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return ids, model(ids[None]).logits[0]


def runner_of(model, kind=LlamaRunner, **options):
    return kind(copy.deepcopy(model), "none", **options)


@pytest.mark.parametrize("name", [*LLAMA, *OTHERS])
def test_a_runner_agrees_with_transformers(name):
    model = random_model((LLAMA | OTHERS)[name])
    assert (llama_obstacle(model) is None) is (name in LLAMA)
    assert rewind_obstacle(model) is None
    runner = runner_of(model, LlamaRunner if name in LLAMA else TransformersRunner)
    ids, expected = full_pass(model)
    assert_agrees_with_full_pass(runner, expected, ids)
    assert_rows_do_not_meet(runner, model)


@pytest.mark.parametrize("two_layouts", [True, False])
def test_the_llama_runner_agrees_with_transformers_in_every_layout(monkeypatch, two_layouts):
    """16 to 64 kB: blocks alone, and rows beside blocks."""
    monkeypatch.setattr(linear, "PACKED_FROM", 0)
    monkeypatch.setattr(linear, "ROWS_FROM", 40_000)
    model = random_model(LLAMA["llama, tied"])
    ids, expected = full_pass(model)
    runner = runner_of(model, two_layouts=two_layouts)
    assert ("two layouts" in runner.name) is two_layouts
    assert_agrees_with_full_pass(runner, expected, ids)
    assert_rows_do_not_meet(runner, model)


@pytest.mark.parametrize("name", LLAMA)
def test_layers_in_one_call_agree_with_transformers(monkeypatch, name):
    """Where every weight fits 16 bits; what enters and leaves layers too."""
    for kind in ("SmallStream", "Stream"):
        monkeypatch.delattr(cpu_kernels if kind == "SmallStream" else llama_model, kind)
    model = random_model(LLAMA[name])
    for weight in model.parameters():
        weight.copy_(weight.bfloat16())
    runner = runner_of(model)
    ids, expected = full_pass(model)
    assert_agrees_with_full_pass(runner, expected, ids)
    assert_rows_do_not_meet(runner, model)
    states = model(ids[None], output_hidden_states=True).hidden_states
    hidden = HiddenStates((2, 0, 1))
    runner.forward(ids[:5], cache := runner.new_cache(40), every=True, hidden=hidden)
    runner.forward(ids[5:6], cache, every=True, hidden=hidden)
    assert_close(hidden.joined(), torch.cat([states[layer][0, :6] for layer in (2, 0, 1)], 1))


@pytest.mark.skipif(not linear.multiplies_bfloat16(), reason="this CPU keeps one copy of weights")
def test_passes_over_more_tokens_than_panels_are_fast_for_go_layer_by_layer(monkeypatch):
    called = []
    model = LlamaRunner(random_model(LLAMA["llama"]).bfloat16(), "none")
    one_call = cpu_layers.CompiledLayers.__call__
    monkeypatch.setattr(
        cpu_layers.CompiledLayers,
        "__call__",
        lambda self, *given: called.append(len(given[1])) or one_call(self, *given),
    )
    for tokens in (1, linear.FEW_ROWS, linear.FEW_ROWS + 1):
        model.forward(torch.arange(tokens), model.new_cache(20), every=False)
    assert called == [1, linear.FEW_ROWS]


def test_layers_of_which_one_is_multiplied_in_another_way_are_not_compiled():
    runner = LlamaRunner(random_model(LLAMA["llama"]).bfloat16(), "none")
    layers = runner._model.layers
    every = cpu_layers.CompiledLayers.of(layers)
    other = replace(layers[1], down=lambda x: x)
    assert cpu_layers.CompiledLayers.of([layers[0], other]) is None
    few = linear.TwoProducts(layers[1].down, layers[1].down, 2)
    few.record = every._table[1]["down"]
    fewer = cpu_layers.CompiledLayers.of([layers[0], replace(layers[1], down=few)])
    assert fewer.most == 2 < every.most


def test_layers_in_the_place_of_others_are_those_that_compute():
    model = random_model(LLAMA["llama"]).bfloat16()
    runner, ids = LlamaRunner(model, "none"), torch.arange(3, 9)
    before = runner.forward(ids, runner.new_cache(8), every=True)
    runner._model.layers = runner._model.layers[:1]
    assert not torch.equal(runner.forward(ids, runner.new_cache(8), every=True), before)


def test_a_copied_runner_computes_when_the_first_is_gone_and_none_is_sent_elsewhere():
    """Compiled layers know where in memory weights lie."""
    model = random_model(LLAMA["qwen3"]).bfloat16()
    ids = torch.arange(3, 9)
    runner = LlamaRunner(model, "none")
    expected = runner.forward(ids, runner.new_cache(8), every=True)
    copied = copy.deepcopy(runner)
    del runner
    gc.collect()
    assert torch.equal(copied.forward(ids, copied.new_cache(8), every=True), expected)
    with pytest.raises(TypeError, match="holds addresses of this process"):
        pickle.dumps(copied._model.layers[0].qkv)


@pytest.mark.parametrize("layer", [-1, 4])
def test_states_of_a_layer_that_the_model_lacks_are_refused(layer):
    runner = runner_of(random_model(LLAMA["llama"]))
    cache, hidden = runner.new_cache(8), HiddenStates((layer,))
    with pytest.raises(IndexError, match="of a model that has 3"):
        runner.forward(torch.arange(3), cache, every=False, hidden=hidden)


def test_more_tokens_than_a_piece_agree_with_transformers():
    model = random_model(LlamaConfig(**{**SIZES, "max_position_embeddings": 700}))
    ids, expected = full_pass(model, 640)
    runner = runner_of(model)
    cache = runner.new_cache(640)
    assert_close(runner.forward(ids[:600], cache, every=True), expected[:600])
    for start in range(600, 640, 5):
        got = runner.forward(ids[start : start + 5], cache, every=True)
        assert_close(got, expected[start : start + 5])


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
def test_a_runner_that_nobody_holds_takes_its_weights_along(level):
    runner = LlamaRunner(random_model(LLAMA["llama"]), level)
    runner.forward(torch.arange(3, 9), runner.new_cache(8), every=False)
    weights = [weakref.ref(layer) for layer in runner.modules()]
    del runner
    assert [weight() for weight in weights] == [None] * len(weights)


def test_a_recurrent_model_is_refused_by_name():
    model = AutoModelForCausalLM.from_config(
        MambaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2)
    )
    assert "linear_attention" in str(rewind_obstacle(model))


@pytest.mark.parametrize("kind", [LlamaRunner, TransformersRunner])
def test_a_row_goes_forward_again_to_what_was_not_written_over(kind):
    model = random_model(LLAMA["llama"])
    ids, expected = full_pass(model)
    runner = runner_of(model, kind)
    cache = runner.new_cache(40)
    runner.forward(ids[:30], cache, every=False)
    cache.rewind(0, 5)  # copies nothing
    assert_close(runner.forward(ids[5:7], cache, every=True), expected[5:7])
    cache.rewind(0, 30)
    assert_close(runner.forward(ids[30:33], cache, every=True), expected[30:33])
