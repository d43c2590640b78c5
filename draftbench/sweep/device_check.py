"""Tries what works on a device: the first thing to run on a new kind of machine.

What fails or cannot be tried is reported like everything else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median

import torch

import draftbench
from draftbench.decoder.cuda_graphs import RecordedPasses, SlabCache
from draftbench.decoder.device import default_dtype, device_words, make_ready
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import clock_for
from draftbench.errors import DraftbenchError
from draftbench.memory import LEVELS
from draftbench.models.quantize import Build, build_runner, check_level, layer_bytes
from draftbench.models.source import ModelSource
from draftbench.run_folder.run import read_run
from draftbench.sweep.failures import reason_of
from draftbench.sweep.measure import measure_sweep
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.preparation import prepare
from draftbench.traffic import TrafficQuery

# The context of recorded passes: more keys than a kernel goes through at once.
WIDTHS, CAPACITY = range(1, 10), 3000
# Inputs and outputs of the layer whose bytes are timed.
SIDE = {"cpu": 4096, "cuda": 16384}
# Bytes read before each product, more than any cache holds, so that its weights come from memory,
# as they do in a decoder after all other layers.
BLOCK = 1 << 29
REPEATS = 10


@dataclass(frozen=True)
class Finding:
    """One thing that was tried."""

    what: str
    found: str  # what came of it
    works: bool | None  # None: it could not be tried


def check_device(device: str, traffic: TrafficQuery, watcher: Watcher) -> Iterator[Finding]:
    """Try everything, from the versions to a sweep of the embedded models over some traffic."""
    make_ready(device)
    yield Finding("device", device_words(device), True)
    versions = f"draftbench {draftbench.__version__}, PyTorch {torch.__version__}, CUDA "
    versions += f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    yield Finding("versions", versions, True)
    yield _tried("recorded passes", partial(_recorded, device))
    for level in LEVELS:
        weights = "unquantized weights" if level == "none" else f"{level} weights"
        yield _tried(weights, partial(_bandwidth, device, level))
    yield _tried("sweep", partial(_sweep, device, traffic, watcher))


def _tried(what: str, attempt: Callable[[], tuple[str, bool | None]]) -> Finding:
    try:
        return Finding(what, *attempt())
    # A device that does not work may raise anything.
    except Exception as error:
        reason = error.message if isinstance(error, DraftbenchError) else reason_of(error)[0]
        return Finding(what, reason, False)


def _recorded(device: str) -> tuple[str, bool | None]:
    """Compare recorded passes of each width and reach with the same pass launched call by call."""
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
    (_, width, reach), least = min(cosines.items(), key=lambda item: item[1])
    passes = f"{len(cosines)} of widths 1 to {max(WIDTHS)}"
    found = f"{passes}; least cosine {least:.5f}, width {width} over {reach} keys"
    return "; ".join([found, *facts.caveats]), True


def _bandwidth(device: str, level: str) -> tuple[str, bool | None]:
    """Time a product over one token against a plain read of as many bytes."""
    try:
        check_level(level, device, simulate=False)
    except DraftbenchError as error:
        return f"not tried: {error.message}", None
    dtype, kind = default_dtype(device), device.partition(":")[0]
    # Of 16 bits, as those of nearly every checkpoint are.
    weight = torch.randn(SIDE[kind], SIDE[kind], device=device).bfloat16().to(dtype)
    layer = make_linear(weight, None, level)
    x, block = weight[:1].clone(), torch.ones(BLOCK // 4, device=device)
    clock, reads, products = clock_for(device), [], []
    for _ in range(1 + REPEATS):
        start = clock.mark()
        block.sum()
        between = clock.mark()
        layer(x)
        end = clock.mark()
        reads.append(clock.seconds(start, between))
        products.append(clock.seconds(between, end))
    # The first is a library's first call.
    rate, plain = layer_bytes(layer) / median(products[1:]), BLOCK / median(reads[1:])
    return f"{rate / 1e9:.3g} GB/s, a plain read {plain / 1e9:.3g} GB/s", True


def _sweep(device: str, traffic: TrafficQuery, watcher: Watcher) -> tuple[str, bool | None]:
    """Sweep the embedded family far enough to make every kind of observation."""
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
        prepared = prepare(options, "draftbench check", watcher)
        found = read_run(measure_sweep(prepared, Path(folder) / "run", watcher))
    if found.failures:
        return "; ".join(
            f"{failure.candidate}: {failure.reason}" for failure in found.failures
        ), False
    runners = " and ".join(sorted({facts.runner for facts in found.facts}))
    same = sum(decode.first_difference is None for decode in found.decodes)
    return f"{same} of {len(found.decodes)} responses as written before; {runners}", True


def _model(name: str) -> ModelSource:
    return ModelSource(str(Path(str(files("draftbench"))) / "embedded" / name))
