"""Passes launched whole: what a recording may hold, and what it must read anew. A trace of the
operations stands for a CUDA graph: like one, it repeats them on the memory that they were recorded
with, and knows nothing of the Python that led to them.
"""

import gc
import re
import weakref
from functools import partial

import pytest
import random_blocks
import random_heads
import torch
from stopped_rounds import decoded
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import LlamaConfig

from draftbench.decoder import attention, cpu_kernels
from draftbench.decoder.cuda_graphs import STRIDE
from draftbench.decoder.runner import HiddenStates, HostClock
from draftbench.decoder.speculate import decode_all
from draftbench.drafts.block.draft import BlockDrafter
from draftbench.drafts.heads.head import HeadDrafter
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.drafts.stopping import STOP_RULES
from draftbench.errors import ModelError
from draftbench.records import DraftingMode, StopRule
from tests.decoder.test_runners import (
    LLAMA,
    SIZES,
    assert_agrees_with_full_pass,
    assert_close,
    assert_rows_do_not_meet,
    full_pass,
    random_model,
    runner_of,
)
from tests.drafts.block.test_head import head_of as block_of
from tests.drafts.eagle3.test_head import head_of, task

pytestmark = pytest.mark.slow


class Traced:
    """Repeats the operations of the first run, and counts recordings and launches."""

    def __init__(self):
        self.recorded = self.launched = 0

    def __call__(self, work):
        self.recorded += 1
        with pytest.MonkeyPatch.context() as as_on_a_gpu:
            as_on_a_gpu.setattr(cpu_kernels, "MOST_NUMBERS", -1)
            trace = make_fx(work)()

        def launch():
            self.launched += 1
            return trace()

        return launch


class Frozen:
    """A recorder that does not read its inputs anew."""

    def __call__(self, work):
        result = [each.clone() for each in work()]
        return lambda: result


class Unable:
    """A recorder that some operation defeats."""

    def __call__(self, work):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def recorded_runner(model, recorder, **options):
    runner = runner_of(model, **options)
    assert runner.record_with(lambda: recorder) is None
    return runner


@pytest.fixture
def recorder():
    return Traced()


@pytest.fixture
def llama():
    return random_model(LLAMA["llama"])


@pytest.mark.parametrize("name", LLAMA)
def test_a_recorded_pass_gives_the_logits_of_transformers(name, recorder):
    model = random_model(LLAMA[name])
    ids, expected = full_pass(model)
    runner = recorded_runner(model, recorder)
    assert_agrees_with_full_pass(runner, expected, ids, widths=range(1, 6))
    # Each recording is launched once for comparison.
    before = recorder.launched - recorder.recorded
    assert_rows_do_not_meet(runner, model, widths=range(1, 6))
    # Five of the seven passes bring no row more than five tokens.
    assert recorder.launched - recorder.recorded == before + 5
    assert runner.name == "draftbench (float32, cpu)"


def assert_takes_down_what_enters_layers(runner, model, width):
    """As passes that are launched call by call do, of rows that bring as many tokens or not. A head
    may read a layer twice.
    """
    plain, reads = runner_of(model), (2, 0, 2)
    caches = [plain.new_cache(40, 2), runner.new_cache(40, 2, (width,), reads)]
    for counts in ([width, 1], [2, 2], [0, width]):
        tokens = torch.arange(5, 5 + sum(counts))
        found = []
        for one, cache in zip((plain, runner), caches, strict=True):
            hidden = HiddenStates(reads)
            logits = one.forward(tokens, cache, every=False, counts=counts, hidden=hidden)
            found.append((logits, hidden.joined()))
        for expected, got in zip(*found, strict=True):
            assert_close(got, expected)


def test_a_recorded_pass_takes_down_what_enters_layers(llama, recorder):
    runner = recorded_runner(llama, recorder)
    assert_takes_down_what_enters_layers(runner, llama, width=3)
    # At the beginning widths of 1 and 2 with one row and with two; then 3 with states.
    assert recorder.launched == (4 + 1) + 3


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("variant", ["eagle-3", "eagle-3.1", "qwen3"])
def test_a_head_drafts_along_recorded_passes_alone(recorder, variant, rows):
    """All rounds of three texts, of which each pass of the target and of the head is a recording:
    one that catches up, and one for each further token.
    """
    config = random_heads.config(**random_heads.VARIANTS[variant])
    tasks = [task(each) for each in ([1, 2, 3, 4, 5, 6, 7], [2, 2, 9, 0, 4, 1, 8, 3], [9] * 6)]
    found = []
    for make in (runner_of, partial(recorded_runner, recorder=recorder)):
        target = make(random_heads.target())
        head = head_of(config, random_heads.tensors(config), target)
        assert make is runner_of or head.record_with(lambda: recorder) is None
        before = recorder.launched - recorder.recorded
        responses = decode_all(tasks, target, HeadDrafter(head), 3, HostClock(), rows)
        found.append([(each.tokens, each.drafted, each.accepted) for each in responses])
    assert found[0] == found[1]
    assert head.name == "draftbench (float32, cpu)"
    launched = recorder.launched - recorder.recorded - before
    drafted = [each for _, rounds, _ in found[1] for each in rounds]
    # Of one row every round and every pass of the head is a recording.
    assert rows > 1 or launched == len(drafted) + sum(drafted)


def test_a_head_that_cannot_be_recorded_drafts_call_by_call_and_says_so():
    config, target = random_heads.config(), runner_of(random_heads.target())
    head = head_of(config, random_heads.tensors(config), target)
    said = head.record_with(Unable)
    assert said == (
        "launches its steps call by call, not as CUDA graphs: RuntimeError: operation not "
        "permitted when stream is capturing"
    )
    assert head.name == "draftbench (float32, cpu, call by call)"
    assert head.new_cache(8, widths=(1, 2)).graphs is None


@pytest.mark.parametrize(("rows", "rule"), [(1, None), (2, next(iter(STOP_RULES)))])
@pytest.mark.parametrize(
    "variant",
    [
        "dflash, some tokens",
        "dflash, sliding both ways",
        "dflash, anchored",
        "dflash 2",
        "dspark, rnn",
    ],
)
def test_a_block_drafter_drafts_along_recorded_passes_alone(recorder, variant, rows, rule):
    """All rounds of three texts, of which each pass over the text and each block is a recording,
    also where a row's rounds end before the others'.
    """
    config = random_blocks.config(**random_blocks.VARIANTS[variant])
    stop = StopRule(kind=rule, threshold=0.3) if rule else None
    tasks = [task(each) for each in ([1, 2, 3, 4, 5, 6, 7], [2, 2, 9, 0, 4, 1, 8, 3], [9] * 6)]
    found = []
    for make in (runner_of, partial(recorded_runner, recorder=recorder)):
        target = make(random_heads.target())
        head = block_of(config, random_blocks.tensors(config), target)
        assert make is runner_of or head.record_with(lambda: recorder) is None
        before = recorder.launched - recorder.recorded
        responses = decode_all(tasks, target, BlockDrafter(head), 3, HostClock(), rows, stop)
        found.append([(each.tokens, decoded(each)) for each in responses])
    assert found[0] == found[1]
    assert head.name == "draftbench (float32, cpu)"
    launched = recorder.launched - recorder.recorded - before
    drafted = [tokens for _, rounds in found[1] for tokens, *_ in rounds]
    # Of one row each round is three, and the first has read the prompt; less where none is drafted.
    first, last = len(tasks), drafted.count(0)
    assert rows > 1 or launched == 3 * len(drafted) - first - 2 * last


@pytest.mark.parametrize("kind", list(STOP_RULES))
@pytest.mark.parametrize("rows", [1, 4])
def test_rounds_that_a_rule_stops_go_through_recorded_passes(recorder, rows, kind):
    """Rows that stop leave the others' steps, which are recordings as wide as before; so is every
    pass of the target, whatever its rows propose.
    """
    rule, found = StopRule(kind=kind, threshold=0.4), []
    other, draft = random_heads.target(40), random_heads.target(40)
    with torch.no_grad():
        draft.lm_head.weight.add_(0.3 * torch.randn_like(draft.lm_head.weight))
    tasks = [task([at, 5, 1, 30, at, 2, 7]) for at in range(5)]
    for make in (runner_of, partial(recorded_runner, recorder=recorder)):
        drafter, target = ModelDrafter(make(draft), DraftingMode.GREEDY), make(other)
        responses = decode_all(tasks, target, drafter, 4, HostClock(), rows, rule)
        found.append([(each.tokens, decoded(each)) for each in responses])
    assert found[0] == found[1]
    drafted = [tokens for _, rounds in found[1] for tokens, *_ in rounds]
    assert {1, 2, 4} <= {*drafted}
    # Of one row every round and every step of the draft is a recording.
    launched = recorder.launched - recorder.recorded
    assert rows > 1 or launched == len(drafted) + sum(drafted)


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (Frozen(), r"its passes differ then \(cosine -?0\.\d{3}\)"),
        (Unable(), "RuntimeError: operation not permitted when stream is capturing"),
    ],
)
def test_a_recorder_that_changes_the_result_or_fails_is_not_used_and_says_why(
    llama, recorder, reason
):
    ids, expected = full_pass(llama)
    runner = runner_of(llama)
    why = "launches its steps call by call, not as CUDA graphs: " + reason
    assert re.fullmatch(why, runner.record_with(lambda: recorder))
    assert runner.name == "draftbench (float32, cpu, call by call)"
    assert_agrees_with_full_pass(runner, expected, ids, widths=range(1, 6))


def test_a_row_may_be_full_while_others_go_on(recorder):
    """The surplus of a narrow row lands beyond the capacity that was asked for, and beyond the
    positions that the model knows.
    """
    model = random_model(LLAMA["qwen2"])
    texts = torch.randint(3, 128, (2, 128), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = model(texts).logits
    runner = recorded_runner(model, recorder)
    cache = runner.new_cache(128, rows=2, widths=(4,))
    runner.forward(texts[0, :127], cache, every=False, counts=[127, 0])
    runner.forward(texts[1, :60], cache, every=False, counts=[0, 60])
    got = runner.forward(
        torch.cat([texts[0, 127:], texts[1, 60:64]]), cache, every=True, counts=[1, 4]
    )
    assert_close(got, torch.cat([expected[0, 127:], expected[1, 60:64]]))
    got = runner.forward(texts[1, 64:68], cache, every=True, counts=[0, 4])
    assert_close(got, expected[1, 64:68])


def test_a_pass_reaches_as_far_as_its_rows(recorder):
    model = random_model(LlamaConfig(**{**SIZES, "max_position_embeddings": 900}))
    ids, expected = full_pass(model, 800)
    runner = recorded_runner(model, recorder)
    cache = runner.new_cache(800, widths=(1, 2))
    for start in (STRIDE - 2, STRIDE - 1, STRIDE, 2 * STRIDE - 1, 2 * STRIDE, 798):
        cache.rewind(0, 0)
        runner.forward(ids[:start], cache, every=False)
        got = runner.forward(ids[start : start + 2], cache, every=True)
        assert_close(got, expected[start : start + 2])


def test_slabs_come_back_with_their_recordings_until_others_are_asked_for(llama, recorder):
    runner = recorded_runner(llama, recorder)
    cache = runner.new_cache(64, rows=2, widths=(1, 2, 3))
    made, place = recorder.recorded, cache.slabs.data_ptr()
    other = runner.new_cache(64, rows=2, widths=(1, 2, 3))
    assert other.slabs.data_ptr() != place
    del cache
    again = runner.new_cache(30, rows=2, widths=(1, 2, 3))
    assert again.slabs.data_ptr() == place
    assert recorder.recorded == made + 3
    assert not again.slabs.any()
    slabs = weakref.ref(again.slabs)
    del again
    gc.collect()
    assert slabs() is not None
    assert runner.new_cache(64, rows=1, widths=(1,)).slabs.shape[2] == 1
    gc.collect()
    assert slabs() is None
    runner.forget_caches()
    assert runner._lender.idle == []
    runner.forward(torch.arange(3, 5), other, every=False, counts=[1, 1])


def test_slabs_with_wider_passes_than_fit_behind_the_capacity_are_not_lent(llama, recorder):
    runner = recorded_runner(llama, recorder)
    assert runner.new_cache(STRIDE - 9, widths=(9,)).slabs.shape[4] == STRIDE
    assert runner.new_cache(STRIDE - 9, widths=(1,)).slabs.shape[4] == STRIDE
    # One row's full length, and nine tokens of surplus behind it.
    cache = runner.new_cache(STRIDE - 1, widths=(1,))
    assert cache.graphs.capacity >= STRIDE - 1 + cache.graphs.widths[()][-1]


def test_what_a_run_asks_for_is_recorded_once_at_its_longest(recorder, llama):
    """Reaches of 256, 512 and 768 keys, for each width; a wider pass than the first ones too. No
    slab is longer than the model reads.
    """
    model = random_model(LlamaConfig(**{**SIZES, "max_position_embeddings": 900}))
    runner = recorded_runner(model, recorder, longest=520)
    made, places = recorder.recorded, set()
    for capacity, widths in ((40, (1, 2)), (300, (1, 2)), (500, (1, 2)), (511, (1, 2, 9))):
        cache = runner.new_cache(capacity, widths=widths)
        places.add(cache.slabs.data_ptr())
        del cache
    assert (len(places), recorder.recorded - made) == (1, 3 * 3)
    short = recorded_runner(llama, recorder, longest=5000)
    assert short.new_cache(64, widths=(1,)).slabs.shape[4] == STRIDE


def test_a_cache_for_untimed_passes_is_not_recorded(llama, recorder):
    runner = recorded_runner(llama, recorder)
    made = recorder.recorded
    cache = runner.new_cache(64)
    runner.forward(torch.arange(3, 5), cache, every=False)
    assert (recorder.recorded, cache.slabs.shape[4]) == (made, 64)


def test_a_copy_with_another_rotary_does_not_take_recordings_of_the_first(llama, recorder):
    runner = recorded_runner(llama, recorder)
    runner.new_cache(8, widths=(1,))
    assert runner.with_rotary(runner.rotary).new_cache(8, widths=(1,)).graphs is None


def test_what_cannot_be_recorded_later_ends_in_words_and_never_runs_as_another_kind(
    llama, recorder
):
    runner = recorded_runner(llama, recorder)
    recorder.__class__ = Unable
    with pytest.raises(ModelError, match=r"2 rows of 64 tokens .* \(RuntimeError: operation not"):
        runner.new_cache(64, rows=2, widths=(3,))
    assert runner.name == "draftbench (float32, cpu)"


def test_results_of_attention_may_lie_as_a_gpu_lays_them_out(monkeypatch, llama, recorder):
    """[rows, queries, heads, head] seen as [rows, heads, queries, head], as the kernels do that a
    GPU has for scores with a mask.
    """
    plain = attention._attention

    def laid_out(*tensors):
        return plain(*tensors).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(attention, "_attention", laid_out)
    assert_rows_do_not_meet(recorded_runner(llama, recorder), llama, widths=(1, 2))
    assert_rows_do_not_meet(runner_of(llama), llama)
