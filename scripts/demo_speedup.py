"""How much faster the demo's drafts are than plain decoding, over separate processes.

    python scripts/demo_speedup.py [PROCESSES]

Runs `draftbench demo` anew in each process and prints what it recommended and its best model draft,
both as measured; then the median. Intervals inside one process do not show how speed moves from
process to process; this does.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("draft", "quant", "k")


def demo(run: str) -> dict:
    """What `recommend` says of a new demo."""
    draftbench = [sys.executable, "-m", "draftbench"]
    subprocess.run([*draftbench, "demo", "-q", "--out", run], check=True, stdout=subprocess.PIPE)
    words = [*draftbench, "recommend", run, "--format", "json"]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


def main(processes: int) -> None:
    found: dict[str, list[float]] = {"recommended": [], "best model draft": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            answer = demo(str(Path(folder) / str(number)))
            measured = [each for each in answer["evaluations"] if each["speedup_measured"]]
            picked = [e for e in measured if {n: e[n] for n in NAMES} == answer["choice"]]
            models = [e for e in measured if e["draft"] != "ngram"]
            models.sort(key=lambda e: -e["speedup_measured"]["value"])
            for label, best in (("recommended", picked[:1]), ("best model draft", models[:1])):
                for each in best:
                    figure = each["speedup_measured"]
                    found[label].append(figure["value"])
                    print(
                        f"process {number}: {label} {each['draft']}, k = {each['k']}: "
                        f"{figure['value']:.2f} × ({figure['low']:.2f}–{figure['high']:.2f})",
                        flush=True,
                    )
    for label, values in found.items():
        if values:
            median = statistics.median(values)
            print(f"{label}: median {median:.2f} ×, {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
