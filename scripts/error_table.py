"""Provokes every error that a command line can provoke, and writes down what a user sees.

    python scripts/error_table.py            # writes docs/errors.md
    python scripts/error_table.py --check    # exits with 1 if the page is out of date

Each case runs in a new folder. Paths of this machine are cut out of the texts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", OMP_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from error_cases import EMBEDDED, TOPICS

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """\
# Errors

Every error that a command line can provoke, written by `scripts/error_table.py`. An error is two
lines on stderr, `error: …` and `hint: …`; stdout stays empty. Exit code 2 is a mistake in the
command or its input, 4 a baseline that cannot be compared, 130 Control-C and 143 SIGTERM (finished
work is kept). 1 and 3 are answers, not errors: 1 is no, 3 inconclusive. 70 is a bug in draftbench:
please report it; nothing in this table leads to it.
"""
# Cases whose words are a library's.
LIBRARIES = frozenset(
    {
        "A hub id without a network",
        "An unknown architecture",
        "A file that is not parquet",
        "A gzip file that is cut",
        "A target whose weights are cut",
        "A target whose weights are missing",
    }
)


@dataclass(frozen=True)
class Outcome:
    """What a case printed: `out` is stdout, `error` and `hint` the last two lines of stderr."""

    topic: str
    done: str
    code: int
    out: str
    error: str
    hint: str


def provoke() -> Iterator[Outcome]:
    """Every case in a new folder, one after the other."""
    for topic, cases in TOPICS.items():
        for done, prepare in cases:
            with tempfile.TemporaryDirectory() as place, _at(Path(place)):
                code, out, err = _run(prepare)
                lines = _portable(err, place).splitlines()
            # The last lines of a server's log are between the two.
            error, hint = (
                next((line for line in reversed(lines) if line.startswith(word)), "")
                for word in ("error: ", "hint: ")
            )
            yield Outcome(topic, done, code, out, error, hint)


@contextlib.contextmanager
def _at(place: Path) -> Iterator[None]:
    """Work in this folder; restore folder and environment afterwards."""
    before, environment = Path.cwd(), dict(os.environ)
    os.environ["DRAFTBENCH_KEY"] = "the key of the error table"
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def _run(prepare: Callable[[], list[str]]) -> tuple[int, str, str]:
    from draftbench.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        words = prepare()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def _portable(text: str, place: str) -> str:
    """The text without this machine's paths, versions of software, and random names."""
    text = re.sub(r"servers/\w+/[\w.-]+\.log", "servers/….log", text)
    for path in (os.path.realpath(place), place, str(EMBEDDED)):
        text = text.replace(f"{path}/", "").replace(path, ".")
    text = re.sub(r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:8000", text)
    return re.sub(r"\b[0-9a-f]{16}\b", "0123456789abcdef", text)


def page(outcomes: list[Outcome]) -> str:
    """The table as Markdown, a section for each topic."""
    parts = [HEAD]
    for topic in TOPICS:
        parts.append(f"\n## {topic}\n\n| case | code | error | hint |\n|---|---:|---|---|\n")
        for outcome in outcomes:
            if outcome.topic == topic:
                parts.append(row(outcome))
    return "".join(parts)


def row(outcome: Outcome) -> str:
    """A line of the table."""
    cells = (outcome.done, str(outcome.code), _cell(outcome.error), _cell(outcome.hint))
    return "| " + " | ".join(cells) + " |\n"


def _cell(line: str) -> str:
    text = re.sub(r"^(error|hint): ", "", line)
    return re.sub(r"([|<>*_\[\]\\])", r"\\\1", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    outcomes = list(provoke())
    text = page(outcomes)
    if asked.check:
        return int(text != PAGE.read_text())
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    print(f"{len(outcomes)} errors in {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
