"""A model source and a quantization level → a runner and the facts about it, counted from what was
really built.

One table says what each level is and where it has a kernel. A level without one here is refused, or
simulated on request: rounded weights give the right acceptance, but their cost is unknown.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from draftbench.decode.general import GeneralRunner, general_obstacle
from draftbench.decode.lean import LeanRunner, lean_obstacle
from draftbench.decode.linear import Int4Linear, Int8Linear, PackedLinear, SimulatedLinear
from draftbench.decode.runner import Runner
from draftbench.errors import ModelError
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts


@dataclass(frozen=True)
class Level:
    """A quantization level: what it does and on which kinds of device it has a real kernel."""

    meaning: str
    kernels: frozenset[str]


LEVELS = {
    "none": Level("weights as loaded", frozenset({"cpu", "cuda"})),
    "fp8": Level("e4m3 weights and activations, one scale per row", frozenset({"cuda"})),
    "int8": Level("8-bit weights, one scale per output", frozenset({"cpu", "cuda"})),
    "int4": Level("4-bit weights in groups, scale and offset each", frozenset({"cpu", "cuda"})),
}

# Cosine of the lean runner's logits with transformers' own on a few random tokens: a layer of other
# shape gives about 0, bfloat16's noise in a deep model .98, int4 about .95. In float32 they agree.
LEAST_COSINE = {"none": 0.9, "fp8": 0.8, "int8": 0.9, "int4": 0.8}
LEAST_COSINE_FLOAT32 = 0.999
PROBE_TOKENS = 12


@dataclass(frozen=True)
class Build:
    """How to build a runner: precision, level, device, and whether a level without a kernel may be
    simulated.
    """

    dtype: torch.dtype
    level: str
    device: str
    simulate: bool = False


def default_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32."""
    if device != "cpu":
        return torch.bfloat16
    native = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def check_level(level: str, device: str, *, simulate: bool) -> bool:
    """Whether the level has a real kernel here.

    Raises:
        ModelError: unknown level, or no kernel and not to be simulated.
    """
    if level not in LEVELS:
        near = difflib.get_close_matches(level, LEVELS, 1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        hint = f"{meant}the levels are {', '.join(LEVELS)}"
        raise ModelError(f"unknown quantization `{level}`", hint=hint)
    kind = "cpu" if device == "cpu" else "cuda"
    real = kind in LEVELS[level].kernels
    if not real and not simulate:
        raise ModelError(
            f"quantization `{level}` has no kernel on this device ({kind})",
            hint="leave it out, or measure its acceptance alone with `--simulate-quant`",
        )
    return real


def build_runner(source: ModelSource, build: Build, draft: str | None) -> tuple[Runner, ModelFacts]:
    """Load, quantize, and count.

    Args:
        draft: the name the run gives this draft; None for the target.

    Raises:
        ModelError: cannot be loaded, rewound or quantized.
    """
    real = check_level(build.level, build.device, simulate=build.simulate)
    if build.level != "none" and build.dtype != torch.bfloat16 and real:
        raise ModelError(
            f"quantization `{build.level}` needs bfloat16 activations",
            hint="use `--dtype bfloat16`",
        )
    model = _plain_model(source, build)
    parameters = model.num_parameters()
    runner, caveats = _runner(source, model, build, simulate=not real)
    layers = list(_linears(runner))
    share = _quantized_share(layers, runner)
    if build.level != "none" and share == 0.0:
        raise ModelError(
            f"quantization `{build.level}` touched no layer of `{source.name}`",
            hint="its layers' sizes do not divide into the level's groups; use another level",
        )
    if any(isinstance(layer, Int4Linear) for layer in layers):
        caveats = [*caveats, "beside int4 weights the runner keeps bfloat16 ones, not counted here"]
    if build.level != "none" and share < 1.0:
        caveats = [*caveats, f"{build.level} covers {share:.0%} of the linear weights"]
    facts = ModelFacts(
        draft=draft,
        quant=build.level,
        dtype=str(build.dtype).removeprefix("torch."),
        parameters=parameters,
        weight_bytes=_weight_bytes(runner),
        quantized_share=share,
        kv_bytes_per_token=kv_bytes_per_token(source.config.get_text_config(), build.dtype),
        context_length=runner.context_length,
        vocab_size=runner.vocab_size,
        runner=runner.name,
        fingerprint=source.fingerprint(),
        caveats=tuple(caveats),
        has_kernel=real,
        replay_disagreement=None,
    )
    return runner, facts


def _plain_model(source: ModelSource, build: Build) -> Any:
    """The loaded model, if its weights are plain matrices and its cache can be rewound."""
    stored = getattr(source.config, "quantization_config", None)
    if stored:
        method = stored.get("quant_method") if isinstance(stored, dict) else stored.quant_method
        raise ModelError(
            f"`{source.name}` is already quantized ({method})",
            hint="give the unquantized checkpoint and name a level with --quant or --target-quant",
        )
    model = source.load(build.dtype, build.device)
    obstacle = general_obstacle(model)
    if obstacle:
        raise ModelError(
            f"`{source.name}` cannot speculate here: {obstacle}",
            hint="choose a model whose layers all keep ordinary keys and values",
        )
    return model


def _runner(
    source: ModelSource, model: Any, build: Build, *, simulate: bool
) -> tuple[Runner, list[str]]:
    """The lean runner where it serves this model and agrees with transformers, else the general
    one.
    """
    obstacle = lean_obstacle(model)
    if obstacle is None:
        probe = torch.arange(1, 1 + PROBE_TOKENS, device=model.device) * 7 % model.config.vocab_size
        with torch.inference_mode():
            expected = model(probe[None]).logits[0].float()
        lean = LeanRunner(model, build.level, simulate=simulate)
        got = lean.forward(probe, lean.new_cache(PROBE_TOKENS), PROBE_TOKENS).float()
        cosine = float(nn.functional.cosine_similarity(expected, got, dim=-1).mean())
        exact = build.dtype is torch.float32
        if cosine >= (LEAST_COSINE_FLOAT32 if exact else LEAST_COSINE[build.level]):
            return lean, []
        obstacle = f"the lean runner's logits differ (cosine {cosine:.3f})"
        model = source.load(build.dtype, build.device)
    general = GeneralRunner(model, build.level, simulate=simulate)
    return general, [f"runs through transformers' own forward pass: {obstacle}"]


def _linears(runner: Runner) -> Iterator[Any]:
    """Every linear layer once; the wide twin inside an int4 layer is not another."""
    kinds = (nn.Linear, PackedLinear, Int8Linear, Int4Linear, SimulatedLinear)
    layers = [module for module in runner.modules() if isinstance(module, kinds)]
    twins = {id(layer.wide) for layer in layers if isinstance(layer, Int4Linear)}
    return (layer for layer in layers if id(layer) not in twins)


def _quantized_share(layers: list[Any], runner: Runner) -> float:
    """Share of multiplied weights whose stored type is a quantized one.

    Experts that a model keeps stacked in one tensor of three dimensions are weights too, and no
    layer of theirs is replaced.
    """
    total = sum(tensor.numel() for tensor in runner.tensors() if tensor.ndim > 2)
    quantized = 0
    for layer in layers:
        size = layer.in_features * layer.out_features
        total += size
        torchao = isinstance(layer, nn.Linear) and type(layer.weight.data) is not torch.Tensor
        if isinstance(layer, (Int8Linear, Int4Linear, SimulatedLinear)) or torchao:
            quantized += size
    return quantized / total if total else 0.0


def _weight_bytes(runner: Runner) -> int:
    """Bytes of all that is kept, by its real type; what is shared (a tied head) counts once."""
    plain = {tensor.data_ptr(): tensor.nbytes for tensor in runner.tensors()}
    other = 0
    for layer in _linears(runner):
        if not isinstance(layer, nn.Linear):
            other += int(layer.weight_bytes)
        elif type(layer.weight.data) is torch.Tensor:
            plain[layer.weight.data_ptr()] = layer.weight.nbytes
        else:  # torchao: a tensor made of tensors
            made_of: Any = layer.weight
            names = made_of.__tensor_flatten__()[0]
            other += sum(getattr(made_of, name).nbytes for name in names)
    return sum(plain.values()) + other


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of keys and values per token over all layers, for a text configuration."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head * dtype.itemsize)


def set_threads(threads: int | None) -> int:
    """Use `threads` CPU threads (default: one per core that this process may use); how many are
    used.
    """
    wanted = (
        threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
    )
    if wanted:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()
