"""Decisions by hand-made requests alone."""

import pytest
from scenes import ALL, DRAFT, STEPS

from draftbench.planner import time_factors


@pytest.fixture
def requests_alone(monkeypatch):
    """Puts aside what requests do not show and few decoded configurations tell little of: by how
    much drafts and configurations usually differ.
    """
    for name in ("DRAFTS_DIFFER", "USUAL_SCATTER", "LEAST_SCATTER"):
        monkeypatch.setattr(time_factors, name, 1e-9)


@pytest.fixture
def loaded(scene):
    """All tokens accepted, by a draft whose step takes .1 s at any load."""
    scene.requests(5, ALL)
    for batch, steps in STEPS.items():
        scene.times(steps, DRAFT, batch=batch)
    return scene
