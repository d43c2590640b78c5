"""How often the host reads a value of the device: on a GPU it waits for all work each time."""

from collections import Counter

import pytest
import torch

from draftbench.decoder import drafters
from draftbench.decoder.drafters import LookupDrafter, ModelDrafter
from draftbench.decoder.runner import HostClock, Task
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import Batch
from draftbench.records import DraftingMode, Sampling
from tests.decoder.operations import Operations
from tests.decoder.test_runners import LLAMA, random_model, runner_of

# All of them end in a copy to the host.
READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0, top_k=50, top_p=0.9)
K = 4


@pytest.fixture(scope="module")
def runner():
    return runner_of(random_model(LLAMA["llama"]))


@pytest.fixture
def reads(monkeypatch):
    """The reads since the last `clear()`, by name."""
    seen = Counter()

    def counted(name, original):
        def read(tensor, *rest):
            seen[name] += 1
            return original(tensor, *rest)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    return seen


def batch_of(runner, drafter, rows, samplings):
    tasks = [
        Task(
            [3 + row, 5, 7],
            12,
            samplings[row % len(samplings)],
            Uniforms(str(row), 0, 13),
            lambda output: False,
        )
        for row in range(rows)
    ]
    return Batch(tasks, runner, drafter, K, HostClock(), rows)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("mode", list(DraftingMode))
@pytest.mark.parametrize(
    "samplings", [[GREEDY], [SAMPLED], [GREEDY, SAMPLED]], ids=["greedy", "sampled", "both"]
)
def test_a_round_reads_the_device_once_and_drafting_never(
    monkeypatch, runner, reads, rows, mode, samplings
):
    drafting = []
    propose = ModelDrafter.propose

    def watched(self, asks):
        before = reads.total()
        proposals = propose(self, asks)
        drafting.append(reads.total() - before)
        return proposals

    monkeypatch.setattr(drafters.ModelDrafter, "propose", watched)
    batch = batch_of(runner, ModelDrafter(runner, mode), rows, samplings)
    batch.advance()  # the prompts, and a round
    for _ in range(2):
        reads.clear()
        batch.advance()
        assert reads == {"tolist": 1}
    assert drafting == [0, 0, 0]


@pytest.mark.parametrize("samplings", [[GREEDY], [SAMPLED]], ids=["greedy", "sampled"])
def test_sixteen_rows_are_sampled_in_about_as_many_launches_as_one(runner, samplings):
    launches = {}
    for rows in (1, 16):
        batch = batch_of(runner, ModelDrafter(runner, DraftingMode.SAMPLED), rows, samplings)
        batch.advance()
        with Operations() as operations:
            batch.advance()
        launches[rows] = len(operations.launched)
    # Rows of a CPU take a mask, which one row does without; row by row it would be several times.
    assert launches[16] < 1.5 * launches[1]


def test_prompt_lookup_reads_nothing_of_the_device(runner, reads):
    batch = batch_of(runner, LookupDrafter(3, 1, "cpu"), 2, [GREEDY])
    batch.advance()
    reads.clear()
    batch.advance()
    assert reads == {"tolist": 1}
