"""Small runs made by hand, of a draft that is always right: every figure of theirs is known."""

from __future__ import annotations

from typing import Any

import scenes
from scenes import Scene, trajectory

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Recommendation
from draftbench.records import Candidate, CostPoint, Decode, LookupReplay, ModelFacts, Replay
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.run import Run, run_of

EIGHT = (1.0,) * 8


def manifest(**changes: Any) -> Manifest:
    named = {"target": "/models/big", "command": "draftbench sweep --target /models/big"}
    return scenes.manifest(**named | changes)


def replay(request: str, accept: tuple[float, ...], draft: str = "small") -> Replay:
    return scenes.replay(accept, Candidate(draft=draft), request=request)


def cost(
    draft: str | None, tokens: int, seconds: float, block: str = "small", **changes: Any
) -> CostPoint:
    """The same time, three times."""
    scene = Scene()
    scene.cost(draft, Candidate(draft=block), tokens, seconds, contexts=(0,), **changes)
    return scene.records[0]


def decode(request: str, k: int, seconds: float, draft: str = "small", **changes: Any) -> Decode:
    """Eight tokens in `seconds`; with k = 2 as the replay of a perfect draft says: 2, 2, 1."""
    scene = Scene()
    scene.decode(request, k, seconds, Candidate(draft=draft), **changes)
    return scene.records[0]


def facts(draft: str | None, size: int = 100) -> ModelFacts:
    sizes = {"weight_bytes": size, "parameters": size // 4}
    return scenes.facts(scenes.named(draft), **sizes, runner="cpu")


def perfect(draft: str = "small", requests: int = 10) -> list[Any]:
    """Requests of two segments in turn, a draft that is always right and costs a tenth of a step;
    decoding takes 8 s without and 4 s with it.
    """
    records: list[Any] = [cost(None, n, 1.0, draft) for n in (1, 2, 3)]
    records += [*(cost(draft, n, 0.1, draft) for n in (1, 2)), facts(None), facts(draft, 40)]
    for at in range(requests):
        name = f"r{at}"
        records += [trajectory(name, segment=("chat", "code")[at % 2]), replay(name, EIGHT, draft)]
        records += [decode(name, 0, 8.0, draft), decode(name, 2, 4.0, draft)]
    return records


def loaded(draft: str = "small") -> list[Any]:
    """The same and what two rows at once take: a target pass then costs a second a token, so that
    a round of two proposals wins nothing: 3 tokens in 3.2 s.
    """
    passes = [cost(None, n, float(n), draft, concurrency=2) for n in (1, 2, 3)]
    steps = [cost(draft, n, 0.1, draft, concurrency=2) for n in (1, 2)]
    return [*perfect(draft), *passes, *steps]


def undecoded() -> list[Any]:
    """The same, of which nothing was decoded."""
    return [r for r in perfect() if not isinstance(r, Decode)]


def one_request() -> list[Any]:
    """The same of the first request alone."""
    return [r for r in perfect() if getattr(r, "request", "r0") == "r0"]


def untimed(draft: str = "small") -> list[Any]:
    """Ten requests that a perfect draft replayed, and nothing else."""
    return [r for n in "0123456789" for r in (trajectory(n), replay(n, EIGHT, draft))]


def lookup(request: str, window: int = 8) -> LookupReplay:
    """Prompt lookup that never finds anything."""
    return scenes.lookup((0,) * 8, (0,) * 8, window, request)


def prefills() -> list[CostPoint]:
    """A second each, of the target and of the draft."""
    return [cost(model, 10, 1.0, what="prefill") for model in (None, "small")]


def run(records: list[Any], **changes: Any) -> Run:
    """The records as a run; fields of its manifest are changed by name."""
    return run_of(manifest(**changes), records)


def answer(
    records: list[Any], *, asked: dict[str, Any] | None = None, **changes: Any
) -> Recommendation:
    """What `recommend` decides on them with the options that are `asked`."""
    return recommend(run(records, **changes), DecisionOptions(**asked or {}))
