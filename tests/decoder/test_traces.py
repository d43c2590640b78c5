"""Passes that run without Python: what they repeat, what they read anew, what they leave behind."""

import copy
import gc
import weakref

import pytest
import torch
from transformers import LlamaConfig

from draftbench.decoder import linear, llama
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.traces import trace
from tests.decoder.test_runners import (
    LLAMA,
    SIZES,
    assert_agrees_with_full_pass,
    assert_close,
    assert_rows_do_not_meet,
    full_pass,
    random_model,
)

CALL_BY_CALL = "runs its steps call by call, not as traces: "


def counting(runner):
    """Which traces run from now on: rows and width."""
    ran = []

    def counted(key, run):
        def counting_run(*tensors):
            ran.append(key)
            return run(*tensors)

        return counting_run

    runner._traces = {key: counted(key, run) for key, run in runner._traces.items()}
    return ran


def traced_runner(model, level="none"):
    runner = LlamaRunner(copy.deepcopy(model), level, simulate=False)
    assert runner.speed_up_short_passes() is None
    return runner


@pytest.mark.parametrize("name", LLAMA)
def test_a_traced_pass_gives_the_logits_of_transformers(name):
    model = random_model(LLAMA[name])
    ids, expected = full_pass(model)
    runner = traced_runner(model)
    assert_agrees_with_full_pass(runner, expected, ids, widths=range(1, 8))
    assert_rows_do_not_meet(runner, model, widths=(1, 2))
    assert {(1, 7), (3, 1), (3, 2)} < set(runner._traces)


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_a_trace_repeats_every_bit_at_every_level(level, n):
    """Large enough for layers that oneDNN packs, in the type that they are packed in."""
    sizes = {**SIZES, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 16}
    config = type(LLAMA["llama"])(**sizes)
    model = random_model(config).bfloat16()
    runner = traced_runner(model, level)
    text = torch.randint(3, 128, (60,), generator=torch.Generator().manual_seed(5))
    results = []
    for widths in ((n,), ()):
        cache = runner.new_cache(80, widths=widths)
        ran = counting(runner)
        runner.forward(text[:31], cache, every=False)
        results.append(runner.forward(text[31 : 31 + n], cache, every=True))
        cache.rewind(0, 12)
        results.append(runner.forward(text[40 : 40 + n], cache, every=True))
        assert ran == ([(1, n), (1, n)] if widths else [])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])


@pytest.mark.parametrize("level", ["none", "int8", "int4"])
def test_a_trace_of_several_rows_repeats_every_bit(level):
    model = random_model(LlamaConfig(**{**SIZES, "hidden_size": 512})).bfloat16()
    runner = traced_runner(model, level)
    text = torch.randint(3, 128, (60,), generator=torch.Generator().manual_seed(8))
    starts, results = (9, 4, 17), []
    for widths in ((1, 3), ()):
        cache = runner.new_cache(40, 3, widths)
        ran = counting(runner)
        for row, start in enumerate(starts):
            counts = [start if at == row else 0 for at in range(3)]
            runner.forward(text[row : row + start], cache, every=False, counts=counts)
        results.append(runner.forward(text[30:39], cache, every=True, counts=[3, 3, 3]))
        cache.rewind(1, 2)
        results.append(runner.forward(text[40:43], cache, every=False, counts=[1, 1, 1]))
        assert ran == ([(3, 3), (3, 1)] if widths else [])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


def test_a_runner_that_goes_takes_its_traced_weights_along():
    """PyTorch keeps what its own `torch.jit.trace` makes for as long as the process lives."""
    runner = traced_runner(random_model(LLAMA["llama"]))
    runner.new_cache(8, widths=(1, 2))
    weight = weakref.ref(runner._model.linears[0])
    norm = weakref.ref(runner._model.layers[0].input_norm.weight.untyped_storage())
    tensor = weakref.ref(runner._model.embedding)
    del runner
    gc.collect()
    assert (weight(), norm(), tensor()) == (None, None, None)


def test_passes_that_cannot_be_traced_run_call_by_call_and_say_why(monkeypatch):
    def unable(*_):
        raise RuntimeError("unsupported value kind\nand more")

    monkeypatch.setattr(llama, "trace", unable)
    model = random_model(LLAMA["llama"])
    ids, expected = full_pass(model)
    runner = LlamaRunner(copy.deepcopy(model), "none", simulate=False)
    assert runner.speed_up_short_passes() == CALL_BY_CALL + "RuntimeError: unsupported value kind"
    assert runner.name == "draftbench lean (float32, cpu, call by call)"
    assert_agrees_with_full_pass(runner, expected, ids, widths=(1, 2, 5))


def test_a_trace_that_holds_what_it_should_read_is_found_out(monkeypatch):
    def holding(work, example, given):
        # Not the padding token, whose logits are zeros.
        result = work(torch.full_like(example[0], 5), *example[1:])
        return lambda *_: result

    monkeypatch.setattr(llama, "trace", holding)
    model = random_model(LLAMA["llama"])
    ids, expected = full_pass(model)
    runner = LlamaRunner(copy.deepcopy(model), "none", simulate=False)
    slow = runner.speed_up_short_passes()
    assert str(slow).startswith(f"{CALL_BY_CALL}its passes differ then (cosine ")
    assert_agrees_with_full_pass(runner, expected, ids, widths=(1, 2, 5))


@pytest.mark.skipif(not linear.multiplies_bfloat16(), reason="this CPU packs no bfloat16")
def test_what_onednn_packed_has_to_be_given_to_a_trace():
    layer = linear.PackedLinear(torch.eye(32, dtype=torch.bfloat16), None)
    x = torch.arange(32, dtype=torch.bfloat16)[None]
    run = trace(layer.product, [torch.zeros_like(x)], layer.packed)
    assert torch.equal(run(x), x)
    with pytest.raises(RuntimeError):
        trace(layer.product, [torch.zeros_like(x)], [])


def test_a_width_that_cannot_be_traced_later_runs_call_by_call(monkeypatch):
    model = random_model(LLAMA["llama"])
    ids, expected = full_pass(model)
    runner = traced_runner(model)

    def unable(*_):
        raise RuntimeError("unsupported output type")

    monkeypatch.setattr(llama, "trace", unable)
    assert_agrees_with_full_pass(runner, expected, ids, widths=(5,))


def test_an_exception_of_any_name_is_an_obstacle_and_no_crash(monkeypatch):
    class OutOfResources(Exception):  # noqa: N818 - as Triton names it
        pass

    def unable(*_):
        raise OutOfResources("shared memory")

    monkeypatch.setattr(llama, "trace", unable)
    runner = LlamaRunner(random_model(LLAMA["llama"]), "none", simulate=False)
    assert runner.speed_up_short_passes() == CALL_BY_CALL + "OutOfResources: shared memory"


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
    cache = runner.new_cache(20, widths=range(1, 31))
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
    cache = exact.new_cache(640, widths=(5,))
    assert_close(exact.forward(ids[:600], cache, every=True), expected[:600])
    for start in range(600, 640, 5):
        got = exact.forward(ids[start : start + 5], cache, every=True)
        assert_close(got, expected[start : start + 5])
    short = traced_runner(model.bfloat16())
    cache = short.new_cache(640, widths=(1,))
    first = short.forward(ids[:600], cache, every=True)
    steps = [short.forward(ids[i : i + 1], cache, every=True) for i in range(600, 640)]
    got = torch.cat([first, *steps]).float()
    cosine = torch.nn.functional.cosine_similarity(got, expected, dim=-1)
    assert float(cosine.mean()) > 0.98
