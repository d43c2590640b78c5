"""How long `recommend` takes on a run folder, reading included: the best and the median of several,
in this process.

    python scripts/bench_recommend.py results/reference/qwen2.5-coder
"""

import statistics
import sys
import time
from pathlib import Path

from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

REPEATS = 5


def main() -> None:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        answer = recommend(read_run(RunFolder(Path(sys.argv[1]))))
        seconds.append(time.perf_counter() - start)
    print(
        f"{answer.requests} requests, {len(answer.evaluations)} cells: "
        f"{min(seconds):.2f} s at best, {statistics.median(seconds):.2f} s in the median"
    )


if __name__ == "__main__":
    main()
