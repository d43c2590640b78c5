"""How fast the offline commands start, and that none of them imports PyTorch.

    python scripts/bench_start.py [REPEATS]

Medians of wall and processor seconds of a fresh interpreter each, on the reference run.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

REFERENCE = "results/reference/qwen2.5-coder"
COMMANDS = {
    "--help": ["--help"],
    "recommend": ["recommend", REFERENCE],
    "report": ["report", REFERENCE],
    "acceptance": ["acceptance", REFERENCE],
    "gate": ["gate", "--baseline", "results/baselines/qwen2.5-coder.json", REFERENCE],
}
PROGRAM = """
import sys
from draftbench.cli import main
code = main(sys.argv[1:])
heavy = {"torch", "transformers"} & set(sys.modules)
sys.exit(f"imports {heavy}" if heavy else code)
"""


def main(repeats: int) -> None:
    """Print a line per command."""
    print(f"{'command':<12}{'wall s':>8}{'processor s':>13}")
    for name, words in COMMANDS.items():
        wall, processor = zip(*(_run(words) for _ in range(repeats)), strict=True)
        print(f"{name:<12}{statistics.median(wall):>8.2f}{statistics.median(processor):>13.2f}")


def _run(words: list[str]) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
