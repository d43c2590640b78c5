"""`streamed.cpp` → operations of PyTorch, compiled once for this machine.

On a CPU with AVX-512 and without AMX, oneDNN's products leave a fifth of the memory's speed unused
for one token, and more for several: the kernels in `streamed.cpp` do not. They need a C++ compiler;
where they cannot be built, `obstacle` says why. Know nothing of layers.
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

SOURCE = Path(__file__).with_name("streamed.cpp")
COMPILERS = ("c++", "g++", "clang++")
# Not for the machine that compiles (`-march=native`): a cache may be shared by several.
FLAGS = ("-O3", "-std=c++20", "-mavx512f", "-mprefer-vector-width=512", "-shared", "-fPIC")
# The interface that PyTorch 2.10 and all later ones keep.
INTERFACE = "-DTORCH_TARGET_VERSION=0x020a000000000000"
SECONDS = 300.0
# Sizes of a matrix that the kernels take are multiples of these.
INPUTS, OUTPUTS = 32, 4
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Kernels:
    """x [n, inputs], a matrix [outputs, inputs] and a bias [outputs] or None → [n, outputs].

    All of it is bfloat16, but for int8's codes and scales: after the matrix of codes it takes a
    float32 for each output.
    """

    bfloat16: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    int8: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class _Build:
    """The kernels, or why there are none."""

    kernels: Kernels | None = None
    obstacle: str | None = None


@cache
def is_faster_here() -> bool:
    """Whether this is a machine on which the kernels, once built, beat oneDNN's."""
    found = torch.cpu.get_capabilities()
    plain = found.get("avx512_f") and not found.get("amx_bf16")
    return bool(plain) and (platform.system(), platform.machine()) == ("Linux", "x86_64")


def kernels_for(weight: Tensor) -> Kernels | None:
    """The kernels, where they are faster, can be built, and take a matrix of this size."""
    outputs, inputs = weight.shape
    takes = weight.device.type == "cpu" and inputs % INPUTS == 0 and outputs % OUTPUTS == 0
    return _build().kernels if takes and is_faster_here() else None


def obstacle() -> str | None:
    """Why the kernels are not used though they would be faster."""
    return _build().obstacle if is_faster_here() else None


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
    found = torch.ops.draftbench
    kernels = Kernels(found.bfloat16_linear.default, found.int8_linear.default)
    # Compilers have bugs as well. These integers are their own codes, and exact in bfloat16.
    made = torch.Generator().manual_seed(0)
    x, codes = (torch.randint(-8, 9, (n, 64), generator=made).float() for n in (7, 8))
    expected = functional.linear(x, codes).bfloat16()
    x, weight, scales = x.bfloat16(), codes.bfloat16(), torch.ones(8)
    results = (kernels.bfloat16(x, weight, None), kernels.int8(x, codes.char(), scales, None))
    if not all(torch.equal(result, expected) for result in results):
        return _Build(obstacle="its results are wrong as this compiler makes it")
    return _Build(kernels)
