"""What only a GPU can show. Skipped where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import draftbench
from draftbench.cli import main
from draftbench.decoder.device import default_dtype
from draftbench.decoder.drafters import ProposalRequest
from draftbench.decoder.quantized_linear import Int4CudaLinear
from draftbench.decoder.runner import DecodeTask, HiddenStates
from draftbench.decoder.sampling import Uniforms
from draftbench.drafts.eagle3.draft import build_head
from draftbench.drafts.heads.head import HeadDrafter
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import DraftingMode, Sampling

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch finds no NVIDIA GPU on this machine"
)


def test_everything_that_a_check_of_the_device_tries_works(capsys):
    assert main(["check", "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    for tried in ("recorded passes", "unquantized weights", "int4 weights", "sweep"):
        assert f"works  {tried}" in out
    assert "more launches than they could" not in out


def embedded(name):
    return ModelSource(str(Path(draftbench.__file__).parent / "embedded" / name))


@pytest.fixture(params=["a greedy draft", "a draft that samples", "a head"])
def drafting(request):
    """A drafter that has begun with two rows of three tokens."""
    build, sampling = Build(default_dtype(DEVICE), "none", DEVICE), Sampling()
    tasks = [
        DecodeTask([5, 6, 7], 31, sampling, Uniforms(str(row), 0, 32), lambda output: False)
        for row in range(2)
    ]
    states = None
    if request.param == "a head":
        target, _ = build_runner(embedded("target"), build, None)
        head, _ = build_head(embedded("head"), build, "eagle3:head", target, layers=8)
        drafter, hidden = HeadDrafter(head), HiddenStates(head.reads)
        prompt = torch.tensor([5, 6, 7], device=DEVICE)
        target.forward(prompt, target.new_cache(8), every=False, hidden=hidden)
        states = hidden.joined()
    else:
        if request.param == "a draft that samples":
            sampling = Sampling(temperature=0.8, top_p=0.9)
            tasks = [replace(task, sampling=sampling) for task in tasks]
        runner, _ = build_runner(embedded("draft"), build, "draft")
        drafter = ModelDrafter(runner, DraftingMode.SAMPLED)
    drafter.open(rows=2, capacity=64)
    for row, task in enumerate(tasks):
        drafter.begin(row, task, states)
    return drafter


def test_nothing_is_waited_for_while_a_proposal_is_made(drafting):
    """PyTorch raises where the host waits for the device, in what it knows to wait. Of one row
    fewer tokens are asked for.
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        asks = [ProposalRequest(row, [5, 6, 7, 8], 4 - row, 4) for row in range(2)]
        proposals = drafting.propose(asks)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [len(proposal.tokens) for proposal in proposals] == [4, 3]


@pytest.mark.parametrize("inputs", [4096, 576, 96])
@pytest.mark.parametrize("rows", [1, 9, 33])
def test_int4_errs_as_much_as_its_grid(inputs, rows):
    """Groups of 32 normals, range ≈ 4.1σ, step 4.1/15: about 7.9%."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, inputs, generator=generator).bfloat16().cuda()
    x = torch.randn(rows, inputs, generator=generator).bfloat16().cuda()
    exact = x.float() @ weight.float().T
    error = (Int4CudaLinear(weight, None)(x).float() - exact).norm() / exact.norm()
    assert float(error) == pytest.approx(0.079, rel=0.15)
