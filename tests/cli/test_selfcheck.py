"""`draftbench selfcheck` on a machine without a GPU, and what it makes of a failure."""

import pytest
import torch

from draftbench.sweep import device_check


def lines(outcome):
    return dict(line[7:].split(": ", 1) for line in outcome.out.split("\n\n")[0].splitlines())


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(device_check, "_sweep", lambda *given: ("swept", True))
    monkeypatch.setitem(device_check.SIDE, "cpu", 128)


def test_a_cpu_says_what_it_could_not_try(command, quick):
    outcome = command("selfcheck", "--device", "cpu")
    assert outcome.code == 0
    found = lines(outcome)
    assert found["recorded passes"] == "not tried: CUDA graphs need a GPU"
    assert "has no fast kernel" in found["fp8, bytes a second"]
    assert "GB/s, a plain read" in found["none, bytes a second"]
    assert "not tried: recorded passes; fp8" in outcome.out.splitlines()[-1]


def test_what_fails_is_a_line_and_exit_code_1(command, quick, monkeypatch):
    def broken(*given):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(device_check, "_bandwidth", broken)
    outcome = command("selfcheck", "--device", "cpu")
    assert outcome.code == 1
    assert lines(outcome)["int4, bytes a second"] == "out of memory"
    assert lines(outcome)["sweep"] == "swept"


@pytest.mark.slow
def test_a_sweep_of_the_embedded_models_is_part_of_it(command, monkeypatch):
    monkeypatch.setitem(device_check.SIDE, "cpu", 128)
    assert "responses as written before" in lines(command("selfcheck", "--device", "cpu"))["sweep"]
