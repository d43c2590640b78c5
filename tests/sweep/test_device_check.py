"""`draftbench check --device` on a machine without a GPU, and what it makes of a failure."""

import json

import pytest
import torch

from draftbench.decoder import device, linear
from draftbench.decoder.llama import LlamaRunner
from draftbench.sweep import device_check
from tests.decoder.test_cuda_graphs import Traced


@pytest.fixture
def checked(command):
    """The exit code and what was found, by what was tried."""

    def check():
        outcome = command("check", "--device", "cpu", "--format", "json")
        return outcome.code, {row["what"]: row["found"] for row in json.loads(outcome.out)}

    return check


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(device_check.SIDE, "cpu", 128)
    monkeypatch.setattr(device_check, "BLOCK", 1 << 12)


@pytest.fixture
def quick(small, monkeypatch):
    monkeypatch.setattr(device_check, "_sweep", lambda *given: ("swept", True))


@pytest.fixture
def card(monkeypatch):
    """A GPU of this machine, as far as a CPU can be called by a number."""
    monkeypatch.setattr(device_check, "default_dtype", lambda device: torch.float32)
    monkeypatch.setattr(linear, "narrow_type", lambda weight: None)  # no kernel for CPUs
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    return "cpu:0"


def test_a_cpu_says_what_it_could_not_try(command, checked, quick, tmp_path):
    code, found = checked()
    assert code == 0
    assert found["recorded passes"] == "not tried: CUDA graphs need a GPU"
    assert "has no fast kernel" in found["fp8 weights"]
    assert "GB/s, a plain read" in found["unquantized weights"]
    outcome = command("check", "--device", "cpu", "-o", tmp_path / "found.txt")
    assert outcome.out == ""
    shown = " ".join((tmp_path / "found.txt").read_text().split())
    assert "not tried: recorded passes; fp8" in shown


def test_a_device_is_not_checked_beside_models(failing):
    words = ("check", "--device", "cpu", "--target", "t")
    assert "--device and --target are two checks" in failing(2, *words)


def test_several_gpus_are_not_tried_at_once(failing, monkeypatch):
    monkeypatch.setattr(device, "device_of", lambda name: "auto")
    assert "a check tries one device" in failing(2, "check", "--device", "auto")


@pytest.mark.slow
def test_recorded_passes_are_held_against_the_same_launched_call_by_call(card, monkeypatch):
    """Widths of 1 and 2, with reaches of 256, 512 and 768 keys."""

    def record(runner):
        return runner.record_with(Traced)

    monkeypatch.setattr(device_check, "WIDTHS", range(1, 3))
    monkeypatch.setattr(device_check, "CAPACITY", 600)
    monkeypatch.setattr(LlamaRunner, "record_short_passes", record)
    found, works = device_check._recorded(card)
    assert works
    assert found.startswith("6 of widths 1 to 2; least cosine 1.0000")


def test_what_fails_is_a_line_and_exit_code_1(checked, quick, monkeypatch):
    def broken(*given):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(device_check, "_bandwidth", broken)
    code, found = checked()
    assert (code, found["int4 weights"], found["sweep"]) == (1, "out of memory", "swept")


@pytest.mark.slow
def test_a_sweep_of_the_embedded_models_is_part_of_it(checked, small):
    assert "responses as written before" in checked()[1]["sweep"]
