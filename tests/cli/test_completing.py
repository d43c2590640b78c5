"""What the shell's TAB offers, asked as the shells ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from draftbench.cli import completing
from draftbench.traffic.suites import suite_names

PROGRAM = (
    "import sys; sys.argv = ['draftbench']\n"
    "from draftbench.cli import entry\n"
    "try: entry()\n"
    "finally: assert not {'torch', 'transformers'} & set(sys.modules)\n"
)


def asked(shell, **variables):
    """The lines that a shell gets."""
    environment = {**os.environ, "_DRAFTBENCH_COMPLETE": f"complete_{shell}", **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def bash(*words):
    """The words as bash takes them apart; the last one is to be completed."""
    return asked("bash", COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        # Bash takes `suite:co` for three words and puts in the last one only.
        (["sweep", "--traffic", "suite", ":", "comp"], ["completion"]),
        (["sweep", "--traffic", "suite", ":"], sorted(suite_names())),
        (["gate", "--traffic", "su"], [f"suite:{name}" for name in sorted(suite_names())]),
        (["sweep", "--quant", "none,int"], ["none,int8", "none,int4"]),
        (["sweep", "--target-quant", "f"], ["fp8"]),
        (["check", "--traffic", "samp"], []),
        (["export", "RUN", "--engine", "v"], ["vllm"]),
        (["export", "RUN", "--engine", "ten"], ["tensorrt-llm"]),
        (["sweep", "--device", "cp"], ["cpu"]),
        (["sweep", "--mode", "gr"], ["greedy"]),
        (["recommend", "RUN", "--objective", "th"], ["throughput"]),
        (["recommend", "RUN", "--format", "j"], ["json"]),
        (["estimate", "--hardware", "rtx"], ["rtx4090"]),
        (["acc"], ["acceptance"]),
    ],
)
def test_bash(words, offered):
    assert bash("draftbench", *words) == offered


def test_a_word_that_may_be_a_file_is_left_to_the_shell():
    """Nothing offered is what makes it complete file names."""
    assert bash("draftbench", "sweep", "--traffic", "") == []
    assert bash("draftbench", "sweep", "--traffic", "s") == []


def test_fish_and_zsh_keep_a_word_whole():
    typed = "draftbench sweep --traffic suite:comp"
    assert asked("fish", _TYPER_COMPLETE_ARGS=typed, _TYPER_COMPLETE_FISH_ACTION="get-args") == [
        "suite:completion"
    ]
    (said,) = [line for line in asked("zsh", _TYPER_COMPLETE_ARGS=typed) if "suite" in line]
    assert "completion" in said


def test_cards_of_the_machine_are_devices(monkeypatch):
    def glob(folder, pattern):
        assert (str(folder), pattern) == ("/dev", "nvidia[0-9]*")
        return [folder / "nvidia10", folder / "nvidia0"]

    monkeypatch.setattr(completing.Path, "glob", glob)
    assert completing.devices("") == ["cpu", "cuda", "auto", "cuda:0", "cuda:10"]
