"""Decisions by hand-made requests alone."""

import numpy as np
import pytest
from scenes import ALL, DRAFT, STEPS

from draftbench.planner import effects, shrinkage


@pytest.fixture
def requests_alone(monkeypatch):
    """Puts aside what requests do not show: how much decoding differs from its passes, the noise of
    cells, and that the best of several drafts is the luckiest.
    """
    for name in ("RUNNER", "DRAFT", "AT_CONCURRENCY", "K", "CONSTANT"):
        monkeypatch.setattr(effects, name, 1e-3)
    monkeypatch.setattr(effects.BuiltInDesign, "noises", np.array([1e-6]))
    monkeypatch.setattr(effects.BuiltInDesign, "spreads", (1.0,))
    monkeypatch.setattr(shrinkage, "_SPREADS", np.array([100.0]))


@pytest.fixture
def loaded(scene):
    """All tokens accepted, by a draft whose step takes .1 s at any load."""
    scene.requests(5, ALL)
    for concurrency, steps in STEPS.items():
        scene.times(steps, DRAFT, concurrency=concurrency)
    return scene
