"""A small run made by hand, on which every figure of a report has a known value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import scenes
from scenes import failure, named, trajectory

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Recommendation
from draftbench.records import Candidate, CostPoint, Decode, LookupReplay, ModelFacts, Replay
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.run import Run, read_run, run_of

REFERENCE = Path(__file__).parents[2] / "results/reference"
LENGTH = 9


def manifest(**changes: Any) -> Manifest:
    named = {"target": "/models/big", "command": "draftbench sweep --target /models/big"}
    return scenes.manifest(**named | changes)


def replay(request: str, accept: tuple[float, ...], draft: str = "small") -> Replay:
    return scenes.replay(accept, Candidate(draft=draft), request=request)


def cost(
    draft: str | None, tokens: int, seconds: float, block: str = "small", **changes: Any
) -> CostPoint:
    """The same time, three times."""
    fields = {"new_tokens": tokens, "context": 0, "block": block, "runner": "cpu", "process": "p"}
    return scenes.step(named(draft), *(seconds,) * 3, **fields | changes)


def decode(request: str, k: int, seconds: float, draft: str = "small", **changes: Any) -> Decode:
    """Eight tokens in `seconds`; with k = 2 as the replay of a perfect draft says: 2, 2, 1."""
    proposed = (2, 2, 1) if k else (0,) * (LENGTH - 1)
    fields: dict[str, Any] = {
        "request": request,
        "proposed": proposed,
        "accepted": proposed,
        "cut": (0,) * len(proposed),
        "draft_seconds": (0.0,) * len(proposed),
        "verify_seconds": (seconds / len(proposed),) * len(proposed),
        "prefill_seconds": 1.0,
        "draft_prefill_seconds": 1.0 if k else None,
        "output_tokens": LENGTH,
        "process": "p",
    }
    return scenes.decode(Candidate(draft=draft), k, seconds, **fields | changes)


def facts(draft: str | None, size: int = 100) -> ModelFacts:
    return scenes.facts(named(draft), weight_bytes=size, parameters=size // 4, runner="cpu")


def perfect(draft: str = "small", requests: int = 10) -> list[Any]:
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


def untimed() -> list[Any]:
    """Ten requests that a perfect draft replayed, and nothing else."""
    return [r for n in "0123456789" for r in (trajectory(n), replay(n, (1.0,) * (LENGTH - 1)))]


def lookup(request: str, window: int = 8) -> LookupReplay:
    """Prompt lookup that never finds anything."""
    nothing = (0,) * (LENGTH - 1)
    return LookupReplay(
        request=request,
        sample=0,
        candidate=Candidate(draft="ngram"),
        window=window,
        proposed=nothing,
        matched=nothing,
    )


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


@pytest.fixture(scope="session")
def hand() -> SimpleNamespace:
    """The builders."""
    made = (manifest, trajectory, replay, cost, decode, facts, perfect, loaded, untimed, lookup)
    made += (prefills, failure, run, answer)
    return SimpleNamespace(**{builder.__name__: builder for builder in made})


@pytest.fixture(scope="session")
def kept() -> dict[str, Run]:
    """The kept runs by name."""
    return {folder.name: read_run(RunFolder(folder)) for folder in REFERENCE.iterdir()}


@pytest.fixture(scope="session")
def reference(kept) -> Run:
    return kept["qwen2.5-coder"]
