"""Hides secrets in command lines, environments and texts of servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from draftbench.safe_files import without_controls

HIDDEN = "***"

_WORDS = r"(?:api[-_]?key|access[-_]?key|token|secret|password|passwd|credentials?|auth)"
# A flag or variable by its name, `--hf-token` or `OPENAI_API_KEY`, not `--max-num-tokens`.
_NAME = re.compile(rf"(?i)(?:^|[-_]){_WORDS}$|^-hft$")
_IN_TEXT = (
    # "api_key": ["X"], HF_TOKEN=X, --api-key X
    re.compile(rf"""(?i)((?:\b|[-_]){_WORDS}["']?\s*[=:]\s*\[?["']?)([^\s"',\]]+)"""),
    re.compile(rf"(?i)((?:^|\s)--?(?:[\w-]*[-_])?{_WORDS}\s+['\"]?)([^\s\"'-][^\s\"']*)"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)(\S+)"),
    re.compile(r"(://)([^\s/@]+)(?=@)"),  # a user and a password in an address
    re.compile(r"()(\b(?:hf_|sk-|gh[pousr]_|github_pat_|nvapi-|AKIA)[\w-]{12,})"),
)
LONGEST = 300  # characters of somebody else's words that are repeated
# A shorter value is hidden only where its name stands beside it: it may be part of any word.
_SHORTEST = 6


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line with the values of secret flags and variables replaced by `***`."""
    shown, follows = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if follows and not word.startswith("-"):
            shown.append(HIDDEN)
            continue
        secret = bool(_NAME.search(name)) and " " not in name
        follows = secret and not equals and word.startswith("-")
        shown.append(f"{name}={HIDDEN}" if secret and equals else hidden_in(word))
    return shown


def secrets_of(words: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    """The values that a command line and an environment name as secret."""
    shown = without_secrets(words)
    values = {
        word if safe == HIDDEN else word.partition("=")[2]
        for word, safe in zip(words, shown, strict=True)
        if safe == HIDDEN or safe.endswith(f"={HIDDEN}")
    }
    values |= {value for name, value in environment.items() if _NAME.search(name)}
    return frozenset(value for value in values if len(value) >= _SHORTEST)


def on_one_line(text: str, known: Iterable[str] = (), most: int = LONGEST) -> str:
    """A text of a server or its log, safe to print: shortened, without control characters, with
    `known` secrets and what looks like one hidden.
    """
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    # Searching for what looks like a secret takes long in a long text.
    line = hidden_in(without_controls(text[: 4 * most]))
    return line if len(line) <= most else line[:most] + "…"


def hidden_in(text: str) -> str:
    """A text with what looks like a secret replaced by `***`."""
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text
