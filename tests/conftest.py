"""Every test is offline, 100 columns wide, on one thread, with a request key of its own."""

import os

import pytest

os.environ["COLUMNS"] = "100"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"


@pytest.fixture(autouse=True)
def _isolated(monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_KEY", "the key of the tests")
