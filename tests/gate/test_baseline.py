"""Baseline files: read back equal, small, refused when they are something else."""

import errno
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
def path(tmp_path):
    return tmp_path / "new" / "b.json"


@pytest.fixture
def written(path, baseline, counts):
    """written(**fields): a baseline of two requests in `path`, its JSON changed by hand."""

    def make(**fields):
        write_baseline(baseline([counts("a"), counts("b")]), path)
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
def test_a_baseline_is_read_back_as_it_was_written(path, baseline, counts, **drawn):
    speed = DecodingTimes(tokens=9.0, seconds=0.1, plain_tokens=9.0, plain_seconds=0.2)
    rows = [
        counts(str(i), a, segment=drawn["segment"], speed=speed)
        for i, a in enumerate(drawn["accepted"])
    ]
    one = baseline(rows, tested=drawn["tested"])
    write_baseline(one, path)
    assert read_baseline(path) == one


def test_every_request_is_one_line_of_under_200_bytes(path, baseline, counts):
    write_baseline(baseline([counts(f"{i:016x}", segment="chat") for i in range(3)]), path)
    rows = [line for line in path.read_text().splitlines() if '"id"' in line]
    assert len(rows) == 3
    assert all(len(row) < 200 for row in rows)


ROW = {"id": "r", "weight": 1, "sampling": "greedy", "tokens": 25, "passes": 10, "rounds": 10}
ROW |= {"accepted": 15, "positions": 40, "alpha_sum": 15}


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
        ({"requests": [ROW | {"alpha_sum": 41}]}, "counts more of request r than there was"),
        ({"requests": [ROW | {"rounds": 10.5}]}, "counts more of request r than there was"),
        ({"requests": [ROW | {"accepted": 41}]}, "counts more of request r than there was"),
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


def test_only_a_plain_file_is_replaced(tmp_path, baseline, counts):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for path in before:
        with pytest.raises(RunFolderError, match="it is not a plain file"):
            write_baseline(baseline([counts()]), path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_failed_write_is_an_error_and_leaves_the_old_file(path, baseline, counts, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    old = baseline([counts("old")])
    write_baseline(old, path)
    with pytest.raises(RunFolderError, match="cannot write the baseline"):
        write_baseline(old, path / "b.json")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFolderError, match="No space left"):
        write_baseline(baseline([counts("new")]), path)
    assert read_baseline(path) == old
