"""What a piece of work launches, and what of it no recording may hold."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that give another view of memory, memory without contents, or what a tensor is.
NO_LAUNCH = frozenset(
    """
    _reshape_alias _unsafe_view alias as_strided chunk detach device diagonal empty empty_like
    empty_strided expand flatten narrow new_empty new_empty_strided permute select slice split
    split_with_sizes squeeze t transpose unbind unflatten unsqueeze view
    """.split()  # noqa: SIM905
)
# Operations whose result, or its shape, the host waits for.
READ = frozenset(
    """
    _local_scalar_dense equal is_nonzero masked_select nonzero repeat_interleave unique_dim _unique2
    """.split()  # noqa: SIM905
)
RANDOM = frozenset(
    {
        "bernoulli",
        "bernoulli_",
        "multinomial",
        "normal_",
        "rand",
        "rand_like",
        "randint",
        "randn",
        "randn_like",
        "randperm",
        "uniform_",
        "exponential_",
    }
)
MASKS = (torch.bool, torch.uint8)


class Operations(TorchDispatchMode):
    """Notes the names of what is launched, and of what a CUDA graph could not repeat: reads of
    values, boolean indexing, random numbers, tensors made of the host's values, transfers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.illegal: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.partition("::")[2]
        result = function(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        if name not in NO_LAUNCH and not (name == "to" and result is args[0]):
            self.launched.append(name)
        if name in READ:
            self.illegal.append(f"{name} reads a value")
        if name in RANDOM:
            self.illegal.append(f"{name} draws random numbers")
        if name in ("lift_fresh", "lift"):
            self.illegal.append("a tensor is made of the host's values")
        if name.startswith("index") and any(one.dtype in MASKS for one in tensors[1:]):
            self.illegal.append(f"{name} by a mask, whose size the host waits for")
        if len({one.device.type for one in (*tensors, *made)}) > 1:
            self.illegal.append(f"{name} meets tensors of the host and of the device")
        return result
