"""The manifest of a run that no sweep made, and its candidates by name."""

from typing import Any

import msgspec

from draftbench.records import Candidate, DraftingMode
from draftbench.run_folder.manifest import (
    SCHEMA_VERSION,
    Environment,
    Manifest,
    Question,
    TrafficFacts,
)


def named(draft: str | None, quant: str = "none") -> Candidate | None:
    """A draft at a level; None for the target."""
    return None if draft is None else Candidate(draft=draft, quant=quant)


QUESTION = Question(
    target="target",
    target_quant="none",
    dtype="float32",
    device="cpu",
    drafts=("small",),
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
    schema_version=SCHEMA_VERSION,
    draftbench="0.1.0",
    created="2026-01-01T00:00:00Z",
    command="draftbench sweep",
    key_id="key",
    question=QUESTION,
    traffic=TRAFFIC,
    environment=ENVIRONMENT,
)


def manifest(**changes: Any) -> Manifest:
    """A manifest; a field of its own or of one of its parts is changed by name.

    Raises:
        TypeError: no part has a field of this name.
    """
    parts = {"question": QUESTION, "traffic": TRAFFIC, "environment": ENVIRONMENT}
    made: dict[str, Any] = {}
    for name, value in changes.items():
        owner = next((part for part in parts if hasattr(parts[part], name)), None)
        if owner is not None:
            parts[owner] = msgspec.structs.replace(parts[owner], **{name: value})
        else:
            made[name] = value
    return msgspec.structs.replace(MANIFEST, **parts, **made)
