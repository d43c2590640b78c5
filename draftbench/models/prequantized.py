"""Checkpoints whose weights are stored quantized: GPTQ, AWQ, bitsandbytes, GGUF and others.

Each counts as a level of its own (`gptq-int4`). transformers' quantizers load it. The type of a
layer's weights after a pass shows whether it computes with the stored weights or unpacked them;
unpacked weights have the right acceptance, but their cost is that of the unquantized model.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.errors import ModelError
from draftbench.models.source import ModelSource


@dataclass(frozen=True)
class Format:
    """A way to store weights quantized: the packages that read it, by import name, and whether they
    compute with the stored weights instead of unpacking them first.
    """

    packages: tuple[str, ...]
    computes: bool


FORMATS = {
    "gptq": Format(("gptqmodel", "optimum"), True),
    "awq": Format(("gptqmodel",), True),
    "bitsandbytes": Format(("bitsandbytes",), True),
    "torchao": Format(("torchao",), True),
    # Unpacked by its own library in the first pass.
    "compressed-tensors": Format(("compressed_tensors",), False),
    # Stays packed only with kernels that transformers would download at run time.
    "gguf": Format(("gguf",), False),
}
# Any other is left to transformers, which names the missing package, and counts as unpacked.
OTHER = Format((), False)


def stored_level(source: ModelSource) -> str | None:
    """The level of stored weights as `format-type`: `gptq-int4`, `bitsandbytes-nf4`, `gguf-q4_k`;
    None where they are not quantized. Reads no weights.

    Raises:
        ModelError: the configuration or the file cannot be read.
    """
    config = source.config
    if source.spec.endswith(".gguf"):
        kind = _gguf_kind(Path(source.spec).expanduser())
        return kind and f"gguf-{kind}"
    stored = getattr(config, "quantization_config", None)
    if not stored:
        return None
    facts = stored if isinstance(stored, dict) else stored.to_dict()
    method = str(getattr(facts.get("quant_method"), "value", facts.get("quant_method")))
    kind = _kind(method, facts) or "stored"
    return re.sub(r"[^a-z0-9_+-]", "", f"{method}-{kind}".lower())[:60]


def format_of(level: str) -> Format | None:
    """The format of a stored level, None where the name is not that of one."""
    method, _, kind = level.rpartition("-")
    return FORMATS.get(method) or (OTHER if method and kind == "stored" else None)


def missing_packages(level: str) -> list[str]:
    """Packages to install for loading this level, by their names for pip."""
    packages = (format_of(level) or OTHER).packages
    return [name.replace("_", "-") for name in packages if find_spec(name) is None]


def stored_bytes(source: ModelSource) -> int | None:
    """Bytes of the weight files; None for those of a hub."""
    path = Path(source.spec).expanduser()
    if not source.local:
        return None
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files) or None


def load_stored(
    source: ModelSource, level: str, dtype: torch.dtype, device: str
) -> tuple[Any, list[StoredLinear]]:
    """The model, and its layers with stored weights; none where all were unpacked while loading.

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
    with _silence():
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
        # A missing kernel, of any library, shows only here.
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ModelError(
                f"`{source.name}` is stored as {level}, which does not run on {device}: {reason}",
                hint="give the unquantized checkpoint and name a level with --quant",
            ) from error
    # After the pass: some libraries unpack all layers of a model in its first.
    layers = []
    for parent, name in places:
        layers.append(StoredLinear(getattr(parent, name)))
        setattr(parent, name, layers[-1])
    return model, layers


class StoredLinear(nn.Module):
    """A layer with stored weights as its library made it.

    It is held where `nn.Module` does not look, so that nothing replaces it and its tensors do not
    count as plain weights.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._held = (layer,)
        self.in_features, self.out_features = int(layer.in_features), int(layer.out_features)

    @property
    def size(self) -> int:
        """Parameters before quantization, the bias included."""
        bias = getattr(self._held[0], "bias", None)
        return self.in_features * self.out_features + (0 if bias is None else bias.numel())

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


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, or of the tensors that one of torchao's is made of."""
    if type(tensor.data) is Tensor:
        return tensor.nbytes
    made_of: Any = tensor
    return sum(tensor_bytes(getattr(made_of, name)) for name in made_of.__tensor_flatten__()[0])


def _is_stored(layer: nn.Module) -> bool:
    tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    return hasattr(layer, "in_features") and any(_quantized(t) for t in tensors if t.ndim > 1)


def _quantized(tensor: Tensor) -> bool:
    """Whether it holds integers or floats of one byte, or is a tensor class of torchao's."""
    plain = type(tensor.data) is Tensor
    return not plain or not tensor.is_floating_point() or tensor.element_size() == 1


def _kind(method: str, facts: Mapping[str, Any]) -> str | None:
    """The weights' type by the configuration, which anyone may have written."""
    if method == "bitsandbytes":
        return "int8" if facts.get("load_in_8bit") else facts.get("bnb_4bit_quant_type")
    if method == "compressed-tensors":
        return "+".join(sorted(set(_group_kinds(facts.get("config_groups"))))) or None
    if method == "torchao":
        quant_type = facts.get("quant_type")
        default = quant_type.get("default") if isinstance(quant_type, dict) else None
        kind = default.get("_type") if isinstance(default, dict) else quant_type
        return kind.removesuffix("Config") if isinstance(kind, str) else None
    bits = facts.get("bits")
    return f"int{bits}" if method in FORMATS and isinstance(bits, int) else None


def _group_kinds(groups: object) -> Iterator[str]:
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            kind = {"float": "fp"}.get(str(weights.get("type")), "int")
            yield f"{kind}{weights.get('num_bits')}"


@cache
def _gguf_kind(path: Path) -> str | None:
    """The quantized type that most weights of a GGUF file have. Reading a large vocabulary takes
    seconds.
    """
    from gguf import GGUFReader

    sizes: Counter[str] = Counter()
    for tensor in GGUFReader(path).tensors:
        sizes[tensor.tensor_type.name.lower()] += int(tensor.n_elements)
    for plain in ("f64", "f32", "f16", "bf16"):
        del sizes[plain]
    return sizes.most_common(1)[0][0] if sizes else None


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the output of quantization libraries off stderr and stdout, which are the command's."""
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        yield
