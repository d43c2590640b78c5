"""Reads files that anybody may have written, writes files whole, and makes text safe to print.

Nothing that is read here can make the reader wait, fill the memory or open another file: pipes,
devices, files over a size limit, and YAML's aliases (which multiply what they name) and tags are
refused.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec

MAX_YAML_BYTES = 64 << 10

# Control characters of a terminal (C0, C1, delete), characters that reverse the writing direction,
# halves of characters, which cannot be printed, and non-characters, which XML does not allow.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
# Characters with a meaning in GitHub's or GitLab's Markdown, HTML entities and maths included
# (parentheses and braces have none without these), and what becomes a mention, an issue or a link.
_MARKDOWN = re.compile(r"[\\`*_\[\]<>#+|~&$]")
_LINKED = re.compile(r"@|#|:(?=//)|www(?=\.)", re.IGNORECASE)


# What shows in the first bytes of a file that draftbench wrote it: in this order a page, JUnit's
# XML, a baseline, an SVG and a PNG.
GENERATOR = "draftbench"
_START = 4096
_WRITTEN_HERE = re.compile(
    rb'<meta name="generator" content="draftbench">|package="draftbench"'
    rb'|\A\{\n  "schema_version": \d+,\n  "created": "[^"]*",\n  "candidate": '
    rb"|<dc:title>draftbench</dc:title>|Software\x00draftbench"
)


class UnreadableError(Exception):
    """A file that cannot be used, and why; the caller adds its name and a hint."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def read_limited(path: Path, most: int) -> bytes:
    """Read a plain file of at most `most` bytes.

    Raises:
        UnreadableError: it is missing, not a plain file, or larger.
    """
    try:
        # Opening a pipe would wait for somebody to write.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError("it is not a plain file")
            raw = stream.read(most + 1)
    except OSError as error:
        raise UnreadableError(error.strerror or "it cannot be opened") from error
    if len(raw) > most:
        raise UnreadableError(f"it is larger than the {most >> 10} KiB that such a file may have")
    return raw


def read_yaml(path: Path) -> Any:
    """Read a YAML file of text, numbers, booleans, lists and mappings.

    Raises:
        UnreadableError: as in `read_limited`, or it is not such YAML; the message has the line.
    """
    raw = read_limited(path, MAX_YAML_BYTES)
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(None, None, "aliases are not read", mark)
            node = super().compose_node(parent, index)
            if isinstance(node, yaml.ScalarNode):
                node.value.encode()  # an escape can stand for half a character
            return node

    try:
        return yaml.load(raw.decode("utf-8-sig"), Plain)
    except RecursionError as error:
        raise UnreadableError("it is not YAML: nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise UnreadableError(f"it is not YAML: {where}{error.problem}") from error
    # ValueError: an impossible date, a number of thousands of digits, no text.
    except (yaml.YAMLError, ValueError) as error:
        raise UnreadableError(f"it is not YAML: {str(error).splitlines()[0]}") from error


def write_whole(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Write a file so that nobody ever reads half of it, even after a crash.

    The bytes go to `temporary` (by default a hidden file in the same folder), are synced to disk
    and renamed. A device or a pipe is written to directly.

    Raises:
        OSError: it cannot be written; what was there before is kept.
    """
    path = path.resolve()  # a link stays a link
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = temporary or path.with_name(f".draftbench-{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # left by a process that was killed
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def is_other_work(path: Path) -> bool:
    """Whether there is a file that draftbench did not write, as far as its beginning shows: pages,
    baselines, reports for CI and charts name draftbench, tables and other results do not.
    """
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(_START)
    return bool(start) and not _WRITTEN_HERE.search(start)


def sync_folder(path: Path) -> None:
    """Sync a folder's list of names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def without_controls(text: str, *, lines: bool = False) -> str:
    """Replace control characters by �, so that a text can be printed anywhere; with `lines`, keep
    line breaks.
    """
    if lines:
        return "\n".join(map(without_controls, text.split("\n")))
    return _CONTROLS.sub("\ufffd", text)


def markdown_escaped(text: str) -> str:
    """A text on one line without Markdown or HTML; an invisible space breaks every mention and
    link.
    """
    line = without_controls(" ".join(text.split()))
    return _LINKED.sub("\\g<0>\u200b", _MARKDOWN.sub(r"\\\g<0>", line))


def json_without_controls(raw: bytes) -> bytes:
    """Apply `without_controls` to every text in a JSON document; most are plain ASCII without
    escapes, and are returned unchanged.

    Raises:
        msgspec.DecodeError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    if raw.isascii() and b"\\" not in raw and b"\x7f" not in raw:
        return raw
    return msgspec.json.encode(_cleaned(msgspec.json.decode(raw)))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, list):
        return [_cleaned(inner) for inner in value]
    if isinstance(value, dict):
        return {without_controls(key): _cleaned(inner) for key, inner in value.items()}
    return value
