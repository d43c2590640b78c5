"""Every test is offline, 100 columns wide, on one thread of a quiet machine, with a request key of
its own.
"""

import gc
import os
import signal
import sys

# Read when numpy and PyTorch are imported. xdist's workers fill the cores already: with a thread
# per core in each, small models wait for each other six times as long as they compute.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COLUMNS"] = "100"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import pytest
from hypothesis import settings
from scenes import EMBEDDED, REFERENCE, Outcome, Scene

# A job in the background of a shell ignores Control-C, and so would every command that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_KEY", "the key of the tests")
    # Of a busy machine every answer says so, in place of what a test looks for.
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:  # a sweep was asked for more
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """A sweep collects garbage after each candidate: all of torch and pytest need not be looked
    at.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def scene():
    """An empty run."""
    return Scene()


@pytest.fixture(scope="session")
def embedded():
    """The folder of the models that ship with the package."""
    return EMBEDDED


@pytest.fixture(scope="session")
def kept():
    """The kept runs by name."""
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    return {folder.name: read_run(RunFolder(folder)) for folder in REFERENCE.iterdir()}


class Answers(dict):
    """What `recommend` says of each kept run by its name, asked once."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def __missing__(self, name):
        from draftbench.planner.recommend import recommend

        self[name] = recommend(self.kept[name])
        return self[name]


@pytest.fixture(scope="session")
def answers(kept):
    return Answers(kept)


@pytest.fixture(scope="session")
def reference(kept):
    return kept["qwen2.5-coder"]


@pytest.fixture
def command(capsys):
    """Run a command line given as words."""
    from draftbench.cli import main

    def run(*words) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def failing(command):
    """Run a command that must fail: nothing on stdout, a message and a hint on stderr."""

    def run(code, *words) -> str:
        outcome = command(*words)
        assert (outcome.code, outcome.out) == (code, "")
        lines = [line for line in outcome.err.splitlines() if line]
        assert [line.split(":")[0] for line in lines[-2:]] == ["error", "hint"]
        assert "Traceback" not in outcome.err
        return "\n".join(lines[-2:])

    return run
