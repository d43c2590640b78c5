"""How this program was called → command lines that a shell takes as they are.

The program goes by the name that it was started by where the shell would not find this very one
by its own: `draftbench` of an environment that is not active is no command.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path

import draftbench

_NAME = "draftbench"
_PACKAGE = Path(draftbench.__file__).parent
_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


def called_with(words: Sequence[str]) -> None:
    """Remember the words behind the program's name."""
    _words.set(tuple(words))


def as_called() -> str:
    """The command that runs now, by the program's plain name: for a run's record."""
    return shlex.join([_NAME, *_words.get()])


def again_in(out: Path, without: str | None = None) -> str:
    """The command that runs now, as it goes on in the folder `out`, less one flag and its value."""
    words = _without(without, _words.get()) if without else _words.get()
    named = any(word == "--out" or word.startswith("--out=") for word in words)
    return command(*words, *(() if named else ("--out", str(out))))


def command(*words: str) -> str:
    """A command of this program, to be pasted where it was started."""
    return shlex.join([*_program(), *words])


def _without(flag: str, words: Sequence[str]) -> tuple[str, ...]:
    before = ("", *words)
    return tuple(
        word
        for word, left in zip(words, before, strict=False)
        if word != flag and not word.startswith(f"{flag}=") and left != flag
    )


def _program() -> list[str]:
    started = Path(sys.argv[0])
    if started.name == _NAME:
        return [_shortest(_NAME, sys.argv[0])]
    if started.name == "__main__.py" and _PACKAGE in started.parents:
        return [_shortest("python", sys.executable), "-m", _NAME]
    return [_NAME]


def _shortest(name: str, path: str) -> str:
    """The name alone where the shell finds the same file by it."""
    found = shutil.which(name)
    same = found is not None and Path(found).absolute() == Path(path).absolute()
    return name if same else path
