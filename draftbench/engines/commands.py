"""A server to be started → its command line: the engine's flags, and what the user adds.

Prefix caches are off everywhere: a prompt that was read before would cost nothing.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from draftbench.engines.engine import ServerStart
from draftbench.engines.every import STARTED, check_method
from draftbench.engines.secrets import form_of, hidden_in, values_of
from draftbench.errors import UsageError, did_you_mean
from draftbench.records import DraftingMode

# `{name}` is a placeholder, `${name}` a variable of some shell.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")


@dataclass(frozen=True)
class Launch:
    """The command that starts a server, and what it needs."""

    words: tuple[str, ...]
    form: tuple[str, ...]  # the same, of what the user added without the values
    added: frozenset[str]  # these values
    stop: tuple[str, ...]  # the stop command; may be empty
    environment: dict[str, str]  # added to the user's


def launch(start: ServerStart, host: str, port: int) -> Launch:
    """The command that starts a server on `host` and `port`.

    Raises:
        EngineError: the engine lacks this method of drafting.
        UsageError: the command or the arguments cannot be used as they are.
    """
    engine = STARTED[start.engine]
    if (speculation := start.speculation) is not None:
        check_method(start.engine, speculation)
        other = engine.sampling_mode
        if speculation.mode not in (DraftingMode.GREEDY, other):
            modes = f"greedy or {other}" if other else "greedy"
            raise UsageError(
                f"{start.engine} is not measured in --mode {speculation.mode}",
                hint=f"give --mode {modes}",
            )
    words = [*engine.flags(start), "--host", host, "--port", str(port)]
    added, given = _split("--engine-args", start.args), start.command
    for word in added:
        name = word.partition("=")[0]
        # vLLM takes `--speculative-config.method` too.
        if name.replace("_", "-").partition(".")[0] in engine.reserved_flags:
            raise UsageError(
                f"--engine-args cannot hold {name}: draftbench sets it",
                hint="leave it out; drafts and draft lengths are --drafts and --k",
            )
    values = {"model": start.target, "host": host, "port": str(port), "python": sys.executable}
    command = _filled("--engine-command", given or engine.command, values, [*words, *added])
    # What the run folder keeps of it.
    shape = given and " ".join(form_of(_split("--engine-command", given)))
    hidden = [*map(hidden_in, words), *form_of(added)]
    form = _filled("--engine-command", shape or engine.command, values, hidden)
    stop = _filled("--engine-stop-command", start.stop_command or "", values, None)
    environment = dict(engine.variables)
    if start.threads is not None:
        environment |= {"OMP_NUM_THREADS": str(start.threads), **engine.thread_variables}
    secrets = values_of([*_split("--engine-command", given or ""), *added])
    return Launch(tuple(command), tuple(form), secrets, tuple(stop), environment)


def _filled(
    flag: str, command: str, values: Mapping[str, str], args: list[str] | None
) -> list[str]:
    """A user's command with its placeholders replaced.

    `{args}` as a separate word stands for all arguments; within a longer word, which is a line for
    another shell, for their quoted text. Without it they come last.
    """
    placeholders = [*values, *([] if args is None else ["args"])]

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in placeholders:
            raise UsageError(
                f"unknown placeholder {match[0]} in {flag}",
                hint=did_you_mean(match[1], placeholders, f"known are {', '.join(placeholders)}"),
            )
        return shlex.join(args or []) if match[1] == "args" else values[match[1]]

    words: list[str] = []
    for word in _split(flag, command):
        if word == "{args}" and args is not None:
            words += args
        else:
            words.append(_PLACEHOLDER.sub(replaced, word))
    return words if args is None or "{args}" in command else [*words, *args]


def _split(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"cannot read {flag}: {str(error).lower()}", hint="quote it as a shell would read it"
        ) from error
