"""How often a forecast of `draftbench train` holds what the training then gains.

    python scripts/check_forecast.py RUN DRAFT... --seeds 20 --requests 600 --out FILE.jsonl

Every seed splits the run's responses anew, draws so many of them, forecasts, trains, and proves
each draft (as `draftbench train --draft` names it) on the requests kept for that. A line for each
training, and for each draft how many forecasts held a gain above 0, how many promised one for
certain, how many promised one that did not come, and the forecasts' share of the time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from draftbench.models.source import quiet_libraries
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

quiet_libraries()
from draftbench.training import course  # noqa: E402
from draftbench.training.examples import PROVE, STOP, examples_of  # noqa: E402
from draftbench.training.plan import plan_training  # noqa: E402
from draftbench.training.settings import TrainingSettings  # noqa: E402


class Silent:
    """Shows no progress."""

    def stage(self, what: str, total: int) -> None: ...

    def advance(self, units: int = 1) -> None: ...

    def note(self, text: str, *, always: bool = False) -> None: ...


def trained(
    run: Run, draft: str, seed: int, requests: int, settings: TrainingSettings
) -> dict[str, object]:
    """The forecast, what was gained, and the seconds of both."""
    key = f"the key of the seed {seed}".encode().ljust(32)
    every = examples_of(run, key)
    stop, prove = round(requests * STOP), round(requests * PROVE)
    examples = replace(
        every,
        train=every.train[: requests - stop - prove],
        stop=every.stop[:stop],
        prove=every.prove[:prove],
    )
    plan = plan_training(run, examples, draft, replace(settings, seed=seed), "cpu")
    with tempfile.TemporaryDirectory() as place:
        work, begun = Path(place) / "work", time.process_time()
        with course.begun(plan, work, key):
            made = course.forecast_once(plan, work, Silent())
            forecast_seconds = time.process_time() - begun
            begun = time.process_time()
            training, kept = course.train(plan, made, work, Path(place) / "out", key, Silent())
            seconds = time.process_time() - begun
    gain = training.proof.rate.difference
    return {
        "draft": Path(draft).name,
        "seed": seed,
        "rate": made.rate,
        "parts": [round(part.rate - made.rate, 4) for part in made.parts],
        "forecast": [made.gain.value, made.gain.low, made.gain.high],
        "gain": [gain.value, gain.low, gain.high],
        "kept": kept,
        "looks": [round(rate - made.rate, 4) for _, rate in training.looks],
        "forecast_seconds": forecast_seconds,
        "seconds": seconds,
    }


def holds(row: dict[str, object]) -> bool:
    """Whether the interval has the gain."""
    _, low, high = row["forecast"]
    return low <= row["gain"][0] <= high


def promised(row: dict[str, object]) -> bool:
    """Whether a gain was promised for certain."""
    return row["forecast"][1] > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("drafts", nargs="+")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=TrainingSettings().epochs)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    run, settings = read_run(RunFolder(args.run)), TrainingSettings(epochs=args.epochs)
    rows = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if args.out.exists()
        else []
    )
    done = {(row["draft"], row["seed"]) for row in rows}
    for seed in range(args.first, args.first + args.seeds):
        for draft in args.drafts:
            if (Path(draft).name, seed) not in done:
                rows.append(trained(run, draft, seed, args.requests, settings))
                with args.out.open("a") as stream:
                    stream.write(json.dumps(rows[-1]) + "\n")
    for draft in dict.fromkeys(row["draft"] for row in rows):
        of = [row for row in rows if row["draft"] == draft]
        gains = [row["gain"][0] for row in of]
        share = sum(r["forecast_seconds"] for r in of) / sum(r["seconds"] for r in of)
        gained = [row for row in of if row["gain"][0] > 0]
        lost = [row for row in of if row["gain"][0] <= 0]
        print(
            f"{draft}: gains {min(gains):+.3f} to {max(gains):+.3f}; the interval holds "
            f"{sum(map(holds, gained))} of {len(gained)} above 0, {sum(map(promised, gained))} of "
            f"them promised for certain; of {len(lost)} others a gain was promised for certain in "
            f"{sum(map(promised, lost))}; {share:.0%} of the training's time"
        )


if __name__ == "__main__":
    main()
