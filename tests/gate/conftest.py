"""Makers of baselines and runs, so that a test shows only what it is about."""

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from draftbench.gate.baseline import SCHEMA_VERSION, Baseline, BaselineQuestion, RequestCounts

QUESTION = BaselineQuestion(
    key_id="cafe0123",
    metric_version=1,
    mode="greedy",
    k=4,
    responses="target",
    samples=1,
    max_new_tokens=128,
)
_RUNS = count()  # each baseline is of a run of its own


def _counts(id="r", accepted=15.0, **changes):
    """Ten rounds and forty positions."""
    fields: dict[str, Any] = {
        "id": id,
        "weight": 1.0,
        "sampling": "greedy",
        "tokens": 10.0 + accepted,
        "passes": 10.0,
        "rounds": 10.0,
        "accepted": accepted,
        "positions": 40.0,
        "alpha_sum": accepted,
    }
    return RequestCounts(**fields | changes)


def _baseline(requests, **changes):
    question = {name: changes.pop(name) for name in list(changes) if hasattr(QUESTION, name)}
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "created": "2026-01-01T00:00:00Z",
        "candidate": "small",
        "question": structs.replace(QUESTION, **question),
        "tested": {"draft": "small", "machine": "here", "target runner": "lean"},
        "alpha_definition": "acceptance rate (emitted tokens)",
        "survival": (0.6, 0.4, 0.3, 0.2),
        "faults": (),
        "cost_ratios": (0.1,) * 9,
        "requests": tuple(requests),
        "run": str(next(_RUNS)),
    }
    return Baseline(**fields | changes)


@pytest.fixture
def counts():
    """counts(id, accepted, **fields)"""
    return _counts


@pytest.fixture
def baseline():
    """baseline(requests, **fields of the baseline or of its question)"""
    return _baseline


@pytest.fixture
def run():
    """run(accepted, requests, rows, **fields): requests r000 … that accept so much each, a number
    or a function of the request's number; `rows(number)` are more of its fields, `fields` those of
    the baseline.
    """

    def make(accepted=15.0, requests=40, rows=lambda at: {}, **fields):
        each = accepted if callable(accepted) else lambda at: accepted
        counted = [{"id": f"r{at:03}", "accepted": each(at)} | rows(at) for at in range(requests)]
        return _baseline([_counts(**fields_of) for fields_of in counted], **fields)

    return make
