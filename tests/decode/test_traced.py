"""Passes that run without Python: what they repeat, what they read anew, what they leave behind."""

import copy
import gc
import weakref

import pytest
import torch
from transformers import LlamaConfig

from draftbench.decode import lean
from draftbench.decode.lean import LeanRunner
from draftbench.decode.traced import trace
from tests.decode.test_runners import (
    LEAN,
    SIZES,
    assert_agrees_with_full_pass,
    assert_close,
    assert_rows_do_not_meet,
    full_pass,
    random_model,
)


def traced_runner(model, level="none"):
    runner = LeanRunner(copy.deepcopy(model), level, simulate=False)
    assert runner.trace() is None
    return runner


@pytest.mark.parametrize("name", LEAN)
def test_a_traced_pass_gives_the_logits_of_transformers(name):
    model = random_model(LEAN[name])
    ids, expected = full_pass(model)
    runner = traced_runner(model)
    assert_agrees_with_full_pass(runner, expected, ids, widest=7)
    assert_rows_do_not_meet(runner, model, widest=5)
    assert sorted(runner._traces) == list(range(1, 8))


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_a_trace_repeats_every_bit_at_every_level(level, n):
    """Large enough for layers that oneDNN packs, in the type that they are packed in."""
    sizes = {**SIZES, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 16}
    config = type(LEAN["llama"])(**sizes)
    model = random_model(config).bfloat16()
    runner = traced_runner(model, level)
    text = torch.randint(3, 128, (60,), generator=torch.Generator().manual_seed(5))
    results = []
    for widest in (n, 0):
        cache = runner.new_cache(80, widest=widest)
        runner.forward(text[:31], cache, every=False)
        results.append(runner.forward(text[31 : 31 + n], cache, every=True))
        cache.rewind(0, 12)
        results.append(runner.forward(text[40 : 40 + n], cache, every=True))
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])


def test_a_runner_that_goes_takes_its_traced_weights_along():
    """PyTorch keeps what its own `torch.jit.trace` makes for as long as the process lives."""
    runner = traced_runner(random_model(LEAN["llama"]))
    runner.new_cache(8, widest=2)
    weight = weakref.ref(runner._body.linears[0])
    norm = weakref.ref(runner._body.layers[0].input_norm.weight.untyped_storage())
    tensor = weakref.ref(runner._body.embedding)
    del runner
    gc.collect()
    assert (weight(), norm(), tensor()) == (None, None, None)


def test_passes_that_cannot_be_traced_run_call_by_call_and_say_why(monkeypatch):
    def unable(*_):
        raise RuntimeError("unsupported value kind\nand more")

    monkeypatch.setattr(lean, "trace", unable)
    model = random_model(LEAN["llama"])
    ids, expected = full_pass(model)
    runner = LeanRunner(copy.deepcopy(model), "none", simulate=False)
    assert runner.trace() == "RuntimeError: unsupported value kind"
    assert runner.name == "draftbench lean (float32, cpu, call by call)"
    assert_agrees_with_full_pass(runner, expected, ids, widest=5)


def test_a_trace_that_holds_what_it_should_read_is_found_out(monkeypatch):
    def holding(work, example, given):
        result = work(*example)
        return lambda *_: result

    monkeypatch.setattr(lean, "trace", holding)
    model = random_model(LEAN["llama"])
    ids, expected = full_pass(model)
    runner = LeanRunner(copy.deepcopy(model), "none", simulate=False)
    assert str(runner.trace()).startswith("its passes differ then (cosine ")
    assert_agrees_with_full_pass(runner, expected, ids, widest=5)


def test_what_is_given_to_a_trace_is_not_held_by_it():
    held = torch.ones(3)
    run = trace(lambda x: x + held, [torch.zeros(3)], [held])
    held = torch.zeros(3)  # the closure's name; the trace was given the ones
    assert run(torch.tensor([1.0, 2.0, 3.0])).tolist() == [2.0, 3.0, 4.0]


def test_a_trace_leaves_the_optimizer_of_others_on():
    run = trace(lambda x: x * 2, [torch.zeros(1)], [])
    run(torch.ones(1))
    assert torch._C._get_graph_executor_optimize()


def test_a_context_shorter_than_a_round_is_no_obstacle():
    model = random_model(LlamaConfig(**{**SIZES, "max_position_embeddings": 20}))
    ids = torch.randint(3, 128, (20,), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    runner = traced_runner(model)
    cache = runner.new_cache(20, widest=30)
    assert_close(runner.forward(ids, cache, every=True), expected)
    cache.rewind(0, 0)
    assert_close(runner.forward(ids[:19], cache, every=True), expected[:19])


def test_a_type_beyond_a_piece_and_in_bfloat16_agrees_with_the_model_in_float32():
    """More than 512 tokens are read in pieces, and the steps behind them traced."""
    model = random_model(LlamaConfig(**{**SIZES, "max_position_embeddings": 700}))
    ids = torch.randint(3, 128, (640,), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    exact = traced_runner(model)
    cache = exact.new_cache(640, widest=5)
    assert_close(exact.forward(ids[:600], cache, every=True), expected[:600])
    for start in range(600, 640, 5):
        got = exact.forward(ids[start : start + 5], cache, every=True)
        assert_close(got, expected[start : start + 5])
    short = traced_runner(model.bfloat16())
    cache = short.new_cache(640, widest=1)
    first = short.forward(ids[:600], cache, every=True)
    steps = [short.forward(ids[i : i + 1], cache, every=True) for i in range(600, 640)]
    got = torch.cat([first, *steps]).float()
    cosine = torch.nn.functional.cosine_similarity(got, expected, dim=-1)
    assert float(cosine.mean()) > 0.98
