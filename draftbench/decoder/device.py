"""Chooses the device for the models, says why one cannot be used, and prepares it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from draftbench.decoder.linear import multiplies_bfloat16
from draftbench.errors import UsageError

# Runs with NVIDIA drivers before 580.
OLDER_CUDA = "https://download.pytorch.org/whl/cu126"
# The first compute capability that multiplies bfloat16 (NVIDIA, CUDA C++ Programming Guide).
LEAST_FOR_BFLOAT16 = (8, 0)
# How threads are tried: in turns, on as many numbers as a large matrix has.
TRIED_TURNS, TRIED_TIMES, TRIED_SIZE = 10, 20, 1 << 22
APPLE = "the built-in decoder does not run on Apple's GPUs"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DRIVER = Path("/proc/driver/nvidia/version")

Capability = tuple[int, int]


def device_of(name: str | None) -> str:
    """`cpu`, `cuda`, `cuda:N`, or `auto` (transformers spreads the models over all GPUs); by
    default a usable NVIDIA GPU, else the CPU.

    Raises:
        UsageError: there is no such device; says why this machine's GPU cannot be used.
    """
    here = torch.cuda.is_available() and torch.version.hip is None
    if name is None:
        return "cuda" if here else "cpu"
    kind, _, number = name.partition(":")
    if kind == "mps":
        raise UsageError(f"device `{name}`: {APPLE}", hint="leave --device out: the CPU is used")
    if not re.fullmatch(r"cpu|auto|cuda(:\d{1,3})?", name, re.ASCII):
        raise UsageError(f"unknown device `{name}`", hint="cpu, cuda, cuda:1 or auto")
    if kind == "cuda" and not here and (obstacle := why_no_gpu()):
        raise UsageError(f"device `{name}` cannot be used: {obstacle[0]}", hint=obstacle[1])
    if kind == "cuda" and (not here or int(number or 0) >= torch.cuda.device_count()):
        raise UsageError(f"device `{name}` is not on this machine", hint="leave --device out")
    return name if here else "cpu"


def why_no_gpu() -> tuple[str, str] | None:
    """Why PyTorch cannot use this machine's GPU, and what to do; None if there is no GPU or it can
    be used.
    """
    if torch.version.hip is not None:
        return (
            "this PyTorch is built for AMD's GPUs (ROCm), on which the decoder was never tried",
            "measure a serving engine there (`sweep --engine`), or use --device cpu",
        )
    if torch.backends.mps.is_available():
        return APPLE, "use --device cpu"
    if torch.cuda.is_available() or not (shutil.which("nvidia-smi") or _DRIVER.exists()):
        return None
    if torch.version.cuda is None:
        return (
            "this machine has an NVIDIA GPU, and its PyTorch is built without CUDA",
            f"`pip install --force-reinstall torch`, with `--index-url {OLDER_CUDA}` for an NVIDIA "
            "driver before 580",
        )
    try:
        torch.cuda.init()
    # PyTorch's message names what is missing: permission, a visible device, a newer driver.
    except (RuntimeError, AssertionError) as error:
        return (
            f"PyTorch finds no GPU ({str(error).splitlines()[0][:200]})",
            "see what `nvidia-smi` says, and whether CUDA_VISIBLE_DEVICES hides the GPU; with an "
            f"old driver `pip install --force-reinstall torch --index-url {OLDER_CUDA}`",
        )
    return None


def device_words(device: str) -> str:
    """A line about a device: its name and versions; for a CPU, why no GPU is used."""
    if device == "cpu":
        obstacle = why_no_gpu()
        count = torch.get_num_threads()
        threads = f"cpu, {count} thread{'s' * (count > 1)}"
        return threads if obstacle is None else f"{threads}: {obstacle[0]} ({obstacle[1]})"
    major, minor = capability(device)
    return (
        f"{device}, {card_names(device)} (compute capability {major}.{minor}), PyTorch "
        f"{torch.__version__} with CUDA {torch.version.cuda}"
    )


def card_names(device: str) -> str | None:
    """The GPUs' names, each once; None for a CPU."""
    if device == "cpu":
        return None
    return " and ".join(sorted(set(map(torch.cuda.get_device_name, _cards(device)))))


def capability(device: str) -> Capability:
    """A GPU's compute capability; the lowest if there are several."""
    return min(map(torch.cuda.get_device_capability, _cards(device)))


def _cards(device: str) -> list[torch.device]:
    if device == "auto":
        return [torch.device("cuda", card) for card in range(torch.cuda.device_count())]
    return [torch.device(device)]


def has_triton(device: str) -> bool:
    """Whether Triton can compile kernels for it."""
    return device != "cpu" and find_spec("triton") is not None


def default_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it natively; else float32 on a CPU, float16 on a GPU."""
    if device == "cpu":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    return torch.bfloat16 if capability(device) >= LEAST_FOR_BFLOAT16 else torch.float16


def dtype_of(name: str | None, device: str) -> torch.dtype:
    """The type with this name, or the device's default.

    Raises:
        UsageError: it is unknown, or the device cannot multiply it.
    """
    if name is None:
        return default_dtype(device)
    if name not in _DTYPES or (name == "float16" and device == "cpu"):
        raise UsageError(f"dtype `{name}` cannot be used on {device}", hint="bfloat16 or float32")
    if name == "bfloat16" and device != "cpu" and capability(device) < LEAST_FOR_BFLOAT16:
        major, minor = capability(device)
        raise UsageError(
            f"dtype `bfloat16` cannot be used on {device}: it needs compute capability 8.0, and "
            f"this GPU has {major}.{minor}",
            hint="float16 (the default there) or float32",
        )
    return _DTYPES[name]


def make_ready(device: str) -> None:
    """Set PyTorch up for this device.

    cuDNN's attention is turned off. PyTorch prefers it on Hopper and newer, but it makes a new plan
    for every shape: several 100 ms for each new text length, in the middle of a timing
    (sgl-project/sglang#4650; vLLM turns it off too, vllm/platforms/cuda.py).
    """
    if device != "cpu":
        torch.backends.cuda.enable_cudnn_sdp(False)
    if ":" in device:  # clocks, recordings and other libraries' kernels use the current one
        torch.cuda.set_device(device)


def set_threads(threads: int | None) -> int:
    """Use `threads` CPU threads (default: one for each core that this process may use); returns how
    many are used.
    """
    if threads is None and hasattr(os, "sched_getaffinity"):
        threads = len(os.sched_getaffinity(0))
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def one_thread_is_faster(threads: int, clock: Callable[[], float] = time.perf_counter) -> bool:
    """Whether work takes no longer with one CPU thread than shared among `threads`, which wait for
    each other where another process needs a core.
    """
    if threads == 1:
        return False
    table, spent = torch.ones(TRIED_SIZE), dict.fromkeys((threads, 1), 0.0)
    for _ in range(TRIED_TURNS):
        for number in spent:
            torch.set_num_threads(number)
            table.mul_(1.0)  # its threads are started
            begun = clock()
            for _ in range(TRIED_TIMES):
                table.mul_(1.0)
            spent[number] += clock() - begun
    torch.set_num_threads(threads)
    return spent[1] <= spent[threads]


def environment_threads() -> int | None:
    """The number in OMP_NUM_THREADS, the first if it lists several (for the outer loop); None if it
    is not a number.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) or None if first.isascii() and first.isdigit() else None
