"""Which device is taken, and the words where a GPU of the machine cannot be."""

import itertools
import os

import pytest
import torch

from draftbench.decoder import device
from draftbench.decoder.device import (
    default_dtype,
    device_of,
    device_words,
    dtype_of,
    environment_threads,
    make_ready,
    one_thread_is_faster,
    set_threads,
)
from draftbench.errors import UsageError


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with or without an NVIDIA GPU, and this build of PyTorch."""

    def made(*, nvidia=True, cuda="13.0", hip=None, usable=False, capability=(9, 0), apple=False):
        monkeypatch.setattr(device, "_DRIVER", tmp_path if nvidia else tmp_path / "none")
        monkeypatch.setattr(device.shutil, "which", lambda name: None)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(
            torch.cuda, "get_device_name", lambda card: f"H{100 + (card.index or 0)}"
        )
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: capability)

    return made


@pytest.mark.parametrize(
    ("given", "words", "hint"),
    [
        ({"cuda": None}, "its PyTorch is built without CUDA", "--force-reinstall torch"),
        ({"hip": "6.2", "usable": True}, r"AMD's GPUs \(ROCm\)", "--engine"),
        # What PyTorch itself says, where nothing else explains it.
        ({}, "PyTorch finds no GPU", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_in_words_and_the_default_says_so(
    machine, given, words, hint
):
    machine(**given)
    with pytest.raises(UsageError, match=words) as caught:
        device_of("cuda")
    assert hint in caught.value.hint
    assert device_of(None) == "cpu"
    assert caught.value.message.partition(": ")[2] in device_words("cpu")


@pytest.mark.parametrize(("count", "words"), [(1, "cpu, 1 thread"), (2, "cpu, 2 threads")])
def test_a_machine_without_a_gpu_names_its_cpu_alone(machine, monkeypatch, count, words):
    machine(nvidia=False, cuda=None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert device_words("cpu") == words


def test_apples_gpus_are_refused_by_name(machine):
    machine(nvidia=False, cuda=None, apple=True)
    with pytest.raises(UsageError, match="does not run on Apple's GPUs"):
        device_of("mps")
    assert "Apple" in device_words(device_of(None))


def test_a_usable_gpu_is_taken_and_named(machine):
    machine(usable=True, capability=(8, 9))
    assert device_of(None) == "cuda"
    assert device_of("cuda:1") == "cuda:1"
    assert device_words("cuda:1").startswith("cuda:1, H101 (compute capability 8.9), PyTorch 2.")
    assert device_words("auto").startswith("auto, H100 and H101 (")
    with pytest.raises(UsageError, match="`cuda:2` is not on this machine"):
        device_of("cuda:2")


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), torch.bfloat16), ((7, 5), torch.float16)]
)
def test_bfloat16_is_taken_only_where_a_gpu_multiplies_it(machine, capability, expected):
    machine(usable=True, capability=capability)
    assert default_dtype("cuda") is expected
    if expected is torch.float16:
        with pytest.raises(UsageError, match=r"compute capability 8\.0, and this GPU has 7\.5"):
            dtype_of("bfloat16", "cuda")


def test_no_model_runs_on_a_gpu_with_cudnns_attention(monkeypatch):
    switched = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", switched.append)
    monkeypatch.setattr(torch.cuda, "set_device", switched.append)
    make_ready("cpu")
    make_ready("cuda:1")
    assert switched == [False, "cuda:1"]


def test_threads_are_those_that_were_given_on_a_system_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert set_threads(2) == 2
    assert set_threads(None) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert set_threads(None) == 3


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("1", 1),
        ("2,4", 2),  # of nested loops the outer one
        # What is no number of threads asks for none.
        ("0", None),
        ("many", None),
        ("", None),
    ],
)
def test_the_environment_asks_for_threads_by_a_number(monkeypatch, asked, found):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert environment_threads() == found


@pytest.mark.parametrize("name", ["cpu:0", "auto:1", "cuda:x", "cuda:", "cuda:²", "tpu"])
def test_a_device_that_does_not_exist_is_refused_whatever_the_machine_has(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match=f"unknown device `{name}`"):
        device_of(name)


@pytest.mark.parametrize(
    ("of_two", "of_one", "faster"), [(3.0, 2.0, True), (2.0, 2.0, True), (1.0, 2.0, False)]
)
def test_threads_are_used_where_they_are_faster_than_one(of_two, of_one, faster):
    """In each turn, two threads and then one begin and end."""
    times = itertools.accumulate(itertools.cycle((0.0, of_two, 0.0, of_one)))
    before = torch.get_num_threads()
    try:
        assert one_thread_is_faster(2, lambda: next(times)) is faster
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_one_thread_is_not_compared_with_itself():
    assert not one_thread_is_faster(1, lambda: pytest.fail("nothing is timed"))
