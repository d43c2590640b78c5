"""What `scripts/on_a_card.sh` is made of: models of a large shape, and its tables."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import bench_kernels
import msgspec
import pytest
import torch
from card_peers import after_the_first
from card_table import (
    Speed,
    beside_vllm,
    costs,
    equal_replays,
    goals,
    kernels,
    main,
    measured,
    not_done,
    table,
)
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
    seen = dict(costs("built-in", run, read=16.06e9 / 4.36e12))
    step = "a step of embedded-8b, one row"
    assert seen == {
        step: "4.59 ms, 80% of the memory's speed",
        "c of embedded-1.5b for embedded-8b": "0.245",
        "c of embedded-0.3b for embedded-8b": "0.060",
        "built-in: speed-ups predicted, off by": "1.5% in the median, 2.9% at most",
    }
    assert dict(costs("built-in", run, read=None))[step] == "4.59 ms"
    # Each is shown beside what is wanted of it.
    assert [line.split(" | ")[2] for line in goals(seen)[2:] if "not measured" not in line] == [
        "at least 80% of the memory's speed |",
        "at most 0.22 |",
        "at most 0.05 |",
        "3% in the median |",
    ]


def test_a_token_is_compared_with_vllms_where_that_was_fastest():
    """5 ms here; by vLLM 10 ms as a server, 4 without one; at 8 rows all are faster."""
    here, served = Speed("draftbench, plain", 1, 200), Speed("sweep on vLLM, plain", 1, 100)
    alone = Speed("vLLM, plain", 1, 250)
    others = [Speed("vLLM, drafting with d", 1, 900, "vLLM, plain"), Speed("vLLM, plain", 8, 999)]
    name = "a token of embedded-8b, of vLLM's time"
    found = [list(beside_vllm("embedded-8b", [here, *s])) for s in ([served], [served, alone])]
    assert found == [[(name, "50%: 5.00 of 10.00 ms")], [(name, "125%: 5.00 of 4.00 ms")]]
    assert list(beside_vllm("embedded-8b", [here, *others])) == []


def test_a_peers_speed_is_that_after_the_first_token(monkeypatch):
    """Two answers of 1 or 11 tokens in 0.5 and 2.5 s: 20 tokens more in 2 s more."""
    seconds = itertools.chain.from_iterable([(0, 0.5), (10, 12.5)])
    monkeypatch.setattr("card_peers.time.perf_counter", lambda: next(seconds))
    assert after_the_first(lambda limit: 2 * min(limit, 11), tokens=64) == 10


def test_kernels_are_shown_by_level_from_the_slowest_to_the_fastest():
    """A read of 1 GB takes 1 s."""
    product = {"bytes": 5e8, "read": 1e9, "PyTorch": 1.0}
    timed = [
        {"what": "int8 8B out, tokens 16", "seconds": 1.0} | product,
        {"what": "int8 8B down, tokens 16", "seconds": 0.625} | product,
        {"what": "attention of 8 to 1024 keys", "seconds": 1.1, "FlashAttention": 1.0},
        {"what": "attention of 1 to 1024 keys", "seconds": 0.9, "FlashAttention": 1.0},
        {"what": "attention of 1 to 8192 keys", "seconds": 1.0, "FlashAttention": 1.0},
    ]
    assert list(kernels(timed)) == [
        ("products, int8, tokens 16, of a read's speed", "50% to 80%"),
        ("attention, 1024 keys, of FlashAttention's time", "90% to 110%"),
        ("attention, 8192 keys, of FlashAttention's time", "100% to 100%"),
    ]


def test_what_is_wanted_and_was_not_measured_is_said():
    seen = {"c of embedded-0.3b for embedded-8b": "0.060", "c of small for smaller": "0.104"}
    lines = goals(seen)
    assert "| c of embedded-0.3b for embedded-8b | 0.060 | at most 0.05 |" in lines
    assert "| c of embedded-1.5b for embedded-8b | not measured | at most 0.22 |" in lines
    flash = "attention, 32768 keys, of FlashAttention's time"
    assert f"| {flash} | not measured | at most 120% |" in lines
    assert "| products, fp8, tokens 16, of a read's speed | not measured | at least 80% |" in lines
    assert lines[-1] == "| c of small for smaller | 0.104 |  |"


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
    (tmp_path / "steps.txt").write_text(f"  12 s  sweep\n{ray}\n")
    fp8 = Failure(
        candidate=Candidate(draft="d1", quant="fp8"), stage="load", reason="no kernel", hint=""
    )
    server = Failure(candidate=None, stage="load", reason="out of memory", hint="")
    run = replace(
        read_run(RunFolder(ROOT / "results" / "reference" / "tinyllama-stories")), failures=(fp8,)
    )
    lines = not_done(tmp_path, {"levels": run, "vllm": replace(run, failures=(server,))})
    assert lines == [
        "NOT DONE  levels, d1:fp8: no kernel",
        "NOT DONE  vllm, the target: out of memory",
        ray,
    ]


def test_a_run_that_cannot_be_read_costs_only_its_own_figures(tmp_path, capsys):
    for name in ("built-in", "embedded"):
        shutil.copytree(ROOT / "results" / "reference" / "h200-8b-loads", tmp_path / name)
    (tmp_path / "embedded" / "run.json").write_text("")
    main(tmp_path)
    told = capsys.readouterr().out
    assert told.startswith("NVIDIA H200, PyTorch 2.11.0\n")
    assert "| c of embedded-0.3b for embedded-8b | 0.060 | at most 0.05 |" in told
    assert "NOT DONE  embedded: " in told


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kernels_are_timed_on_a_gpu_alone():
    with pytest.raises(SystemExit, match="error: this needs an NVIDIA GPU"):
        bench_kernels.main(None)


STEPS = """
    model-small model-smaller model-smallest sweep vllm-sweep kernels levels transformers selfcheck
    tests-cuda embedded vllm vllm-drafting worker training
""".split()  # noqa: SIM905


def on_a_card(out, **environment):
    """The process of the script, in an environment of its own."""
    return subprocess.Popen(
        ["bash", ROOT / "scripts" / "on_a_card.sh", out],
        env=os.environ | {"PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_there_is_no_time_for_is_said_step_by_step(tmp_path):
    out = tmp_path / "out"
    process = on_a_card(out, SECONDS_IN_ALL="0", SIZE="small", DRAFTBENCH_VLLM_PYTHON="python")
    _, errors = process.communicate(timeout=120)
    told = (out / "steps.txt").read_text().splitlines()
    for step in STEPS:
        if step not in ("kernels", "tests-cuda"):  # there is no GPU
            assert f"NOT DONE  {step}: no time was left" in told
    assert "nothing was timed" in errors
    assert process.returncode == 1
    assert {file.name for file in out.iterdir()} == {"steps.txt", "traffic.jsonl", "table.md"}
    assert "| c of embedded-1.5b for embedded-8b | not measured |" in (out / "table.md").read_text()


def interpreter(folder, then, found="cpu small"):
    """An interpreter that finds such a device, and does `then` with whatever it is to run."""
    file = folder / "python"
    file.write_text(f'#!/bin/bash\n[ "$1" = -c ] && {{ echo {found}; exit; }}\n{then}\n')
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("found", "models"),
    [
        ("cuda card", ["embedded-8b", "embedded-1.5b", "embedded-0.3b"]),
        ("cuda 8gb", ["embedded-1.5b", "embedded-0.3b", "embedded-0.1b"]),
    ],
)
def test_a_gpu_is_given_what_fits_and_is_wanted_of_it_first(tmp_path, found, models):
    python, out = interpreter(tmp_path, 'echo "$@"', found), tmp_path / "out"
    told, _ = on_a_card(out, PYTHON=python, DRAFTBENCH_VLLM_PYTHON=python).communicate(timeout=100)
    steps = [line.partition(" s  ")[2] for line in told.splitlines() if " s  " in line]
    measured = "sweep vllm-sweep embedded selfcheck transformers levels tests-cuda kernels"
    others = "vllm vllm-drafting worker ray training"
    assert steps == [*(f"model-{name}" for name in models), *measured.split(), *others.split()]
    assert re.search(rf"--drafts \S+/{models[1]},\S+/{models[2]} ", (out / "sweep.log").read_text())
    assert "--enforce-eager" not in (out / "vllm-sweep.log").read_text()


def test_its_list_says_what_is_bought_before_vllm_is_and_runs_nothing(tmp_path):
    """Three models at 40 s and a sweep at 150: vLLM's begins in minute 4 and ends in minute 8."""
    process = on_a_card(
        "--list", PYTHON="false", DRAFTBENCH_VLLM_PYTHON="false", TMPDIR=str(tmp_path)
    )
    told, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert [line[:29] for line in told.splitlines()[2:6]] == [
        "from  1:20, at most  40 s  mo",
        "from  2:00, at most 150 s  sw",
        "from  4:30, at most 240 s  vl",
        "from  8:30, at most  45 s  em",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_step_that_hangs_is_ended_in_its_time_whatever_it_ignores(tmp_path):
    """27 s less 20 for the table are 7 for all steps."""
    hang = "trap '' TERM; [ \"$1\" = scripts/inflate.py ] && while :; do sleep 1; done"
    process = on_a_card(
        tmp_path / "out", PYTHON=interpreter(tmp_path, hang), SECONDS_IN_ALL="27", SIZE="small"
    )
    told, _ = process.communicate(timeout=100)
    assert re.search("NOT DONE  model-small: it took longer than [67] s", told)
    assert "NOT DONE  sweep: no time was left" in told


def test_a_step_that_was_killed_for_memory_is_not_called_too_slow_and_costs_no_other(tmp_path):
    kill = 'echo "torch.OutOfMemoryError: CUDA"; echo a hint; kill -9 $$'
    process = on_a_card(tmp_path / "out", PYTHON=interpreter(tmp_path, kill), SIZE="small")
    told, _ = process.communicate(timeout=100)
    for step in ("model-small", "sweep", "levels", "transformers", "selfcheck", "training"):
        assert f"NOT DONE  {step}: exit code 137; torch.OutOfMemoryError: CUDA\n" in told


def test_an_interrupt_ends_the_step_and_leaves_no_models(tmp_path):
    python = interpreter(tmp_path, f"echo $$ >{tmp_path}/running; exec sleep 1000")
    process = on_a_card(tmp_path / "out", PYTHON=python, TMPDIR=str(tmp_path))
    running = tmp_path / "running"
    while not (running.exists() and running.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(running.read_text()), 0)
    assert not list(tmp_path.glob("tmp.*"))


@pytest.mark.parametrize(
    ("environment", "error", "hint"),
    [
        ({"PYTHON": "/no/python"}, "/no/python cannot import draftbench and PyTorch", "PYTHON="),
        ({"SIZE": "huge"}, "unknown size huge", "SIZE is card, 8gb or small"),
    ],
)
def test_what_cannot_begin_says_what_to_change(tmp_path, environment, error, hint):
    usual = {"PYTHON": interpreter(tmp_path, "exit 1")}
    process = on_a_card(tmp_path / "out", **usual | environment)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert f"error: {error}" in errors
    assert hint in errors
