"""What `scripts/on_a_card.sh` is made of: models of a large shape, and its tables."""

import os
import subprocess
import sys
from dataclasses import replace

import bench_kernels
import msgspec
import pytest
import torch
from card_table import Speed, costs, equal_replays, kernels, measured, not_done, table
from inflate import Shape, inflate
from scenes import EMBEDDED, ROOT
from transformers import AutoModelForCausalLM

from draftbench.records import Candidate, Failure
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
    with pytest.raises(SystemExit, match="does not fit"):
        inflate(DRAFT, tmp_path, replace(LARGE, **{size: 1}), "cpu", positions=0)


def test_the_tables_of_the_kept_run_have_its_published_figures():
    """An 8B target plain at 206 and 1538 tokens a second, 1.65 times that with the .3B draft; a
    step of 4.59 ms, of which a read of its weights at 4.36 TB/s takes 3.68.
    """
    run = read_run(RunFolder(ROOT / "results" / "reference" / "h200-8b-loads"))
    speeds = {(speed.name, speed.rows): speed for speed in measured(run, "draftbench")}
    plain, drafted = (
        speeds[f"draftbench, {name}", 1] for name in ("plain", "embedded-0.3b (k = 3)")
    )
    assert round(plain.tokens_per_second) == 206
    assert round(speeds["draftbench, plain", 8].tokens_per_second) == 1538
    assert drafted.over == "draftbench, plain"
    assert round(drafted.tokens_per_second / plain.tokens_per_second, 2) == 1.65
    assert list(costs(run, read=16.06e9 / 4.36e12)) == [
        ("a step of the target, one row", "4.59 ms, 80% of the memory's speed", "at least 80%"),
        ("c of embedded-1.5b", "0.245", ""),
        ("c of embedded-0.3b", "0.060", ""),
        ("speed-ups predicted, off by", "1.5% in the median, 2.9% at most", "3% in the median"),
    ]


def test_kernels_are_shown_by_level_from_the_slowest_to_the_fastest():
    """A read of 1 GB takes 1 s."""
    product = {"bytes": 5e8, "read": 1e9, "PyTorch": 1.0}
    timed = [
        {"what": "int8 8B out, tokens 16", "seconds": 1.0} | product,
        {"what": "int8 8B down, tokens 16", "seconds": 0.625} | product,
        {"what": "attention of 8 to 1024 keys", "seconds": 1.1, "FlashAttention": 1.0},
    ]
    assert list(kernels(timed)) == [
        ("products, int8, tokens 16, of a read's speed", "50% to 80%", "at least 80%"),
        ("attention, of FlashAttention's time", "110% to 110%", "at most 120%"),
    ]


def test_replays_that_differ_in_a_bit_are_counted():
    run = read_run(RunFolder(ROOT / "results" / "reference" / "tinyllama-stories"))
    first, *others = run.replays
    other = msgspec.structs.replace(first, accept=(1 - first.accept[0], *first.accept[1:]))
    assert equal_replays(run, run) == f"{len(run.replays)} of {len(run.replays)}"
    changed = replace(run, replays=(other, *others))
    assert equal_replays(run, changed) == f"{len(others)} of {len(run.replays)}"


def test_the_table_leaves_empty_what_was_not_timed():
    speeds = [
        Speed("plain", 1, 40.0),
        Speed("drafting", 1, 60.0, over="plain"),
        Speed("drafting", 8, 90.0, over="plain"),
    ]
    assert table(0.004, speeds) == [
        "| tokens a second | 1 in flight | 8 in flight |",
        "|---|---|---|",
        "| most: weights read at the memory's speed | 250 | |",
        "| plain | 40 |  |",
        "| drafting | 60, **1.50×** | 90 |",
    ]


def test_what_failed_is_said_beside_what_was_left_out(tmp_path):
    ray = "NOT DONE  ray: it is not installed"
    (tmp_path / "not-done.txt").write_text(f"{ray}\n")
    failed = Failure(
        candidate=Candidate(draft="d1", quant="fp8"), stage="load", reason="no kernel", hint=""
    )
    run = replace(
        read_run(RunFolder(ROOT / "results" / "reference" / "tinyllama-stories")),
        failures=(failed,),
    )
    lines = not_done(tmp_path, {"levels": run, "embedded": replace(run, failures=())})
    assert lines == ["NOT DONE  levels, d1:fp8: no kernel", ray]


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
    steps = "model-target model-d1 model-d03 sweep levels embedded transformers worker training"
    for step in [*steps.split(), "selfcheck"]:
        assert f"NOT DONE  {step}: no time was left" in told
    assert "nothing was timed" in done.stderr
    assert {file.name for file in out.iterdir()} == {"not-done.txt", "traffic.jsonl", "table.md"}
