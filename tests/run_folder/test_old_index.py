"""The index of a run's records gives what the two gave that were there before it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folder.old_index import OldSweepState, old_run_of
from run_folder.test_observations import RUNS, histories

from draftbench.records import (
    CostPoint,
    Decode,
    EngineFacts,
    MachineState,
    ModelFacts,
    Served,
    WorkerFacts,
)
from draftbench.run_folder.observations import Observations
from draftbench.run_folder.run import run_of


def identity(record):
    match record:
        case Decode():
            return record.block, record.process, record.concurrency, record.k, record.key
        case CostPoint():
            return record.process, record.candidate, record.new_tokens, "pass"
        case MachineState():
            return record.process, record.at
        case WorkerFacts():
            return record.process, "worker"
        case EngineFacts():
            return record.server, "engine"
        case ModelFacts():
            return record.candidate, "facts"
    return id(record)


def once(records):
    """Without further records of what the old index counted twice: the first difference."""
    return list({identity(record): record for record in records}.values())


@pytest.mark.parametrize("kind", sorted(RUNS))
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_as_read_run_had_it(kind, data):
    records = once(data.draw(histories(kind)))
    old, new = old_run_of(RUNS[kind], records), run_of(RUNS[kind], records)
    for name in (
        "trajectories", "replays", "decodes", "costs", "failures", "states", "workers", "engines",
        "served",
    ):  # fmt: skip
        assert getattr(old, name) == getattr(new, name), name
    assert {f.candidate: f for f in old.facts} == {f.candidate: f for f in new.facts}


@pytest.mark.parametrize("kind", sorted(RUNS))
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_as_the_sweep_had_it(kind, data):
    records = once(data.draw(histories(kind)))
    old, new = OldSweepState(), Observations()
    for record in records:
        old.add([record])
        new.add([record])
    assert old.responses == new.trajectories
    assert old.replays == new.replays
    assert old.failures == new.failures
    assert {c: rows[-1] for c, rows in old.facts.items()} == new.facts
    assert old.engines == list(new.engines.values())
    points = [point for rows in old.costs.values() for point in rows]
    assert points == list(new.costs.values())
    for asked, rows in old.answers.items():
        counted = {row.key for row in new.answers(asked) if row.error is None}
        begun = [
            r.server
            for r in records
            if isinstance(r, Served)
            if (r.candidate, r.k, r.repeat) == asked[:3]
            and (r.load == "open") == (asked[3] is None)
            and (asked[3] in (None, r.concurrency))
        ]
        if asked[3] is None and new.servers(asked) != [begun[-1]]:
            # Second difference: the old sweep went on with the session begun last, `read_run` with
            # the last whole one.
            continue
        # Third difference: the old sweep forgot that another server had answered, too.
        if len(set(begun)) > 1 and asked[3] is not None:
            assert rows.keys() <= counted
        elif asked[3] is None and len(set(begun)) > 1:
            # Fourth: of a server that came twice, with another between, it forgot the first part.
            assert rows.keys() <= counted
        else:
            assert rows.keys() == counted
