"""A run whose draft surely gains by training: the embedded draft with noise on its weights."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scenes import EMBEDDED

from draftbench.cli import main


@pytest.fixture(scope="session")
def spoiled(tmp_path_factory):
    """Two thirds as good as it was."""
    folder = tmp_path_factory.mktemp("models") / "spoiled"
    shutil.copytree(EMBEDDED / "draft", folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2:
            noise = torch.randn(weight.shape, generator=generator) * weight.float().std() * 0.4
            weights[name] = (weight.float() + noise).to(weight.dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_log(path, cuts):
    """Some beginnings of code, to be answered in a few tokens."""
    rows = [json.loads(line) for line in Path("suites/completion.jsonl").read_text().splitlines()]
    prompts = dict.fromkeys(row["prompt"][: 40 * cut] for row in rows for cut in range(1, cuts + 1))
    asked = ({"prompt": prompt, "max_tokens": 16, "temperature": 0} for prompt in prompts)
    path.write_text("".join(json.dumps(each) + "\n" for each in asked))
    return path


@pytest.fixture(scope="session")
def swept(spoiled, tmp_path_factory):
    """A run over short beginnings of code. At a single k, the gain in speed is that of the tokens
    per round: the timings of this machine cancel.
    """
    drafts = spoiled, f"eagle3:{EMBEDDED / 'head'}"
    return sweep_of(drafts, tmp_path_factory.mktemp("swept"), "--k", 2)


@pytest.fixture(scope="session")
def brief(spoiled, tmp_path_factory):
    """A run of eight requests, too few to train on."""
    return sweep_of([spoiled], tmp_path_factory.mktemp("brief"), "--k", 2, "--sample", 8)


def sweep_of(drafts, folder, *more):
    words = ["sweep", "--target", EMBEDDED / "target", "--drafts", ",".join(map(str, drafts))]
    words += ["--traffic", write_log(folder / "log.jsonl", cuts=3), *more]
    words += ["--measure", "none", "--no-controls", "--threads", 1, "--out", folder / "run"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setenv("DRAFTBENCH_KEY", "the key of the tests")
        assert main([*map(str, words), "--quiet"]) == 0
    return folder / "run"
