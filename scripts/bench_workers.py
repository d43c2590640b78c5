"""Times responses and replays by one worker and by several, one CPU thread each, in turn.

    python scripts/bench_workers.py --target ./target --draft ./draft --rounds 2
    python scripts/bench_workers.py --target ./target --draft ./draft --workers 1,2,4

Every sweep measures the same responses of a suite and one draft along them, in worker processes;
the order of the numbers of workers is turned round in every round. Prints the seconds from the
beginning of each stage to its last record (workers start and load the target in the first stage, a
draft in the second), and how many times as fast as the first number of workers each other is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

os.environ.update(TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

from silence import Silence

from draftbench.records import Observation, Replay, Trajectory
from draftbench.sweep import SweepOptions, prepare
from draftbench.sweep.measure import measure_sweep
from draftbench.traffic import TrafficQuery

STAGES = {Trajectory: "responses", Replay: "replays"}


class Stopwatch(Silence):
    """Notes when stages begin, and when the last record of each was kept."""

    def __init__(self) -> None:
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def stage(self, what: str, *_: object, **__: object) -> None:
        name = "replays" if what.startswith("replay") else "responses"
        self.begun.setdefault(name, time.perf_counter())

    def recorded(self, records: Sequence[Observation]) -> None:
        for record in records:
            if type(record) in STAGES:
                self.ended[STAGES[type(record)]] = time.perf_counter()

    def seconds(self) -> dict[str, float]:
        return {name: self.ended[name] - self.begun[name] for name in STAGES.values()}


def timed(asked: argparse.Namespace, workers: int, out: Path) -> dict[str, float]:
    """The seconds of each stage of a sweep."""
    options = SweepOptions(
        target=asked.target,
        drafts=(asked.draft,),
        traffic=TrafficQuery(asked.traffic, b"key"),
        samples=asked.samples,
        temperature=0.7,
        max_new_tokens=asked.tokens,
        measure="replay",
        controls=False,
        threads=1,
        workers=workers,
    )
    watch = Stopwatch()
    measure_sweep(prepare(options, "bench", watch), out, watch)
    return watch.seconds()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--traffic", default="suite:completion")
    parser.add_argument("--samples", type=int, default=32, help="responses of each request")
    parser.add_argument("--tokens", type=int, default=4, help="the longest response")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    numbers = [int(number) for number in asked.workers.split(",")]
    found = defaultdict[tuple[str, int], list[float]](list)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(asked.rounds):
            for workers in numbers[:: -1 if turn % 2 else 1]:
                seconds = timed(asked, workers, Path(folder) / f"{turn}-{workers}")
                for stage, each in seconds.items():
                    found[stage, workers].append(each)
                spent = ", ".join(f"{stage} {each:.1f} s" for stage, each in seconds.items())
                print(f"round {turn + 1}, {workers} workers: {spent}", flush=True)
    for stage in STAGES.values():
        for workers in numbers[1:]:
            pairs = zip(found[stage, numbers[0]], found[stage, workers], strict=True)
            ratios = [one / other for one, other in pairs]
            print(
                f"{stage}: {workers} workers are {geometric_mean(ratios):.2f}× as fast as "
                f"{numbers[0]} ({min(ratios):.2f}–{max(ratios):.2f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
