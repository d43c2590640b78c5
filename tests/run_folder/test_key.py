import hashlib
import stat

import pytest

from draftbench.errors import UsageError
from draftbench.run_folder.key import key_file, key_id, request_key


@pytest.fixture
def own(monkeypatch, tmp_path):
    """A user without a variable."""
    monkeypatch.delenv("DRAFTBENCH_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_key_is_made_once_for_its_user_alone_and_its_digits_are_the_key_elsewhere(
    own, monkeypatch, tmp_path
):
    first = request_key()
    assert request_key() == first
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    monkeypatch.setenv("DRAFTBENCH_KEY", f"hex:{key_file().read_text()}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another machine"))
    assert request_key() == first


@pytest.mark.parametrize("digits", ["", "ab", "no digits"])
def test_a_key_file_that_lost_its_key_is_refused(own, digits):
    request_key()
    key_file().write_text(digits)
    with pytest.raises(UsageError, match="cannot use the request key at"):
        request_key()


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ("hex:", "fewer than 64 digits"),
        ("hex:5e5e", "fewer than 64 digits"),
        ("hex:no digits", "not hexadecimal digits"),
        ("ab", "2 characters are too few: they can be guessed"),
        ("fifteen letters", "15 characters are too few: they can be guessed"),
        (" " * 16, "fewer than 6 different characters: too easy to guess"),
        ("1234512345123451", "fewer than 6 different characters: too easy to guess"),
    ],
)
def test_a_key_that_could_be_guessed_is_refused(monkeypatch, secret, why):
    monkeypatch.setenv("DRAFTBENCH_KEY", secret)
    with pytest.raises(UsageError) as raised:
        request_key()
    assert raised.value.message == f"cannot use the request key in DRAFTBENCH_KEY: {why}"


def test_any_other_secret_is_a_key_of_its_own(monkeypatch):
    ids = set()
    for secret in ("sixteen letters!", "sixteen letters?", "0123456789abcdef", "hex:" + "ab" * 32):
        monkeypatch.setenv("DRAFTBENCH_KEY", secret)
        ids.add(key_id(request_key()))
    assert len(ids) == 4


def test_a_guess_of_words_costs_scrypt_and_no_fast_hash(monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_KEY", "sixteen letters!")
    slow = hashlib.scrypt(b"sixteen letters!", salt=b"draftbench", n=16384, r=8, p=1, dklen=32)
    assert request_key() == slow
