"""How the memory of a sweep grows with its traffic: the peak of its process while it measures, and
when it has answered, at several numbers of short requests on the embedded models.

    python scripts/bench_memory.py 1000 10000

Each sweep answers, scores and replays every request with one draft and the controls, and decodes
none with a watch. Records are on disk: while measuring only prompts and one entry a response grow.
The answer reads the acceptance of every response.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

import draftbench
from draftbench.planner.recommend import recommend
from draftbench.report.terminal.progress import TerminalWatcher
from draftbench.run_folder.key import request_key
from draftbench.run_folder.run import read_run
from draftbench.sweep import SweepOptions, prepare, run
from draftbench.traffic import TrafficQuery

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


def sweep(folder: Path) -> None:
    """Measure and answer in this process; print the peak bytes after each."""
    query = TrafficQuery(
        str(folder / "traffic.jsonl"), None, 0, None, None, None, False, request_key()
    )
    options = SweepOptions(
        target=str(EMBEDDED / "target"),
        drafts=(str(EMBEDDED / "draft"),),
        traffic=query,
        max_new_tokens=OUTPUT_TOKENS,
        measure="replay",
        threads=1,
    )
    with TerminalWatcher(Console(stderr=True), quiet=True, verbose=False) as watcher:
        done = run(prepare(options, "bench_memory", watcher), folder / "run", watcher)
    measured = peak_bytes()
    recommend(read_run(done))
    print(json.dumps([measured, peak_bytes()]))


def peak_bytes() -> int:
    """The most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compare(sizes: list[int]) -> None:
    """One sweep after the other, each in a process of its own."""
    print("| requests | seconds | peak, measuring | peak, answered |\n|---|---|---|---|")
    for requests in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_traffic(Path(folder) / "traffic.jsonl", requests)
            start = time.perf_counter()
            command = [sys.executable, __file__, "--child", folder]
            child = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            seconds = time.perf_counter() - start
        peaks = " | ".join(f"{peak / 1e6:.0f} MB" for peak in json.loads(child.stdout))
        print(f"| {requests} | {seconds:.0f} | {peaks} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sweep(Path(sys.argv[2]))
    else:
        compare([int(size) for size in sys.argv[1:] or ("1000", "10000")])
