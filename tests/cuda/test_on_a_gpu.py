"""What only a GPU can show. Skipped where there is none."""

import pytest
import torch

from draftbench.cli import main
from draftbench.decoder.quantized_linear import Int4CudaLinear

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch finds no NVIDIA GPU on this machine"
)


def test_everything_that_selfcheck_tries_works(capsys):
    assert main(["selfcheck", "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    assert "works  recorded passes" in out
    assert "works  sweep" in out


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
