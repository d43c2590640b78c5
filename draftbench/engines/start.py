"""Starts a serving engine, waits until it answers, and stops it.

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from draftbench.engines import guardian
from draftbench.engines.commands import Launch, launch
from draftbench.engines.engine import ServerStart
from draftbench.engines.every import STARTED
from draftbench.engines.secrets import on_one_line, secrets_of
from draftbench.errors import EngineError
from draftbench.run_folder.manifest import cores_here

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
    for name in STARTED[start.engine].environment:
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
