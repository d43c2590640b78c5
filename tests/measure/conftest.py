"""The embedded pair in float32, its text side, and requests made from a few words."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

from draftbench.measure.prompts import TextSide
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import Request, Sampling


def _source(name: str) -> ModelSource:
    return ModelSource(str(Path(str(files("draftbench"))) / "embedded" / name))


@pytest.fixture(scope="session")
def text_source():
    return _source("target")


@pytest.fixture(scope="session")
def target(text_source):
    return build_runner(text_source, Build(torch.float32, "none", "cpu"), None)[0]


@pytest.fixture(scope="session")
def draft():
    return build_runner(_source("draft"), Build(torch.float32, "none", "cpu"), "draft")[0]


@pytest.fixture
def text():
    """Not shared: a test may give the tokenizer a chat template."""
    return TextSide(_source("target"))


@pytest.fixture(scope="session")
def make_request():
    """Requests by what a test is about."""

    def request(prompt: str | None = "import os\n\n\ndef main():\n", **fields: Any) -> Request:
        known = {"id": "r", "source": "log.jsonl:3", "sampling": Sampling(), "max_tokens": 24}
        return Request(**{**known, "prompt": prompt, **fields})

    return request
