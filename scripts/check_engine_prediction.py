"""Measures how far the predicted seconds of a round are off on a serving engine, and what the
answer costs that `--measure best` would have given; from runs that started every k at least twice.

    draftbench sweep --engine … --k 1-8 --concurrency 1,4 --measure all --restarts 2 --out RUN
    python scripts/check_engine_prediction.py RUN...

- **Prediction errors**: a k is predicted without its start, and compared with that start.
- **Repeat errors**: further starts of a k are compared with its first.
- Both are printed for the times alone (speed-ups over the mean of all starts without a draft) and
  for what a sweep says (each start over the ones without a draft before and after its turn, whose
  scatter is then included).
- **Regret**: the answer comes from the first starts, and is judged by the others: the seconds at
  its k (if it is open, the leader's; k = 0 for "do not speculate") over those at the best k, k = 0
  included, less 1. The interval includes requests and the scatter of starts. The best k is chosen
  again in every draw from the judging starts, so noise can only raise the regret.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from draftbench.errors import DraftbenchError
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration
from draftbench.planner.what_to_measure import next_start
from draftbench.records import Candidate, Decode
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

RESAMPLES = 4000


@dataclass(frozen=True)
class Starts:
    """Seconds after the first token by k, repeat and request, of one candidate at one load."""

    seconds: dict[tuple[int, int], dict[tuple[str, int], float]]

    @classmethod
    def of(cls, run: Run, candidate: Candidate, concurrency: int) -> Starts:
        found: defaultdict[tuple[int, int], dict[tuple[str, int], float]] = defaultdict(dict)
        for row in run.decodes:
            if row.block == str(candidate) and row.concurrency == concurrency:
                found[row.k, row.repeat][row.key] = row.decode_seconds
        return cls(found)

    @property
    def ks(self) -> list[int]:
        return sorted({k for k, _ in self.seconds if k})

    def repeats(self, k: int) -> list[int]:
        return sorted(repeat for each, repeat in self.seconds if each == k)

    def speedup(self, k: int, repeat: int, *, own_plain: bool = False) -> float:
        """The speed-up of one start over the mean of all starts without a draft, or of those before
        and after its turn.
        """
        around = {repeat, repeat + 1}
        turns = [n for n in self.repeats(0) if not own_plain or n in around]
        plain = [self.seconds[0, turn] for turn in turns or [max(self.repeats(0))]]
        own = self.seconds[k, repeat]
        both = own.keys() & set.intersection(*(set(row) for row in plain))
        together = statistics.mean(sum(row[key] for key in both) for row in plain)
        return together / sum(own[key] for key in both)

    def judging(self, k: int) -> list[dict[tuple[str, int], float]]:
        """Seconds by request of all starts at a k but the first, which chose the answer."""
        return [self.seconds[k, repeat] for repeat in self.repeats(k)[1:]]

    def by_request(self, k: int) -> dict[tuple[str, int], float]:
        """Seconds of each request at a k, the mean of its judging starts."""
        rows = self.judging(k)
        return {
            key: statistics.mean(row[key] for row in rows)
            for key in set.intersection(*(set(row) for row in rows))
        }

    def scatter(self) -> float:
        """Standard deviation of the log seconds of one start, pooled over k's, over all starts."""
        squares, freedom = 0.0, 0
        for k in (0, *self.ks):
            rows = [self.seconds[k, repeat] for repeat in self.repeats(k)]
            both = set.intersection(*(set(row) for row in rows))
            logs = [math.log(sum(row[key] for key in both)) for row in rows]
            squares += sum((log - statistics.mean(logs)) ** 2 for log in logs)
            freedom += len(logs) - 1
        return math.sqrt(squares / freedom)


def with_starts(run: Run, candidate: Candidate, ks: Collection[int]) -> Run:
    """The run as if its engine had been started with these k's alone, once each, in one turn."""

    def kept(row: Decode) -> bool:
        return row.repeat <= 1 if row.k == 0 else row.k in ks and row.repeat == 0

    decodes = tuple(r for r in run.decodes if r.block == str(candidate) and kept(r))
    replays = tuple(r for r in run.replays if r.candidate == candidate)
    served = tuple(r for r in run.served if r.candidate in (None, candidate))
    return replace(run, decodes=decodes, replays=replays, served=served)


def started_by_best(run: Run, candidate: Candidate, loads: Sequence[int]) -> list[int]:
    """The k's that a sweep would start one after the other."""
    grid = Starts.of(run, candidate, loads[0]).ks
    ks: list[int] = []
    while True:
        seen = with_starts(run, candidate, ks)
        wanted = (next_start(seen, candidate, load, grid) for load in loads)
        k = next((k for k in wanted if k is not None and k not in ks), None)
        if k is None:
            return ks
        ks.append(k)


def predicted(run: Run, candidate: Candidate, load: int, k: int) -> float | None:
    evaluator = Evaluator(run, DecisionOptions())
    wanted = Configuration.of(candidate, k, load)
    if wanted not in evaluator.seconds(load).configurations:
        return None
    found = evaluator.predicted(wanted)
    return found.value if found else None


def regret(starts: Starts, chosen: int) -> tuple[float, float, float, int]:
    """How much slower the answer is than the best k, with a 95% interval; and that k."""
    by_k = {k: starts.by_request(k) for k in (0, *starts.ks) if starts.judging(k)}
    keys = sorted(set.intersection(*(set(rows) for rows in by_k.values())))
    ks = list(by_k)
    seconds = np.array([[by_k[k][key] for key in keys] for k in ks])
    rng = np.random.default_rng(0)
    totals = seconds[:, rng.integers(len(keys), size=(RESAMPLES, len(keys)))].sum(axis=2)
    errors = [starts.scatter() / math.sqrt(len(starts.judging(k))) for k in ks]
    totals *= np.exp(rng.normal(0.0, np.array(errors)[:, None], totals.shape))
    at, best = ks.index(chosen), int(seconds.sum(axis=1).argmin())
    lost = totals[at] / totals.min(axis=0) - 1
    low, high = np.quantile(lost, (0.025, 0.975))
    return float(seconds[at].sum() / seconds[best].sum() - 1), float(low), float(high), ks[best]


def show(run: Run) -> None:
    loads = run.manifest.question.concurrency
    version = next((facts.version for facts in run.engines if facts.version), "?")
    print(f"{run.path}: {run.manifest.question.engine} {version}, {len(run.trajectories)} requests")
    every = used = 0
    for candidate in drafted(run):
        ks = started_by_best(run, candidate, loads)
        grid = Starts.of(run, candidate, loads[0]).ks
        every, used = every + len(grid), used + len(ks)
        print(f"\n{candidate}: started with k = {', '.join(map(str, ks))} of {grid}")
        for load in loads:
            _show_load(run, candidate, load, ks)
    # The starts without a draft, before and after, count too, in both ways.
    print(
        f"\nstarts: {used + 2} of {every + 2} ({(used + 2) / (every + 2):.0%}), plain first and "
        f"last among them; without the last plain one {used + 1} of {every + 1}"
    )


def _show_load(run: Run, candidate: Candidate, load: int, ks: Sequence[int]) -> None:
    starts, seen = Starts.of(run, candidate, load), with_starts(run, candidate, ks)
    print(f"  {load} in flight")
    print("    k    measured   again  predicted without it")
    guesses = {k: predicted(seen, candidate, load, k) for k in starts.ks if k not in ks}
    for k in starts.ks:
        again = [starts.speedup(k, repeat) for repeat in starts.repeats(k)]
        guess = guesses.get(k)
        second = f"{again[1]:.2f}×" if len(again) > 1 else "–"
        shown = "started" if k in ks else "–" if guess is None else f"{guess:.2f}×"
        print(f"    {k:<5}{again[0]:>7.2f}×{second:>8}  {shown}")
    drift = [sum(starts.seconds[0, r].values()) for r in starts.repeats(0)]
    print(f"    plain, last start over first: {drift[-1] / drift[0] - 1:+.1%}")
    for own_plain, what in ((False, "times alone"), (True, "speed-ups")):
        _show_errors(starts, guesses, own_plain=own_plain, what=what)
    answer = recommend(seen, DecisionOptions(concurrency=(load,)))
    named = answer.leader if answer.decision == "inconclusive" else answer.choice
    chosen = named.k if named is not None else 0
    lost, low, high, best = regret(starts, chosen)
    said = answer.decision.replace("_", " ")
    print(f"    {said}, k = {chosen}; best k = {best}: regret {lost:.1%} ({low:.1%} to {high:.1%})")


def _show_errors(
    starts: Starts, guesses: dict[int, float | None], *, own_plain: bool, what: str
) -> None:
    errors, repeats = [], []
    for k in starts.ks:
        first, *others = (starts.speedup(k, n, own_plain=own_plain) for n in starts.repeats(k))
        repeats += [abs(other / first - 1) for other in others]
        guess = guesses.get(k)
        if guess is not None:
            errors.append(abs(guess / first - 1))
    if errors and repeats:
        error, repeat = statistics.median(errors), statistics.median(repeats)
        print(
            f"    {what}: predicted to {error:.1%} (worst {max(errors):.1%} of {len(errors)}), "
            f"repeated to {repeat:.1%} (worst {max(repeats):.1%} of {len(repeats)}): "
            f"{error / repeat:.2f}"
        )


def drafted(run: Run) -> list[Candidate]:
    """The candidates that a server drafted with."""
    return [each for each in run.candidates if any(row.candidate == each for row in run.served)]


def started_twice(run: Run) -> bool:
    """Whether an engine was started at least twice without a draft and at some k of every draft of
    its answers.
    """
    load = run.manifest.question.concurrency[0]
    starts = [Starts.of(run, candidate, load) for candidate in drafted(run)]
    return bool(starts) and all(
        len(each.repeats(0)) > 1 and any(len(each.repeats(k)) > 1 for k in each.ks)
        for each in starts
    )


def main() -> int:
    for path in sys.argv[1:]:
        try:
            run = read_run(RunFolder(Path(path)))
        except DraftbenchError as error:
            print(f"error: {error.message} ({error.hint})", file=sys.stderr)
            return 2
        if run.manifest.question.engine is None or not started_twice(run):
            print(
                f"error: `{path}` did not start an engine at every k at least twice "
                "(draftbench sweep --engine … --measure all --restarts 2)",
                file=sys.stderr,
            )
            return 2
        show(run)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main())
