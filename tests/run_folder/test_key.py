import stat

import pytest

from draftbench.errors import UsageError
from draftbench.run_folder.key import key_file, key_id, request_key


def test_a_key_is_made_once_and_readable_by_its_user_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("DRAFTBENCH_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = request_key()
    assert request_key() == first
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600


def test_the_digits_of_the_key_file_are_the_same_key_elsewhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DRAFTBENCH_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    here = request_key()
    monkeypatch.setenv("DRAFTBENCH_KEY", f"hex:{key_file().read_text()}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another machine"))
    assert request_key() == here


def test_digits_that_are_too_few_or_none_are_refused(monkeypatch):
    for secret in ("hex:", "hex:5e5e", "hex:no digits"):
        monkeypatch.setenv("DRAFTBENCH_KEY", secret)
        with pytest.raises(UsageError, match="cannot use the request key in DRAFTBENCH_KEY"):
            request_key()


def test_any_other_secret_is_a_key_of_its_own(monkeypatch):
    ids = set()
    for secret in ("a", "b", "ab" * 32, "hex:" + "ab" * 32):
        monkeypatch.setenv("DRAFTBENCH_KEY", secret)
        ids.add(key_id(request_key()))
    assert len(ids) == 4
