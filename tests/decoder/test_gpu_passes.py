"""What would run on a GPU, run there without memory: recorded passes hold nothing that a CUDA graph
could not repeat, on one device, in few launches; all others have the shapes and types that kernels
take; sampling waits for nothing.
"""

from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import random_blocks
import random_heads
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from draftbench.decoder import cuda_graphs, llama, runner
from draftbench.decoder.attention import PIECE
from draftbench.decoder.cuda_graphs import CudaGraphs, RecordedPasses
from draftbench.decoder.device import default_dtype, make_ready
from draftbench.decoder.drafters import Draft, Proposal, ProposalRequest
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.quantized_linear import kernel_of
from draftbench.decoder.runner import HiddenStates, clock_for
from draftbench.decoder.sampling import TOP_P_CANDIDATES, filters_of
from draftbench.decoder.speculate import _target_tokens
from draftbench.drafts.model.drafter import ModelDrafter, _Sampler
from draftbench.memory import LEVELS
from draftbench.records import DraftingMode, Sampling
from tests.decoder.operations import Operations
from tests.decoder.test_runners import LLAMA, random_model
from tests.drafts.block.test_head import head_of as block_of
from tests.drafts.eagle3.test_head import head_of as eagle_of

# By hand: query, key and value; rotary (roll, multiply, add); store; queries by key head;
# attention; its result by token; out; add; norm; gate and up; silu; multiply; down; add; norm.
A_LAYER = 17
# By hand, of kernels for few tokens: the four products and attention; besides, embedding with norm,
# and head. Many are rounded before each product by weights of 8 bits, few only after attention by
# heads that are no whole groups.
OF_FEW, OF_ROUNDING, BESIDES = 5, 4, 2
# By hand, of kernels for many: the same, and two sums with norm, SwiGLU.
OF_MANY = 8
# Qwen 3 norms queries and keys: by PyTorch each to a place of its own and back.
OF_NORMED_HEADS = 4


WITHOUT_TRITON = "its passes take more launches than they could: Triton is not installed"


class Watched:
    """A recorder that notes what each recording holds."""

    def __init__(self):
        self.recordings = []

    def __call__(self, work):
        with Operations() as operations:
            result = work()
        self.recordings.append(operations)
        assert all(each.device.type == "cuda" for each in result)
        return lambda: result


BY_THE_HOST = torch.Tensor.__getitem__


def at(tensor, key):
    """`tensor[key]`, of numbers, slices, tensors and None."""
    if tensor.device.type == "cpu":
        return BY_THE_HOST(tensor, key)
    indexes = []
    for one in key if isinstance(key, tuple) else (key,):
        if isinstance(one, int):
            tensor = tensor.select(len(indexes), one)
            continue
        if one is None:
            tensor = tensor.unsqueeze(len(indexes))
        if isinstance(one, slice):
            tensor = torch.ops.aten.slice(tensor, len(indexes), one.start, one.stop)
        indexes.append(one if isinstance(one, torch.Tensor) else None)
    given = any(one is not None for one in indexes)
    return torch.ops.aten.index(tensor, indexes) if given else tensor


def put(tensor, key, values):
    """`tensor[key] = values`, of tensors."""
    torch.ops.aten.index_put_(tensor, key, values)


@pytest.fixture
def on_gpu(monkeypatch):
    """A random model's runner on a GPU that computes nothing, and its recordings."""

    def to(tensor, *where, **more):
        if where and isinstance(where[0], str | torch.device) and "cuda" in str(where[0]):
            return torch.ops.aten._to_copy(tensor, device="cuda")
        return moved(tensor, *where, **more)

    def pinned(values, device):
        return torch.empty(np.shape(values), dtype=torch.long)

    moved, copied = torch.Tensor.to, torch.ops.aten.copy_.default
    for module in (cuda_graphs, runner):  # where it would pin the host's memory
        monkeypatch.setattr(module, "pinned", pinned)
    monkeypatch.setattr(llama, "has_triton", lambda device: False)
    # Values are what this GPU lacks.
    monkeypatch.setattr(RecordedPasses, "_cosine", lambda *of_a_pass: 1.0)

    def made(
        name,
        level="none",
        layers=2,
        rows=1,
        widths=(1, 2, 5),
        reads=(),
        capacity=300,
        card=(9, 0),
        then=lambda runner, cache: None,
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)
        given = LLAMA[name].to_dict() | {"num_hidden_layers": layers, "layer_types": None}
        given["max_position_embeddings"] = 2 * PIECE
        model = random_model(type(LLAMA[name])(**given)).to(default_dtype("cuda"))
        with FakeTensorMode(allow_non_fake_inputs=True), monkeypatch.context() as patch:
            # PyTorch's bindings of these ask for a driver; its dispatcher does not.
            patch.setattr(torch.Tensor, "to", to)
            patch.setattr(torch.Tensor, "copy_", lambda here, there, **_: copied(here, there))
            patch.setattr(torch.Tensor, "__getitem__", at)
            patch.setattr(torch.Tensor, "__setitem__", put)
            runner = LlamaRunner(model, level, device="cuda")
            watched = Watched()
            slow = None if llama.has_triton("cuda") else WITHOUT_TRITON
            assert runner.record_with(lambda: watched) == slow
            del watched.recordings[:]
            then(runner, runner.new_cache(capacity, rows, widths, reads))
        return runner, watched.recordings

    return made


@pytest.fixture(params=["PyTorch's kernels", "fused kernels"])
def kernels(request, monkeypatch, on_gpu):
    """Those of recorded passes; here no more than their shapes is needed of them."""
    if request.param == "fused kernels":
        pytest.importorskip("triton", reason="Triton comes with PyTorch's builds for CUDA")
        monkeypatch.setattr(llama, "has_triton", lambda device: True)
    return request.param


@pytest.mark.parametrize(
    ("name", "level", "rows"),
    [
        *((name, "none", 4) for name in LLAMA),
        ("llama", "none", 1),
        *(("llama", "int4", rows) for rows in (1, 4)),
        ("llama with biases", "int4", 1),
        ("llama", "fp8", 4),
        ("llama", "int8", 4),
    ],
)
def test_a_recorded_pass_holds_nothing_that_a_graph_cannot_repeat(
    on_gpu, kernels, name, level, rows
):
    runner, recordings = on_gpu(name, level, rows=rows, reads=(0, 1))
    # Three widths with what layers read, and a plain step, each over 256 and over 512 keys.
    assert len(recordings) == 8
    assert [found for one in recordings for found in one.illegal] == []
    assert all(tensor.device.type == "cuda" for tensor in runner.tensors())


class Noted:
    """A recorder that repeats nothing, and notes what no graph could repeat."""

    def __init__(self):
        self.illegal, self.recorded = [], 0

    def __call__(self, work):
        with Operations() as operations:
            result = work()
        self.illegal += operations.illegal
        self.recorded += 1
        return lambda: result


@pytest.mark.parametrize(
    ("random", "head_of", "variant", "passes"),
    [
        *((random_heads, eagle_of, variant, 2) for variant in random_heads.VARIANTS),
        *((random_blocks, block_of, variant, 3) for variant in random_blocks.VARIANTS),
    ],
)
def test_a_pass_of_a_head_or_a_block_holds_nothing_that_a_graph_cannot_repeat(
    monkeypatch, random, head_of, variant, passes
):
    """In one row and in two: over one token and over two, and a block of one drafted token."""
    monkeypatch.setattr(RecordedPasses, "_cosine", lambda *of_a_pass: 1.0)
    config, noted = random.config(**random.VARIANTS[variant]), Noted()
    target = LlamaRunner(random_heads.target(), "none")
    head = head_of(config, random.tensors(config), target)
    assert head.record_with(lambda: noted) is None
    assert noted.illegal == []
    assert noted.recorded == 2 * passes


def launches(on_gpu, name, **options):
    """Of each recording: those of a layer, and those besides its layers."""
    one, two = (on_gpu(name, layers=layers, **options)[1] for layers in (1, 2))
    counts = [(len(a.launched), len(b.launched)) for a, b in zip(one, two, strict=True)]
    return [(more - fewer, 2 * fewer - more) for fewer, more in counts]


@pytest.mark.parametrize("name", LLAMA)
def test_a_layer_of_a_recorded_pass_is_few_launches_and_copies_no_keys(on_gpu, kernels, name):
    """Two widths with 256, 512 and 768 keys: of more than 256 a launch more joins what is seen."""
    found = launches(on_gpu, name, widths=(1, 5), capacity=700)
    if kernels == "fused kernels":
        assert found == 2 * [(OF_FEW, BESIDES), *2 * [(OF_FEW + 1, BESIDES)]]
    else:
        expected = A_LAYER + OF_NORMED_HEADS * (name == "qwen3")
        assert [of_layer for of_layer, _ in found] == 6 * [expected]


@pytest.mark.parametrize("kernels", ["fused kernels"], indirect=True)
@pytest.mark.parametrize(
    ("name", "level", "rows", "width", "expected"),
    [
        ("llama", "none", 4, 4, OF_FEW),
        ("llama", "none", 4, 5, OF_MANY),
        ("qwen3", "int8", 1, 1, OF_FEW),
        ("qwen3", "fp8", 1, 2, OF_FEW),
        ("qwen3", "int8", 4, 16, OF_FEW),
        ("qwen3", "int8", 4, 17, OF_MANY + OF_ROUNDING),
        ("llama", "fp8", 1, 1, OF_FEW + 1),
        ("llama", "int4", 1, 1, OF_MANY),
    ],
)
def test_how_many_tokens_are_few_depends_on_the_weights(
    on_gpu, kernels, name, level, rows, width, expected
):
    """Up to 16 for weights of 16 bits, up to 64 for 8 bits."""
    options = {"level": level, "rows": rows, "widths": (width,), "capacity": 100}
    assert [of_layer for of_layer, _ in launches(on_gpu, name, **options)] == [expected]


def test_a_step_copies_its_place_and_its_token_and_launches_its_recording(on_gpu):
    launched = []

    def then(runner, cache):
        with Operations() as operations:
            runner.forward(torch.empty(1, dtype=torch.long, device="cuda"), cache, every=False)
        launched.extend(operations.launched)

    on_gpu("llama", then=then)
    assert launched == ["copy_", "copy_"]


def test_what_a_head_reads_leaves_a_recording_in_one_copy(on_gpu):
    """Besides the place and the token of the pass, of layers that are three."""
    launched = []

    def then(runner, cache):
        hidden = HiddenStates((0, 1, 0))
        with Operations() as operations:
            token = torch.empty(1, dtype=torch.long, device="cuda")
            runner.forward(token, cache, every=False, hidden=hidden)
            hidden.joined()
        launched.extend(operations.launched)

    on_gpu("llama", reads=(0, 1, 0), then=then)
    assert launched == ["copy_", "copy_", "clone"]


@pytest.mark.parametrize(
    ("card", "level"),
    [
        *(((9, 0), level) for level in LEVELS),
        ((8, 9), "fp8"),
        ((8, 0), "int8"),
        ((8, 0), "int4"),
        ((7, 5), "none"),
        ((7, 5), "int4"),
    ],
)
def test_every_kind_of_pass_has_what_the_kernels_of_a_gpu_take(on_gpu, level, card):
    """Prompts of more than a piece, single tokens, rows alike and not, recorded and call by call;
    each with the logits of every token or of the last.
    """
    dtype = torch.float16 if card == (7, 5) else torch.bfloat16
    passes = [(0, PIECE + 9), (1, 0), (3, 3), (2, 4), (9, 1), (1, 1)]

    def then(runner, recorded):
        for cache in (recorded, runner.new_cache(700, 2)):
            for counts in passes:
                tokens = torch.empty(sum(counts), dtype=torch.long, device="cuda")
                whole = runner.forward(tokens, cache, every=True, counts=counts)
                assert (whole.shape, whole.dtype) == ((len(tokens), 128), dtype)
                cache.lengths = [0, 0]
                last = runner.forward(tokens, cache, every=False, counts=counts)
                assert len(last) == sum(count > 0 for count in counts)
                cache.lengths = [0, 0]

    sizes = {"layers": 1, "rows": 2, "widths": (1, 5), "capacity": 700}
    _, recordings = on_gpu("llama", level, **sizes, card=card, then=then)
    # Query, key and value, output, gate and up, down of a layer, and the head.
    kernel = "linear"
    if level != "none" and kernel_of(level, "cuda") is not None:
        kernel = "_weight_int4pack_mm" if level == "int4" else "product"
    assert [recorded.launched.count(kernel) for recorded in recordings] == [5] * len(recordings)


class Streams:
    """PyTorch's streams and graphs: what is asked of them, in order."""

    def __init__(self, monkeypatch):
        self.log, self.current = [], self.stream("main")
        cuda = {
            "graph_pool_handle": lambda: (0, 1),
            "current_stream": lambda: self.current,
            "set_stream": partial(setattr, self, "current"),
            "device": lambda device: nullcontext(),
            "stream": self.on,
            "graph": lambda graph, pool, stream: self.recording(stream),
            "CUDAGraph": lambda: SimpleNamespace(replay=partial(self.log.append, "replay")),
        }
        for name, stand_in in cuda.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def stream(self, name):
        def wait_stream(other):
            self.log.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, device="cuda:0", wait_stream=wait_stream)

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def recording(self, stream):
        """Of one that fails PyTorch leaves the stream current."""
        self.log.append("record")
        before, self.current = self.current, stream
        yield
        self.log.append("recorded")
        self.current = before


def test_a_graph_is_warmed_and_recorded_beside_the_main_stream_also_if_it_fails(monkeypatch):
    streams = Streams(monkeypatch)

    def work():
        streams.log.append(f"{streams.current.name} works")
        return "logits"

    def unable():
        if streams.log[-1] == "record":
            raise RuntimeError("operation not permitted when stream is capturing")

    launch = CudaGraphs(streams.stream("side"))(work)
    warm = ["side waits for main", "side works", "side works", "main waits for side"]
    assert streams.log == [*warm, "record", "side works", "recorded"]
    assert (launch(), streams.log[-1], streams.current.name) == ("logits", "replay", "main")
    with pytest.raises(RuntimeError, match="not permitted"):
        CudaGraphs(streams.stream("side"))(unable)
    assert streams.current.name == "main"


def test_seconds_of_a_gpu_are_its_events_once_the_last_is_over(monkeypatch):
    log = []

    def event(enable_timing):
        assert enable_timing
        return SimpleNamespace(
            record=lambda: log.append("record"),
            synchronize=lambda: log.append("wait"),
            elapsed_time=lambda other: 1.5,  # milliseconds
        )

    monkeypatch.setattr(torch.cuda, "Event", event)
    clock = clock_for("cuda:1")
    start, end = clock.mark(), clock.mark()
    assert log == ["record", "record"]
    assert (clock.seconds(start, end), log[-1]) == (0.0015, "wait")


@pytest.mark.parametrize("drafts_are_sampled", [False, True])
def test_rows_of_all_kinds_of_settings_are_drafted_and_answered_without_a_read(
    monkeypatch, drafts_are_sampled
):
    """Of more tokens than top-p looks at first, whose sum a CPU may look at."""
    filters = [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.1}]
    filters.append({"top_k": 400, "top_p": 0.9, "min_p": 0.1})
    settings = [Sampling(), *(Sampling(temperature=0.8, **each) for each in filters)]
    k, words, n = 4, 2 * TOP_P_CANDIDATES, len(settings)
    monkeypatch.setattr(torch.Tensor, "__getitem__", at)
    with FakeTensorMode():
        on_card = partial(torch.empty, device="cuda")
        numbers = on_card(20, dtype=torch.float64)

        def uniforms(purpose, n):
            return numbers.narrow(0, 0, n)

        token, q = on_card(1, dtype=torch.long), on_card(1, words)
        rows, drafts, proposals, samplers = [], [], [], []
        for sampling in settings:
            sampled = drafts_are_sampled and sampling.temperature > 0
            rows.append(SimpleNamespace(filters=filters_of(sampling), uniforms=uniforms))
            proposals.append(Proposal([token] * k, [q] * k if sampled else ()))
            sampler = _Sampler(sampling, numbers, 0)
            ask = ProposalRequest(len(drafts), [1, 2], k, k)
            drafts.append(Draft(ask, k, None))
            samplers.append(sampler if sampled else None)
        drafter = ModelDrafter(SimpleNamespace(device="cuda"), DraftingMode.SAMPLED)
        drafter._samplers = samplers
        with Operations() as operations:
            drafted = drafter._next(drafts, on_card(n, words))
            answers = _target_tokens(rows, on_card(n * (k + 1), words), proposals)
    assert (len(drafted), len(answers)) == (n, n * (k + 1))
    assert not [found for found in operations.illegal if "read" in found or "mask" in found]


def test_a_runners_name_says_whether_its_kernels_are_fused(on_gpu, kernels):
    make_ready("cuda")
    name = on_gpu("llama")[0].name
    own = ", fused kernels" if kernels == "fused kernels" else ""
    assert name == f"draftbench (bfloat16, cuda:0{own})"


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (lambda x: x * float(x.sum()), "scalar_dense reads"),
        (lambda x: x[x > 0], "by a mask"),
        (lambda x: x.nonzero(), "nonzero reads"),
        (lambda x: x + torch.tensor([1.0, 2.0]), "host's values"),
        (lambda x: x + torch.rand(2), "random"),
    ],
)
def test_the_check_finds_what_a_graph_cannot_repeat(work, found):
    with Operations() as operations:
        work(torch.ones(2))
    assert any(found in reason for reason in operations.illegal)
