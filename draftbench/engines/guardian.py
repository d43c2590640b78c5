"""Runs a server and stops it when draftbench is gone, even if killed.

    python -I -S guardian.py < PIPE

The first line of the pipe is a JSON object: `command`, `stop` (a command that stops what lives
outside the server's process group; may be empty), `grace` (seconds to end by itself) and `parent`
(draftbench's process id). When the pipe ends, or the parent is a different process, the server's
process group is terminated, then killed, and `stop` is run. Events are reported on stdout, one a
line: `started PID`, `failed REASON` or `exited CODE`. The server's output goes to stderr.

This is a separate process, since a killed draftbench can stop nothing, and uses the standard
library alone, so that it starts in milliseconds and takes little memory.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator

KILL_SECONDS = 10.0  # until what was killed is gone
STOP_SECONDS = 60.0  # for the stop command
_LOOK_SECONDS = 1.0  # between two looks at who the parent is
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    # `wakes` is readable when a child ended or a signal asks this process to end.
    wakes, writes = os.pipe()
    for end in (wakes, writes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writes)
    for number in (*_ENDING, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    with open(0, "rb", buffering=0, closefd=False) as pipe:  # unbuffered: its end is yet to come
        line = pipe.readline()
    if not line:
        return
    order = json.loads(line)
    # On Linux, become the parent of the server's descendants whose parents end, so that those
    # outside the process group are found too.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    try:
        server = subprocess.Popen(
            order["command"], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
        )
    except OSError as error:
        _report(f"failed {error.strerror or error}")
        return
    _report(f"started {server.pid}")
    try:
        code = _wait(server.pid, order["parent"], wakes)
        if code is not None:
            _report(f"exited {code}")
    finally:
        _end(server.pid, order["grace"])
        if order["stop"]:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    order["stop"], stdin=subprocess.DEVNULL, stdout=2, timeout=STOP_SECONDS
                )


def _wait(server: int, parent: int, wakes: int) -> int | None:
    """Wait for the server's exit code; None when it is to be stopped."""
    while True:
        code = dict(_reaped()).get(server)
        if code is not None or os.getppid() != parent:
            return code
        readable, _, _ = select.select([0, wakes], [], [], _LOOK_SECONDS)
        if 0 in readable and not os.read(0, 4096):
            return None
        if wakes in readable and any(number in _ENDING for number in os.read(wakes, 4096)):
            return None


def _end(group: int, grace: float) -> None:
    """Terminate, then kill, the group and every process that left the group."""
    _signal(group, signal.SIGTERM)
    if _gone(group, grace):
        return
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        _signal(group, signal.SIGKILL)
        if _gone(group, 0.1):
            return


def _gone(group: int, seconds: float) -> bool:
    """Whether no process is left, after waiting for up to `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        dict(_reaped())
        if not _left_behind():
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


def _signal(group: int, number: int) -> None:
    for target in (-group, *_left_behind()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, number)


def _left_behind() -> list[int]:
    """This process's children: the server and adopted orphans."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:  # noqa: PTH123
            return [int(child) for child in children.read().split()]
    except (OSError, ValueError):
        return []  # not Linux: the group is all that is known


def _reaped() -> Iterator[tuple[int, int]]:
    """The children that ended, with their exit codes; a signal is a negative code."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def _report(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
    os._exit(0)  # without waiting for what Python believes to be running
