"""Commands as they are printed: they work where they are pasted."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

import draftbench
from draftbench.cli.invocation import as_called, called_with, command, resume_command
from draftbench.cli.signals import resumable
from draftbench.errors import RunFolderError

PACKAGE = Path(draftbench.__file__).parent


@pytest.fixture
def started(monkeypatch, tmp_path):
    """started(argv0, **found): the program was started so, and the shell finds these."""
    monkeypatch.chdir(tmp_path)

    def start(argv0, **found):
        monkeypatch.setattr(sys, "argv", [str(argv0), "sweep"])
        monkeypatch.setattr(shutil, "which", found.get)

    return start


@pytest.mark.parametrize(
    ("argv0", "found", "name"),
    [
        ("/opt/env/bin/draftbench", "/opt/env/bin/draftbench", "draftbench"),
        ("/opt/env/bin/draftbench", "/usr/bin/draftbench", "/opt/env/bin/draftbench"),
        (".venv/bin/draftbench", None, ".venv/bin/draftbench"),
        # A notebook, a test: whoever called is not what a person would paste.
        ("/usr/lib/pytest/__main__.py", None, "draftbench"),
    ],
)
def test_the_program_goes_by_the_name_that_the_shell_finds_it_by(started, argv0, found, name):
    started(argv0, draftbench=found)
    assert command("recommend", "a run") == f"{name} recommend 'a run'"


@pytest.mark.parametrize("found", [sys.executable, "/usr/bin/other", None])
def test_a_module_is_started_as_one(started, found):
    started(PACKAGE / "__main__.py", python=found)
    python = "python" if found == sys.executable else sys.executable
    assert command("demo") == shlex.join([python, "-m", "draftbench", "demo"])


def test_what_goes_on_names_the_folder_once(started):
    started("draftbench", draftbench=None)
    called_with(["sweep", "--target", "my model"])
    assert as_called() == "draftbench sweep --target 'my model'"
    assert resume_command(Path("runs/a")) == "draftbench sweep --target 'my model' --out runs/a"
    for given in (["--out", "runs/a"], ["--out=runs/a"]):
        called_with(["sweep", *given])
        assert resume_command(Path("runs/a")) == shlex.join(["draftbench", "sweep", *given])


def test_the_command_that_a_run_records_is_printed_as_this_program_is_called(started, tmp_path):
    started(".venv/bin/draftbench", draftbench=None)
    refused = RunFolderError("other settings", hint="this run is resumed by: draftbench sweep")
    with pytest.raises(RunFolderError) as caught, resumable(tmp_path / "run.json"):
        raise refused
    assert caught.value.hint == "this run is resumed by: .venv/bin/draftbench sweep"
