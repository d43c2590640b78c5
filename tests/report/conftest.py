"""A small run made by hand, on which every figure of a report has a known value."""

from __future__ import annotations

from typing import Any

import pytest
import scenes
from scenes import named

from draftbench.records import (
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    Failure,
    LookupReplay,
    ModelFacts,
    Replay,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.manifest import Manifest

LENGTH = 9


def manifest(**changes: Any) -> Manifest:
    named = {"target": "/models/big", "command": "draftbench sweep --target /models/big"}
    return scenes.manifest(**named | changes)


def trajectory(request: str, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "request": request,
        "sample": 0,
        "segment": None,
        "weight": 1.0,
        "sampling": Sampling(),
        "prompt_tokens": 10,
        "output_tokens": LENGTH,
        "limit": LENGTH,
        "finish": "length",
        "origin": "target",
        "margins": (5.0,) * LENGTH,
        "argmax": (1,) * LENGTH,
        "digest": "",
    }
    return Trajectory(**fields | changes)


def replay(request: str, accept: tuple[float, ...], draft: str = "small") -> Replay:
    return Replay(
        request=request,
        sample=0,
        candidate=Candidate(draft=draft),
        mode=DraftingMode.GREEDY,
        draftable=len(accept),
        accept=accept,
        confidence=(0.9,) * len(accept),
        margin=(5.0,) * len(accept),
        rank=(0,) * len(accept),
    )


def cost(
    draft: str | None, tokens: int, seconds: float, block: str = "small", batch: int = 1
) -> CostPoint:
    return CostPoint(
        candidate=named(draft),
        what="step",
        batch=batch,
        new_tokens=tokens,
        context=0,
        seconds=(seconds,) * 3,
        block=block,
        runner="cpu",
        process="p",
    )


def decode(request: str, k: int, seconds: float, draft: str = "small", **changes: Any) -> Decode:
    """Eight tokens in `seconds`; with k = 2 as the replay of a perfect draft says: 2, 2, 1."""
    proposed = (2, 2, 1) if k else (0,) * (LENGTH - 1)
    fields: dict[str, Any] = {
        "request": request,
        "sample": 0,
        "candidate": Candidate(draft=draft) if k else None,
        "k": k,
        "mode": DraftingMode.GREEDY,
        "repeat": 0,
        "proposed": proposed,
        "accepted": proposed,
        "cut": (0,) * len(proposed),
        "draft_seconds": (0.0,) * len(proposed),
        "verify_seconds": (seconds / len(proposed),) * len(proposed),
        "prefill_seconds": 1.0,
        "draft_prefill_seconds": 1.0 if k else None,
        "decode_seconds": seconds,
        "output_tokens": LENGTH,
        "digest": "",
        "first_difference": None,
        "tie": None,
        "block": draft,
        "batch": 1,
        "process": "p",
    }
    return Decode(**fields | changes)


def facts(draft: str | None, size: int = 100) -> ModelFacts:
    return ModelFacts(
        candidate=named(draft),
        quant="none",
        dtype="float32",
        parameters=size // 4,
        weight_bytes=size,
        quantized_share=0.0,
        kv_bytes_per_token=1,
        context_length=1000,
        vocab_size=100,
        runner="cpu",
        fingerprint="f",
        caveats=(),
        has_kernel=True,
        replay_disagreement=0.0,
    )


def perfect(draft: str = "small", requests: int = 2) -> list[Any]:
    """Requests of two segments in turn, a draft that is always right and costs a tenth of a step;
    decoding takes 8 s without and 4 s with it.
    """
    block = [cost(None, n, 1.0, draft) for n in (1, 2, 3)]
    records: list[Any] = [*block, cost(draft, 1, 0.1, draft), cost(draft, 2, 0.1, draft)]
    records += [facts(None), facts(draft, 40)]
    for at in range(requests):
        request = f"r{at}"
        records += [
            trajectory(request, segment=("chat", "code")[at % 2]),
            replay(request, (1.0,) * (LENGTH - 1), draft),
            decode(request, 0, 8.0, draft),
            decode(request, 2, 4.0, draft),
        ]
    return records


def loaded(draft: str = "small") -> list[Any]:
    """The same and what two rows at once take: a target pass then costs a second a token, so that
    a round of two proposals wins nothing: 3 tokens in 3.2 s.
    """
    passes = [cost(None, n, float(n), draft, batch=2) for n in (1, 2, 3)]
    steps = [cost(draft, n, 0.1, draft, batch=2) for n in (1, 2)]
    return [*perfect(draft), *passes, *steps]


def lookup(request: str) -> LookupReplay:
    """Prompt lookup that never finds anything."""
    nothing = (0,) * (LENGTH - 1)
    return LookupReplay(
        request=request,
        sample=0,
        candidate=Candidate(draft="ngram"),
        window=8,
        proposed=nothing,
        matched=nothing,
    )


def failure(draft: str, reason: str) -> Failure:
    return Failure(candidate=Candidate(draft=draft), stage="load", reason=reason, hint="")


class Hand:
    """The builders, for tests."""

    manifest = staticmethod(manifest)
    trajectory = staticmethod(trajectory)
    replay = staticmethod(replay)
    cost = staticmethod(cost)
    decode = staticmethod(decode)
    facts = staticmethod(facts)
    perfect = staticmethod(perfect)
    loaded = staticmethod(loaded)
    lookup = staticmethod(lookup)
    failure = staticmethod(failure)


@pytest.fixture(scope="session")
def hand() -> type[Hand]:
    return Hand
