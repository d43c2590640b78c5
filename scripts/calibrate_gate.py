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
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.definitions import ALPHA_EMITTED, ratio
from draftbench.acceptance.rounds import Floats, Ints, expected_rounds
from draftbench.drafts.laws import PositionLaw
from draftbench.errors import DraftbenchError
from draftbench.gate.baseline import SCHEMA_VERSION, Baseline, BaselineQuestion
from draftbench.gate.judge import judge
from draftbench.gate.make_baseline import METRIC_VERSION, request_counts
from draftbench.gate.metrics import Limit, default_limits
from draftbench.gate.noninferiority import Verdict, gain_of
from draftbench.gate.pair import samples_of
from draftbench.records import Sampling, Trajectory
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

DROPS = (0.0, 0.5, 1.0, 2.0)
SIZES = (24, 60, 240)
PILOT = 60
METRICS = ("alpha", "mean_accepted_length", "tokens_per_round")
# How far from a position its a_j may come.
NEAR = 8


class Pool:
    """Requests with their responses and what a draft did along them, at one k."""

    def __init__(self, responses: Sequence[tuple[Trajectory, PositionLaw]], k: int) -> None:
        self.k = k
        self.trajectories = [trajectory for trajectory, _ in responses]
        self.laws = [law for _, law in responses]
        rows: dict[str, list[int]] = {}
        for row, trajectory in enumerate(self.trajectories):
            rows.setdefault(trajectory.request, []).append(row)
        self.requests = list(rows.values())
        drafted = [law.accept[: law.draftable] for law in self.laws]
        ends = np.cumsum([0, *map(len, drafted)])
        self._accept = np.concatenate(drafted)
        self._spans = [np.arange(a, b) for a, b in pairwise(ends.tolist())]
        self._first = np.repeat(ends[:-1], np.diff(ends))
        self._last = np.repeat(ends[1:] - 1, np.diff(ends))
        shifts = range(-NEAR, NEAR + 1)
        every = np.arange(len(self._accept))
        self._mean = np.mean([self._near(every, np.array(shift)) for shift in shifts], axis=0)

    def replayed(self, metric: str) -> float:
        """The measured figure of the pool."""
        return self._figure(metric, self._accept)

    def truth(self, metric: str, kept: float) -> float:
        """The population's figure if every position is kept with the probability `kept`."""
        return self._figure(metric, kept * self._mean)

    def draw(
        self, requests: int, kept: float, churn: float, generator: np.random.Generator
    ) -> tuple[Baseline, Baseline]:
        """Both arms on one draw of requests and response seeds."""
        chosen = [self.requests[i] for i in generator.integers(len(self.requests), size=requests)]
        rows = [row for responses in chosen for row in responses]
        names = [f"{at:05}" for at, responses in enumerate(chosen) for _ in responses]
        at = np.concatenate([self._spans[row] for row in rows])
        old = self._redraw(at, generator)
        again = generator.random(len(at)) < churn
        new = np.where(again, self._redraw(at, generator), old)
        new = new * (generator.random(len(at)) < kept)
        return self._baseline(rows, names, old), self._baseline(rows, names, new)

    def _near(self, at: Ints, shift: Ints) -> Floats:
        return self._accept[np.clip(at + shift, self._first[at], self._last[at])]

    def _redraw(self, at: Ints, generator: np.random.Generator) -> Floats:
        return self._near(at, generator.integers(-NEAR, NEAR + 1, size=len(at)))

    def _figure(self, metric: str, accept: Floats) -> float:
        rows = [row for responses in self.requests for row in responses]
        names = [self.trajectories[row].request for row in rows]
        accept = np.concatenate([accept[self._spans[row]] for row in rows])
        arm = self._baseline(rows, names, accept)
        samples = samples_of(metric, arm.requests, arm.requests)
        assert samples is not None
        value = samples[0].value
        assert value is not None
        return value

    def _baseline(self, rows: Sequence[int], names: Sequence[str], accept: Floats) -> Baseline:
        """The baseline of these responses, with `accept` as the replayed a_j."""
        ends = np.cumsum([len(self._spans[row]) for row in rows])
        parts = np.split(accept, ends[:-1])
        laws, responses = [], []
        for row, name, part in zip(rows, names, parts, strict=True):
            law = self.laws[row]
            full = np.zeros(len(law.accept))
            full[: len(part)] = part
            laws.append(PositionLaw(law.length, law.limit, full, law.draftable))
            responses.append(msgspec.structs.replace(self.trajectories[row], request=name))
        totals = np.array([part.sum() for part in parts])
        positions = np.array([len(part) for part in parts], dtype=np.float64)
        rate = ratio(ALPHA_EMITTED, responses, totals, positions)
        counts = request_counts(responses, expected_rounds(laws, self.k), rate)
        # Any question will do, as long as it is the same for both arms.
        question = BaselineQuestion(
            key_id="",
            metric_version=METRIC_VERSION,
            mode="",
            k=self.k,
            responses="target",
            samples=1,
            max_new_tokens=None,
        )
        return Baseline(
            schema_version=SCHEMA_VERSION,
            created="",
            candidate="calibration",
            question=question,
            tested={},
            alpha_definition=ALPHA_EMITTED.name,
            survival=(),
            faults=(),
            cost_ratios=(),
            requests=counts,
            run=uuid.uuid4().hex,
        )


def run_pool(folder: Path, candidate: str | None, k: int, *, segments: bool) -> Pool:
    """The candidate's replays in a run folder; without a name the first model draft's."""
    observed = read_run(RunFolder(folder))
    for known in observed.candidates:
        if candidate not in (None, str(known)):
            continue
        along = candidate_rounds(observed, known)
        laws = zip(along.trajectories, along.laws, strict=True)
        responses = [(t, law) for t, law in laws if isinstance(law, PositionLaw)]
        if responses:
            print(f"{known} in {folder.name}, k = {k}")
            named = [
                (t if segments else msgspec.structs.replace(t, segment=None), law)
                for t, law in responses
            ]
            return Pool(named, k)
    names = ", ".join(map(str, observed.candidates)) or "nothing"
    raise SystemExit(f"no model draft {candidate or ''} in the run; it measured {names}")


def simulated_pool(k: int) -> Pool:
    """2,000 requests of a greedy draft: geometric lengths about 80, acceptance beta(4, 2)."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.geometric(1 / 80, 2000) + 8, 256)
    rates = generator.beta(4, 2, 2000)
    responses = []
    for at, (length, rate) in enumerate(zip(lengths.tolist(), rates.tolist(), strict=True)):
        accept = (generator.random(length - 1) < rate).astype(np.float64)
        response = Trajectory(
            request=f"{at:05}",
            sample=0,
            segment=None,
            weight=1.0,
            sampling=Sampling(),
            prompt_tokens=1,
            output_tokens=length,
            limit=length,
            finish="length",
            origin="target",
            margins=(5.0,) * length,
            argmax=(1,) * length,
            digest="",
        )
        responses.append((response, PositionLaw(length, length, accept, length - 1)))
    print(f"simulated, k = {k}")
    return Pool(responses, k)


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
            samples = samples_of(limit.metric, old.requests, new.requests)
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
