"""Write runs of 1,000 and of 10,000 requests as a sweep would, and print what reading them takes.

    python scripts/offline_memory.py --requests 1000 10000

Responses have 60 tokens, three drafts replayed each of them, 24 requests were decoded. Each command
runs in a process of its own, whose peak memory and seconds are printed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from draftbench.records import (
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    Replay,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest

TOKENS, BATCH, DECODED, KS = 60, 16, 24, (1, 2, 3, 4)
DRAFTS = {"small": 0.6, "middle": 0.7, "large": 0.8}
SAMPLE = Path(__file__).parents[1] / "tests" / "run_folder" / "samples" / "schema-1" / "run.json"
COMMANDS = (["recommend"], ["acceptance"])


def write_run(path: Path, requests: int) -> None:
    """A run folder with observations drawn at random."""
    manifest = msgspec.json.decode(SAMPLE.read_bytes(), type=Manifest)
    question = msgspec.structs.replace(manifest.question, ks=KS, drafts=tuple(DRAFTS))
    folder = RunFolder.create(path, msgspec.structs.replace(manifest, question=question))
    chance = random.Random(0)
    names = [f"{chance.getrandbits(64):016x}" for _ in range(requests)]
    with folder.writer() as writer:
        for start in range(0, requests, BATCH):
            batch = names[start : start + BATCH]
            writer.append(trajectory(name, chance) for name in batch)
            for draft, rate in DRAFTS.items():
                writer.append(replay(name, draft, rate, chance) for name in batch)
        for draft in DRAFTS:
            writer.append(costs(draft))
            for name in names[:DECODED]:
                writer.append(decode(name, draft, k, chance) for k in (0, 2))


def digits(chance: random.Random, scale: float = 1.0) -> tuple[float, ...]:
    """A number for each token, with the three digits that a replay keeps."""
    return tuple(float(f"{scale * chance.random():.3g}") for _ in range(TOKENS - 1))


def trajectory(name: str, chance: random.Random) -> Trajectory:
    return Trajectory(
        request=name, sample=0, segment="s", weight=1.0, sampling=Sampling(), prompt_tokens=100,
        output_tokens=TOKENS, limit=TOKENS, finish="length", origin="target", digest=name,
        margins=(1.0, *digits(chance, 20)), argmax=(1,) * TOKENS,
    )  # fmt: skip


def replay(name: str, draft: str, rate: float, chance: random.Random) -> Replay:
    return Replay(
        request=name, sample=0, candidate=Candidate(draft=draft), mode=DraftingMode.GREEDY,
        draftable=TOKENS - 1, accept=tuple(float(chance.random() < rate) for _ in digits(chance)),
        confidence=digits(chance), margin=digits(chance, 20),
        rank=tuple(int(chance.expovariate(0.5)) for _ in range(TOKENS - 1)),
    )  # fmt: skip


def costs(draft: str) -> list[CostPoint]:
    return [
        CostPoint(
            candidate=Candidate(draft=name) if name else None, what="step", batch=1,
            new_tokens=new, context=context,
            seconds=((1 + new / 10) * (0.1 if name else 1.0),) * 3, block=draft, runner="lean",
            process="p",
        )
        for name in (None, draft)
        for new in range(1, 6)
        for context in (10, 500)
    ]  # fmt: skip


def decode(name: str, draft: str, k: int, chance: random.Random) -> Decode:
    rounds = (TOKENS - 1) // (1 + k // 2) or 1
    return Decode(
        request=name, sample=0, candidate=Candidate(draft=draft) if k else None, k=k,
        mode=DraftingMode.GREEDY, repeat=0, proposed=(k,) * rounds, accepted=(k // 2,) * rounds,
        cut=(0,) * rounds, draft_seconds=(0.1 * k,) * rounds,
        verify_seconds=tuple(1 + chance.random() / 50 for _ in range(rounds)), prefill_seconds=1.0,
        draft_prefill_seconds=0.1 if k else None, decode_seconds=rounds * (1.01 + 0.1 * k),
        output_tokens=TOKENS, digest=name, first_difference=None, tie=None, block=draft, batch=1,
        process="p",
    )  # fmt: skip


def command(words: list[str]) -> None:
    """In the child: run a command, and say what it took."""
    from draftbench.cli import main

    began = time.perf_counter()
    code = main(words)
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    facts = {"code": code, "seconds": time.perf_counter() - began, "megabytes": int(peak) // 1024}
    sys.stderr.write("\n" + json.dumps(facts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--command", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.command:
        command(asked.command)
        return 0
    print("| requests | run folder, MB | command | code | seconds | memory, MB |")
    print("|---:|---:|---|---:|---:|---:|")
    for count in asked.requests:
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / "run"
            write_run(run, count)
            size = sum(file.stat().st_size for file in run.rglob("*")) / 1e6
            for words in COMMANDS:
                child = [sys.executable, __file__, "--command", *words, str(run)]
                told = subprocess.run(child, capture_output=True, text=True, check=True).stderr
                facts = json.loads(told.splitlines()[-1])
                shown = (f"{count} | {size:.0f} | {words[0]} | {facts['code']}",
                         f"{facts['seconds']:.1f} | {facts['megabytes']}")  # fmt: skip
                print(f"| {' | '.join(shown)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
