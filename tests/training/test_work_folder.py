"""Where a training that is under way keeps what it has."""

from pathlib import Path

import pytest

from draftbench.errors import RunFolderError, UsageError
from draftbench.training import course

KEY = b"the key of the tests".ljust(32)


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """Begin a training whose question is a text."""
    monkeypatch.setattr(course, "_question", lambda plan, key: plan)

    def begin(question="one", work=tmp_path / ".out.training"):
        return course.begun(question, work, KEY)

    return begin


def test_a_place_that_cannot_be_written_is_an_error_with_a_hint(begun):
    with pytest.raises(RunFolderError, match="cannot write to"), begun(work=Path("/proc/none")):
        pass


def test_two_trainings_at_once_are_refused(begun):
    with begun(), pytest.raises(RunFolderError, match="another draftbench writes"), begun():
        pass
    with begun():
        pass


def test_where_nothing_was_trained_other_settings_begin_anew(begun, tmp_path):
    forecast = tmp_path / ".out.training" / "forecast.json"
    with begun("one"):
        forecast.touch()
    with begun("one"):
        assert forecast.exists()
    with begun("two"):
        assert not forecast.exists()


def test_what_was_trained_is_never_dropped_for_other_settings(begun, tmp_path):
    with begun("one"):
        (tmp_path / ".out.training" / "checkpoints" / "checkpoint-9").mkdir(parents=True)
    with pytest.raises(UsageError, match="other data, settings"), begun("two"):
        pass
    with begun("one"):
        pass


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["a folder", "a file"])
def test_what_came_to_be_where_the_draft_should_go_is_kept_and_so_is_the_draft(tmp_path, make):
    trained, out = tmp_path / "trained", tmp_path / "out"
    trained.mkdir()
    make(out)
    with pytest.raises(UsageError, match="appeared during the training"):
        course._move(trained, out)
    assert trained.exists()
    out.rename(tmp_path / "away")
    course._move(trained, out)
    assert out.is_dir()
    assert not trained.exists()
