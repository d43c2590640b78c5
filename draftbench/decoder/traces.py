"""TorchScript traces: passes of a fixed number of tokens run without Python.

Between layers that each empty the processor's cache, Python's interpreter takes 20 to 45 µs for
every call, a fifth of a small draft's step. A trace repeats the same operations from C++. It needs
no compiler, but holds sizes as they were: values that change between two passes are read inside
`scripted` functions, and weights that oneDNN packed are arguments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# From tensors alone to one.
Traceable = Callable[..., Tensor]


def scripted(source: str) -> Any:
    """TorchScript functions by name, which a trace calls instead of looking into them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch would rather have it exported
        return torch.jit.CompilationUnit(source)


def trace(work: Traceable, example: Sequence[Tensor], given: Sequence[Tensor]) -> Traceable:
    """A function that repeats `work` for tensors of the example's shapes.

    Args:
        work: besides its arguments it uses only tensors that it holds and never changes.
        given: tensors that `work` holds and a trace cannot.

    Raises:
        RuntimeError: something in it cannot be traced.
    """
    taken = len(example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is meant to hold sizes
        # `torch.jit.trace` would keep its functions, and with them the weights, for good.
        graph, _ = torch._C._create_graph_by_tracing(
            lambda *tensors: work(*tensors[:taken]),
            [*example, *given],
            lambda _: "",
            True,  # refuse a result of anything but tensors
            False,  # keep changes in place
        )
    first = next(graph.nodes())
    for node in graph.nodes():
        node.copyMetadata(first)  # each holds the Python stack it came from, as text
    function = torch._C._create_function_from_graph("traced", graph)

    def run(*tensors: Tensor) -> Tensor:
        # Optimizing a graph of a thousand operations takes as long as ten passes and gains nothing.
        before = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        try:
            return function(*tensors, *given)  # type: ignore[no-any-return]
        finally:
            torch._C._set_graph_executor_optimize(before)

    return run
