"""An append is kept whole or not at all, whatever cut it short."""

import errno
import os

import pytest
from scenes import failure, named, replay, step, trajectory

from draftbench.errors import RunFolderError
from draftbench.records import AnyObservation
from draftbench.run_folder import append_log
from draftbench.run_folder.append_log import append_line, read_lines

RECORD = trajectory("a", length=2)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.jsonl"


def read(path):
    return list(read_lines(path, AnyObservation))


def test_a_file_cut_at_any_byte_loses_only_the_torn_append_and_goes_on(path):
    appends = [[RECORD], [step(None, 1.0), step(None, 2.0)], [failure("draft", "it was slow")]]
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
        append_line(path, [RECORD])
        assert read(path) == [*kept, RECORD]


def test_a_torn_line_longer_than_a_block_is_dropped(path):
    append_line(path, [RECORD])
    with path.open("ab") as stream:
        stream.write(b"x" * 200_000)
    append_line(path, [RECORD])
    assert read(path) == [RECORD, RECORD]


def test_a_disk_that_fills_up_inside_a_line_leaves_the_file_as_it_was(path, monkeypatch):
    append_line(path, [RECORD])
    before, write = path.read_bytes(), os.write

    def full(descriptor, data):
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:-50])

    monkeypatch.setattr(append_log.os, "write", full)
    with pytest.raises(RunFolderError, match="No space left") as caught:
        append_line(path, [RECORD])
    assert "free some space" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "may not write"), (errno.ESTALE, "repeat")],
)
def test_a_folder_that_cannot_be_written_is_an_error_with_a_hint(path, monkeypatch, code, words):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(append_log.os, "open", refuse)
    with pytest.raises(RunFolderError, match=os.strerror(code)) as caught:
        append_line(path, [RECORD])
    assert words in caught.value.hint


def test_a_link_in_place_of_a_file_is_neither_followed_nor_changed(tmp_path, path):
    outside = tmp_path / "outside"
    outside.write_text("somebody's letter without an end")
    path.symlink_to(outside)
    for use in (read, lambda path: append_line(path, [RECORD])):
        with pytest.raises(RunFolderError, match="symbolic link"):
            use(path)
    assert outside.read_text() == "somebody's letter without an end"


def test_a_pipe_in_place_of_a_file_does_not_hang_the_reader(path):
    os.mkfifo(path)
    with pytest.raises(RunFolderError, match="not a file"):
        read(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"kind":"failure","candidate":{"draft":"d"}}', ": Object missing required field `st"),
        (b'{"kind":"wish"}', ": Invalid value 'wish'"),
        (b'{"kind":"failure","stages":""}', ": Object contains unknown field `stages`"),
        (b"[1]", ": Expected `object`, got `int`"),
        (b"{" * 100_000, ""),
        (b"[" * 100_000, ""),
        (b"\xff\xfe", ""),
        (b'{"kind":"failure","stage":"\xff"}', ""),
    ],
)
def test_a_line_of_something_else_is_named_by_file_and_number(path, line, words):
    append_line(path, [RECORD])
    with path.open("ab") as stream:
        stream.write(line + b"\n")
    with pytest.raises(RunFolderError) as caught:
        read(path)
    assert f"`{path}` line 2{words}" in caught.value.message


def test_a_line_without_an_end_is_refused_at_the_limit(path, monkeypatch):
    monkeypatch.setattr(append_log, "MAX_LINE_BYTES", 1000)
    path.write_bytes(b"[]\n" + b"x" * 1001)
    with pytest.raises(RunFolderError, match="at byte 3: the line is too long"):
        read(path)


def test_numbers_of_tokens_are_read_back_and_take_eight_bytes_each(path):
    made = [replay((1.0, 0.0), named("d"), confidence=(0.5, 0.25), sample=n) for n in (0, 1)]
    append_line(path, made)
    assert list(read(path)) == made
    one, _ = read(path)
    for numbers in (one.accept, one.confidence, one.margin, one.rank):
        assert (numbers.typecode, numbers.itemsize) == ("q" if numbers is one.rank else "d", 8)
