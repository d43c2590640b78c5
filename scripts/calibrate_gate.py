"""Measures how often the gate is wrong when the true drop is known, on requests drawn from a pool
of replays.

    python scripts/calibrate_gate.py RUN --candidate DRAFT[:QUANT] --k 4
    python scripts/calibrate_gate.py                  # the same on a simulated pool

The population is the run's requests. A trial draws n of them with replacement for both arms, the
old run and the new, which have the same responses.

- **A response seed.** A greedy draft's replay is one 0 or 1 per position: drawn as it is, the arms
  would differ by nothing but the drop. So each position of a drawn response takes the a_j of a
  random position within 8 of it, which keeps the level and the mix of easy and hard stretches of
  each request. The old arm is such a draw.
- **The new arm** is the old one with a share of the positions drawn again (`--churn`: 0.1 is
  another quantization of the same draft, 1 is other responses) and every position then kept with
  one common probability: the regression.
- **The truth.** Positions are drawn independently, and expected rounds are linear in each a_j, so
  the population's figure is that of the averaged a_j. The common probability is found on it by
  bisection: true drops are exactly 0, ½, 1 and 2 margins.

Every trial goes through `gate.judge`, with one metric at its default limit. "Advised" is what a
user would do: a first run of 60 requests, then a fresh one of the size that it advises.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from replay_pool import Pool, run_pool, simulated_pool

from draftbench.errors import DraftbenchError
from draftbench.gate.judge import judge, samples_of
from draftbench.gate.limits import Limit, default_limits
from draftbench.gate.noninferiority import Verdict, gain_of
from draftbench.gate.pair_requests import pair_up

DROPS = (0.0, 0.5, 1.0, 2.0)
SIZES = (24, 60, 240)
PILOT = 60
METRICS = ("alpha", "mean_accepted_length", "tokens_per_round")


@dataclass(frozen=True)
class Case:
    """A true drop in margins of `limit`, and how the new arm gets it."""

    limit: Limit
    drop: float
    kept: float
    churn: float


@dataclass
class Tally:
    """The trials of one true drop at one sample size."""

    verdicts: Counter[Verdict]
    covered: int
    sizes: list[int]

    def row(self, drop: float, name: str) -> str:
        """A line of the table, with `!` at every share that misses its target."""
        trials = self.verdicts.total()
        share = {verdict: self.verdicts[verdict] / trials for verdict in Verdict}
        coverage = self.covered / trials
        bad = {
            "pass": drop == 1 and share[Verdict.PASS] > 0.05,
            "fail": (drop == 0 and share[Verdict.FAIL] > 0.05)
            or (drop == 2 and name == "advised" and share[Verdict.FAIL] < 0.8),
            "coverage": min(self.sizes) >= 60 and not 0.93 <= coverage <= 0.97,
        }
        size = f"{np.median(self.sizes):.0f}"
        cells = [f"{drop:8g}", f"{name:>9}", f"{size:>9}"]
        for verdict in Verdict:
            cells.append(f"{share[verdict]:12.1%}{'!' if bad.get(verdict) else ' '}")
        return " ".join([*cells, f"{coverage:10.1%}{'!' if bad['coverage'] else ' '}"]).rstrip()


def scale_of(pool: Pool, limit: Limit, drop: float) -> float:
    """The probability of keeping a position at which the true drop is `drop` margins."""
    whole = pool.truth(limit.metric, 1.0)
    wanted = drop * limit.value * (whole if limit.relative else 1.0)
    low, high = 0.0, 1.0
    while drop > 0 and high - low > 1e-6:
        middle = (low + high) / 2
        if whole - pool.truth(limit.metric, middle) > wanted:
            low = middle
        else:
            high = middle
    return high


def trials(pool: Pool, case: Case, size: int | None, count: int) -> Tally:
    """Draw, compare and count; `size` None takes the advice of a first run."""
    limit = case.limit
    generator = np.random.default_rng([int(2 * case.drop), size or 0])
    tally = Tally(Counter(), 0, [])
    for _ in range(count):
        requests = size
        if requests is None:
            old, new = pool.draw(PILOT, case.kept, case.churn, generator)
            samples = samples_of(limit.metric, pair_up(old, new, (limit,)))
            assert samples is not None
            requests = gain_of(*samples, relative=limit.relative).advised_requests(limit.value)
            if requests is None:
                raise SystemExit(f"no sample decides {limit.value:g} of {limit.metric} here")
        old, new = pool.draw(requests, case.kept, case.churn, generator)
        result = judge(old, new, (limit,))
        tally.verdicts[result.verdict] += 1
        interval = result.pooled[0].difference
        true = -case.drop * limit.value
        tally.covered += interval is not None and interval.low <= true <= interval.high
        tally.sizes.append(requests)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, nargs="?", help="run folder; without it a simulation")
    parser.add_argument("--candidate", metavar="DRAFT[:QUANT]")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--metric", choices=METRICS, default="mean_accepted_length")
    parser.add_argument("--churn", type=float, default=0.1)
    parser.add_argument("--segments", action="store_true", help="judge the run's segments too")
    parser.add_argument("--quick", action="store_true", help="100 trials")
    options = parser.parse_args()
    if options.quick:
        options.trials = 100
    if options.run is None:
        pool = simulated_pool(options.k)
    else:
        pool = run_pool(options.run, options.candidate, options.k, segments=options.segments)
    defaults = default_limits(pool.truth("alpha", 1.0), options.k)
    limit = next(limit for limit in defaults if limit.metric == options.metric)
    print(
        f"{len(pool.requests)} requests, {limit.metric} {pool.truth(limit.metric, 1):.4f} "
        f"(as replayed {pool.replayed(limit.metric):.4f}), margin {limit.value:g}"
        f"{' of it' if limit.relative else ''}, churn {options.churn:g}, {options.trials} trials\n"
    )
    print(" margins    sample  requests         pass         fail inconclusive   coverage")
    for drop in DROPS:
        case = Case(limit, drop, scale_of(pool, limit, drop), options.churn)
        for size in (*SIZES, None):
            tally = trials(pool, case, size, options.trials)
            print(tally.row(drop, "advised" if size is None else "fixed"), flush=True)
    luck = 1.96 * (0.05 * 0.95 / options.trials) ** 0.5
    print(
        "\ntargets: 0 margins: fail ≤ 5%; 1: pass ≤ 5%; 2, advised: fail ≥ 80%; coverage "
        f"93–97% from 60 requests on; ! marks a miss; so many trials show 5% as ±{luck:.1%}"
    )


if __name__ == "__main__":
    try:
        main()
    except DraftbenchError as error:
        raise SystemExit(f"error: {error}\nhint: {error.hint}") from error
