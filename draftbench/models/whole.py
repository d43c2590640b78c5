"""A lean runner → one whose short passes run whole, without Python between their layers: as traces
on a CPU, as recordings on a GPU. What cannot is said in words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftbench.decoder.lean import LeanRunner
from draftbench.decoder.recorded import CudaGraphs, Recorder


def run_whole(runner: LeanRunner, *, compiled: bool = False) -> list[str]:
    """Have the runner's short passes run without Python between their layers; or what that fails
    for. On a GPU they may be `compiled` first.
    """
    if runner.device.startswith("cuda"):
        stream = torch.cuda.Stream(runner.device)
        return record_whole(runner, lambda: CudaGraphs(stream), compiled=compiled)
    obstacle = runner.trace()
    return [f"runs its steps call by call, not as traces: {obstacle}"] * bool(obstacle)


def record_whole(
    runner: LeanRunner, make_recorder: Callable[[], Recorder], *, compiled: bool
) -> list[str]:
    """Have the runner record its short passes, as they are if they cannot be compiled; or what that
    fails for.
    """
    found = []
    if compiled:
        obstacle = runner.record_with(make_recorder, compiled=True)
        if obstacle is None:
            return []
        found.append(f"its passes are not compiled: {obstacle}")
    obstacle = runner.record_with(make_recorder)
    if obstacle:
        found.append(f"launches its steps call by call, not as CUDA graphs: {obstacle}")
    return found
