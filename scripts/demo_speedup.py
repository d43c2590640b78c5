"""How much faster the demo's recommended draft is than plain decoding, over separate processes.

    python scripts/demo_speedup.py [--processes 5]

Runs `draftbench demo` anew in each process and prints what it recommended and measured; then the
median. Intervals inside one process do not show how speed moves from process to process; this does.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args()
    draftbench = [sys.executable, "-m", "draftbench"]
    best: list[float] = []
    models: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.processes):
            run = str(Path(folder) / str(number))
            subprocess.run(
                [*draftbench, "demo", "-q", "--out", run], check=True, stdout=subprocess.PIPE
            )
            answer = subprocess.run(
                [*draftbench, "recommend", run, "--format", "json"],
                check=True,
                stdout=subprocess.PIPE,
            )
            found = json.loads(answer.stdout)
            measured = [c for c in found["evaluations"] if c["speedup_measured"]]
            chosen = [c for c in measured if pick(c) == found["choice"]]
            model = max(
                (c for c in measured if c["draft"] != "ngram"),
                key=lambda c: c["speedup_measured"]["value"],
            )
            for cells, label, into in (
                (chosen, "recommended", best),
                ([model], "best model", models),
            ):
                for cell in cells:
                    figure = cell["speedup_measured"]
                    into.append(figure["value"])
                    ends = f"{figure['low']:.2f}-{figure['high']:.2f}"
                    print(
                        f"process {number}: {label} {cell['draft']}, k = {cell['k']}: "
                        f"{figure['value']:.2f} × measured ({ends})",
                        flush=True,
                    )
    for label, values in (("recommended", best), ("best model draft", models)):
        if values:
            print(
                f"{label}: median {statistics.median(values):.2f} ×, "
                f"from {min(values):.2f} to {max(values):.2f}"
            )


def pick(cell: dict) -> dict:
    return {name: cell[name] for name in ("draft", "quant", "k")}


if __name__ == "__main__":
    main()
