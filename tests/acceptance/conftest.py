"""Makers of small records, so that a test shows only the fields that it is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from draftbench.records import Candidate, DraftingMode, Replay, Sampling, Trajectory


def _trajectory(request: str = "r", output_tokens: int = 5, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "request": request,
        "sample": 0,
        "segment": None,
        "weight": 1.0,
        "sampling": Sampling(),
        "prompt_tokens": 3,
        "output_tokens": output_tokens,
        "limit": output_tokens,
        "finish": "length",
        "origin": "target",
        "margins": (5.0,) * output_tokens,
        "argmax": (1,) * output_tokens,
        "digest": "",
    }
    return Trajectory(**fields | changes)


def _replay(accept: Sequence[float], request: str = "r", **changes: Any) -> Replay:
    fields: dict[str, Any] = {
        "request": request,
        "sample": 0,
        "candidate": Candidate(draft="small"),
        "mode": DraftingMode.GREEDY,
        "draftable": len(accept),
        "accept": tuple(accept),
        "confidence": (0.9,) * len(accept),
        "margin": (5.0,) * len(accept),
        "rank": (0,) * len(accept),
    }
    return Replay(**fields | changes)


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """trajectory(request, output_tokens, **fields)"""
    return _trajectory


@pytest.fixture
def replay() -> Callable[..., Replay]:
    """replay(accept, request, **fields)"""
    return _replay
