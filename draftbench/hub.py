"""The Hugging Face hub: which names mean something there, and whether it can be reached."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SECONDS_TO_ANSWER = 10.0


def names_model(spec: str) -> bool:
    """Whether this is `org/name` or `org/name@revision` and not a path."""
    path_like = spec.startswith((".", "/", "~")) or spec.endswith(".gguf")
    return not path_like and spec.count("/") <= 1 and not Path(spec).exists()


@cache
def hub_answers() -> bool:
    """Whether the hub can be reached, tried once.

    If not, this process uses only cached files from here on: the libraries would try every file
    five times and print a warning for each.
    """
    from huggingface_hub import constants, get_session

    if not constants.is_offline_mode():
        try:
            get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
        # The HTTP client has many kinds of errors for a host that is not found.
        except Exception:
            constants.HF_HUB_OFFLINE = True
    return not constants.is_offline_mode()
