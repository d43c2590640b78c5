"""What would be recorded on a GPU, run there without memory: nothing that a CUDA graph could not
repeat, on one device, in few launches.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from draftbench.decoder.cuda_graphs import RecordedPasses
from draftbench.decoder.device import make_ready
from draftbench.decoder.llama import LlamaRunner
from tests.decoder.operations import Operations
from tests.decoder.test_runners import LLAMA, random_model

# By hand: query, key and value; rotary (roll, multiply, add); store; queries by key head;
# attention; its result by token (two shapes, of which one may be a view); out; add; norm; gate
# and up; silu; multiply; down; add; norm.
A_LAYER = 18
# Qwen 3 norms queries and keys, each to a place of its own and back.
OF_NORMED_HEADS = 4
# The shares of chunks, the product with them, its sum, and back to 16 bits.
OF_CHUNKS = 4


class Watched:
    """A recorder that notes what each recording holds."""

    def __init__(self):
        self.recordings = []

    def __call__(self, work):
        with Operations() as operations:
            result = work()
        self.recordings.append(operations)
        assert result.device.type == "cuda"
        return lambda: result


@pytest.fixture
def on_gpu(monkeypatch):
    """A random model's runner on a GPU that computes nothing, and its recordings."""

    def to(tensor, *where, **more):
        if where and isinstance(where[0], torch.device) and where[0].type == "cuda":
            return torch.empty_like(tensor, device="cuda")
        return moved(tensor, *where, **more)

    moved, put = torch.Tensor.to, torch.ops.aten.copy_.default
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: (9, 0))
    # Values are what this GPU lacks.
    monkeypatch.setattr(RecordedPasses, "_cosine", lambda *of_a_pass: 1.0)

    def made(name, level="none", layers=2, rows=1, widths=(1, 2, 5), simulate=False, capacity=300):
        given = LLAMA[name].to_dict() | {"num_hidden_layers": layers, "layer_types": None}
        model = random_model(type(LLAMA[name])(**given)).bfloat16()
        with FakeTensorMode(allow_non_fake_inputs=True), monkeypatch.context() as patch:
            # PyTorch's bindings of these two ask for a driver; its dispatcher does not.
            patch.setattr(torch.Tensor, "to", to)
            patch.setattr(torch.Tensor, "copy_", lambda here, there: put(here, there))
            runner = LlamaRunner(model, level, simulate=simulate, device="cuda")
            watched = Watched()
            assert runner.record_with(lambda: watched) is None
            del watched.recordings[:]
            runner.new_cache(capacity, rows, widths)
        return runner, watched.recordings

    return made


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, "none") for name in LLAMA),
        ("llama", "int4"),
        ("llama with biases", "int4"),
        ("llama", "fp8"),
        ("llama", "int8"),
    ],
)
def test_a_recorded_pass_holds_nothing_that_a_graph_cannot_repeat(on_gpu, name, level, rows):
    runner, recordings = on_gpu(name, level, rows=rows, simulate=level in ("fp8", "int8"))
    # Three widths, each with a reach of 256 and of 512 keys.
    assert len(recordings) == 6
    assert [found for one in recordings for found in one.illegal] == []
    assert all(tensor.device.type == "cuda" for tensor in runner.tensors())


@pytest.mark.parametrize("name", LLAMA)
def test_a_layer_of_a_recorded_pass_is_few_launches(on_gpu, name):
    one, two = (on_gpu(name, layers=layers)[1] for layers in (1, 2))
    for fewer, more in zip(one, two, strict=True):
        launches = len(more.launched) - len(fewer.launched)
        assert launches <= A_LAYER + OF_NORMED_HEADS * (name == "qwen3")


@pytest.mark.parametrize("rows", [1, 4])
def test_more_than_1024_keys_are_attended_to_by_chunks_and_not_copied(on_gpu, rows):
    """Reaches of 256, 512, 1024, 2048 and 2304 keys."""
    one, two = (
        on_gpu("llama", layers=layers, rows=rows, widths=(5,), capacity=2200)[1]
        for layers in (1, 2)
    )
    pairs = zip(one, two, strict=True)
    launches = [len(more.launched) - len(fewer.launched) for fewer, more in pairs]
    assert [extra - launches[0] for extra in launches] == [0, 0, 0, OF_CHUNKS, OF_CHUNKS]
    assert [found for recorded in two for found in recorded.illegal] == []
    by_chunk = "_scaled_dot_product_efficient_attention"
    assert [recorded.launched.count(by_chunk) for recorded in two[3:]] == [2, 2]


def test_a_runners_name_says_which_attention_it_may_use(on_gpu):
    make_ready("cuda")
    name = on_gpu("llama")[0].name
    assert name == "draftbench (bfloat16, cuda:0, flash or memory-efficient attention)"


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
