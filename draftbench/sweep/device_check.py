"""What works on a device, by trying it: the first thing to run on a new kind of machine.

Everything is tried in turn, and what fails or cannot be tried is a line like the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import torch

import draftbench
from draftbench.decoder.cuda_graphs import RecordedPasses
from draftbench.decoder.device import attention_words, default_dtype, in_words, make_ready
from draftbench.decoder.llama import LlamaRunner, SlabCache
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import clock_for
from draftbench.errors import DraftbenchError
from draftbench.memory import LEVELS
from draftbench.models.quantize import Build, build_runner, check_level
from draftbench.models.source import ModelSource
from draftbench.run_folder.run import read_run
from draftbench.sweep.failures import describe
from draftbench.sweep.grid import run
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.preparation import prepare
from draftbench.traffic import TrafficQuery

WIDTHS, CAPACITY = range(1, 10), 1000
# Inputs and outputs of the layer whose bytes are timed: on a GPU more than its cache holds.
SIDE = {"cpu": 2048, "cuda": 8192}
REPEATS, LAUNCHES = 10, 5


@dataclass(frozen=True)
class Finding:
    """One thing that was tried: `works` is None where it could not be."""

    what: str
    found: str
    works: bool | None


def check_device(device: str, traffic: TrafficQuery, watcher: Watcher) -> Iterator[Finding]:
    """Everything, from the versions to a sweep of the embedded models over some traffic."""
    make_ready(device)
    yield Finding("device", in_words(device), True)
    yield Finding("versions", f"draftbench {draftbench.__version__}, {_versions()}", True)
    attention = attention_words(device).removeprefix(", ") or "PyTorch's for CPUs"
    yield Finding("attention", attention, "cuDNN" not in attention)
    yield _tried("recorded passes", partial(_recorded, device))
    for level in LEVELS:
        yield _tried(f"{level}, bytes a second", partial(_bandwidth, device, level))
    yield _tried("sweep", partial(_sweep, device, traffic, watcher))


def _versions() -> str:
    cudnn = torch.backends.cudnn.version()
    return f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}"


def _tried(what: str, attempt: Callable[[], tuple[str, bool | None]]) -> Finding:
    try:
        return Finding(what, *attempt())
    # A device that does not work raises what it likes; that is what this is for.
    except Exception as error:
        reason = error.message if isinstance(error, DraftbenchError) else describe(error)[0]
        return Finding(what, reason, False)


def _recorded(device: str) -> tuple[str, bool | None]:
    """Each width and reach against the same pass launched call by call."""
    if device == "cpu":
        return "not tried: CUDA graphs need a GPU", None
    runner, facts = build_runner(
        _model("target"), Build(default_dtype(device), "none", device), None
    )
    assert isinstance(runner, LlamaRunner)
    cache: SlabCache = runner.new_cache(CAPACITY, 1, WIDTHS)
    if not isinstance(cache.graphs, RecordedPasses):
        return "; ".join(facts.caveats), False
    cosines = cache.graphs.cosines
    (width, reach), least = min(cosines.items(), key=lambda item: item[1])
    passes = f"{len(cosines)} of widths 1 to {max(WIDTHS)}"
    return f"{passes}; least cosine {least:.5f}, width {width} over {reach} keys", True


def _bandwidth(device: str, level: str) -> tuple[str, bool | None]:
    """A product over one token, beside a plain read of as many bytes."""
    try:
        check_level(level, device, simulate=False)
    except DraftbenchError as error:
        return f"not tried: {error.message}", None
    dtype, side = default_dtype(device), SIDE["cpu" if device == "cpu" else "cuda"]
    weight = torch.randn(side, side, device=device).to(dtype)
    layer: Any = make_linear(weight, None, level, simulate=False)
    size: int = weight.nbytes if level == "none" else layer.weight_bytes
    x, block = torch.randn(1, side, device=device).to(dtype), weight.new_zeros(size // 4).float()
    product, read = _seconds(device, lambda: layer(x)), _seconds(device, block.sum)
    rates = f"{size / product / 1e9:.3g} GB/s", f"{size / read / 1e9:.3g} GB/s"
    return f"{rates[0]}, a plain read {rates[1]}", True


def _seconds(device: str, work: Callable[[], object]) -> float:
    """The median of some repeats, of several launches each."""
    clock, samples = clock_for(device), []
    for _ in range(REPEATS):
        work()
        start = clock.mark()
        for _ in range(LAUNCHES):
            work()
        samples.append(clock.seconds(start, clock.mark()) / LAUNCHES)
    return median(samples)


def _sweep(device: str, traffic: TrafficQuery, watcher: Watcher) -> tuple[str, bool | None]:
    """The embedded family, far enough that every kind of observation is made."""
    options = SweepOptions(
        target=_model("target").spec,
        drafts=(_model("distilled").spec,),
        traffic=traffic,
        ks=(2,),
        max_new_tokens=12,
        measure_requests=2,
        measure="all",
        controls=False,
        device=device,
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(options, "draftbench selfcheck", watcher)
        found = read_run(run(prepared, Path(folder) / "run", watcher))
    if found.failures:
        return "; ".join(
            f"{failure.candidate}: {failure.reason}" for failure in found.failures
        ), False
    runners = " and ".join(sorted({facts.runner for facts in found.facts}))
    same = sum(decode.first_difference is None for decode in found.decodes)
    return f"{same} of {len(found.decodes)} responses as written before; {runners}", True


def _model(name: str) -> ModelSource:
    return ModelSource(str(Path(str(files("draftbench"))) / "embedded" / name))
