"""Runs made by hand: a test states the few numbers it is about, the scene fills in the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scenes import manifest, named

from draftbench.records import (
    AnyObservation,
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
from draftbench.run_folder.run import Run, run_of

SMALL = Candidate(draft="small")
PROMPT = 10


class Scene:
    """Collects records; contexts 0 … 1000 are timed unless a test says otherwise."""

    def __init__(self) -> None:
        self.records: list[AnyObservation] = []

    def request(self, name: str, length: int = 9, **changes: Any) -> None:
        """A greedy response of `length` tokens that ends by its limit."""
        fields: dict[str, Any] = {
            "request": name,
            "sample": 0,
            "segment": None,
            "weight": 1.0,
            "sampling": Sampling(),
            "prompt_tokens": PROMPT,
            "output_tokens": length,
            "limit": length,
            "finish": "length",
            "origin": "target",
            "margins": (5.0,) * length,
            "argmax": (1,) * length,
            "digest": "",
        }
        self.records.append(Trajectory(**fields | changes))

    def replay(
        self,
        name: str,
        accept: Sequence[float],
        candidate: Candidate = SMALL,
        draftable: int | None = None,
    ) -> None:
        """What a model draft is accepted with at the positions 1 … L-1."""
        self.records.append(
            Replay(
                request=name,
                sample=0,
                candidate=candidate,
                mode=DraftingMode.GREEDY,
                draftable=len(accept) if draftable is None else draftable,
                accept=tuple(accept),
                confidence=(0.9,) * len(accept),
                margin=(5.0,) * len(accept),
                rank=(0,) * len(accept),
            )
        )

    def lookup(self, name: str, proposed: Sequence[int], matched: Sequence[int]) -> None:
        """What prompt lookup finds at the starts 1 … L-1."""
        self.records.append(
            LookupReplay(
                request=name,
                sample=0,
                candidate=Candidate(draft="ngram"),
                window=8,
                proposed=tuple(proposed),
                matched=tuple(matched),
            )
        )

    def requests(self, count: int, accept: Sequence[float], candidate: Candidate = SMALL) -> None:
        """`count` equal requests, made where missing, with one replay each."""
        known = {r.request for r in self.records if isinstance(r, Trajectory)}
        for name in (f"r{i}" for i in range(count)):
            if name not in known:
                self.request(name, len(accept) + 1)
            self.replay(name, accept, candidate)

    def times(
        self,
        target: Mapping[int, float],
        draft: Mapping[int, float] | None = None,
        candidate: Candidate = SMALL,
        **changes: Any,
    ) -> None:
        """Step times by tokens of the target and the draft in the candidate's block."""
        for name, steps in ((None, target), (candidate.draft, draft or {})):
            for tokens, seconds in steps.items():
                self.cost(name, candidate, tokens, seconds, **changes)

    def cost(
        self,
        draft: str | None,
        candidate: Candidate,
        tokens: int,
        seconds: float | Sequence[float],
        contexts: Sequence[int] = (0, 1000),
        **changes: Any,
    ) -> None:
        """One timed size, the same at all contexts."""
        samples = (seconds,) * 3 if isinstance(seconds, (int, float)) else tuple(seconds)
        for context in contexts:
            fields: dict[str, Any] = {
                "candidate": named(draft, candidate.quant),
                "what": "step",
                "batch": 1,
                "new_tokens": tokens,
                "context": context,
                "seconds": samples,
                "block": str(candidate),
                "runner": "cpu",
                "process": "p",
            }
            self.records.append(CostPoint(**fields | changes))

    def decode(
        self,
        name: str,
        k: int,
        seconds: float,
        candidate: Candidate = SMALL,
        **changes: Any,
    ) -> None:
        """A run that took `seconds` and gave 9 tokens: 8 plain steps, or one full round of k."""
        rounds = len(changes.get("verify_seconds", range(1 if k else 8)))
        fields: dict[str, Any] = {
            "request": name,
            "sample": 0,
            "candidate": candidate if k else None,
            "k": k,
            "mode": DraftingMode.GREEDY,
            "repeat": 0,
            "proposed": (k,) * rounds,
            "accepted": (k,) * rounds,
            "cut": (0,) * rounds,
            "draft_seconds": (0.0,) * rounds,
            "verify_seconds": (seconds / rounds,) * rounds,
            "prefill_seconds": 1.0,
            "draft_prefill_seconds": 1.0 if k else None,
            "decode_seconds": seconds,
            "output_tokens": 9,
            "digest": "",
            "first_difference": None,
            "tie": None,
            "block": str(candidate),
            "batch": 1,
            "process": "p",
        }
        self.records.append(Decode(**fields | changes))

    def facts(self, draft: str | None, **changes: Any) -> None:
        """A model of 100 bytes and one byte of cache per token."""
        fields: dict[str, Any] = {
            "candidate": named(draft, changes.get("quant", "none")),
            "quant": "none",
            "dtype": "float32",
            "parameters": 25,
            "weight_bytes": 100,
            "quantized_share": 0.0,
            "kv_bytes_per_token": 1,
            "context_length": 1000,
            "vocab_size": 100,
            "runner": "cpu",
            "fingerprint": "",
            "caveats": (),
            "has_kernel": True,
            "replay_disagreement": 0.0,
        }
        self.records.append(ModelFacts(**fields | changes))

    def failure(self, draft: str, reason: str) -> None:
        """A candidate that could not be measured."""
        self.records.append(
            Failure(candidate=Candidate(draft=draft), stage="load", reason=reason, hint="")
        )

    def batch_run(
        self,
        name: str,
        k: int,
        accepted: Sequence[int],
        seconds: Sequence[float],
        **changes: Any,
    ) -> None:
        """A row of a batch of two, always both active: every round proposes k and takes `seconds`
        for both rows.
        """
        rounds = len(accepted)
        fields: dict[str, Any] = {
            "proposed": (k,) * rounds,
            "accepted": tuple(accepted),
            "cut": (0,) * rounds,
            "draft_seconds": (0.0,) * rounds,
            "verify_seconds": tuple(seconds),
            "output_tokens": 1 + sum(accepted) + rounds,
            "batch": 2,
            "active": (2,) * rounds,
        }
        self.decode(name, k, sum(seconds), **fields | changes)

    def observed(self, *ks: int, **changes: Any) -> Run:
        """All of it as a run over the draft lengths `ks`; `changes` are of the question."""
        return run_of(manifest(ks=ks, **changes), self.records)


@pytest.fixture
def scene() -> Scene:
    """An empty run."""
    return Scene()
