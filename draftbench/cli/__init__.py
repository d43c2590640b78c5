"""The command line: parse → call one function → render → exit code.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 the answer is no, 2 usage
or input, 3 inconclusive, 4 incomparable, 70 internal error, 130 interrupted, 143 ended by SIGTERM.
A command is a file of its name: what it asks, and what it prints unless `report` renders it. It is
imported when it is called, and imports torch when it runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import draftbench
from draftbench.cli.commands import COMMANDS, Commands, help_of
from draftbench.cli.invocation import called_with
from draftbench.cli.output import FULL, cannot_write
from draftbench.cli.signals import TerminatedError, catch_sigterm, drop_unwritten, release_sigterm
from draftbench.errors import (
    DraftbenchError,
    InterruptedRunError,
    TerminatedRunError,
    UsageError,
    did_you_mean,
)
from draftbench.safe_files import without_controls

TRACEBACK = "DRAFTBENCH_TRACEBACK"
_AGAIN = "nothing is lost; run the command again"
_HELP = {"-h", "--help", "-V", "--version"}
# Our flags by what other tools call them.
_ELSEWHERE = {
    **dict.fromkeys(("--max-requests", "--num-prompts", "-n"), "--sample"),
    **dict.fromkeys(
        ("--num-speculative-tokens", "--num-draft-tokens", "--speculative-tokens"), "--k"
    ),
    "--model": "--target",
    "--draft-model": "--drafts",
}
_UNKNOWN_COMMAND = re.compile("no such command `(.*?)`")

app = typer.Typer(
    name="draftbench",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # Two of these columns stay empty.
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 90},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; every error ends here, as two lines on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    error: DraftbenchError
    try:
        match words:
            case []:
                words = ["--help"]
            case ["runs", *rest] if not rest or (rest[0].startswith("-") and rest[0] not in _HELP):
                words = ["runs", "list", *rest]
        called_with(words)
        try:
            code = app(args=words, prog_name=app.info.name, standalone_mode=False)
        finally:
            release_sigterm()  # what is printed from here on needs no unwinding
        # No command returns 130: Typer does, for Control-C.
        if code == InterruptedRunError.exit_code:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        error = InterruptedRunError("interrupted", hint=_AGAIN)
    except TerminatedError:
        error = TerminatedRunError("ended by SIGTERM", hint=_AGAIN)
    except SystemExit as left:
        # Typer exits like this when nobody reads: `--help | head` must still exit with 0, and a
        # closed stderr must not look like "the gate found a regression".
        if not isinstance(closed := left.__context__, BrokenPipeError):
            raise
        if not _HELP.isdisjoint(words):
            return 0
        error = cannot_write("stderr", closed)
    except DraftbenchError as known:
        error = known
    except typer.TyperException as refused:
        error = _misused(refused, words)
    except Exception as caught:
        error = _unexpected(caught)
    _print(error)
    return error.exit_code


def _unexpected(error: Exception) -> DraftbenchError:
    """An internal error, which must not look like "the gate found a regression"; two errors of the
    system are the user's to mend.
    """
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = f"{str(error.filename)[:40]}…"
        return UsageError(f"`{name}` is too long for a path or a name", hint="shorten it")
    # Errors of files are reported with their name where they are written: this one is about stdout.
    if isinstance(error, OSError) and error.filename is None and error.errno in FULL:
        return cannot_write("stdout", error)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    # The place without the message, which may quote a prompt.
    own = [
        (module, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (module := frame.f_globals.get("__name__", "")).startswith("draftbench.")
    ]
    place = "".join(f" in {module}, line {line}" for module, line in own[-1:])
    return DraftbenchError(
        f"internal error: {type(error).__name__}{place}",
        hint="this is a bug in draftbench; please report this line and the command that showed it. "
        f"With {TRACEBACK}=1 the whole traceback is printed, which may quote your traffic",
    )


def _misused(error: typer.TyperException, words: Sequence[str]) -> UsageError:
    """A refused command line, with the flag or the command that was probably meant."""
    context: Any = getattr(error, "ctx", None)
    called = " ".join(["draftbench", *(word for word in words[:1] if word in COMMANDS)])
    path = context.command_path if context else called
    message = error.format_message().rstrip(".")
    message = f"{message[:1].lower()}{message[1:]}".replace("'", "`")
    group = context and context.command
    names = group.list_commands(context) if isinstance(group, TyperGroup) else ()
    hint = f"`{path} -h` lists all {'commands' if names else 'flags, with examples'}"
    if unknown := _UNKNOWN_COMMAND.match(message):
        message = f"`{path}` has no command `{unknown[1]}`"
        hint = did_you_mean(unknown[1], names, hint)
    elif hasattr(error, "possibilities"):
        flag: str = getattr(error, "option_name", "")
        message = f"`{path}` has no flag `{flag}`"
        flags = [name for parameter in group.params for name in parameter.opts] if group else []
        meant = _ELSEWHERE.get(flag)
        if meant in flags:
            hint = f"did you mean `{meant}`? {hint}"
        else:
            hint = did_you_mean(flag, error.possibilities or (), hint, alike=0.7)
    return UsageError(message, hint=hint)


def _print(error: DraftbenchError) -> None:
    # No other library is imported here: one that was interrupted while loading, such as numpy,
    # cannot be loaded again.
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    # If stderr is full or closed (rich then exits), the exit code still says what happened.
    with contextlib.suppress(OSError, SystemExit):
        console.print(f"error: {without_controls(error.message, lines=True)}", style="red")
        console.print(f"hint: {without_controls(error.hint, lines=True)}", style="cyan")


def _root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    """Does speculative decoding pay off on your traffic, and with which draft?

    draftbench sweep --target ./target --drafts ./draft --traffic prod.jsonl
    """
    if version:
        typer.echo(f"draftbench {draftbench.__version__}")
        raise typer.Exit


app.callback(help=help_of(_root), invoke_without_command=True)(_root)


def entry() -> NoReturn:
    """The console script."""
    catch_sigterm()
    try:
        code = main()
    finally:
        drop_unwritten()
    sys.exit(code)
