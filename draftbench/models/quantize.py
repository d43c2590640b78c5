"""A model source and a quantization level → a runner and the facts about it, counted from what was
really built.

A level without a kernel here (`levels`) is refused, or simulated on request: rounded weights give
the right acceptance, but their cost is unknown. A checkpoint that is stored quantized counts as a
level of its own (`stored`).
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from draftbench.decoder import streamed
from draftbench.decoder.general import GeneralRunner, general_obstacle
from draftbench.decoder.kernels import multiplies_bfloat16
from draftbench.decoder.lean import LeanRunner, lean_obstacle
from draftbench.decoder.quantized import Int4Linear
from draftbench.decoder.runner import Runner
from draftbench.errors import ModelError
from draftbench.memory import LEVELS, kv_bytes_per_token
from draftbench.models.counting import linears, quantized_share, weight_bytes
from draftbench.models.levels import kernel_of, kind_of
from draftbench.models.source import ModelSource
from draftbench.models.stored import StoredLinear, format_of, load_stored, stored_level
from draftbench.models.whole import run_whole
from draftbench.records import Candidate, ModelFacts

# Cosine of the lean runner's logits with transformers' own on a few random tokens: a layer of other
# shape gives about 0, bfloat16's noise in a deep model .98, int4 about .95. In float32 they agree.
LEAST_COSINE = {"none": 0.9, "fp8": 0.8, "int8": 0.9, "int4": 0.8}
LEAST_COSINE_FLOAT32 = 0.999
PROBE_TOKENS = 12
# Dimensions of the weights of all experts of a layer in one.
_STACKED = 3

# By whether its library computes with the stored weights here.
_STORED_CAVEAT = {
    True: "stored as {level} and computed with as such",
    False: "stored as {level} and unpacked here: right acceptance, its own cost and size unknown",
}


@dataclass(frozen=True)
class Build:
    """How to build a runner: precision, level, device, whether a level without a kernel may be
    simulated, and whether a GPU's short passes are compiled before they are recorded.
    """

    dtype: torch.dtype
    level: str
    device: str
    simulate: bool = False
    compiled: bool = False


def default_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32."""
    if device != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32


def check_level(level: str, device: str, *, simulate: bool) -> bool:
    """Whether the level has a real kernel here. The level of a stored format has one where its
    library computes with the stored weights.

    Raises:
        ModelError: unknown level, or no kernel and not to be simulated.
    """
    stored = format_of(level)
    if stored is not None:
        return stored.computes
    if level not in LEVELS:
        near = difflib.get_close_matches(level, LEVELS, 1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        hint = f"{meant}the levels are {', '.join(LEVELS)}"
        raise ModelError(f"unknown quantization `{level}`", hint=hint)
    kind = kind_of(device)
    real = kernel_of(level, kind) is not None
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
    own = stored_level(source)
    level = own or build.level
    real = check_level(level, build.device, simulate=build.simulate)
    _check_asked(source, build, own)
    model, kept = _load(source, build, own)
    parameters = model.num_parameters() + sum(layer.size for layer in kept)
    if own is None:
        runner, caveats = _runner(source, model, build, simulate=not real)
    else:
        real = real and bool(kept) and all(layer.packed for layer in kept)
        runner, caveats = _stored_runner(source, model, replace(build, level="none"), bool(kept))
        caveats.append(_STORED_CAVEAT[real].format(level=own))
    facts = ModelFacts(
        candidate=None if draft is None else Candidate(draft=draft, quant=build.level),
        # A draft goes by the name under which the run asked for it.
        quant=level if draft is None else build.level,
        dtype=str(build.dtype).removeprefix("torch."),
        parameters=parameters,
        weight_bytes=weight_bytes(runner),
        quantized_share=quantized_share(runner),
        kv_bytes_per_token=kv_bytes_per_token(
            source.config.get_text_config(), build.dtype.itemsize
        ),
        context_length=runner.context_length,
        vocab_size=runner.vocab_size,
        runner=runner.name,
        fingerprint=source.fingerprint(),
        parts=source.parts(),
        caveats=(
            *caveats,
            *_by_type(source, replace(build, level=level), draft),
            *_by_kernel(replace(build, level=level)),
            *_coverage(source, runner, build),
        ),
        has_kernel=real,
        replay_disagreement=None,
    )
    return runner, facts


def _check_asked(source: ModelSource, build: Build, own: str | None) -> None:
    """The level asked for goes with this checkpoint and precision, or ModelError."""
    if own is not None and build.level not in ("none", own):
        raise ModelError(
            f"`{source.name}` is already quantized ({own})",
            hint="measure it as it is (`none`), or give the unquantized checkpoint",
        )
    if own is None and format_of(build.level) is not None:
        raise ModelError(
            f"`{source.name}` is not stored as {build.level}",
            hint=f"the levels of an unquantized checkpoint are {', '.join(LEVELS)}",
        )
    kind = kind_of(build.device)
    quantizes = own is None and build.level != "none" and kernel_of(build.level, kind) is not None
    if quantizes and kind == "cuda" and build.dtype != torch.bfloat16:
        raise ModelError(
            f"quantization `{build.level}` needs bfloat16 activations on {build.device}",
            hint="use `--dtype bfloat16`",
        )


def _load(source: ModelSource, build: Build, own: str | None) -> tuple[Any, list[StoredLinear]]:
    """The loaded model, if its cache can be rewound, and its layers with stored weights."""
    kept: list[StoredLinear] = []
    if ":" in build.device:  # clocks, recordings and other libraries' kernels use the current one
        torch.cuda.set_device(build.device)
    if own is None:
        model = source.load(build.dtype, build.device)
    else:
        model, kept = load_stored(source, own, build.dtype, build.device)
    obstacle = general_obstacle(model)
    if obstacle:
        raise ModelError(
            f"`{source.name}` cannot speculate here: {obstacle}",
            hint="choose a model whose layers all keep ordinary keys and values",
        )
    _leave_the_file(model)
    return model, kept


def _leave_the_file(model: nn.Module) -> None:
    """Copy what no linear layer holds (embeddings, norms): a CPU's weights are pieces of a mapped
    file, and one of them keeps the whole of it in memory after the linear layers are packed. Not
    experts, which are stacked: they are most of a model, and would be in memory twice meanwhile.
    """
    for module in model.modules():
        if not isinstance(module, nn.Linear):
            for weight in module.parameters(recurse=False):
                if weight.device.type == "cpu" and weight.dim() < _STACKED:
                    weight.data = weight.data.clone()


def _by_type(source: ModelSource, build: Build, draft: str | None) -> list[str]:
    """What its type does to the speed of an unquantized model, where another would be faster."""
    if build.level != "none":
        return []
    stored = getattr(source.config.get_text_config(), "dtype", None)
    if build.device == "cpu" and build.dtype == torch.bfloat16 and not multiplies_bfloat16():
        return [
            "this CPU does not multiply bfloat16: a pass over several tokens takes nearly a step "
            "for each, which in float32 (the default here) it does not"
        ]
    if draft is None and build.dtype == torch.float32 and stored in (torch.bfloat16, torch.float16):
        return [
            "its checkpoint has two bytes a weight and runs in float32: plain decoding reads twice "
            "the bytes, and a runner that does not gains less from speculation"
        ]
    return []


def _by_kernel(build: Build) -> list[str]:
    """Why not the fastest kernel that there is for the weights."""
    # int4 keeps bfloat16 weights beside its own; a stored checkpoint may have been unpacked.
    narrow = build.dtype == torch.bfloat16 or build.level in ("int8", "int4")
    obstacle = streamed.obstacle() if narrow and build.device == "cpu" else None
    if obstacle is None:
        return []
    return [f"oneDNN multiplies its weights, and no faster kernel compiled here: {obstacle}"]


def _coverage(source: ModelSource, runner: Runner, build: Build) -> list[str]:
    """What the level does not cover; ModelError where that is everything."""
    if build.level not in LEVELS or build.level == "none":
        return []
    share = quantized_share(runner)
    if share == 0.0:
        raise ModelError(
            f"quantization `{build.level}` touched no layer of `{source.name}`",
            hint="its layers' sizes do not divide into the level's groups; use another level",
        )
    found = []
    twin = next((each for each in linears(runner) if isinstance(each, Int4Linear)), None)
    if twin is not None:
        wide = str(twin.wide_dtype).removeprefix("torch.")
        found.append(
            f"beside int4 weights the runner keeps {wide} ones, not counted in its memory: an "
            "engine has no such copy"
        )
    if share < 1.0:
        found.append(f"{build.level} covers {share:.0%} of the linear weights")
    return found


def _stored_runner(
    source: ModelSource, model: Any, build: Build, kept: bool
) -> tuple[Runner, list[str]]:
    """Layers with stored weights run as their library made them; a model that was unpacked while
    loading is one like any other.
    """
    if not kept:
        return _runner(source, model, build, simulate=False)
    return GeneralRunner(model, "none", simulate=False), [
        "runs through transformers' own forward pass: its layers are another library's"
    ]


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
        got = lean.forward(probe, lean.new_cache(PROBE_TOKENS), every=True).float()
        cosine = float(nn.functional.cosine_similarity(expected, got, dim=-1).mean())
        exact = build.dtype is torch.float32 and build.level == "none"
        if cosine >= (LEAST_COSINE_FLOAT32 if exact else LEAST_COSINE[build.level]):
            return lean, run_whole(lean, compiled=build.compiled)
        obstacle = f"the lean runner's logits differ (cosine {cosine:.3f})"
        model = source.load(build.dtype, build.device)
        _leave_the_file(model)
    general = GeneralRunner(model, build.level, simulate=simulate)
    how = "" if build.device == "cpu" else ", without CUDA graphs"
    how += ", nor compiled" * build.compiled
    return general, [f"runs through transformers' own forward pass{how}: {obstacle}"]


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
