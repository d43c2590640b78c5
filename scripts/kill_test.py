"""Kills a sweep on the embedded models at random moments, resumes it with the same command, and
compares the end with a sweep that was not killed.

    python scripts/kill_test.py --kills 100
    python scripts/kill_test.py --kills 200 --per-sweep 100 --requests 24 --longest 0.6 --lines 3
    python scripts/kill_test.py --kills 25 --workers 2 --requests 60 --longest 40
    python scripts/kill_test.py --kills 25 --workers ray --requests 60 --longest 40

Every third kill comes inside a write, after a random part of the line. Half of the sweeps are
greedy, half sampled at temperature 0.7. They are forked from a process that has imported
everything, so that kills do not come during imports. With `--workers` four of five kills end a
worker, which imports everything, and the sweep goes on; after two the next kill is the sweep's.
The workers of `ray` are on a local cluster of three processors.
Prints the kills, the acknowledged records that were lost, and what differs at the end; exits with 1
if anything was lost or differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

import psutil
import torch
from silence import Silence

import draftbench
import draftbench.run_folder.append_log as lines
from draftbench.measure import trajectories
from draftbench.measure.step_costs import LEAST_TURNS
from draftbench.planner.recommend import recommend
from draftbench.records import DraftingMode
from draftbench.run_folder.folder import PrivateText, RunFolder, RunWriter
from draftbench.run_folder.run import read_run
from draftbench.sweep import SweepOptions, prepare
from draftbench.sweep.measure import measure_sweep
from draftbench.sweep.options import RayCluster, workers_named
from draftbench.sweep.pool import MOST_TRIES
from draftbench.sweep.prepared import Prepared
from draftbench.traffic import TrafficQuery

# Responses are kept by groups: small ones give a sweep of few requests many places to die between.
trajectories.GROUP = 2
MODELS = Path(draftbench.__file__).parent / "embedded"
SHORTEST = 0.05
ACCEPTANCE = ("draft", "quant", "k", "alpha", "mean_accepted_length", "tokens_per_round")


def prepared_sweep(
    temperature: float, requests: int, workers: int | RayCluster | None
) -> Callable[[], Prepared]:
    """Prepares a sweep; on Ray each process connects by itself."""
    key = b"key of the kill test"
    query = TrafficQuery("suite:completion", key, requests)
    options = SweepOptions(
        target=str(MODELS / "target"),
        drafts=(str(MODELS / "draft"), "ngram"),
        traffic=query,
        ks=(1, 2),
        mode=DraftingMode.SAMPLED if temperature else DraftingMode.GREEDY,
        max_new_tokens=16,
        temperature=temperature,
        measure="all",
        measure_requests=requests // 3,
        controls=False,
        threads=1,
        workers=workers,
    )
    if options.cluster:
        return lambda: prepare(options, "kill test", Silence())
    prepared = prepare(options, "kill test", Silence())
    return lambda: prepared


@contextlib.contextmanager
def ray_cluster() -> Iterator[psutil.Process]:
    """The process of a cluster, whose descendants the workers are."""
    code = (
        "import ray, sys; "
        "began = ray.init('local', num_cpus=3, include_dashboard=False, log_to_driver=False); "
        "print(began.address_info['address'], flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    os.environ["RAY_AUTH_MODE"] = "token"  # as by default, for whoever connects to it too
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as process:
        assert process.stdout
        os.environ["RAY_ADDRESS"] = process.stdout.readline().strip()
        yield psutil.Process(process.pid)


def acknowledge(pipe: int) -> None:
    """In the child: report to the parent every append that returned."""
    original = RunWriter.append

    def reported(self, records):
        kept = list(records)
        original(self, kept)
        os.write(pipe, b"." * len(kept))

    RunWriter.append = reported


def die_inside_write(number: int, chance: random.Random) -> None:
    """In the child: write the n-th line in part, then kill this process."""
    count = 0
    plain_write = os.write

    def write(descriptor: int, data: bytes) -> int:
        nonlocal count
        if len(data) > 1 and bytes(data[-1:]) == b"\n":
            count += 1
            if count == number:
                plain_write(descriptor, data[: chance.randrange(len(data))])
                os.kill(os.getpid(), signal.SIGKILL)
        return plain_write(descriptor, data)

    lines.os = type("PatchedOs", (), {**vars(os), "write": staticmethod(write)})


def readable(out: Path) -> int:
    """Records that a reader sees."""
    if not (out / "run.json").exists():
        return 0
    folder = RunFolder(out)
    return len(folder.observations()) + len(list(folder.records(PrivateText)))


@dataclass(frozen=True)
class Kills:
    """How many kills, and at most how many of one sweep; each comes within so many seconds, or
    inside one of the first so many lines.
    """

    kills: int
    per_sweep: int
    longest: float
    lines: int
    chance: random.Random
    # Of workers, if it has any, four in five kills end one; None: the children of a sweep.
    workers: bool = False
    cluster: psutil.Process | None = None

    def at_work(self, sweep: psutil.Process) -> list[psutil.Process]:
        """The processes of workers."""
        sign, of = ("ray::SweepWorker", self.cluster) if self.cluster else ("spawn_main", sweep)
        found = []
        for each in of.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
                if sign in str(each.cmdline()):
                    found.append(each)
        return found


def kill_some(sweep: int, kills: Kills) -> int:
    """Kill a forked sweep, or its workers one after the other until it is killed or ends. Returns
    how many workers were killed.
    """
    killed, chance, process = 0, kills.chance, psutil.Process(sweep)
    while True:
        time.sleep(SHORTEST * (kills.longest / SHORTEST) ** chance.random())
        # A task that ends `MOST_TRIES` workers would rightly end the sweep.
        if not kills.workers or killed == MOST_TRIES - 1 or chance.random() < 1 / 5:
            os.kill(sweep, signal.SIGKILL)
            return killed
        if process.status() == psutil.STATUS_ZOMBIE:
            return killed
        with contextlib.suppress(psutil.NoSuchProcess):
            if workers := kills.at_work(process):
                chance.choice(workers).kill()
                killed += 1


def sweep_once(
    prepared: Callable[[], Prepared], out: Path, kills: Kills | None
) -> tuple[bool, int, int]:
    """Fork a sweep, and kill it if `kills` are given. Returns whether it ended by itself, how many
    records it reported as kept, and how many of its workers were killed.
    """
    chance = kills and kills.chance
    inside = chance is not None and not kills.workers and chance.random() < 1 / 3
    workers = 0
    number = chance.randint(1, kills.lines) if kills and chance else 0
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        # A fork breaks the pool of threads: PyTorch fails once, then makes a new one.
        with contextlib.suppress(RuntimeError):
            torch.set_num_threads(1)
        acknowledge(writer)
        if inside and chance:
            die_inside_write(number, chance)
        try:
            measure_sweep(prepared(), out, Silence())
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(writer)
    if kills and chance and not inside:
        workers = kill_some(child, kills)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as reports:
        acknowledged = len(reports.read())
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("a sweep failed instead of resuming")
    return os.WIFEXITED(status), acknowledged, workers


def essence(out: Path) -> dict[str, object]:
    """Everything in a run but times, which is all that may depend on kills."""
    folder = RunFolder(out)
    found = read_run(folder)
    return {
        "texts": {t.key: t for t in folder.records(PrivateText)},
        "trajectories": {t.key: t for t in found.trajectories},
        "replays": {(r.request, r.sample, r.candidate): r for r in found.replays},
        "decoding runs": Counter(
            (
                d.block,
                d.concurrency,
                d.request,
                d.repeat,
                d.k,
                d.proposed,
                d.accepted,
                d.cut,
                d.digest,
            )
            for d in found.decodes
        ),
        # How often a pass is timed depends on noise: timing stops by itself.
        "cost points": Counter(
            (p.block, p.concurrency, p.candidate, p.what, p.new_tokens, p.context)
            for p in found.costs
            if len(p.seconds) >= LEAST_TURNS
        ),
        "figures": {
            tuple(getattr(c, name) for name in ACCEPTANCE) for c in recommend(found).evaluations
        },
        "failures": found.failures,
    }


def endure(prepared: Callable[[], Prepared], folder: Path, kills: Kills) -> list[int]:
    """Kill and resume sweeps until there were enough kills: [kills, those of workers, records
    lost, sweeps that ended, sweeps that differ]. A sweep that was killed often enough is no longer
    killed.
    """
    sweep_once(prepared, folder / "whole", None)
    expected = essence(folder / "whole")
    done = of_workers = lost = ended = differing = 0
    while done < kills.kills:
        out, ours, finished = folder / f"killed{ended}", 0, False
        while not finished:
            before = readable(out)
            finished, acknowledged, workers = sweep_once(
                prepared, out, kills if ours < kills.per_sweep else None
            )
            ours += workers + (not finished)
            of_workers += workers
            lost += max(0, before + acknowledged - readable(out))
        done, ended = done + ours, ended + 1
        found = essence(out)
        wrong = [name for name in expected if found[name] != expected[name]]
        differing += bool(wrong)
        print(f"  sweep {ended}: {ours} kills, differs in {wrong or 'nothing'}", flush=True)
        shutil.rmtree(out)
    return [done, of_workers, lost, ended, differing]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-sweep", type=int, default=10, help="most kills of one sweep")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds until a kill")
    parser.add_argument("--lines", type=int, default=12, help="lines written until a kill")
    parser.add_argument("--workers", type=workers_named, help="share the sweep: a number, or ray")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance, bad = random.Random(asked.seed), 0
    most = asked.kills // 2, asked.per_sweep, asked.longest, asked.lines
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        on_ray = isinstance(asked.workers, RayCluster)
        cluster = stack.enter_context(ray_cluster()) if on_ray else None
        kills = Kills(*most, chance, bool(asked.workers), cluster)
        for temperature in (0.0, 0.7):
            print(f"temperature {temperature}")
            place = Path(folder) / str(temperature)
            prepared = prepared_sweep(temperature, asked.requests, asked.workers)
            done, of_workers, lost, ended, differing = endure(prepared, place, kills)
            print(f"{done} kills ({of_workers} of workers), {lost} records lost", end=", ")
            print(f"{ended} sweeps ended, {differing} of them differ")
            bad += lost + differing
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
