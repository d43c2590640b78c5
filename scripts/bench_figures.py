"""Seconds of processor time and peak memory of the commands that read a run, by its requests.

    python scripts/bench_figures.py --requests 100 1000 10000

Each run is written by `large_run.py`, read by each command in a process of its own, and deleted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# This process imports no package, since a child's peak memory is at least its parent's.
COMMANDS = {
    "recommend": ("recommend", "RUN"),
    "acceptance": ("acceptance", "RUN"),
    "acceptance --all": ("acceptance", "RUN", "--all"),
    "report": ("report", "RUN", "--html", "PAGE"),
}


def spent(command: list[str]) -> tuple[float, float]:
    """Seconds of processor time and megabytes that a command took."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[100, 1000, 10_000, 30_000])
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    asked = parser.parse_args()
    print("| requests | run, MB | command | seconds | memory, MB |")
    print("|---:|---:|---|---:|---:|")
    for requests in asked.requests:
        with tempfile.TemporaryDirectory() as place:
            places = {"RUN": f"{place}/run", "PAGE": f"{place}/page.html"}
            large_run = Path(__file__).with_name("large_run.py")
            spent([sys.executable, str(large_run), places["RUN"], str(requests)])
            files = Path(places["RUN"]).rglob("*.jsonl")
            size = sum(file.stat().st_size for file in files) / 1e6
            for name in asked.commands:
                words = [places.get(word, word) for word in COMMANDS[name]]
                seconds, memory = spent([sys.executable, "-m", "draftbench", *words])
                shown = f"| {requests} | {size:.0f} | {name} | {seconds:.1f} | {memory:.0f} |"
                print(shown, flush=True)


if __name__ == "__main__":
    main()
