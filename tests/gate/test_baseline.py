"""Baseline files: read back equal, small, refused when they are something else."""

import errno
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftbench.errors import RunFolderError
from draftbench.gate.baseline import (
    DOUBLED,
    Speed,
    read_baseline,
    write_baseline,
)

# Without what moves a cursor.
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    accepted=st.lists(st.floats(0, 40), min_size=1, max_size=5),
    segment=TEXTS | st.none(),
    tested=st.dictionaries(TEXTS, TEXTS, max_size=3),
)
def test_a_baseline_is_read_back_as_it_was_written(tmp_path, baseline, counts, **drawn):
    speed = Speed(tokens=9.0, seconds=0.1, plain_tokens=9.0, plain_seconds=0.2)
    rows = [
        counts(str(i), a, segment=drawn["segment"], speed=speed)
        for i, a in enumerate(drawn["accepted"])
    ]
    written = baseline(rows, tested=drawn["tested"])
    write_baseline(written, tmp_path / "b.json")
    assert read_baseline(tmp_path / "b.json") == written


def test_every_request_is_one_line_of_under_200_bytes(tmp_path, baseline, counts):
    path = tmp_path / "new" / "b.json"
    write_baseline(baseline([counts(f"{i:016x}", segment="chat") for i in range(3)]), path)
    rows = [line for line in path.read_text().splitlines() if '"id"' in line]
    assert len(rows) == 3
    assert all(len(row) < 200 for row in rows)
    assert len(json.loads(path.read_text())["requests"]) == 3


def changed(path, **fields):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_version": 4}, "schema 4, newer than"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"requests": [{"id": "r"}]}, r"missing required field .* at `\$.requests\[0\]`"),
        ({"survival": [-0.1]}, r">= 0.* at `\$.survival"),
        ({"cost_ratios": [1e300]}, r"<= 1000000000000.* at `\$.cost_ratios"),
        ({"requests": []}, "holds no request"),
    ],
)
def test_a_changed_file_is_refused_with_the_place(tmp_path, baseline, counts, fields, message):
    path = tmp_path / "b.json"
    write_baseline(baseline([counts()]), path)
    changed(path, **fields)
    with pytest.raises(RunFolderError, match=message):
        read_baseline(path)


@pytest.mark.parametrize("field", ["k", "samples", "max_new_tokens"])
@pytest.mark.parametrize("number", [0, 2_000_000_000])
def test_a_question_of_an_absurd_size_is_refused_with_its_key(
    tmp_path, baseline, counts, field, number
):
    write_baseline(baseline([counts()], **{field: number}), tmp_path / "b.json")
    with pytest.raises(RunFolderError, match=rf"at `\$\.question\.{field}`") as caught:
        read_baseline(tmp_path / "b.json")
    assert caught.value.exit_code == 2


def test_the_longest_draft_of_a_sweep_is_read(tmp_path, baseline, counts):
    write_baseline(baseline([counts()], k=64), tmp_path / "b.json")
    assert read_baseline(tmp_path / "b.json").question.k == 64
    write_baseline(baseline([counts()], k=65), tmp_path / "b.json")
    with pytest.raises(RunFolderError, match="<= 64"):
        read_baseline(tmp_path / "b.json")


def test_what_moves_a_cursor_is_taken_out_of_a_baseline(tmp_path, baseline, counts):
    write_baseline(baseline([counts()], candidate="a\x1b[2Jb"), tmp_path / "b.json")
    assert read_baseline(tmp_path / "b.json").candidate == "a\ufffd[2Jb"


def test_a_request_that_stands_twice_is_refused(tmp_path, baseline, counts):
    write_baseline(baseline([counts("r"), counts("r")]), tmp_path / "b.json")
    with pytest.raises(RunFolderError, match="holds a request twice"):
        read_baseline(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha_sum", 41.0), ("rounds", 10.5)],
    ids=["more accepted than positions", "more rounds than passes"],
)
def test_counts_that_no_run_can_have_are_refused(tmp_path, baseline, counts, field, value):
    write_baseline(baseline([counts("a"), counts("b", **{field: value})]), tmp_path / "b.json")
    with pytest.raises(RunFolderError, match="counts more of request b than there was"):
        read_baseline(tmp_path / "b.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1", "null", '"3"'])
def test_a_count_that_is_no_number_is_refused(tmp_path, baseline, counts, number):
    path = tmp_path / "b.json"
    write_baseline(baseline([counts()]), path)
    path.write_text(path.read_text().replace('"rounds":10.0', f'"rounds":{number}'))
    with pytest.raises(RunFolderError, match="is not a baseline"):
        read_baseline(path)


def test_a_file_cut_at_any_place_is_refused(tmp_path, baseline, counts):
    path = tmp_path / "b.json"
    write_baseline(baseline([counts("a"), counts("b")]), path)
    whole = path.read_bytes().rstrip()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(RunFolderError, match="is not a baseline"):
            read_baseline(path)


def test_a_file_of_the_first_layout_is_read(tmp_path, baseline, counts):
    written = baseline([counts()], schema_version=1)
    write_baseline(written, tmp_path / "b.json")
    assert '"prompt_tokens"' not in (tmp_path / "b.json").read_text()
    assert read_baseline(tmp_path / "b.json") == written


def test_a_fault_of_an_earlier_layout_gets_its_kind(tmp_path, baseline, counts):
    write_baseline(baseline([counts()]), tmp_path / "b.json")
    message = "all 40 prompts begin with the same token twice, as when both write the first one"
    changed(tmp_path / "b.json", schema_version=2, faults=[message])
    (fault,) = read_baseline(tmp_path / "b.json").faults
    assert (fault.kind, fault.message) == (DOUBLED, message)


@pytest.mark.parametrize("content", [b"", b"not json", b"[1]", b'{"k":"\xff"}', b"[" * 100_000])
def test_something_else_is_refused(tmp_path, content):
    path = tmp_path / "b.json"
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="is not a baseline"):
        read_baseline(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RunFolderError, match="cannot read the baseline"):
            read_baseline(path)


def test_a_file_beyond_the_size_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("draftbench.gate.baseline.MAX_BYTES", 10)
    (tmp_path / "b.json").write_text("{" + " " * 20 + "}")
    with pytest.raises(RunFolderError, match="larger than"):
        read_baseline(tmp_path / "b.json")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunFolderError, match="it is not a plain file"):
        read_baseline(tmp_path / "pipe")


def test_only_a_plain_file_is_replaced(tmp_path, baseline, counts):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        (tmp_path / f"link to {name}").symlink_to(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    for path in before:
        with pytest.raises(RunFolderError, match="it is not a plain file"):
            write_baseline(baseline([counts()]), path)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link to folder").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path, baseline, counts, monkeypatch
):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    old = baseline([counts("old")])
    write_baseline(old, tmp_path / "b.json")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFolderError, match="No space left"):
        write_baseline(baseline([counts("new")]), tmp_path / "b.json")
    assert read_baseline(tmp_path / "b.json") == old
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_an_unwritable_place_is_refused(tmp_path, baseline, counts):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write the baseline"):
        write_baseline(baseline([counts()]), tmp_path / "file" / "b.json")
