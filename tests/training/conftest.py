"""A run whose draft surely gains by training: the embedded draft with noise on its weights."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def swept(spoiled, tmp_path_factory):
    """Some short beginnings of code, answered by the embedded target in a few tokens."""
    folder = tmp_path_factory.mktemp("swept")
    rows = [json.loads(line) for line in Path("suites/completion.jsonl").read_text().splitlines()]
    prompts = [row["prompt"][: 40 * cut] for row in rows for cut in (1, 2, 3)]
    with (folder / "log.jsonl").open("w") as log:
        for prompt in dict.fromkeys(prompts):
            log.write(json.dumps({"prompt": prompt, "max_tokens": 16, "temperature": 0}) + "\n")
    words = ["sweep", "--target", EMBEDDED / "target", "--drafts", spoiled, "--k", "1,2"]
    words += ["--drafts", f"eagle3:{EMBEDDED / 'head'}", "--traffic", folder / "log.jsonl"]
    words += ["--measure", "none", "--no-controls", "--threads", 1, "--out", folder / "run"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setenv("DRAFTBENCH_KEY", "the key of the tests")
        assert main([*map(str, words), "--quiet"]) == 0
    return folder / "run"
