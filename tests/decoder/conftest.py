"""Without a GPU Triton's kernels, where it is installed, run in its interpreter."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
