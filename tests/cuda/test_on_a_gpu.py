"""What only a GPU can show. Skipped where there is none."""

from pathlib import Path

import pytest
import torch

import draftbench
from draftbench.cli import main
from draftbench.decoder.device import default_dtype
from draftbench.decoder.drafters import ModelDrafter, ProposalRequest
from draftbench.decoder.quantized_linear import Int4CudaLinear
from draftbench.decoder.runner import Task
from draftbench.decoder.sampling import Uniforms
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import DraftingMode, Sampling

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch finds no NVIDIA GPU on this machine"
)


def test_everything_that_selfcheck_tries_works(capsys):
    assert main(["selfcheck", "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    for tried in ("recorded passes", "unquantized weights", "int4 weights", "sweep"):
        assert f"works  {tried}" in out
    assert "more launches than they could" not in out


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.9)])
def test_a_draft_waits_for_nothing_while_it_proposes(sampling):
    """PyTorch raises where the host waits for the device, in what it knows to wait."""
    source = ModelSource(str(Path(draftbench.__file__).parent / "embedded" / "draft"))
    runner, _ = build_runner(source, Build(default_dtype("cuda"), "none", "cuda"), "draft")
    drafter, prompt = ModelDrafter(runner, DraftingMode.SAMPLED), [5, 6, 7]
    drafter.open(rows=2, capacity=64)
    for row in range(2):
        uniforms = Uniforms(str(row), 0, 32)
        drafter.begin(row, Task(prompt, 31, sampling, uniforms, lambda output: False))
    torch.cuda.set_sync_debug_mode("error")
    try:
        proposals = drafter.propose([ProposalRequest(row, [*prompt, 8], 4) for row in range(2)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [len(proposal.tokens) for proposal in proposals] == [4, 4]


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
