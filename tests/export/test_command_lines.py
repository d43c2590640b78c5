"""What is exported for llama.cpp and SGLang, read by their own command lines.

Runs only where an engine is named; last run with llama-server b11669 and SGLang 0.5.23.

    DRAFTBENCH_LLAMA_SERVER=llama/llama-server DRAFTBENCH_SGLANG_PYTHON=sglang/bin/python \\
        pytest tests/export/test_command_lines.py
"""

import os
import shlex
import subprocess

import pytest

from draftbench.engines.every import ENGINES
from draftbench.export.configurations import configure
from draftbench.models.drafting import speculation_of
from draftbench.records import DraftingMode

LLAMA = os.environ.get("DRAFTBENCH_LLAMA_SERVER")
SGLANG = os.environ.get("DRAFTBENCH_SGLANG_PYTHON")
PARSE = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = vars(parser.parse_args(sys.argv[1:]))
print(found["speculative_num_draft_tokens"])
"""
OWN = speculation_of("mtp", 1)
SETTINGS = [
    {},
    {"mode": DraftingMode.SAMPLED, "sampled": True},
    {"draft": None, "concurrency": 64},
    {"quant": "fp8", "concurrency": 64},
    {"draft": "org/d@b", "target_revision": "a", "survival": (0.8, 0.5, 0.25, 0.05)},
]


def ran(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server")
@pytest.mark.parametrize("changes", SETTINGS)
def test_llama_server_reads_its_flags_as_far_as_the_missing_model(plan, changes):
    words = shlex.split(configure(plan(**changes), "llamacpp").text, comments=True)
    assert "failed to open GGUF file" in ran(LLAMA, *words[1:]).stderr
    assert "invalid argument" in ran(LLAMA, *words[1:], "--no-such-flag").stderr


@pytest.mark.skipif(SGLANG is None, reason="DRAFTBENCH_SGLANG_PYTHON names no SGLang")
@pytest.mark.parametrize("changes", SETTINGS)
def test_sglang_reads_its_flags(plan, changes):
    words = shlex.split(configure(plan(**changes), "sglang").text, comments=True)
    flags = words[words.index("sglang.launch_server") + 1 :]
    assert ran(SGLANG, "-c", PARSE, *flags).stdout.splitlines()[-1] == "5"
    assert ran(SGLANG, "-c", PARSE, *flags, "--no-such-flag").returncode == 2


@pytest.mark.skipif(LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server")
def test_llama_server_reads_the_option_for_a_targets_own_draft():
    words = ["-m", "missing.gguf", *shlex.split(ENGINES["llama.cpp"].option(OWN))]
    assert "failed to open GGUF file" in ran(LLAMA, *words).stderr


@pytest.mark.skipif(SGLANG is None, reason="DRAFTBENCH_SGLANG_PYTHON names no SGLang")
def test_sglang_reads_the_option_for_a_targets_own_draft():
    words = ["--model-path", "missing", *shlex.split(ENGINES["sglang"].option(OWN))]
    assert ran(SGLANG, "-c", PARSE, *words).stdout.splitlines()[-1] == "2"
