"""What a baseline says of the machine that it was measured on."""

from __future__ import annotations

import pytest

from draftbench.gate.tested import threads_of


@pytest.mark.parametrize(
    ("machine", "threads"),
    [
        ("Linux x86_64, Some CPU @ 2.0 GHz, 4 cores, 2 threads, no accelerator", 2),
        ("Linux x86_64, CPU, 9 threads, of old, 16 cores, 12 threads, NVIDIA H100", 12),
        ("a laptop", None),
    ],
)
def test_the_threads_are_those_beside_the_cores(machine, threads):
    assert threads_of({"draft": "small", "machine": machine}) == threads


def test_a_baseline_that_names_no_machine_names_no_threads():
    assert threads_of({"draft": "small"}) is None
