"""An append is kept whole or not at all, whatever cut it short."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftbench.errors import RunFolderError
from draftbench.records import AnyObservation
from draftbench.run_folder import append_log
from draftbench.run_folder.append_log import append_line, read_lines

PATIENT = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(path):
    return list(read_lines(path, AnyObservation))


def test_a_file_cut_at_any_byte_loses_only_the_torn_append_and_goes_on(tmp_path, make):
    path = tmp_path / "file.jsonl"
    appends = [
        [make.trajectory("a")],
        [make.cost_point(1), make.cost_point(2)],
        [make.failure("draft", "it was slow")],
    ]
    ends = [0]
    for records in appends:
        append_line(path, records)
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = [record for records, end in zip(appends, ends[1:], strict=True) for record in records
                if end <= cut]  # fmt: skip
        assert read(path) == kept
        append_line(path, [make.trajectory("next")])
        assert read(path) == [*kept, make.trajectory("next")]


def test_a_torn_line_longer_than_a_block_is_dropped(tmp_path, make):
    path = tmp_path / "file.jsonl"
    append_line(path, [make.trajectory("a")])
    with path.open("ab") as stream:
        stream.write(b"x" * 200_000)
    append_line(path, [make.trajectory("b")])
    assert read(path) == [make.trajectory("a"), make.trajectory("b")]


def test_a_disk_that_fills_up_inside_a_line_leaves_the_file_as_it_was(tmp_path, make, monkeypatch):
    path = tmp_path / "file.jsonl"
    append_line(path, [make.trajectory("a")])
    before, write = path.read_bytes(), os.write

    def full(descriptor, data):
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:-50])

    monkeypatch.setattr(append_log.os, "write", full)
    with pytest.raises(RunFolderError, match="No space left") as caught:
        append_line(path, [make.trajectory("b")])
    assert "free some space" in caught.value.hint
    assert path.read_bytes() == before


def test_a_limit_on_file_sizes_is_named_and_the_file_stays_readable(tmp_path, make):
    path = tmp_path / "file.jsonl"
    append_line(path, [make.failure("draft", "first")])
    program = textwrap.dedent(f"""
        import resource
        from pathlib import Path
        from draftbench.errors import RunFolderError
        from draftbench.records import Candidate, Failure
        from draftbench.run_folder.append_log import append_line
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        record = Failure(candidate=Candidate(draft="d"), stage="s", reason="x" * 9000, hint="h")
        try:
            append_line(Path({str(path)!r}), [record])
        except RunFolderError as error:
            print(error.message, "|", error.hint)
    """)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "File too large | a limit on file sizes is set" in told.stdout, told.stderr
    assert read(path) == [make.failure("draft", "first")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096  # this process is not limited


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "may not write"), (errno.ESTALE, "repeat")],
)
def test_a_folder_that_cannot_be_written_is_an_error_with_a_hint(
    tmp_path, make, monkeypatch, code, words
):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(append_log.os, "open", refuse)
    with pytest.raises(RunFolderError, match=os.strerror(code)) as caught:
        append_line(tmp_path / "file.jsonl", [make.trajectory("a")])
    assert words in caught.value.hint


def test_a_link_in_place_of_a_file_is_neither_followed_nor_changed(tmp_path, make):
    outside = tmp_path / "outside"
    outside.write_text("somebody's letter without an end")
    link = tmp_path / "file.jsonl"
    link.symlink_to(outside)
    for use in (lambda: read(link), lambda: append_line(link, [make.trajectory("a")])):
        with pytest.raises(RunFolderError, match="symbolic link"):
            use()
    assert outside.read_text() == "somebody's letter without an end"


def test_a_pipe_in_place_of_a_file_does_not_hang_the_reader(tmp_path):
    os.mkfifo(tmp_path / "file.jsonl")
    with pytest.raises(RunFolderError, match="not a file"):
        read(tmp_path / "file.jsonl")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            b'{"kind":"failure","candidate":{"draft":"d"}}',
            "line 2: Object missing required field `stage`",
        ),
        (b'{"kind":"wish"}', "line 2: Invalid value 'wish'"),
        (b"[1]", "line 2: Expected `object`, got `int`"),
        (b"{" * 100_000, "line 2"),
        (b"[" * 100_000, "line 2"),
        (b"\xff\xfe", "line 2"),
    ],
)
def test_a_line_of_something_else_is_named_by_file_and_number(tmp_path, make, line, words):
    path = tmp_path / "file.jsonl"
    append_line(path, [make.trajectory("a")])
    with path.open("ab") as stream:
        stream.write(line + b"\n")
    with pytest.raises(RunFolderError) as caught:
        read(path)
    assert words in caught.value.message
    assert str(path) in caught.value.message


def test_an_unknown_field_is_refused_by_its_name(tmp_path, make):
    path = tmp_path / "file.jsonl"
    append_line(path, [make.trajectory("a")])
    path.write_bytes(path.read_bytes().replace(b'"finish"', b'"finnish"'))
    with pytest.raises(RunFolderError, match="unknown field `finnish`"):
        read(path)


def test_a_line_without_an_end_is_refused_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(append_log, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"x" * 1001)
    with pytest.raises(RunFolderError, match="the line is too long"):
        read(path)


@PATIENT
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path, junk):
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"\n".join(junk))
    # Torn, or lists without records: there is nothing in it.
    with contextlib.suppress(RunFolderError):
        assert read(path) == []


@PATIENT
@given(at=st.integers(0, 400), by=st.binary(min_size=1, max_size=3))
def test_whatever_is_changed_in_a_record_it_is_read_or_refused(tmp_path, make, at, by):
    path = tmp_path / "file.jsonl"
    path.unlink(missing_ok=True)
    append_line(path, [make.trajectory("a")])
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + by + raw[at + len(by) :])
    with contextlib.suppress(RunFolderError):
        assert len(read(path)) <= 1
