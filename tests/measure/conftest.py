"""The embedded pair in float32, its text side, requests of a few words, and scripted models."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import scenes
import torch

from draftbench.decoder.runner import HostClock
from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.measure.prompts import Prompt, TargetText
from draftbench.measure.trajectories import ScoredResponse, generate, score
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
    return TargetText(_source("target"))


def _request(prompt: str | None = "import os\n\n\ndef main():\n", **fields: Any) -> Request:
    known = {"id": "r", "source": "log.jsonl:3", "sampling": Sampling(), "max_tokens": 24}
    return Request(**{**known, "prompt": prompt, **fields})


def _unscored(tokens, prompt=(0,), sampling=None, limit=None):
    """A response whose own scores play no part."""
    asked = _request(sampling=sampling or Sampling())
    limit = limit or len(tokens)
    fields = {"prompt_tokens": len(prompt), "sampling": asked.sampling, "limit": limit}
    trajectory = scenes.trajectory("r", len(tokens), **fields)
    return ScoredResponse(Prompt(asked, prompt, limit), tokens, trajectory)


def _written(asked, target, text):
    """What the target writes, with its scores."""
    return score(asked, generate(asked, target, text, HostClock()), target, "target", str)


def _constant(*probabilities, context_length=64):
    """A model that thinks the same after every token."""
    logits = torch.tensor(probabilities).log()
    return ScriptedRunner(lambda tokens: logits, len(probabilities), context_length=context_length)


@pytest.fixture(scope="session")
def make():
    """Requests, responses and models by what a test is about."""
    return SimpleNamespace(
        request=_request, unscored=_unscored, written=_written, constant=_constant
    )


PROMPTS = [
    "import os\n\n\ndef main():\n",
    "class Stack:\n    def __init__(self):\n",
    "for key, value in sorted(table.items()):\n    print(",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
    "import os\n",
]


@pytest.fixture(scope="session")
def five_prompts(text_source, make):
    """Five requests of different prompts and limits, two of them sampled."""
    text, how = TargetText(text_source), [Sampling(), Sampling(temperature=0.8, top_p=0.9)]
    requests = [
        make.request(prompt, id=str(at), max_tokens=12 + 5 * at, sampling=how[at % 2])
        for at, prompt in enumerate(PROMPTS)
    ]
    return text, [(text.prompt(request, request.max_tokens, 512), 0) for request in requests]
