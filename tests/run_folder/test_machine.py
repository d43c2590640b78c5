"""What a machine did between two looks, from counters made by hand."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from draftbench.records import MachineState
from draftbench.run_folder import machine
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.machine import Watch
from draftbench.run_folder.run import read_run


class Scene:
    """A clock, four cores and counters that the test moves."""

    def __init__(self, folder):
        self.stat = folder / "stat"
        self.throttle = folder / "cpu0/thermal_throttle/core_throttle_count"
        self.throttle.parent.mkdir(parents=True)
        self.set(clock=5.0, own=0.0, busy=0, idle=0, throttled=3)

    def set(self, clock, own, busy, idle, throttled):
        self.clock, self.own = clock, own
        hertz = os.sysconf("SC_CLK_TCK")
        line = f"cpu {busy * hertz} 0 0 {idle * hertz} 0 0 0 0 0 0"
        self.stat.write_text(line + "\ncpu0 1 2 3\n")
        self.throttle.write_text(f"{throttled}\n")


@pytest.fixture
def scene(monkeypatch, tmp_path):
    scene = Scene(tmp_path)
    times = {"system": 0, "children_user": 0, "children_system": 0}
    monkeypatch.setattr(machine.time, "monotonic", lambda: scene.clock)
    monkeypatch.setattr(machine.os, "times", lambda: SimpleNamespace(user=scene.own, **times))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    return scene


def test_others_are_what_was_busy_beyond_this_process(scene):
    watch = Watch("p")
    # 20 s of 4 cores: 50 of 80 core seconds busy, 10 of them ours.
    scene.set(clock=25.0, own=10.0, busy=50, idle=30, throttled=5)
    state = watch.look()
    assert (state.seconds, state.others) == (20.0, 0.5)
    assert (state.throttled, state.process) == (2, "p")


def test_a_child_that_still_runs_is_no_other_process():
    """A server counts before it ended and once, not all at once when it does."""
    watch = Watch("p")
    before = machine._counters().ours
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 20  # a busy machine gives the child little
        during = before
        while during - before <= 0.2 and time.monotonic() < deadline:
            time.sleep(0.1)
            during = machine._counters().ours
    finally:
        child.kill()
        child.wait()
    assert during - before > 0.2
    # Sums of floats in another order: a hundredth is one tick of the system's clock.
    assert machine._counters().ours > during - 0.01
    state = watch.look(at_least=0.0)
    assert state.others is None or 0 <= state.others <= 1


def test_two_looks_in_a_row_are_one(scene):
    watch = Watch("p")
    scene.clock += 9.0
    assert watch.look() is None
    scene.clock += 2.0
    assert watch.look().seconds == 11.0
    assert watch.look() is None


def test_what_a_machine_does_not_tell_is_unknown(scene):
    scene.stat.unlink()
    scene.throttle.unlink()
    watch = Watch("p")
    scene.clock += 20.0
    state = watch.look()
    assert (state.others, state.throttled) == (None, None)


def test_states_are_kept_with_the_run(folder):
    state = MachineState(at=1.0, seconds=20.0, others=0.5, throttled=None, process="p")
    assert read_run(folder).states == ()
    with folder.writer() as writer:
        writer.append([state])
    assert read_run(RunFolder(folder.path)).states == (state,)
