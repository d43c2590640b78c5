"""How this program was called, and command lines that can be pasted into the same shell.

If its environment is not active, the shell does not find `draftbench`: then the lines call it by
its path, as the user did.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from pathlib import Path

import draftbench

_NAME = "draftbench"
_PACKAGE = Path(draftbench.__file__).parent
_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


def called_with(words: Sequence[str]) -> None:
    """Remember the words after the program's name."""
    _words.set(tuple(words))


def as_called() -> str:
    """The running command with the program's plain name, for a run's record."""
    return shlex.join([_NAME, *_words.get()])


def resume_command(out: Path) -> str:
    """The running command with its run folder as `--out`."""
    words = _words.get()
    named = any(word == "--out" or word.startswith("--out=") for word in words)
    return command(*words, *(() if named else ("--out", str(out))))


def words_of(flags: Collection[str]) -> list[str]:
    """Those of the given flags that the running command has, with their values."""
    words, chosen = _words.get(), list[str]()
    for at, word in enumerate(words):
        flag, joined, _ = word.partition("=")
        if flag in flags:
            chosen += words[at : at + (1 if joined else 2)]
    return chosen


def command(*words: str) -> str:
    """A command of this program, quoted for the shell."""
    started = Path(sys.argv[0])
    program = [_NAME]
    if started.name == _NAME:
        program = [_shortest(_NAME, sys.argv[0])]
    elif started.name == "__main__.py" and _PACKAGE in started.parents:
        program = [_shortest("python", sys.executable), "-m", _NAME]
    return shlex.join([*program, *words])


def _shortest(name: str, path: str) -> str:
    """The name alone if the shell finds the same file by it, else the path."""
    on_path = shutil.which(name)
    same = on_path is not None and Path(on_path).absolute() == Path(path).absolute()
    return name if same else path
