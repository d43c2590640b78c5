"""Records of a run that no sweep made: a field with a default is changed by name."""

from pathlib import Path
from typing import Any

import msgspec

from draftbench.records import (
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    Failure,
    ModelFacts,
    Replay,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.manifest import (
    SCHEMA_VERSION,
    Environment,
    Manifest,
    Question,
    TrafficFacts,
)
from draftbench.traffic import TrafficQuery


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


def trajectory(request: str = "r", length: int = 9, **changes: Any) -> Trajectory:
    """A response of `length` tokens without near ties, at temperature 0."""
    fields: dict[str, Any] = {
        "sample": 0,
        "segment": None,
        "weight": 1.0,
        "sampling": Sampling(),
        "prompt_tokens": 10,
        "output_tokens": length,
        "limit": length,
        "finish": "length",
        "origin": "target",
        "margins": (5.0,) * length,
        "argmax": (1,) * length,
        "digest": "",
    }
    return Trajectory(request=request, **fields | changes)


def replay(accept: tuple[float, ...], candidate: Candidate, **changes: Any) -> Replay:
    """A greedy replay of a candidate that accepts so at each position."""
    fields: dict[str, Any] = {
        "request": "r",
        "sample": 0,
        "mode": DraftingMode.GREEDY,
        "draftable": len(accept),
        "confidence": (0.9,) * len(accept),
        "margin": (5.0,) * len(accept),
        "rank": (0,) * len(accept),
    }
    return Replay(candidate=candidate, accept=accept, **fields | changes)


def decode(candidate: Candidate, k: int, seconds: float, **changes: Any) -> Decode:
    """Decoding of a response in a candidate's block; k = 0 is the baseline."""
    fields: dict[str, Any] = {
        "request": "r",
        "sample": 0,
        "candidate": candidate if k else None,
        "mode": DraftingMode.GREEDY,
        "repeat": 0,
        "proposed": (),
        "accepted": (),
        "cut": (),
        "draft_seconds": (),
        "verify_seconds": (),
        "prefill_seconds": 0.1,
        "draft_prefill_seconds": None,
        "output_tokens": 5,
        "digest": "",
        "first_difference": None,
        "tie": None,
        "block": str(candidate),
        "batch": 1,
        "process": "p1",
    }
    return Decode(k=k, decode_seconds=seconds, **fields | changes)


def step(candidate: Candidate | None, *seconds: float, **changes: Any) -> CostPoint:
    """Timed steps of a draft, or of the target (None)."""
    fields: dict[str, Any] = {
        "what": "step",
        "batch": 1,
        "new_tokens": 1,
        "context": 64,
        "block": str(candidate),
        "runner": "lean",
        "process": "p1",
    }
    return CostPoint(candidate=candidate, seconds=seconds, **fields | changes)


def facts(candidate: Candidate | None, **changes: Any) -> ModelFacts:
    """Facts of a loaded draft, or of the target (None)."""
    fields: dict[str, Any] = {
        "quant": candidate.quant if candidate else "none",
        "dtype": "float32",
        "parameters": 1,
        "weight_bytes": 1,
        "quantized_share": 0.0,
        "kv_bytes_per_token": 1,
        "context_length": 1000,
        "vocab_size": 100,
        "runner": "lean",
        "fingerprint": "",
        "caveats": (),
        "has_kernel": True,
        "replay_disagreement": None,
    }
    return ModelFacts(candidate=candidate, **fields | changes)


def failure(draft: str, reason: str, quant: str = "none", **changes: Any) -> Failure:
    """A failure of a draft at a level."""
    fields = {"candidate": named(draft, quant), "stage": "measure", "reason": reason, "hint": "h"}
    return Failure(**fields | changes)


def private_text(request: str) -> PrivateText:
    """Two tokens of a response to three."""
    return PrivateText(request=request, sample=0, prompt=(1, 2, 3), tokens=(4, 5), log_p=())


def query(source: Path | str, **changes: Any) -> TrafficQuery:
    """All requests of a source."""
    fields: dict[str, Any] = {
        "sample": None,
        "seed": 0,
        "segment_by": None,
        "prompt_field": None,
        "response_field": None,
        "skip_bad": False,
        "key": b"key",
    }
    return TrafficQuery(source=str(source), **fields | changes)
