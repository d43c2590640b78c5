"""What holds when a run was interrupted, tried again, or measured something twice."""

from __future__ import annotations

from draftbench.records import Candidate, Decode, DraftingMode
from draftbench.run_folder.manifest import portable
from draftbench.run_folder.run import run_of, to_decode


def standing(make, *records):
    return [failure.reason for failure in run_of(make.manifest(), records).failures]


def test_the_last_failure_of_a_candidate_holds(make):
    assert standing(make, make.failure("a", "slow"), make.failure("a", "broken")) == ["broken"]


def test_failures_of_different_candidates_and_levels_all_hold(make):
    found = standing(
        make,
        make.failure("a", "one"),
        make.failure("b", "two"),
        make.failure("a", "three", quant="int4"),
    )
    assert found == ["one", "two", "three"]


def test_a_later_success_takes_back_all_failures_of_its_candidate(make):
    found = standing(
        make,
        make.failure("a", "one", stage="load"),
        make.failure("a", "two"),
        make.failure("b", "three"),
        make.failure("a", "", resolved=True),
    )
    assert found == ["three"]


def test_a_failure_after_a_success_holds_again(make):
    found = standing(
        make,
        make.failure("a", "one"),
        make.failure("a", "", resolved=True),
        make.failure("a", "two"),
    )
    assert found == ["two"]


def test_the_last_of_two_trajectories_of_a_request_holds(make):
    both = [make.trajectory("r", digest="old"), make.trajectory("r", digest="new")]
    assert [t.digest for t in run_of(make.manifest(), both).trajectories] == ["new"]


def decode(process, k, **changes):
    fields = {
        "request": "r", "sample": 0, "candidate": Candidate(draft="d") if k else None, "k": k,
        "mode": DraftingMode.GREEDY, "repeat": 0, "proposed": (), "accepted": (), "cut": (),
        "draft_seconds": (), "verify_seconds": (), "prefill_seconds": 0.0,
        "draft_prefill_seconds": None, "decode_seconds": 1.0, "output_tokens": 2, "digest": "",
        "first_difference": None, "tie": None, "block": "d", "batch": 4, "process": process,
    }  # fmt: skip
    return Decode(**fields | changes)


def test_of_a_batch_only_the_rows_of_its_last_process_hold(make):
    """What the first one decoded besides never ran beside the second one's baseline."""
    first = [decode("p", 0), decode("p", 0, repeat=1), decode("p", 2)]
    second = [decode("q", 0), decode("q", 3)]
    assert run_of(make.manifest(), first + second).decodes == tuple(second)


def test_other_batches_and_blocks_keep_the_rows_of_their_own_last_process(make):
    first = [decode("p", 0, batch=8), decode("p", 0, block="e"), decode("p", 2, batch=1)]
    second = [decode("q", 0), decode("q", 2, batch=1)]
    assert set(run_of(make.manifest(), first + second).decodes) == {*first, *second}


def alone(process, k, **changes):
    return decode(process, k, batch=1, **changes)


def test_of_a_row_alone_another_cell_is_not_compared_with_an_earlier_processs_baseline(make):
    """The second process was asked for another k too and decoded all again."""
    first = [alone("p", 0, decode_seconds=8.0), alone("p", 2)]
    second = [alone("q", 0, decode_seconds=4.0), alone("q", 2), alone("q", 3)]
    assert run_of(make.manifest(), first + second).decodes == tuple(second)


def test_of_a_row_alone_processes_that_decoded_the_same_cells_all_count(make):
    """Request by request: only the second process decoded the other one."""
    rows = [alone(process, k) for process in "pq" for k in (0, 2)]
    rows += [alone("q", k, request="other") for k in (0, 2, 3)]
    assert set(run_of(make.manifest(), rows).decodes) == set(rows)


def test_of_a_row_alone_without_a_process_that_has_all_cells_the_last_one_counts(make):
    first = [alone("p", 0), alone("p", 2)]
    second = [alone("q", 0), alone("q", 3)]
    assert run_of(make.manifest(), first + second).decodes == tuple(second)


def test_the_longer_responses_are_decoded_in_an_order_that_no_length_decides(make):
    """Of two samples of three requests those with eight tokens or more; the short one only where
    there is no longer one.
    """
    lengths = {("b", 0): 9, ("a", 0): 2, ("c", 0): 8, ("a", 1): 30, ("d", 0): 1}
    rows = [
        make.trajectory(request, sample=sample, output_tokens=length)
        for (request, sample), length in lengths.items()
    ]
    chosen = [(t.request, t.sample) for t in to_decode(rows, 9)]
    assert chosen == [("b", 0), ("c", 0), ("a", 1)]
    assert [(t.request, t.sample) for t in to_decode(rows, 1)] == [("b", 0)]
    assert [t.request for t in to_decode(rows[1:2], 9)] == ["a"]
    assert to_decode(rows[-1:], 9) == []


def test_the_home_directory_is_not_told(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    told = portable("draftbench sweep --target /home/alice/models/t --drafts /data/d")
    assert told == "draftbench sweep --target ~/models/t --drafts /data/d"
