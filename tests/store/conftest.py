"""A manifest and small records, as a sweep would write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from draftbench.records import CostPoint, DraftingMode, Failure, Sampling, Trajectory
from draftbench.store.folder import PrivateText, RunFolder
from draftbench.store.manifest import Environment, Manifest, Question, TrafficFacts

QUESTION = Question(
    target="target",
    target_quant="none",
    dtype="float32",
    device="cpu",
    drafts=("draft",),
    quants=("none",),
    simulate_quant=False,
    ks=(1, 2),
    mode=DraftingMode.GREEDY,
    lookup_longest=4,
    lookup_shortest=2,
    traffic="prod.jsonl",
    traffic_digest="d",
    responses="target",
    samples=1,
    max_new_tokens=None,
    temperature=None,
)
ENVIRONMENT = Environment(
    platform="Linux",
    processor="cpu",
    cores=2,
    threads=1,
    accelerator=None,
    python="3.12.0",
    packages={"torch": "2.12"},
)
TRAFFIC = TrafficFacts(form="prompt", rows=1, requests=1, merged=0, dropped={})
MANIFEST = Manifest(
    schema_version=1,
    draftbench="0.1.0",
    created="2026-01-01T00:00:00Z",
    command="draftbench sweep",
    key_id="key",
    question=QUESTION,
    traffic=TRAFFIC,
    environment=ENVIRONMENT,
)


def manifest(**changes: Any) -> Manifest:
    """A manifest; a field of its own or of one of its parts is changed by name."""

    def changed(record: Any) -> Any:
        own = {name: changes[name] for name in changes if hasattr(record, name)}
        return msgspec.structs.replace(record, **own)

    whole = changed(MANIFEST)
    parts = {"question": QUESTION, "traffic": TRAFFIC, "environment": ENVIRONMENT}
    return msgspec.structs.replace(whole, **{name: changed(part) for name, part in parts.items()})


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
        draft=None,
        quant="none",
        what="step",
        batch=1,
        new_tokens=1,
        context=context,
        seconds=(0.5,),
        block="draft",
        runner="lean",
        process="p",
    )


def failure(draft: str, reason: str, **changes: Any) -> Failure:
    fields = {"draft": draft, "quant": "none", "stage": "measure", "reason": reason, "hint": "h"}
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
