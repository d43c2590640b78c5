"""What `-h` shows: whole sentences, examples before flags, and fast."""

import os
import re
import statistics
import subprocess
import sys

import pytest

from draftbench.cli.commands import COMMANDS

NAMES = [name for name in COMMANDS if name != "runs"]
EVERY = ["", *NAMES, "runs", "runs list", "runs prune", "runs redact"]


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_program_is_one_screen_with_the_names_of_its_flags(command, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "88")
    shown = command(*words).out
    assert [summary for summary in COMMANDS.values() if summary not in shown] == []
    lines = shown.splitlines()
    assert len(lines) <= 25
    flags = "--version, --install-completion, --show-completion, --help"
    assert lines[-1] == f"Options: {flags}"
    assert command("-V").out == command("--version").out != ""


@pytest.mark.parametrize("name", EVERY)
def test_help_has_examples_first_fits_eighty_columns_and_speaks_no_python(
    command, monkeypatch, name
):
    monkeypatch.setenv("COLUMNS", "80")
    shown = command(*name.split(), "-h").out
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert re.findall(r"<\w+|no-\w+\]|list\[|\w\.\.\.$", shown, re.MULTILINE) == []
    if name:
        assert shown.index(f"  draftbench {name}") < shown.index("Options:")
        lines = shown.replace(f"Usage: draftbench {name}", "").splitlines()
        assert not [line for line in lines if line.count("draftbench ") > 1]


def test_a_default_is_shown_without_the_least_value(command):
    shown = " ".join(command("sweep", "--help").out.split())
    assert "(--arrivals log). [default: 1]" in shown


@pytest.mark.parametrize(
    ("name", "arguments"), [("gate", "[RUN]"), ("compare", "RUN_A RUN_B [RUN]...")]
)
def test_the_first_line_names_the_arguments_without_braces(command, name, arguments):
    assert command(name, "-h").out.startswith(f"Usage: draftbench {name} [OPTIONS] {arguments}\n")


def test_help_starts_in_under_half_a_second_of_processor_time():
    """The median of five starts; no command is loaded."""
    seconds = []
    for _ in range(5):
        before = os.times().children_user + os.times().children_system
        subprocess.run([sys.executable, "-m", "draftbench", "--help"], check=True, text=True,
                       capture_output=True)  # fmt: skip
        seconds.append(os.times().children_user + os.times().children_system - before)
    assert statistics.median(seconds) < 0.5


@pytest.mark.slow
def test_help_of_every_command_imports_nothing_heavy():
    program = (
        "import sys; from draftbench.cli import main\n"
        f"for name in {NAMES!r}: main([name, '-h'])\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
