"""Whatever ends draftbench ends its server."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

ENGINE = shlex.join([sys.executable, "-S", str(Path(__file__).with_name("scripted_engine.py"))])
PROGRAM = """
import os, sys, time
from pathlib import Path
from draftbench.engines import start

start.GRACE_SECONDS = 0.3
folder, command, stop, *forks = sys.argv[1:]
settings = start.ServerStart("llama.cpp", "t", command=command, stop_command=stop)
with start.started(settings, Path(folder)) as server:
    if forks and os.fork() == 0:
        time.sleep(8)
        os._exit(0)
    print("ready", flush=True)
    time.sleep(600)
"""


class Draftbench:
    """A process that has started a server, and all processes that belong to it."""

    def __init__(self, folder, *words, stop=""):
        self.mark = uuid4().hex
        behaviour, *more = words or [""]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), f"{ENGINE} {behaviour}", stop, *more],
            stdout=subprocess.PIPE,
            env=os.environ | {"MARK": self.mark},
        )

    def ready(self):
        assert self.process.stdout.readline() == b"ready\n"

    def servers(self):
        """The guardian, the server and what the server started."""
        return [one for one in psutil.process_iter() if self._marked(one)]

    def _marked(self, process):
        try:
            own = PROGRAM in process.cmdline()  # draftbench itself, and its forks
            return not own and process.environ().get("MARK") == self.mark
        except psutil.Error:
            return False

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def draftbench(tmp_path):
    made = []

    def begun(*words, **settings):
        made.append(Draftbench(tmp_path, *words, **settings))
        return made[-1]

    yield begun
    for one in made:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def all_gone(processes, seconds=20):
    return not psutil.wait_procs(processes, seconds)[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_and_its_children_end_with_a_draftbench_that_was_ended(
    draftbench, tmp_path, number
):
    note = tmp_path / "note"
    stop = shlex.join(["sh", "-c", f"echo stopped >> {note}"])
    running = draftbench("family", stop=stop)
    running.ready()
    processes = running.servers()
    assert len(processes) == 4  # guardian, server, and its two children
    running.end(number)
    assert all_gone(processes)
    assert note.read_text() == "stopped\n"


def test_a_server_ends_although_a_fork_of_draftbench_holds_its_pipe(draftbench):
    running = draftbench("", "forks")
    running.ready()
    processes = running.servers()
    assert len(processes) == 2
    running.end(signal.SIGKILL)
    assert all_gone(processes, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_process_is_left_of_a_draftbench_killed_at_a_random_moment(draftbench, seed):
    running = draftbench("family")
    time.sleep(random.Random(seed).uniform(0, 1.5))
    running.end(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while running.servers():
        assert time.monotonic() < deadline
        time.sleep(0.1)
