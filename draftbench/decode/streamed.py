"""`streamed.cpp` → an operation of PyTorch, compiled once for this machine.

On a CPU with AVX-512 and without AMX, oneDNN's products in bfloat16 leave a fifth of the memory's
speed unused for one token, and more for several: the kernel in `streamed.cpp` does not. It needs a
C++ compiler; where it cannot be built, `obstacle` says why. Knows nothing of layers.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

# (x [n, inputs], weight [outputs, inputs], bias [outputs] or None) → [n, outputs], in bfloat16.
Kernel = Callable[[Tensor, Tensor, Tensor | None], Tensor]

SOURCE = Path(__file__).with_name("streamed.cpp")
COMPILERS = ("c++", "g++", "clang++")
# Not for the machine that compiles (`-march=native`): a cache may be shared by several.
FLAGS = ("-O3", "-std=c++20", "-mavx512f", "-mprefer-vector-width=512", "-shared", "-fPIC")
# The interface that PyTorch 2.10 and all later ones keep.
INTERFACE = "-DTORCH_TARGET_VERSION=0x020a000000000000"
SECONDS = 300.0
# Sizes of a matrix that the kernel takes are multiples of these.
INPUTS, OUTPUTS = 32, 4
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class _Build:
    """A kernel, or why there is none."""

    kernel: Kernel | None = None
    obstacle: str | None = None


@cache
def is_faster_here() -> bool:
    """Whether this is a machine on which the kernel, once built, beats oneDNN."""
    found = torch.cpu.get_capabilities()
    plain = found.get("avx512_f") and not found.get("amx_bf16")
    return bool(plain) and (platform.system(), platform.machine()) == ("Linux", "x86_64")


def kernel() -> Kernel | None:
    """The kernel, where it is faster and can be built."""
    return _build().kernel if is_faster_here() else None


def obstacle() -> str | None:
    """Why the kernel is not used though it would be faster."""
    return _build().obstacle if is_faster_here() else None


def fits(weight: Tensor) -> bool:
    """Whether the kernel takes this matrix."""
    outputs, inputs = weight.shape
    cut = inputs % INPUTS or outputs % OUTPUTS
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and not cut


@cache
def _build() -> _Build:
    try:
        return _loaded(_compiled())
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if "error" in line] or [str(error)]
        return _Build(obstacle=f"it could not be compiled: {said[0][:_MOST_CHARACTERS]}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return _Build(obstacle=str(error)[:_MOST_CHARACTERS])


def _compiled() -> Path:
    """The library that PyTorch loads, from this user's cache if it is there."""
    source, include = SOURCE.read_bytes(), Path(torch.__file__).parent / "include"
    command = [*_compiler(), *FLAGS, INTERFACE, f"-isystem{include}", str(SOURCE)]
    linked = [f"-L{include.parent / 'lib'}", "-ltorch_cpu"]
    told = "\0".join([torch.__version__, *FLAGS, INTERFACE]).encode()
    target = _cache() / f"streamed-{hashlib.sha256(source + told).hexdigest()[:16]}.so"
    if not target.exists():
        # Beside it, and renamed when whole: others may be looking for it, or building it too.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = Path(folder, target.name)
            said = [*command, "-o", str(built), *linked]
            subprocess.run(said, check=True, capture_output=True, text=True, timeout=SECONDS)
            built.replace(target)
    return target


def _compiler() -> list[str]:
    """What the environment names, or the first that is installed."""
    named = shlex.split(os.environ.get("CXX", ""))
    found = named or [path for name in COMPILERS if (path := shutil.which(name))][:1]
    if not found:
        raise OSError(f"no C++ compiler was found ({', '.join(COMPILERS)})")
    return found


def _cache() -> Path:
    """This user's folder for what can be made again."""
    named = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(named) if named else Path("~/.cache").expanduser()) / "draftbench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _loaded(library: Path) -> _Build:
    torch.ops.load_library(str(library))
    kernel = torch.ops.draftbench.streamed_linear.default
    # Compilers have bugs as well.
    made = torch.Generator().manual_seed(0)
    x, weight = torch.randn(7, 64, generator=made), torch.randn(8, 64, generator=made)
    x, weight = x.bfloat16(), weight.bfloat16()
    expected = functional.linear(x.float(), weight.float())
    if not torch.allclose(kernel(x, weight, None).float(), expected, rtol=1e-2, atol=1e-2):
        return _Build(obstacle="its results are wrong as this compiler makes it")
    return _Build(kernel)
