"""Baseline files: read back equal, small, refused when they are something else."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftbench.errors import RunFolderError
from draftbench.gate.baseline import DecodingTimes, read_baseline, write_baseline

# Without what moves a cursor.
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]))


@pytest.fixture
def possible(baseline, counts):
    """possible(accepted by request, fields of each, fields of all): a baseline that a run can have,
    of ten rounds and the tokens that they made.
    """

    def make(accepted, of_each=None, **fields):
        rows = [
            counts(name, a, positions=10 + a, alpha_sum=a, **(of_each or {}))
            for name, a in accepted.items()
        ]
        survival = (sum(accepted.values()) / len(accepted) / 10 / 4,) * 4
        return baseline(rows, survival=survival, **fields)

    return make


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "b.json"


@pytest.fixture
def written(path, possible):
    """written(**fields): a baseline of two requests in `path`, its JSON changed by hand."""

    def make(**fields):
        write_baseline(possible({"a": 15.0, "b": 15.0}), path)
        document = json.loads(path.read_text())
        document["question"] |= {
            name: fields.pop(name) for name in document["question"].keys() & fields
        }
        path.write_text(json.dumps(document | fields))
        return path

    return make


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    accepted=st.lists(st.floats(0, 40), min_size=1, max_size=5),
    segment=TEXTS | st.none(),
    tested=st.dictionaries(TEXTS, TEXTS, max_size=3),
)
def test_a_baseline_is_read_back_as_it_was_written(path, possible, **drawn):
    speed = DecodingTimes(tokens=9.0, seconds=0.1, plain_tokens=9.0, plain_seconds=0.2)
    accepted = {str(i): a for i, a in enumerate(drawn["accepted"])}
    of_each = {"segment": drawn["segment"], "speed": speed}
    one = possible(accepted, of_each, tested=drawn["tested"])
    write_baseline(one, path)
    assert read_baseline(path) == one


def test_every_request_is_one_line_of_under_200_bytes(path, baseline, counts):
    write_baseline(baseline([counts(f"{i:016x}", segment="chat") for i in range(3)]), path)
    rows = [line for line in path.read_text().splitlines() if '"id"' in line]
    assert len(rows) == 3
    assert all(len(row) < 200 for row in rows)


ROW = {"id": "r", "weight": 1, "sampling": "greedy", "tokens": 25, "passes": 10, "rounds": 10}
ROW |= {"accepted": 15, "positions": 25, "alpha_sum": 15}
TOGETHER = "counts of request r what cannot be together"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_version": 11}, "schema 11, newer than"),
        ({"schema_version": 7}, "schema 7, older than"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"requests": [{"id": "r"}]}, r"missing required field .* at `\$.requests\[0\]`"),
        ({"survival": [-0.1]}, r">= 0.* at `\$.survival"),
        ({"cost_ratios": [1e300]}, r"<= 1000000000000.* at `\$.cost_ratios"),
        ({"k": 65}, r"<= 64.* at `\$\.question\.k"),
        ({"k": 0}, r"at `\$\.question\.k"),
        ({"samples": 2_000_000_000}, r"at `\$\.question\.samples"),
        ({"max_new_tokens": 2_000_000_000}, r"at `\$\.question\.max_new_tokens"),
        ({"requests": []}, "holds no request"),
        ({"requests": [ROW, ROW]}, "holds a request twice"),
        ({"requests": [ROW | {"alpha_sum": 26}]}, TOGETHER),
        ({"requests": [ROW | {"positions": 26}]}, TOGETHER),
        ({"requests": [ROW | {"rounds": 10.5}]}, TOGETHER),
        ({"requests": [ROW | {"accepted": 41, "tokens": 51}]}, TOGETHER),
        # Ten passes and 15 accepted tokens make 25, or 24 where the last ended inside its proposal.
        ({"requests": [ROW | {"accepted": 0}]}, TOGETHER),
        ({"requests": [ROW | {"tokens": 1e9, "positions": 0, "alpha_sum": 0}]}, TOGETHER),
        ({"requests": [ROW | {"passes": 11.5}]}, TOGETHER),
        # Ten rounds that accept 14 in one request; those of all the requests accepted 15.
        (
            {"requests": [ROW | {"accepted": 14, "tokens": 24, "positions": 24, "alpha_sum": 14}]},
            "does not hold the requests, or the counts, that its `survival` is of",
        ),
        ({"survival": [1.1]}, r"<= 1.* at `\$.survival"),
    ],
)
def test_a_changed_file_is_refused_with_the_place(written, fields, message):
    with pytest.raises(RunFolderError, match=message) as caught:
        read_baseline(written(**fields))
    assert caught.value.exit_code == 2


def test_the_longest_draft_is_read_and_what_moves_a_cursor_taken_out(written):
    found = read_baseline(written(k=64, candidate="a\x1b[2Jb"))
    assert (found.question.k, found.candidate) == (64, "a\ufffd[2Jb")


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="is not a baseline"):
        read_baseline(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1", "null", '"3"'])
def test_a_count_that_is_no_number_is_refused(written, number):
    path = written()
    whole = path.read_bytes()
    assert b'"rounds": 10.0' in whole
    refused(path, whole.replace(b'"rounds": 10.0', f'"rounds": {number}'.encode()))


def test_a_file_cut_at_any_place_or_of_something_else_is_refused(written):
    path = written()
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        refused(path, whole[:size])
    for content in (b"not json", b"[1]", b'{"k":"\xff"}', b"[" * 100_000):
        refused(path, content)


def test_what_is_no_plain_file_is_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for name in ("none.json", "pipe", "."):
        with pytest.raises(RunFolderError, match="cannot read the baseline"):
            read_baseline(tmp_path / name)
    monkeypatch.setattr("draftbench.gate.baseline.MAX_BYTES", 10)
    (tmp_path / "b.json").write_text("{" + " " * 20 + "}")
    with pytest.raises(RunFolderError, match="larger than"):
        read_baseline(tmp_path / "b.json")


def test_one_of_several_requests_is_not_taken_for_all(possible, path):
    """Also where what is left of the file is as it was."""
    write_baseline(possible({"a": 15.0, "b": 14.0, "c": 16.5}), path)
    document = json.loads(path.read_text())
    assert read_baseline(path)
    for left in (document["requests"][:1], document["requests"][1:]):
        path.write_text(json.dumps(document | {"requests": left}))
        with pytest.raises(RunFolderError, match="does not hold the requests, or the counts"):
            read_baseline(path)


def test_what_cannot_be_written_is_an_error(tmp_path, possible):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "file" / "b.json"):
        with pytest.raises(RunFolderError, match="cannot write the baseline"):
            write_baseline(possible({"a": 15.0}), path)
