"""Kernels for CPUs with AVX-512 and without AMX, compiled once for this machine.

On the CPU that it was measured on, a Xeon of this kind, oneDNN's products left a fifth of the
memory's speed unused for one token and more for several; those of `avx512_kernel.cpp` do not. They
need a C++ compiler: where they cannot be built, `obstacle` gives the reason.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

SOURCE = Path(__file__).with_name("avx512_kernel.cpp")
COMPILERS = ("c++", "g++", "clang++")
# Not for the machine that compiles (`-march=native`): a cache may be shared by several.
FLAGS = ("-O3", "-std=c++20", "-mavx512f", "-mprefer-vector-width=512", "-shared", "-fPIC")
# The interface that PyTorch 2.10 and all later ones keep.
INTERFACE = "-DTORCH_TARGET_VERSION=0x020a000000000000"
SECONDS = 300.0
# Sizes of a matrix that the kernels take are multiples of these.
INPUTS, OUTPUTS = 32, 4
# The message in a compiler's output, without its file.
_ERROR = re.compile(r"\berror: ([\w\s#‘’'\"(),.:;<>=*&+-]{1,120})")


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
    """The kernels, or the reason why there are none."""

    kernels: Kernels | None = None
    obstacle: str | None = None


class _ObstacleError(Exception):
    """Why the kernels could not be built; the message names no local path."""


@cache
def is_faster_here() -> bool:
    """Whether this is a machine on which the kernels, once built, should beat oneDNN's."""
    capabilities = torch.cpu.get_capabilities()
    plain = capabilities.get("avx512_f") and not capabilities.get("amx_bf16")
    return bool(plain) and (platform.system(), platform.machine()) == ("Linux", "x86_64")


def kernels_for(weight: Tensor) -> Kernels | None:
    """The kernels, where they should be faster, can be built, and take a matrix of this size."""
    outputs, inputs = weight.shape
    whole = inputs % INPUTS == 0 and outputs % OUTPUTS == 0 and weight.numel() > 0
    return _build().kernels if whole and weight.device.type == "cpu" and is_faster_here() else None


def obstacle() -> str | None:
    """Why the kernels are not used though they should be faster."""
    return _build().obstacle if is_faster_here() else None


@cache
def _build() -> _Build:
    try:
        return _Build(_loaded(_library()))
    except _ObstacleError as error:
        return _Build(obstacle=str(error))
    except OSError as error:
        return _Build(
            obstacle=f"the kernel cannot be kept or loaded: {error.strerror or 'refused'}"
        )
    # Nothing that a library raises may end a sweep that can do without the kernel.
    except Exception as error:
        return _Build(obstacle=f"the kernel cannot be loaded ({type(error).__name__})")


def _library() -> Path:
    """The compiled library, from this user's cache where it is there and unchanged."""
    versions = [torch.__version__, INTERFACE, *FLAGS, *platform.libc_ver()]
    key = hashlib.sha256(SOURCE.read_bytes() + "\0".join(versions).encode()).hexdigest()[:16]
    folder = _cache()
    for library in sorted(folder.glob(f"kernel-{key}-*.so")):
        if _only_ours(library) and library.stem.endswith(f"-{_digest(library)}"):
            return library
    with tempfile.TemporaryDirectory() as building:
        built = _compiled(Path(building, "kernel.so"))
        # A loaded library must not change: written beside it, and renamed when complete.
        target = folder / f"kernel-{key}-{_digest(built)}.so"
        complete = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, complete)
        complete.replace(target)
    return target


def _compiled(target: Path) -> Path:
    include = Path(torch.__file__).parent / "include"
    linked = [f"-L{include.parent / 'lib'}", "-ltorch_cpu"]
    compiler = _compiler()
    command = [*compiler, *FLAGS, INTERFACE, f"-isystem{include}", str(SOURCE), "-o", str(target)]
    name = Path(compiler[0]).name
    try:
        running = subprocess.Popen(
            [*command, *linked],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise _ObstacleError(f"the C++ compiler `{name}` cannot be run: {error.strerror}") from None
    with running:
        try:
            output = running.communicate(timeout=SECONDS)[1]
        except subprocess.TimeoutExpired:
            # It starts other processes, which would run on beside the next timing.
            os.killpg(running.pid, signal.SIGKILL)
            reason = f"the C++ compiler `{name}` took longer than {SECONDS:g} seconds"
            raise _ObstacleError(reason) from None
    if running.returncode or not target.exists():
        match = _ERROR.search(output)
        why = match[1].splitlines()[0].strip() if match else f"exit {running.returncode}"
        raise _ObstacleError(f"the C++ compiler `{name}` failed: {why}")
    return target


def _compiler() -> list[str]:
    """The one that the environment names, or the first that is installed."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError:
        raise _ObstacleError("`CXX` names no command") from None
    compiler = named or [path for name in COMPILERS if (path := shutil.which(name))][:1]
    if not compiler:
        raise _ObstacleError(f"no C++ compiler was found ({', '.join(COMPILERS)})")
    return compiler


def _cache() -> Path:
    """This user's cache folder, where nobody else may put code."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (named if named.is_absolute() else Path("~/.cache").expanduser()) / "draftbench"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _only_ours(folder):
        raise _ObstacleError("others may write to the folder of its cache")
    return folder


def _only_ours(path: Path) -> bool:
    """Whether nobody but this user can have written it."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _loaded(library: Path) -> Kernels:
    torch.ops.load_library(str(library))
    operations = torch.ops.draftbench
    kernels = Kernels(operations.bfloat16_linear.default, operations.int8_linear.default)
    # Compilers have bugs as well. These integers are their own codes, and exact in bfloat16.
    generator = torch.Generator().manual_seed(0)
    x, codes = (torch.randint(-8, 9, (n, 64), generator=generator).float() for n in (7, 8))
    expected = functional.linear(x, codes).bfloat16()
    x, weight, scales = x.bfloat16(), codes.bfloat16(), torch.ones(8)
    results = (kernels.bfloat16(x, weight, None), kernels.int8(x, codes.char(), scales, None))
    if not all(torch.equal(result, expected) for result in results):
        raise _ObstacleError("built by this compiler, it computes wrong results")
    return kernels
