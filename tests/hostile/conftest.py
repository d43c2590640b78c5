"""The scripts that provoke, as modules."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    """Import one of the scripts."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def imported(name):
        return importlib.import_module(name)

    return imported
