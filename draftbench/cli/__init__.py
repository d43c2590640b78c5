"""The command line: parse → call one function → render → exit code.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 the answer is no, 2 usage
or input, 3 inconclusive, 4 incomparable, 70 internal error, 130 interrupted, 143 ended by SIGTERM.
What a command needs is imported in the command, so that help and the offline commands start without
torch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer
from rich.console import Console

import draftbench
from draftbench.cli import (
    acceptance,
    check,
    compare,
    demo,
    estimate,
    export,
    gate,
    recommend,
    report,
    runs,
    suggest,
    suites,
    sweep,
)
from draftbench.cli.completing import mend_words
from draftbench.cli.flags import cannot_write
from draftbench.cli.help import Command, help_of
from draftbench.cli.invocation import called_with
from draftbench.cli.signals import TerminatedError, catch_sigterm, release_sigterm
from draftbench.cli.unread import give_up_unwritten, survive_unread_stderr
from draftbench.errors import DraftbenchError, InterruptedRunError, TerminatedRunError

INTERRUPTED = InterruptedRunError.exit_code
_AGAIN = "nothing is lost; give the same command again"
_PATH = "give the path or the hub id itself"
_SHOWN = 40
_HELP = {"-h", "--help", "--version"}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

app = typer.Typer(
    name="draftbench",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Nothing but this function turns an error into words."""
    error_console = Console(stderr=True)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except DraftbenchError as error:
        return _report(error_console, error.message, error.hint, error.exit_code)
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context else app.info.name
        hint = f"`{path} -h` shows what there is, with examples"
        return _report(error_console, error.format_message(), hint, 2)
    except TerminatedError:
        return _report(error_console, "ended by SIGTERM", _AGAIN, TerminatedRunError.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _report(error_console, "interrupted", _AGAIN, INTERRUPTED)
    # The last resort of the design: an unexpected error must not read as "the gate found a
    # regression".
    except Exception as error:
        # Whoever writes a file says so himself: this was stdout, of whatever command.
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            refused = cannot_write("stdout", error)
            return _report(error_console, refused.message, refused.hint, refused.exit_code)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = f"{str(error.filename)[:_SHOWN]}…"
            return _report(error_console, f"`{name}` is too long for a path or a name", _PATH, 2)
        hint = "this is a fault of draftbench; please report it with the command that showed it"
        return _report(error_console, f"internal error ({type(error).__name__})", hint, 70)


def _run(words: list[str]) -> int:
    # A bare command that only has others below it is a call for help.
    words = [*words, "--help"] if words in ([], ["runs"]) else words
    called_with(words)
    try:
        code = app(args=words, prog_name=app.info.name, standalone_mode=False)
    except SystemExit as left:
        # So Typer leaves a stdout that nobody reads any more: of help that is no fault.
        if isinstance(left.__context__, BrokenPipeError) and not _HELP.isdisjoint(words):
            return 0
        raise
    # No command answers 130 itself: it is what Typer makes of Control-C.
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _report(console: Console, message: str, hint: str, code: int) -> int:
    from draftbench.report.terminal.text import plain

    options = {"markup": False, "highlight": False, "soft_wrap": True}
    with contextlib.suppress(OSError):  # where stderr takes no more the code still tells
        console.print(f"error: {plain(message)}", style="red", **options)  # type: ignore[arg-type]
        console.print(f"hint: {plain(hint)}", style="cyan", **options)  # type: ignore[arg-type]
    return code


def _version(value: bool) -> None:
    if value:
        typer.echo(f"draftbench {draftbench.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Pick the draft model for speculative decoding, and prove the pick.

    draftbench sweep --target ./target --drafts ./draft --traffic prod.jsonl
    draftbench recommend results/runs/RUN
    draftbench gate --baseline results/baselines/prod.json results/runs/RUN
    """


app.callback(help=help_of(_root))(_root)

# In the order of the work, each with the line that `draftbench --help` has room for.
COMMANDS: dict[Callable[..., int], str] = {
    suggest.suggest: "Propose drafts for a target, before any download.",
    check.check: "Can these drafts work with this target? No weights load.",
    sweep.sweep: "Measure drafts on real traffic.",
    recommend.recommend: "Speculate or not, with which draft and k, how sure.",
    acceptance.acceptance: "Acceptance by every definition, and where it is lost.",
    report.report: "One HTML page that explains itself, and plots.",
    compare.compare: "What changed between two runs, paired by request.",
    gate.gate: "Fail a CI job when acceptance got worse.",
    export.export: "The configuration for the engine that will serve it.",
    estimate.estimate: "What formulas alone promise, marked as such.",
    demo.demo: "The tour on small models that ship with the package.",
    suites.suites: "List the built-in traffic.",
}
for command, summary in COMMANDS.items():
    app.command(cls=Command, help=help_of(command), short_help=summary)(command)

app.add_typer(runs.runs, name="runs")


def entry() -> NoReturn:
    """The console script."""
    mend_words(os.environ)
    catch_sigterm()
    survive_unread_stderr()
    try:
        code = main()
    finally:
        give_up_unwritten()
    release_sigterm()
    sys.exit(code)
