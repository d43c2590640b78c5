"""How the memory of a sweep grows with its traffic: peak of the whole process at several numbers of
short requests, on the embedded models.

    python scripts/bench_memory.py 1000 10000

Each sweep answers, scores and replays every request with one draft and prompt lookup, and decodes
none with a watch. Records are on disk; what grows are the prompts and one entry a response.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import draftbench

EMBEDDED = Path(draftbench.__file__).parent / "embedded"
WORDS = ["import", "os", "def", "main", "return", "self", "value", "for", "key", "in", "list"]
OUTPUT_TOKENS = 16


def write_traffic(path: Path, requests: int) -> None:
    """Short prompts, no two alike."""
    generator = random.Random(requests)
    with path.open("w") as stream:
        for number in range(requests):
            words = " ".join(generator.choices(WORDS, k=generator.randint(4, 24)))
            print(json.dumps({"prompt": f"# {number}\n{words}"}), file=stream)


def sweep(folder: Path, requests: int) -> tuple[float, int]:
    """Seconds and peak bytes of one sweep."""
    traffic = folder / "traffic.jsonl"
    write_traffic(traffic, requests)
    command = [sys.executable, "-m", "draftbench", "sweep", "-q", "--threads", "1"]
    command += ["--target", EMBEDDED / "target", "--drafts", EMBEDDED / "draft"]
    command += ["--traffic", traffic, "--max-new-tokens", str(OUTPUT_TOKENS), "--measure", "replay"]
    command += ["--out", folder / "run", "-o", folder / "answer.txt"]
    start = time.perf_counter()
    child = subprocess.Popen([str(part) for part in command])
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the sweep of {requests} requests failed")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def main() -> None:
    print("| requests | seconds | peak memory |\n|---|---|---|")
    for requests in map(int, sys.argv[1:] or ["1000", "10000"]):
        with tempfile.TemporaryDirectory() as folder:
            seconds, peak = sweep(Path(folder), requests)
        print(f"| {requests} | {seconds:.0f} | {peak / 1e6:.0f} MB |", flush=True)


if __name__ == "__main__":
    main()
