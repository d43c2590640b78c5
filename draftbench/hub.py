"""The hub of models and data sets → what names something there, and whether it answers. Knows
nothing of what lies there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

SECONDS_TO_ANSWER = 10.0


def names_model(spec: str) -> bool:
    """Whether this is no path but `org/name` or `org/name@revision`."""
    path_like = spec.startswith((".", "/", "~")) or spec.endswith(".gguf")
    return not path_like and spec.count("/") <= 1 and not Path(spec).exists()


@cache
def hub_answers() -> bool:
    """Whether the hub is there, asked once. Where it is not, this process takes only what is cached
    from here on: the libraries would try every file five times, and tell of each.
    """
    from huggingface_hub import constants, get_session

    if not constants.is_offline_mode():
        try:
            get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
        # Whatever kind of error the HTTP client has for a name that is not found.
        except Exception:
            constants.HF_HUB_OFFLINE = True
    return not constants.is_offline_mode()
