"""Checkpoints whose weights are stored quantized: GPTQ, AWQ, bitsandbytes, GGUF and others.

The stored form counts as a level (`gptq-int4`). transformers' quantizers load it. The type of a
layer's weights after a pass shows whether it computes with the stored weights or unpacked them.
Unpacked weights have the right acceptance but cost as much as the unquantized model.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.errors import ModelError
from draftbench.models.checkpoint import gguf_header
from draftbench.models.source import ModelSource


@dataclass(frozen=True)
class Format:
    """A format of stored weights."""

    packages: tuple[str, ...]  # pip's names of the packages that read it
    computes: bool  # whether layers compute with the stored weights, instead of unpacking them


FORMATS = {
    "gptq": Format(("gptqmodel", "optimum"), True),
    "awq": Format(("gptqmodel",), True),
    "bitsandbytes": Format(("bitsandbytes",), True),
    "torchao": Format(("torchao",), True),
    # Unpacked by its own library in the first pass.
    "compressed-tensors": Format(("compressed-tensors",), False),
    # Stays packed only with kernels that transformers would download at run time.
    "gguf": Format(("gguf",), False),
}
# Other formats are left to transformers, which names a missing package. They count as unpacked.
OTHER = Format((), False)


def stored_level(source: ModelSource) -> str | None:
    """The level of stored weights as `format-type`: `gptq-int4`, `bitsandbytes-nf4`, `gguf-q4_k`;
    None where they are not quantized. Reads no weights.

    Raises:
        ModelError: the configuration or the file cannot be read.
    """
    config = source.config
    if source.spec.endswith(".gguf"):
        sizes = gguf_header(Path(source.spec).expanduser()).weights
        plain = ("f64", "f32", "f16", "bf16")
        most = Counter({kind: n for kind, n in sizes.items() if kind not in plain}).most_common(1)
        return f"gguf-{most[0][0]}" if most else None
    stored = getattr(config, "quantization_config", None)
    if not stored:
        return None
    facts = stored if isinstance(stored, dict) else stored.to_dict()
    method = str(getattr(facts.get("quant_method"), "value", facts.get("quant_method")))
    names = method, _kind(method, facts) or "stored"
    method, kind = (re.sub(r"[^a-z0-9_+-]", "", name.lower()) for name in names)
    return f"{method[:30]}-{kind.replace('-', '')}"[:60]


def format_of(level: str) -> Format | None:
    """The format of a stored level; None for the levels that draftbench makes."""
    method, _, kind = level.rpartition("-")
    return FORMATS.get(method) or (OTHER if method and kind == "stored" else None)


def missing_packages(level: str) -> list[str]:
    packages = (format_of(level) or OTHER).packages
    return [name for name in packages if find_spec(name.replace("-", "_")) is None]


def stored_bytes(source: ModelSource) -> int | None:
    """Bytes of the weight files; None if they are on the hub."""
    if not source.local:
        return None
    path = Path(source.spec).expanduser()
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files) or None


def stored_expert_bytes(source: ModelSource) -> int | None:
    """Bytes of the routed experts in the weight files; None if they are on the hub."""
    if not source.local:
        return None
    if source.spec.endswith(".gguf"):
        from gguf import GGUFReader

        tensors = GGUFReader(Path(source.spec).expanduser()).tensors
        return sum(int(tensor.n_bytes) for tensor in tensors if "_exps." in tensor.name)
    stored = source.stored_tensors().items()
    return sum(t.nbytes for name, t in stored if t is not None and ".experts." in name)


class StoredLinear(nn.Module):
    """Wraps a library's layer with stored weights.

    `nn.Module` does not see the layer, so that nothing replaces it and its tensors do not count as
    plain weights.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._held = (layer,)
        self.in_features, self.out_features = int(layer.in_features), int(layer.out_features)
        bias = getattr(layer, "bias", None)
        # Parameters before quantization.
        self.parameters_before = self.in_features * self.out_features + (
            0 if bias is None else bias.numel()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self._held[0](x)  # type: ignore[no-any-return]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, scales and offsets as they are in memory now."""
        values = self._held[0].state_dict().values()
        return sum(tensor_bytes(value) for value in values if isinstance(value, Tensor))

    @property
    def packed(self) -> bool:
        """Whether the weights are still of a quantized type."""
        return _is_stored(self._held[0])


def load_stored(
    source: ModelSource, level: str, dtype: torch.dtype, device: str
) -> tuple[Any, list[StoredLinear]]:
    """The model and its layers with stored weights, none if loading unpacked them all.

    Raises:
        ModelError: a package is missing, or the weights cannot be loaded or run here.
    """
    missing = missing_packages(level)
    if missing:
        raise ModelError(
            f"`{source.name}` is stored as {level}, which is read by {' and '.join(missing)}: "
            "not installed",
            hint=f"pip install {' '.join(missing)}, or give the unquantized checkpoint and name a "
            "level with --quant or --target-quant",
        )
    # These libraries print greetings on both streams.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        model = source.load(dtype, device)
        places = [
            (parent, name)
            for parent in model.modules()
            for name, child in parent.named_children()
            if _is_stored(child)
        ]
        try:
            with torch.inference_mode():
                model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
        # A missing kernel shows only here, as an exception of any class.
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ModelError(
                f"`{source.name}` is stored as {level}, which does not run on {device}: {reason}",
                hint="give the unquantized checkpoint and name a level with --quant",
            ) from error
    # After the pass, since some libraries unpack all layers in a model's first pass.
    layers = []
    for parent, name in places:
        layers.append(StoredLinear(getattr(parent, name)))
        setattr(parent, name, layers[-1])
    return model, layers


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, or of those inside one of torchao's."""
    if type(tensor.data) is Tensor:
        return tensor.nbytes
    made_of: Any = tensor
    return sum(tensor_bytes(getattr(made_of, name)) for name in made_of.__tensor_flatten__()[0])


def _is_stored(layer: nn.Module) -> bool:
    """Whether a layer multiplies by integers, one-byte floats, or a tensor class of torchao's."""
    tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    return hasattr(layer, "in_features") and any(
        type(t.data) is not Tensor or not t.is_floating_point() or t.element_size() == 1
        for t in tensors
        if t.ndim > 1
    )


def _kind(method: str, facts: Mapping[str, Any]) -> str | None:
    """The weights' type according to the configuration, which anyone may have written."""
    bits, kind = facts.get("bits"), None
    if method == "bitsandbytes":
        kind = "int8" if facts.get("load_in_8bit") else facts.get("bnb_4bit_quant_type")
    elif method == "compressed-tensors":
        groups, kinds = facts.get("config_groups"), set()
        for group in groups.values() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict):
                number = "fp" if weights.get("type") == "float" else "int"
                kinds.add(f"{number}{weights.get('num_bits')}")
        kind = "+".join(sorted(kinds))
    elif method == "torchao":
        kind = facts.get("quant_type")
        if isinstance(kind, dict):
            default = kind.get("default")
            kind = default.get("_type") if isinstance(default, dict) else None
        kind = kind.removesuffix("Config") if isinstance(kind, str) else None
    elif method in FORMATS and isinstance(bits, int):
        kind = f"int{bits}"
    return str(kind) if kind else None
