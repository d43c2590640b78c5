"""How often a forecast of `draftbench train` holds what the training then gains.

    python scripts/check_forecast.py --out FILE.jsonl RUN DRAFT... --seeds 20 --requests 600
    python scripts/check_forecast.py --out FILE.jsonl

Every seed splits the run's responses anew, draws so many of them, forecasts, trains, and proves
each draft (as `draftbench train --draft` names it) on the requests kept for that. FILE keeps of
each training what its first parts reached and what all of it gained; from these forecasts are made
anew, so that without a RUN a changed rule is tried in seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftbench.models.source import quiet_libraries
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

quiet_libraries()
from draftbench.training import course  # noqa: E402
from draftbench.training.examples import TEST, VALIDATION, examples_of  # noqa: E402
from draftbench.training.forecast import first_parts, forecast, gain_draws, gains_of, interval  # noqa: E402
from draftbench.training.plan import plan_training  # noqa: E402
from draftbench.training.settings import TrainingSettings  # noqa: E402


class Silent:
    """Shows no progress."""

    def stage(self, what: str, total: int) -> None: ...

    def advance(self, units: int = 1) -> None: ...

    def note(self, text: str, *, always: bool = False) -> None: ...


def trained(
    run: Run, draft: str, seed: int, requests: int, settings: TrainingSettings
) -> dict[str, Any]:
    """What the first parts reached, what was gained, and the seconds of both."""
    key = f"the key of the seed {seed}".encode().ljust(32)
    every = examples_of(run, key)
    validation, test = round(requests * VALIDATION), round(requests * TEST)
    examples = replace(
        every,
        train=every.train[: requests - validation - test],
        validation=every.validation[:validation],
        test=every.test[:test],
    )
    plan = plan_training(run, examples, draft, replace(settings, seed=seed), "cpu")
    with tempfile.TemporaryDirectory() as place:
        work, begun = Path(place) / "work", time.process_time()
        with course.begun(plan, work, key):
            first = first_parts(plan, work, Silent())
            made = forecast(plan, first)
            forecast_seconds = time.process_time() - begun
            begun = time.process_time()
            course.trained_once(plan, work, Silent())
            seconds = time.process_time() - begun
            begun = time.process_time()
            training = course.train(plan, made, work, Path(place) / "out", key, Silent())
            proof_seconds = time.process_time() - begun
    gains, covariance = gains_of([each.rate for each in first.accepted])
    proven = training.proof.rate.difference
    return {
        "draft": Path(draft).name,
        "seed": seed,
        "rate": made.rate,
        "most": plan.most,
        "steps": first.steps,
        "shares": first.shares,
        "gains": gains.tolist(),
        "covariance": covariance.tolist(),
        "looks": [round(rate - made.rate, 4) for _, rate in training.looks],
        "gain": [proven.value, proven.low, proven.high],
        "kept": training.proof.better,
        "forecast_seconds": forecast_seconds,
        "seconds": seconds,
        "proof_seconds": proof_seconds,
    }


def summary(draft: str, rows: list[dict[str, Any]]) -> str:
    """How the forecasts of one draft's trainings hold what they gained."""
    made = [
        interval(
            gain_draws(
                row["shares"],
                np.array(row["gains"]),
                np.array(row["covariance"]),
                row["most"] - row["rate"],
            )
        )
        for row in rows
    ]
    gained = [row["gain"][0] for row in rows]
    # Of a loss nothing is gained, and nothing kept.
    pairs = [(each, max(gain, 0.0)) for each, gain in zip(made, gained, strict=True)]
    off = math.sqrt(sum((each.value - gain) ** 2 for each, gain in pairs) / len(pairs))
    middle, low, high = (
        np.mean([getattr(each, end) for each in made]) for end in ("value", "low", "high")
    )
    took, training, proof = (
        sum(row[f"{what}seconds"] for row in rows) for what in ("forecast_", "", "proof_")
    )
    return (
        f"{draft}: gains {min(gained):+.3f} to {max(gained):+.3f}, {np.mean(gained):+.3f} on "
        f"average; forecast {middle:+.3f} ({low:.3f} to {high:.3f}) on average, off by {off:.3f} "
        f"(root mean square); the interval holds "
        f"{sum(each.low <= gain <= each.high for each, gain in pairs)} of {len(pairs)}; a gain was "
        f"promised for certain in {sum(each.low > 0 for each in made)}, in "
        f"{sum(each.low > 0 >= gain for each, gain in pairs)} of them in vain; "
        f"{took / training:.0%} of the time of training, {took / (training + proof):.0%} with the "
        f"proof"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("drafts", nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=TrainingSettings().epochs)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings = TrainingSettings(epochs=args.epochs)
    kept = args.out.read_text().splitlines() if args.out.exists() else []
    rows = [json.loads(line) for line in kept]
    done = {(row["draft"], row["seed"]) for row in rows}
    run = read_run(RunFolder(args.run)) if args.run else None
    for seed in range(args.first, args.first + args.seeds):
        for draft in args.drafts:
            if run is not None and (Path(draft).name, seed) not in done:
                rows.append(trained(run, draft, seed, args.requests, settings))
                with args.out.open("a") as stream:
                    stream.write(json.dumps(rows[-1]) + "\n")
    for draft in dict.fromkeys(row["draft"] for row in rows):
        print(summary(draft, [row for row in rows if row["draft"] == draft]))


if __name__ == "__main__":
    main()
