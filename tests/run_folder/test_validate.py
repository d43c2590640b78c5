"""Records of the right types that no sweep can have written."""

from __future__ import annotations

import msgspec
import pytest

from draftbench.errors import RunFolderError
from draftbench.records import Candidate, Decode, DraftingMode, LookupReplay, Observation, Replay
from draftbench.run_folder.append_log import append_line, read_lines
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run
from draftbench.run_folder.validate import objection

REPLAY = Replay(
    request="r", sample=0, candidate=Candidate(draft="d"), mode=DraftingMode.GREEDY, draftable=2,
    accept=(1.0, 0.0), confidence=(0.5, 0.25), margin=(1.0, 2.0), rank=(0, 3),
)  # fmt: skip
LOOKUP = LookupReplay(
    request="r",
    sample=0,
    candidate=Candidate(draft="ngram"),
    window=2,
    proposed=(2, 0),
    matched=(1, 0),
)
DECODE = Decode(
    request="r", sample=0, candidate=Candidate(draft="d"), k=2, mode=DraftingMode.GREEDY, repeat=0,
    proposed=(2, 1), accepted=(1, 0), cut=(0, 1), draft_seconds=(0.1, 0.1),
    verify_seconds=(1.0, 1.0), prefill_seconds=1.0, draft_prefill_seconds=None, decode_seconds=2.2,
    output_tokens=4, digest="", first_difference=None, tie=None, block="d", batch=1, process="p",
)  # fmt: skip


@pytest.mark.parametrize("good", [REPLAY, LOOKUP, DECODE])
def test_what_a_sweep_writes_is_taken(good, make):
    assert objection(good) is None
    assert objection(make.trajectory("r")) is None
    assert objection(make.cost_point(1)) is None
    assert objection(make.failure("d", "slow")) is None


@pytest.mark.parametrize(
    ("good", "changes", "words"),
    [
        (REPLAY, {"rank": (0,)}, "`rank` has 1 entries, not 2"),
        (REPLAY, {"overlap": (0.5,)}, "`overlap` has 1 entries, not 2"),
        (REPLAY, {"accept": (1.5, 0.0)}, "probability above 1"),
        (REPLAY, {"accept": (-0.5, 0.0)}, "`accept` is negative"),
        (REPLAY, {"sample": -1}, "`sample` is negative"),
        (REPLAY, {"rank": (0, 10**18)}, "`rank` is negative or too large"),
        (LOOKUP, {"matched": (1,)}, "`matched` has 1 entries, not 2"),
        (LOOKUP, {"matched": (1, 1)}, "more than was proposed"),
        (LOOKUP, {"proposed": (3, 0)}, "more than the window"),
        (DECODE, {"cut": (0,)}, "`cut` has 1 entries, not 2"),
        (DECODE, {"active": (1,)}, "`active` has 1 entries, not 2"),
        (DECODE, {"accepted": (3, 0)}, "more than was proposed"),
        (DECODE, {"batch": 0}, "`batch` or `output_tokens` is 0"),
        (DECODE, {"decode_seconds": 1e300}, "`decode_seconds` is negative or too large"),
    ],
)
def test_what_no_sweep_writes_is_refused_by_its_field(good, changes, words):
    assert words in objection(msgspec.structs.replace(good, **changes))


def test_a_trajectory_has_a_number_for_each_token(make):
    assert "`margins` has 2 entries, not 3" in objection(make.trajectory("r", output_tokens=3))
    assert "more than the output" in objection(make.trajectory("r", looping=3))
    assert "is 0" in objection(make.trajectory("r", weight=0.0))


def test_the_line_is_named(tmp_path):
    append_line(tmp_path / "x.jsonl", [REPLAY])
    append_line(tmp_path / "x.jsonl", [msgspec.structs.replace(REPLAY, rank=())])
    with pytest.raises(RunFolderError, match=r"x\.jsonl` line 2: `rank` has 0 entries"):
        list(read_lines(tmp_path / "x.jsonl", Observation | Replay))


@pytest.mark.parametrize("record", [REPLAY, DECODE])
def test_a_measurement_must_fit_the_response_measured_on(folder, make, record):
    with folder.writer() as writer:
        writer.append([record])
    with pytest.raises(RunFolderError, match="does not fit the response"):
        read_run(RunFolder(folder.path))
    tokens = {"output_tokens": 3, "margins": (1.0,) * 3, "argmax": (1,) * 3}
    with folder.writer() as writer:
        writer.append([make.trajectory("r", **tokens)])
    assert read_run(RunFolder(folder.path)).manifest == folder.manifest
    with folder.writer() as writer:
        writer.append([msgspec.structs.replace(REPLAY, candidate=Candidate(draft="other"))])
        writer.append([make.trajectory("r")])
    with pytest.raises(RunFolderError, match="does not fit the response"):
        read_run(RunFolder(folder.path))


@pytest.mark.parametrize(("window", "good"), [(1, False), (2, True)])
def test_prompt_lookup_must_have_looked_as_far_as_the_largest_k(folder, make, window, good):
    assert folder.manifest.question.ks == (1, 2)
    row = LookupReplay(
        request="r", sample=0, candidate=Candidate(draft="ngram"), window=window, proposed=(1,),
        matched=(0,),
    )  # fmt: skip
    with folder.writer() as writer:
        writer.append([make.trajectory("r"), row])
    if good:
        assert read_run(RunFolder(folder.path)).replays == (row,)
    else:
        with pytest.raises(RunFolderError, match="a lookupreplay of `r` that does not fit"):
            read_run(RunFolder(folder.path))


def test_equal_numbers_are_one_object_and_stay_equal(tmp_path):
    append_line(tmp_path / "x.jsonl", [REPLAY, msgspec.structs.replace(REPLAY, sample=1)])
    one, other = read_lines(tmp_path / "x.jsonl", Replay)
    assert (one, other.confidence) == (REPLAY, REPLAY.confidence)
    assert one.confidence[1] is other.confidence[1]
    assert {type(value) for value in (*one.accept, *other.margin)} == {float}
    assert {type(value) for value in one.rank} == {int}
