"""A manifest and small records, as a sweep would write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scenes import manifest, named

from draftbench.records import CostPoint, Failure, Sampling, Trajectory
from draftbench.run_folder.folder import PrivateText, RunFolder


def trajectory(request: str, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "request": request,
        "sample": 0,
        "segment": None,
        "weight": 1.0,
        "sampling": Sampling(),
        "prompt_tokens": 3,
        "output_tokens": 2,
        "limit": 2,
        "finish": "length",
        "origin": "target",
        "margins": (1.0, 2.0),
        "argmax": (1, 1),
        "digest": "",
    }
    return Trajectory(**fields | changes)


def cost_point(context: int) -> CostPoint:
    return CostPoint(
        candidate=None,
        what="step",
        batch=1,
        new_tokens=1,
        context=context,
        seconds=(0.5,),
        block="draft",
        runner="lean",
        process="p",
    )


def failure(draft: str, reason: str, quant: str = "none", **changes: Any) -> Failure:
    fields = {"candidate": named(draft, quant), "stage": "measure", "reason": reason, "hint": "h"}
    return Failure(**fields | changes)


def text(request: str) -> PrivateText:
    return PrivateText(request=request, sample=0, prompt=(1, 2, 3), tokens=(4, 5), log_p=())


@pytest.fixture
def make():
    """The makers above, since test folders do not import each other."""
    return SimpleNamespace(
        manifest=manifest,
        trajectory=trajectory,
        cost_point=cost_point,
        failure=failure,
        text=text,
    )


@pytest.fixture
def folder(tmp_path):
    """A new run folder."""
    return RunFolder.create(tmp_path / "run", manifest())
