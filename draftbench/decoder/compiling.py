"""How kernels for this CPU are compiled by Numba, take their arguments and share their work.

Each is compiled when it is first imported or called, and kept in Numba's cache. Their arguments are
numbers, among them addresses: to hand over an array takes longer than to norm a token.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import ctypes
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from llvmlite import binding, ir
from numba import float32, int32, int64, intp, njit, types, uint16, uint32, void
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

# Fewer multiplications take one thread less time than several.
THREADED_FROM = 1 << 17
# Sums may be taken in any order, as vectors do.
_MATHS = {"contract", "reassoc", "nsz", "arcp"}
# Numba's cache asks whether a kernel's own file has changed, not those of kernels that it calls. So
# the source of all is in the names of what it keeps; what it kept of older sources goes.
FILES = [Path(__file__), *sorted(Path(__file__).parent.glob("cpu_*.py"))]
SOURCE = hashlib.sha256(b"".join(file.read_bytes() for file in FILES)).hexdigest()[:8]
for _kept in Path(__file__).parent.glob(f"__pycache__/*_{'[0-9a-f]' * len(SOURCE)}-*.nb[ci]"):
    if f"_{SOURCE}-" not in _kept.name:
        with suppress(OSError):  # a package that only others may write
            _kept.unlink()


def compiled(*signatures: Any, by: Callable[..., Any] = njit) -> Callable[[Any], Any]:
    """Compiles a function for some types of arguments, and keeps the result if a folder allows.

    All of them at once: Numba numbers what it keeps of a function in the order of compilation, so
    that two processes which began with different types would read each other's code.
    """

    def compile_it(function: Any) -> Any:
        function.__qualname__ += f"_{SOURCE}"  # which names the files of the cache
        options = {"fastmath": _MATHS, "nogil": True, "error_model": "numpy"}
        try:
            return by(*signatures, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            return by(*signatures, **options)(function)

    return compile_it


def _numbers_at(kind):
    """The numbers of one kind at an address."""

    @intrinsic
    def numbers_at(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(intp), generate

    return numbers_at


floats_at, halves_at, integers_at = (_numbers_at(kind) for kind in (float32, uint16, int64))


@intrinsic
def called(typing, function, task):
    """The function at an address, called with a task."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [arguments[1].type])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return void(intp, intp), generate


@intrinsic
def on_stack(typing, numbers):
    """The address of some numbers, which stay there until the function that asks returns."""

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once_value(builder, arguments[0])
        return builder.ptrtoint(place, ir.IntType(intp.bitwidth))

    return intp(numbers), generate


class OfThisProcess:
    """What holds addresses: a copy is the same object, and no other process can be given it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds addresses of this process")


def address_of(x: Tensor) -> int:
    if x.dtype is not torch.float32 or not x.is_contiguous():
        raise TypeError(f"a kernel reads float32 in rows, not {x.dtype} in steps of {x.stride()}")
    return x.data_ptr()


# The runtime of PyTorch's own threads, which its library finds: others would compete for the cores.
_OPENMP = ctypes.CDLL(torch._C.__file__)
for _name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"):
    _function = getattr(_OPENMP, _name, None)
    _place = None if _function is None else ctypes.cast(_function, ctypes.c_void_p).value
    binding.add_symbol(_name, _place or 1)  # without GCC's interface it is never called

in_parallel = types.ExternalFunction("GOMP_parallel", void(intp, intp, uint32, uint32))
thread_number = types.ExternalFunction("omp_get_thread_num", int32())
threads_there = types.ExternalFunction("omp_get_num_threads", int32())


def threads_allowed() -> int:
    """How many threads a kernel may use."""
    return torch.get_num_threads() if hasattr(_OPENMP, "GOMP_parallel") else 1
