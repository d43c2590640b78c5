"""Builds a runner from a model at a quantization level, and counts the bytes that it really takes.

A level without a fast kernel on this device is refused, or simulated on request: rounded weights
give the right acceptance but say nothing about cost. `memory.LEVELS` explains each level;
`prequantized` deals with checkpoints that are stored quantized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from draftbench.decoder.any_transformer import TransformersRunner, rewind_obstacle
from draftbench.decoder.device import capability, make_ready
from draftbench.decoder.linear import (
    IN_16_BITS,
    IN_ROWS,
    PackedLinear,
    has_onednn,
    multiplies_bfloat16,
)
from draftbench.decoder.llama import LlamaRunner, llama_obstacle
from draftbench.decoder.mixture import STACKED, mixture_of
from draftbench.decoder.quantized_linear import INT4_ALONE, KERNELS, kernel_of
from draftbench.decoder.runner import Runner
from draftbench.errors import ModelError, did_you_mean
from draftbench.memory import LEVELS, kv_bytes_per_token, memory_left
from draftbench.models.check_result import LevelRow
from draftbench.models.prequantized import (
    StoredLinear,
    format_of,
    load_stored,
    stored_bytes,
    stored_level,
    tensor_bytes,
)
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, ModelFacts

# Least cosine of the Llama runner's logits with transformers', unquantized in float32. The others
# are in `LEVELS`.
LEAST_COSINE_FLOAT32 = 0.999
# Tokens over which the two are compared.
PROBE_TOKENS = 12
# On two cores with AVX2, from `scripts/bench_layouts.py`.
_ONCE = (
    "its weights are kept in one layout, for lack of memory or because of `--one-layout`: on two "
    "cores with AVX2"
)
ONE_LAYOUT = f"{_ONCE} a pass over several tokens then took up to 1.7 steps instead of 1.2"
ONE_LAYOUT_INT4 = f"{_ONCE} a pass over five tokens then took 1.4, a prompt 2 times as long"


@dataclass(frozen=True)
class Build:
    """The form in which a model should run."""

    dtype: torch.dtype
    level: str
    device: str
    simulate: bool = False  # whether a level without a kernel may be simulated
    two_layouts: bool = True  # whether a CPU may hold unquantized weights in two layouts
    longest: int = 0  # tokens of the longest row that a GPU's recorded passes will be asked for


def kernel_words(level: str, device: str) -> str | None:
    """The name of what computes a level on a device (`cpu`, `cuda`, `cuda:1`, `auto`); None where
    the level has no fast kernel there.
    """
    if level != "none":
        kernel = kernel_of(level, device)
        return None if kernel is None else kernel.words()
    if device != "cpu":
        return "cuBLAS"
    packed = "oneDNN, packed" if has_onednn() else "PyTorch"
    also = ", and for many tokens" if multiplies_bfloat16() else ""
    return f"Numba, weights in 16 bits; {packed}, for those that need 32{also}"


def level_table(device: str) -> tuple[LevelRow, ...]:
    """Every level on this device, in the order of `LEVELS`."""
    return tuple(
        LevelRow(
            level=level,
            meaning=facts.meaning,
            kernel=kernel_words(level, device),
            bytes_per_weight=facts.per_weight,
            layers=facts.layers,
            moves=None if device == "cpu" else facts.on_gpu,
        )
        for level, facts in LEVELS.items()
    )


def check_level(level: str, device: str, *, simulate: bool) -> bool:
    """Whether a level has a fast kernel here. Stored weights have one if their library computes
    with them without unpacking.

    Raises:
        ModelError: unknown level, no kernel and not to be simulated, or a model over several GPUs,
            whose layers stay as they are.
    """
    stored = format_of(level)
    if stored is not None:
        return stored.computes
    if level not in LEVELS:
        hint = did_you_mean(level, LEVELS, f"the levels are {', '.join(LEVELS)}")
        raise ModelError(f"unknown quantization `{level}`", hint=hint)
    if level != "none" and device == "auto" and torch.cuda.device_count() > 1:
        raise ModelError(
            f"quantization `{level}` needs one GPU, and `auto` spreads a model over all",
            hint="name one: `--device cuda:0`",
        )
    real = level == "none" or kernel_of(level, device) is not None
    if not real and not simulate:
        why, kernel = device, KERNELS.get(("cpu" if device == "cpu" else "cuda", level))
        if kernel is not None:
            why = f"{kernel.words()} needs Triton, which is not installed"
            if (here := capability(device)) < kernel.least:
                needed, has = ("{}.{}".format(*numbers) for numbers in (kernel.least, here))
                why = f"{kernel.words()} needs compute capability {needed}, and this GPU has {has}"
        raise ModelError(
            f"quantization `{level}` has no fast kernel on this device ({why})",
            hint="its cost is unknown here: leave it out, or measure its acceptance alone with "
            "`--simulate-quant`",
        )
    return real


def build_runner(source: ModelSource, build: Build, draft: str | None) -> tuple[Runner, ModelFacts]:
    """Load, quantize, and count.

    Args:
        draft: the name the run gives this draft; None for the target.

    Raises:
        ModelError: cannot be loaded, rewound or quantized.
    """
    stored = stored_level(source)
    level = stored or build.level
    has_kernel = check_build(source, build, stored)
    make_ready(build.device)
    layers: list[StoredLinear] = []
    if stored is None:
        where = build.device
        if where not in ("cpu", "auto") and kernel_of(build.level, where) is not None:
            # What does not fit on the GPU may fit once it is quantized, layer by layer.
            room: int = torch.cuda.mem_get_info(where)[0]
            where = "cpu" if (stored_bytes(source) or 0) > room else where
        model = source.load(build.dtype, where)
    else:
        model, layers = load_stored(source, stored, build.dtype, build.device)
    mixture = mixture_of(model)
    obstacle = rewind_obstacle(model)
    if obstacle:
        raise ModelError(
            f"`{source.name}` cannot speculate here: {obstacle}",
            hint="choose a model whose layers all keep ordinary keys and values",
        )
    _copy_from_file(model)
    parameters = model.num_parameters() + sum(layer.parameters_before for layer in layers)
    runner: Runner
    if layers:
        runner = TransformersRunner(model, "none")
        caveats = ["runs through transformers' forward pass: its layers are another library's"]
    else:  # one whose stored weights were unpacked while loading is a model like any other
        loaded = replace(build, level="none") if stored else build
        runner, caveats = _fastest(source, model, loaded)
    if stored is not None:
        has_kernel = has_kernel and bool(layers) and all(layer.packed for layer in layers)
        unpacked = "unpacked here: right acceptance, its own cost and size unknown"
        caveats.append(
            f"stored as {stored} and {'computed with as such' if has_kernel else unpacked}"
        )
    facts = model_facts(
        runner,
        source,
        build,
        draft,
        parameters=parameters,
        layer=source.config.get_text_config(),
        vocab_size=runner.vocab_size,
        has_kernel=has_kernel,
    )
    caveats += _caveats(source, runner, replace(build, level=level), draft)
    return runner, msgspec.structs.replace(
        facts,
        # A draft goes by the name under which the run asked for it.
        quant=level if draft is None else build.level,
        mixture=mixture,
        parts=source.parts(),
        caveats=(*caveats, *facts.caveats),
    )


def check_build(source: ModelSource, build: Build, stored: str | None = None) -> bool:
    """Whether the level has a fast kernel here. Raises: ModelError, the model cannot have it."""
    has_kernel = check_level(stored or build.level, build.device, simulate=build.simulate)
    if stored is not None and build.level not in ("none", stored):
        raise ModelError(
            f"`{source.name}` is already quantized ({stored})",
            hint="measure it as it is (`none`), or give the unquantized checkpoint",
        )
    if stored is None and format_of(build.level) is not None:
        raise ModelError(
            f"`{source.name}` is not stored as {build.level}",
            hint=f"the levels of an unquantized checkpoint are {', '.join(LEVELS)}",
        )
    quantizes = stored is None and kernel_of(build.level, build.device) is not None
    if quantizes and build.device != "cpu" and build.dtype != torch.bfloat16:
        raise ModelError(
            f"quantization `{build.level}` needs bfloat16 activations on {build.device}",
            hint="use `--dtype bfloat16`",
        )
    return has_kernel


def _copy_from_file(model: nn.Module) -> None:
    """Copy the weights outside linear layers (embeddings, norms) out of the mapped file: a single
    piece of it would keep the whole file in memory after the linear layers are packed. Stacked
    experts are not copied: they are most of a model, and would be in memory twice for a while.
    """
    for module in model.modules():
        if not isinstance(module, nn.Linear):
            for weight in module.parameters(recurse=False):
                if weight.device.type == "cpu" and weight.dim() < STACKED:
                    weight.data = weight.data.clone()


def _fastest(source: ModelSource, model: Any, build: Build) -> tuple[Runner, list[str]]:
    """The Llama runner if it can run this model and agrees with transformers, else transformers'
    forward pass; and caveats.
    """
    obstacle = llama_obstacle(model)
    # There has to be room for all linear layers twice, and for a third copy of that size: the other
    # model, which is loaded after this one.
    weights = sum(m.weight.nbytes for m in model.modules() if isinstance(m, nn.Linear))
    two_layouts = build.two_layouts and 3 * weights <= memory_left()
    layouts = {"two_layouts": two_layouts}
    caveats: list[str] = []
    if obstacle is None:
        probe = torch.arange(1, 1 + PROBE_TOKENS, device=model.device) * 7 % model.config.vocab_size
        with torch.inference_mode():
            expected = model(probe[None]).logits[0].float()
        device = None if build.device == "auto" else build.device
        runner = LlamaRunner(model, build.level, device=device, longest=build.longest, **layouts)
        cache = runner.new_cache(PROBE_TOKENS)
        # One token alone is multiplied in another layout than several.
        probe = probe.to(runner.device)
        parts = [runner.forward(part, cache, every=True) for part in (probe[:-1], probe[-1:])]
        logits = torch.cat(parts).float().to(expected.device)
        cosine = float(nn.functional.cosine_similarity(expected, logits, dim=-1).mean())
        exact = build.dtype is torch.float32 and build.level == "none"
        if cosine >= (LEAST_COSINE_FLOAT32 if exact else LEVELS[build.level].least_cosine):
            if slow := runner.record_short_passes():
                caveats.append(slow)
            return runner, caveats
        obstacle = f"draftbench's runner gives other logits (cosine {cosine:.3f})"
        model = source.load(build.dtype, build.device)
        _copy_from_file(model)
    how = "" if build.device == "cpu" else ", without CUDA graphs"
    caveats.insert(0, f"runs through transformers' forward pass{how}: {obstacle}")
    return TransformersRunner(model, build.level, **layouts), caveats


def _caveats(source: ModelSource, runner: Runner, build: Build, draft: str | None) -> list[str]:
    """Caveats about layouts and faster types."""
    caveats: list[str] = []
    layouts = {getattr(layer, "layout", None) for layer in linears(runner)}
    if IN_ROWS in layouts:
        caveats.append(ONE_LAYOUT)
    if INT4_ALONE in layouts:
        caveats.append(ONE_LAYOUT_INT4)
    if build.level == "none":
        checkpoint = getattr(source.config.get_text_config(), "dtype", None)
        narrow = checkpoint in (torch.bfloat16, torch.float16)
        if draft is None and build.dtype == torch.float32 and narrow and IN_16_BITS not in layouts:
            caveats.append(
                "its checkpoint has two bytes a weight and runs in float32: plain decoding reads "
                "twice the bytes, and a runner that does not gains less from speculation"
            )
    return caveats


class HoldsWeights(Protocol):
    """What is counted of a model or a head."""

    device: str
    context_length: int

    @property
    def name(self) -> str: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def tensors(self) -> Iterator[Tensor]: ...


def linears(runner: HoldsWeights) -> list[Any]:
    """Every linear layer: PyTorch's, and draftbench's, which know their bytes."""
    return [m for m in runner.modules() if isinstance(m, nn.Linear) or hasattr(m, "weight_bytes")]


def layer_bytes(layer: Any) -> int:
    """Bytes of one layer's weights that a step reads."""
    if isinstance(layer, nn.Linear):
        return tensor_bytes(layer.weight)
    count: int = layer.weight_bytes
    return count


def model_facts(
    runner: HoldsWeights,
    source: ModelSource,
    build: Build,
    draft: str | None,
    *,
    parameters: int,
    layer: Any,
    vocab_size: int,
    has_kernel: bool,
    slow: str | None = None,
) -> ModelFacts:
    """What is recorded about a loaded model or head.

    Args:
        draft: its name in the run; None for the target.
        layer: the configuration of its layers.
        slow: why it runs slower than it could.

    Raises:
        ModelError: the level covers no weights.
    """
    weight_bytes, second_layout_bytes, share = counted(runner)
    level, caveats = build.level, [slow] if slow else []
    if level in LEVELS and level != "none" and share < 1.0:
        if share == 0.0:
            raise ModelError(
                f"quantization `{level}` touched no layer of `{source.name}`",
                hint="its layers' sizes do not divide into the level's groups; use another level",
            )
        caveats.append(f"{level} covers {min(share, 0.99):.0%} of the linear weights")
    return ModelFacts(
        candidate=None if draft is None else Candidate(draft=draft, quant=level),
        quant=level,
        dtype=str(build.dtype).removeprefix("torch."),
        parameters=parameters,
        weight_bytes=weight_bytes,
        second_layout_bytes=second_layout_bytes,
        quantized_share=share,
        kv_bytes_per_token=kv_bytes_per_token(layer, build.dtype.itemsize),
        context_length=runner.context_length,
        vocab_size=vocab_size,
        runner=runner.name,
        fingerprint=source.fingerprint(),
        caveats=tuple(caveats),
        has_kernel=has_kernel,
        replay_disagreement=None,
    )


def counted(runner: HoldsWeights) -> tuple[int, int, float]:
    """Bytes of all weights, bytes of their second layouts, and the share of multiplied weights that
    have a quantized type or were rounded to one.

    Shared weights (a tied head) count once, and so do weights in two layouts. Experts stacked in
    one tensor are multiplied too, but never quantized.
    """
    others = list(runner.tensors())
    shared = {tensor.data_ptr(): tensor.nbytes for tensor in others}
    multiplied = sum(tensor.numel() for tensor in others if tensor.ndim >= STACKED)
    unshared = second = quantized = 0
    for layer in linears(runner):
        size = layer.in_features * layer.out_features
        multiplied += size
        address = None
        second += getattr(layer, "second_layout_bytes", 0)
        if isinstance(layer, PackedLinear):
            address = layer.address
        elif isinstance(layer, nn.Linear) and type(layer.weight.data) is Tensor:
            address = layer.weight.data_ptr()
        else:
            quantized += size
        if address is None:
            unshared += layer_bytes(layer)
        else:
            shared[address] = layer_bytes(layer)
    weights = sum(shared.values()) + unshared
    return weights, second, quantized / multiplied if multiplied else 0.0
