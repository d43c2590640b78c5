"""The key of the keyed hashes that stand for requests and outputs in files that may be shared.

`DRAFTBENCH_KEY` if set (a CI secret, so that runs on different machines pair), else a random key
made once per user; on another machine, set the variable to `hex:` and this key's digits. Whoever
holds the key can confirm a guess of a prompt; without it the hashes say nothing. The id of the key
is published with every run, so that the key must not be one that can be guessed: words are at least
16 characters, and each guess at them takes the time of scrypt (RFC 7914).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from functools import lru_cache
from pathlib import Path

from draftbench.errors import UsageError

VARIABLE = "DRAFTBENCH_KEY"
_FEWEST_BYTES, _FEWEST_CHARACTERS, _FEWEST_DIFFERENT = 32, 16, 6


def request_key() -> bytes:
    """This user's key, which is made on first use.

    Raises:
        UsageError: the key is not hexadecimal, or its file can neither be read nor made.
    """
    given, path = os.environ.get(VARIABLE, ""), key_file()
    try:
        if given.startswith("hex:"):
            return _long_enough(given.removeprefix("hex:"))
        if given:
            return _derived(given)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(secrets.token_hex(32))
        return _long_enough(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot use the request key {f'in {VARIABLE}' if given else f'at `{path}`'}: {error}",
            hint=f"set {VARIABLE} to a secret of your own: at least {_FEWEST_CHARACTERS} "
            f"characters, {_FEWEST_DIFFERENT} of them different, or `hex:` and at least 64 digits",
        ) from error


def _long_enough(digits: str) -> bytes:
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        raise ValueError("not hexadecimal digits") from None
    if len(key) < _FEWEST_BYTES:  # a secret that a CI system lost leaves none
        raise ValueError("fewer than 64 digits")
    return key


@lru_cache
def _derived(words: str) -> bytes:
    if len(words) < _FEWEST_CHARACTERS:
        raise ValueError(f"{len(words)} characters are too few: they can be guessed")
    if len(set(words)) < _FEWEST_DIFFERENT:
        raise ValueError(f"fewer than {_FEWEST_DIFFERENT} different characters: too easy to guess")
    return hashlib.scrypt(words.encode(), salt=b"draftbench", n=2**14, r=8, p=1, dklen=32)


def key_file() -> Path:
    """Where the key is that is used when the variable is not set."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "draftbench" / "key"


def key_id(key: bytes) -> str:
    """A short hash by which two runs know that they used the same key."""
    return keyed_hash(key, b"draftbench key id")[:8]


def keyed_hash(key: bytes, data: bytes) -> str:
    """HMAC-SHA256 as 16 hex digits."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:16]
