"""Every test is offline, 100 columns wide, on one thread, with a request key of its own."""

import os
import signal

import pytest
from scenes import Scene

os.environ["COLUMNS"] = "100"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
# A job in the background of a shell ignores Control-C, and so would every command that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _isolated(monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_KEY", "the key of the tests")


@pytest.fixture
def scene():
    """An empty run."""
    return Scene()
