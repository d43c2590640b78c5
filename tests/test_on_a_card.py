"""What `scripts/on_a_card.sh` is made of: models of a large shape, and its table."""

import json
import os
import subprocess
import sys

import bench_kernels
import pytest
import torch
from card_table import Speed, measured, peers, table
from inflate import Shape, inflate
from scenes import EMBEDDED, ROOT
from transformers import AutoModelForCausalLM

from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

DRAFT = EMBEDDED / "draft"
# Four times as wide, so that norms are scaled by 1/2 exactly; four query heads to a key head.
LARGE = Shape(hidden=512, layers=4, inner=700, heads=16, kv_heads=4, vocab=2500)


def test_a_model_of_a_large_shape_computes_what_the_small_one_does(tmp_path):
    parameters = inflate(DRAFT, tmp_path, LARGE, "cpu", positions=4096)
    small, large = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (DRAFT, tmp_path)
    )
    assert large.num_parameters() == parameters
    assert large.config.max_position_embeddings == 4096
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        expected, got = small(ids).logits, large(ids).logits
    torch.testing.assert_close(got[..., :2048], expected, rtol=1e-4, atol=1e-4)
    # Added tokens repeat token 0, so that none comes before it.
    assert torch.equal(got[..., 2048:], got[..., :1].expand(-1, -1, 452))


@pytest.mark.parametrize("size", ["hidden", "layers", "inner", "heads", "kv_heads", "vocab"])
def test_a_shape_that_does_not_hold_the_small_model_is_refused(tmp_path, size):
    too_small = LARGE.__class__(**(vars(LARGE) | {size: 1}))
    with pytest.raises(SystemExit, match="does not fit"):
        inflate(DRAFT, tmp_path, too_small, "cpu", positions=0)


def test_the_table_of_the_kept_run_has_its_published_speeds():
    """An 8B target plain at 168 and 1253 tokens a second, 1.6 times that with the .3B draft."""
    run = read_run(RunFolder(ROOT / "results" / "reference" / "h200-8b"))
    speeds = {(speed.name, speed.rows): speed for speed in measured(run, "draftbench")}
    assert round(speeds["draftbench, plain", 1].tokens_per_second) == 168
    assert round(speeds["draftbench, plain", 8].tokens_per_second) == 1253
    name = "draftbench, embedded-0.3b (k = 3)"
    assert speeds[name, 1].over == speeds[name, 8].over == "draftbench, plain"
    gain = speeds[name, 1].tokens_per_second / speeds["draftbench, plain", 1].tokens_per_second
    assert round(gain, 2) == 1.65


def test_the_table_leaves_empty_what_was_not_timed(tmp_path):
    file = tmp_path / "peers.jsonl"
    told = [
        {"name": "memory", "bytes_per_second": 4e12},
        {"name": "weights", "bytes": 16e9},
        {"name": "plain", "rows": 1, "tokens_per_second": 40.0},
        {"name": "drafting", "rows": 1, "tokens_per_second": 60.0, "over": "plain"},
        {"name": "drafting", "rows": 8, "tokens_per_second": 90.0, "over": "plain"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in told))
    facts, speeds = peers(file)
    assert speeds[1] == Speed("drafting", 1, 60.0, "plain")
    assert table(facts, speeds) == [
        "| tokens a second | 1 in flight | 8 in flight |",
        "|---|---|---|",
        "| most: 16 GB of weights read at 4 TB/s | 250 | |",
        "| plain | 40 |  |",
        "| drafting | 60, **1.50×** | 90 |",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kernels_are_timed_on_a_gpu_alone():
    with pytest.raises(SystemExit, match="error: this needs an NVIDIA GPU"):
        bench_kernels.main(None)


def test_what_there_is_no_time_for_is_said_step_by_step(tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "on_a_card.sh", out],
        env=os.environ | {"PYTHON": sys.executable, "SECONDS_IN_ALL": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = (out / "not-done.txt").read_text().splitlines()
    steps = ("selfcheck", "model-target", "model-d1", "model-d03", "sweep", "transformers")
    for step in steps:
        assert f"NOT DONE  {step}: no time was left" in told
    assert "nothing was timed" in done.stderr
    assert [file.name for file in out.iterdir() if file.suffix != ".md"] == ["not-done.txt"]
