"""Kills draftbench, or the llama-server that it started, at random moments of a sweep; resumes the
sweep until it is whole, and checks that no process is left, that every record kept before is still
there byte for byte, and that everything planned is there at the end.

    python scripts/kill_engine.py LLAMA_SERVER [--kills 20] [--seed 0]

The models are the embedded ones. `--kills` counts those of each kind. Exits with 1 if anything is
left, changed or missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

import psutil
import torch
from embedded_gguf import write_family
from silence import Silence

from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run
from draftbench.sweep import SweepOptions, prepare
from draftbench.sweep.measure import measure_sweep
from draftbench.sweep.options import ServingOptions
from draftbench.sweep.prepared import Prepared
from draftbench.traffic import TrafficQuery

EMBEDDED = Path(str(files("draftbench"))) / "embedded"
MOST_SECONDS = 30.0  # until everything must be gone
KILLS_A_SWEEP = 5


def prepared_sweep(server: str, models: Path, requests: int) -> Prepared:
    key = b"key of the kill test"
    options = SweepOptions(
        target=str(models / "target.gguf"),
        drafts=(str(models / "distilled.gguf"),),
        traffic=TrafficQuery("suite:completion", key, requests),
        ks=(2, 4),
        max_new_tokens=24,
        temperature=0.0,
        measure="all",
        measure_requests=requests,
        controls=False,
        threads=1,
        serving=ServingOptions(
            engine="llama.cpp",
            command=f"{server} {{args}}",
            tokenizer=str(EMBEDDED / "target"),
            ready_timeout=60.0,
        ),
    )
    return prepare(options, "kill test", Silence())


def sweep(prepared: Prepared, out: Path, mark: str) -> int:
    """Fork a sweep whose servers carry the mark in their environment; its process id."""
    child = os.fork()
    if child == 0:
        os.environ["MARK"] = mark
        # A fork breaks the pool of threads: PyTorch fails once, then makes a new one.
        with contextlib.suppress(RuntimeError):
            torch.set_num_threads(1)
        try:
            measure_sweep(prepared, out, Silence())
        except BaseException as error:
            print(f"  {type(error).__name__}: {error}"[:100], flush=True)
            os._exit(1)
        os._exit(0)
    return child


def marked(mark: str) -> list[psutil.Process]:
    """Processes that inherited this mark: guardians and servers."""
    return [process for process in psutil.process_iter() if _mark_of(process) == mark]


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("MARK")
    except psutil.Error:
        return None


def kill_draftbench(child: int, mark: str, chance: random.Random) -> str | None:
    """Kill draftbench; returns how many processes ran then, or None if it had ended."""
    ran = len(marked(mark))
    if os.waitpid(child, os.WNOHANG)[0]:
        return None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"{ran} processes"


def kill_server(child: int, mark: str, chance: random.Random) -> str | None:
    """Kill the servers, wait for draftbench, and return how it ended; None if no server ran."""
    servers = [p for p in marked(mark) if _listens(p)]
    for process in servers:
        with contextlib.suppress(psutil.Error):
            process.kill()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"draftbench left with {code}" if servers else None


def _listens(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return "--port" in words and "guardian" not in " ".join(words)
    return False


def lines_of(out: Path) -> dict[Path, bytes]:
    """The complete lines of every file that is kept."""
    lines = {}
    for path in out.rglob("*.jsonl"):
        text = path.read_bytes()
        lines[path] = text[: text.rfind(b"\n") + 1]
    return lines


def planned(observed: Run) -> dict[str, object]:
    """What must be there at the end, whatever was killed: everything but times and the number of
    starts.
    """
    return {
        "responses": {t.key: t.digest for t in observed.trajectories},
        "replays": {(r.request, r.sample, r.candidate): r for r in observed.replays},
        "answers": {
            (s.request, s.sample, s.candidate, s.k, s.repeat, s.digest, s.counts)
            for s in observed.served
            if s.error is None
        },
        "failures": observed.failures,
    }


def endure(prepared: Prepared, folder: Path, kill, asked: argparse.Namespace) -> int:
    """Kill sweeps until `asked.kills` is reached; returns how many things went wrong."""
    chance = random.Random(asked.seed)
    begun = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(sweep(prepared, folder / "whole", "none"), 0)[1])
    longest = time.monotonic() - begun
    if code:
        sys.exit("a sweep that nobody killed failed")
    expected = planned(read_run(RunFolder(folder / "whole")))
    done = left = changed = missing = sweeps = 0
    while done < asked.kills:
        out, kills, whole = folder / f"killed{sweeps}", 0, False
        while not whole:
            kept, mark = lines_of(out), uuid4().hex
            child = sweep(prepared, out, mark)
            what = None
            if kills < KILLS_A_SWEEP and done + kills < asked.kills:
                time.sleep(chance.uniform(0.05, 0.8 * longest))
                what = kill(child, mark, chance)
            else:
                os.waitpid(child, 0)
            whole = what is None
            gone_after = time.monotonic()
            while (alive := marked(mark)) and time.monotonic() - gone_after < MOST_SECONDS:
                time.sleep(0.02)
            left += len(alive)
            now = lines_of(out)
            torn = [p for p, text in kept.items() if not now.get(p, b"").startswith(text)]
            changed += len(torn)
            if what:
                kills += 1
                seconds = time.monotonic() - gone_after
                print(
                    f"  kill {done + kills}: {what}, {len(alive)} left after {seconds:.2f} s, "
                    f"{sum(map(len, now.values()))} bytes kept, {len(torn)} files changed",
                    flush=True,
                )
            elif kills and _differing(out, expected):  # a kill that met no server may have cut it
                whole = kills >= KILLS_A_SWEEP or done + kills >= asked.kills
        wrong = _differing(out, expected)
        missing += bool(wrong)
        done, sweeps = done + kills, sweeps + 1
        print(f"  sweep {sweeps} differs in {', '.join(wrong) or 'nothing'}", flush=True)
    print(
        f"{done} kills in {sweeps} sweeps: {left} processes left, {changed} files changed, "
        f"{missing} sweeps without all that was planned"
    )
    return left + changed + missing


def _differing(out: Path, expected: dict[str, object]) -> list[str]:
    there = planned(read_run(RunFolder(out)))
    return [name for name in expected if there[name] != expected[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("server", help="llama-server")
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    asked, wrong = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as folder:
        write_family(Path(folder))
        prepared = prepared_sweep(asked.server, Path(folder), asked.requests)
        for name, kill in (("draftbench", kill_draftbench), ("the server", kill_server)):
            print(f"{name} killed", flush=True)
            wrong += endure(prepared, Path(folder) / name, kill, asked)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
