"""The key of the keyed hashes that stand for requests and outputs in files that may be shared.

`DRAFTBENCH_KEY` if set (a CI secret, so that runs on different machines pair), else a random key
made once per user, which `hex:` and its digits stand for elsewhere. Whoever holds the key can
confirm a guess of a prompt; without it the hashes say nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from draftbench.errors import UsageError

VARIABLE = "DRAFTBENCH_KEY"


def request_key() -> bytes:
    """This user's key, which is made on first use.

    Raises:
        UsageError: the key is not hexadecimal, or its file can neither be read nor made.
    """
    given, path = os.environ.get(VARIABLE, ""), key_file()
    try:
        if given.startswith("hex:"):
            key = bytes.fromhex(given.removeprefix("hex:"))
            if len(key) < 32:  # a secret that a CI system lost leaves none
                raise ValueError("fewer than 64 digits")
            return key
        if given:
            return hashlib.sha256(given.encode()).digest()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(secrets.token_hex(32))
        return bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot use the request key {f'in {VARIABLE}' if given else f'at `{path}`'}: {error}",
            hint=f"set {VARIABLE} to a secret of your own",
        ) from error


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
