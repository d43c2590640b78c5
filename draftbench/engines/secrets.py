"""Hides secrets in command lines, environments and texts of servers.

Of what a user adds to the start of a server only the form is recorded outside the private part,
whatever it says: no list of names knows every secret. What is only printed is searched for what
looks like one.

A server that was sent a prompt may quote it, in any form. Of its messages only known phrases and
the length are shown, by `shown`; the whole goes into the private part of the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path

from draftbench.safe_files import without_controls

HIDDEN, VALUE = "***", "…"

# The flags whose values are what a user adds to the start of a server.
_STARTS = ("--engine-command", "--engine-args", "--engine-stop-command")
# Flags by which a program sets a variable for the one that it runs.
_SETS = ("-e", "--env", "-x", "--export")
# An assignment, as a shell or `env` takes it; padding of base64 assigns nothing.
_VARIABLE = re.compile(r"[A-Za-z_]\w*=[^=]")
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_BETWEEN = re.compile(r"[\s=:,;'\"(){}\[\]]+")

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
# Phrases of servers and of the network in which no prompt is quoted.
_KNOWN = re.compile(
    r"(?i)maximum context length(?: is \d+ tokens)?|exceeds? the available context size"
    r"|out of memory|loading model|not supported|too many requests|rate limit|unauthorized"
    r"|invalid api key|internal server error|service unavailable|bad gateway|not found"
    r"|engine ?(?:core|process)? (?:is dead|encountered an issue)|out of pages"
    r"|(?:unknown|unexpected|unrecognized) (?:field|argument|parameter)|not permitted"
    r"|\b(?:top_k|min_p|repetition_penalty|stream_options|max_tokens|logprobs|response_format"
    r"|structured_outputs|cache_salt|return_token_ids|n_predict|json_schema|sampling_seed)\b"
    r"|all connection attempts failed|connection refused|connection reset"
    r"|disconnected without sending a response"
    r"|name or service not known|name resolution|no route to host|network is unreachable"
    r"|certificate verify failed|hostname mismatch"
)
_SAID = 64 << 10  # characters of a message that are kept
# The file of the run under way that keeps what servers say.
_said: ContextVar[Path | None] = ContextVar("said", default=None)
LONGEST = 300  # characters of somebody else's words that are repeated
# A shorter value is hidden only where its name stands beside it: it may be part of any word.
_SHORTEST = 6


def form_of(words: Sequence[str]) -> list[str]:
    """A user's command line without its values: the names of flags and variables, and placeholders.

    A flag with one dash may have its value attached, so that only its first letter is kept. What
    follows a flag is its value, except after those that set a variable.
    """
    form: list[str] = []
    for before, word in pairwise(("", *words)):
        name, equals, _ = word.partition("=")
        assigns = _VARIABLE.match(word) and (before in _SETS or not before.startswith("-"))
        if _PLACEHOLDER.fullmatch(word):
            form.append(word)
        elif re.fullmatch(r"-\w.+", word):
            form.append(f"{word[:2]}{VALUE}")
        elif re.fullmatch(r"--[\w.-]+|-\w", name) or assigns:
            form.append(f"{name}={VALUE}" if equals else name)
        elif form[-1:] != [VALUE]:
            form.append(VALUE)
    return form


def values_of(words: Sequence[str]) -> frozenset[str]:
    """The values in a user's command line and the parts of each, all of which may be secret; not
    those so short that they may be part of any word.
    """
    parts = set[str]()
    for word in words:
        value = _PLACEHOLDER.sub(" ", word)
        if value.startswith("--"):
            value = value.partition("=")[2]
        elif value.startswith("-"):  # with the value of a flag of one letter behind it
            parts |= {value[1:], value[2:]}
        parts |= {value, value.partition("=")[2], *_BETWEEN.split(value)}
    return frozenset(part for part in map(str.strip, parts) if len(part) >= _SHORTEST)


def without_values(command: str) -> str:
    """A draftbench command, with only the form of what it adds to the start of a server."""
    words: list[str] = []
    for word in shlex.split(command):
        flag, equals, value = word.partition("=")
        if flag in _STARTS and equals:
            words.append(f"{flag}={' '.join(form_of(shlex.split(value)))}")
        elif words and words[-1] in _STARTS:
            words.append(" ".join(form_of(shlex.split(word))))
        else:
            words.append(hidden_in(word))
    return shlex.join(words)


def secrets_of(environment: Mapping[str, str]) -> frozenset[str]:
    """The values that an environment names as secret."""
    named = (value for name, value in environment.items() if _NAME.search(name))
    return frozenset(value for value in named if len(value) >= _SHORTEST)


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


@contextlib.contextmanager
def kept_in(file: Path) -> Iterator[None]:
    """Meanwhile, append what servers say to this file of a run's private part."""
    before = _said.set(file)
    try:
        yield
    finally:
        _said.reset(before)


def known_phrases(said: str) -> str:
    """What may be recorded of a server's message; empty if it has no known phrase."""
    return ", ".join(dict.fromkeys(match.group() for match in _KNOWN.finditer(said[:_SAID])))


def shown(said: str, known: Iterable[str] = ()) -> str:
    """What may be printed of a server's message: known phrases, how long it is, and where it is
    kept, with `known` secrets hidden; empty if it says nothing.
    """
    if not (said := " ".join(said.split())):
        return ""
    if (phrases := known_phrases(said)).lower() == said.lower():
        return phrases
    file = _said.get()
    kept = file is not None and _kept(file, on_one_line(said, known, _SAID))
    where = f"kept in {file}" if kept else "not shown, since they may quote a prompt"
    return f"{phrases} ({len(said)} characters, {where})".lstrip()


def _kept(file: Path, line: str) -> bool:
    """Append a line to a file that only its owner can read; whether that worked."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(file, flags, 0o600), "a", errors="replace") as stream:
            stream.write(f"{line}\n")
    except OSError:
        return False
    return True
