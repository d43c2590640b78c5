"""Starts a serving engine, waits until it answers, and stops it.

Its command line is the engine's flags and what the user adds. Prefix caches are off everywhere: a
prompt that was read before would cost nothing.

A guardian process runs the server, so that it stops when draftbench is gone, even if killed. The
guardian cannot stop what lives outside its processes: without a stop command a container survives.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from draftbench.engines import guardian
from draftbench.engines.engine import ServerStart
from draftbench.engines.every import STARTED, check_method
from draftbench.engines.secrets import form_of, hidden_in, on_one_line, secrets_of, values_of
from draftbench.errors import EngineError, UsageError, did_you_mean
from draftbench.records import DraftingMode
from draftbench.run_folder.manifest import cores_here

# `{name}` is a placeholder, `${name}` a variable of some shell.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")
HOST = "127.0.0.1"
GRACE_SECONDS = 10.0  # between asking a server to end and killing it
LAST_LINES = 15
_POLL_SECONDS = 0.2
_LOG_BYTES = 64 << 10  # of its end that are read
_FEW_CORES = 16
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): ")
_NO_ERROR = re.compile(r"\b(INFO|WARNING)\b")  # which may name one
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


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
    environment = dict(engine.environment)
    if start.threads is not None:
        environment |= {"OMP_NUM_THREADS": str(start.threads), **engine.thread_environment}
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


@dataclass(frozen=True)
class Running:
    """A server that answers at `url`."""

    engine: str
    url: str
    command: str  # of what the user added without the values
    whole_command: str  # private
    settings: dict[str, str]  # of its environment, which its command line does not show
    ready_seconds: float
    log: Path
    _guardian: _Guardian = field(repr=False)

    def ended(self) -> str | None:
        """How it ended; None while it serves."""
        return self._guardian.ended()


@contextlib.contextmanager
def started(start: ServerStart, log_folder: Path) -> Iterator[Running]:
    """Start a server on a free port of this machine, and stop it on leaving.

    Raises:
        EngineError: it cannot be started, ends at once, or does not answer in time. If it ends
            later, an EngineError from the body says how.
        UsageError: the command or the arguments cannot be used as they are.
    """
    with socket.socket() as probe:  # a free one
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    run = launch(start, HOST, port)
    environment = {} if start.threads is None else {"threads": str(start.threads)}
    for name in STARTED[start.engine].read_variables:
        environment[name] = os.environ.get(name, "unset")
    begun = time.monotonic()
    runner = _Guardian(run, log_folder, start.engine)
    try:
        _wait_until_ready(runner, start, port, begun)
        running = Running(
            engine=start.engine,
            url=f"http://{HOST}:{port}",
            command=shlex.join(run.form),
            whole_command=shlex.join(run.words),
            settings=environment,
            ready_seconds=time.monotonic() - begun,
            log=runner.log,
            _guardian=runner,
        )
        try:
            yield running
        except EngineError as error:
            if (how := runner.ended(_POLL_SECONDS)) is None:
                raise
            # Not its last lines: a server that has been sent prompts may have logged one.
            ended = f"; {start.engine} ended ({how}), its log is {runner.log}"
            raise EngineError(
                error.message + ended, hint=error.hint, safe_message=error.safe_message + ended
            ) from error
    finally:
        runner.end()


def server_threads() -> int | None:
    """Threads for a server: on few cores all but one, which the client keeps; else None, as many as
    it takes.
    """
    cores = cores_here()
    return max(1, cores - 1) if cores <= _FEW_CORES else None


def _wait_until_ready(runner: _Guardian, start: ServerStart, port: int, begun: float) -> None:
    while not _answers(port):
        how = runner.ended(_POLL_SECONDS)
        if runner.refused is not None:
            command, assigns, _ = runner.launch.words[0].partition("=")
            raise EngineError(
                f"cannot run `{command}{'=…' if assigns else ''}`: {runner.refused}",
                safe_message=f"cannot run the command of {start.engine}: {runner.refused}",
                hint="--engine-command names the command that starts the server; {args} in it "
                "stands for draftbench's flags",
            )
        if how is not None:
            ended = f"{start.engine} ended before it answered: {how}"
            raise EngineError(
                ended + runner.last_words(),
                hint=f"its whole log is {runner.log}; {runner.advice()}",
                safe_message=ended,
            )
        if time.monotonic() - begun > start.ready_timeout:
            late = f"{start.engine} did not answer within {start.ready_timeout:g} s"
            raise EngineError(
                late + runner.last_words(),
                hint=f"a longer --ready-timeout waits for it; its whole log is {runner.log}",
                safe_message=late,
            )


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class _Guardian:
    """The process that runs a server, and the pipe whose closing stops it."""

    def __init__(self, run: Launch, folder: Path, engine: str) -> None:
        self.launch, self.engine = run, engine
        self._environment = os.environ | run.environment
        self._heard = ""
        self._group: int | None = None
        self.refused: str | None = None  # why the command could not be run
        log, name = tempfile.mkstemp(prefix=f"{engine}-", suffix=".log", dir=folder)
        self.log = Path(name)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Control-C is for draftbench alone
            )
        finally:
            os.close(log)
        order = {
            "command": run.words,
            "stop": run.stop,
            "grace": GRACE_SECONDS,
            "parent": os.getpid(),
        }
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(f"{json.dumps(order)}\n".encode())
            self._stdin.flush()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def ended(self, wait: float = 0.0) -> str | None:
        """How the server ended; None if it still runs after `wait` seconds."""
        # First, so that all that a guardian wrote before it was gone is in the pipe.
        gone = self._process.poll() is not None
        self._listen(wait)
        for line in self._heard.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "started":
                self._group = int(rest)
            elif kind == "failed":
                self.refused = rest
            elif kind == "exited":
                with contextlib.suppress(ValueError):  # no number of a signal
                    return signal.Signals(-int(rest)).name
                return f"exit code {rest}"
        return "the process that guards it is gone" if gone else None

    def _listen(self, wait: float) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        while select.select([pipe], [], [], wait)[0]:
            if not (read := os.read(pipe.fileno(), 4096)):
                return
            self._heard += read.decode(errors="replace")
            wait = 0.0

    def _logged(self) -> list[str]:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_BYTES))
            text = log.read(_LOG_BYTES).decode(errors="replace")
        lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
        return [_COLOURS.sub("", line) for line in lines if line]

    def advice(self) -> str:
        """What to do about the error in the server's log."""
        log = "\n".join(self._logged())
        changed = "--engine-args and --engine-command change how it is started"
        hints = STARTED[self.engine].log_hints
        return next((hint for words, hint in hints.items() if words in log), changed)

    def last_words(self) -> str:
        """The last lines of the server's log, safe to print and without secrets."""
        secrets, lines = self.launch.added | secrets_of(self._environment), self._logged()
        last = lines[-LAST_LINES:]
        # When one of the server's processes fails, the others fail after it.
        errors = (line for line in lines if _ERROR.search(line) and not _NO_ERROR.search(line))
        cause = next(errors, None)
        shown = last if cause is None or cause in last else [cause, "…", *last]
        words = "".join(f"\n  {on_one_line(line, secrets)}" for line in shown)
        return f"; its log ends:{words}" if words else "; its log is empty"

    def end(self) -> None:
        """Stop the server and wait until it is gone."""
        self.ended()  # learns the group
        with contextlib.suppress(OSError):
            self._stdin.close()
        most = GRACE_SECONDS + guardian.KILL_SECONDS + guardian.STOP_SECONDS
        try:
            code = self._process.wait(most + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code != 0 and self._group is not None:  # somebody killed the guardian
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()
