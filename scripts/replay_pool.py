"""Draws pairs of baselines for the gate from a pool of requests with their replays; see
`calibrate_gate.py` for how.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.definitions import ALPHA_EMITTED, ratio
from draftbench.acceptance.rounds import Floats, Ints, PositionLaw, expected_rounds
from draftbench.gate.baseline import SCHEMA_VERSION, Baseline, BaselineQuestion
from draftbench.gate.judge import samples_of
from draftbench.gate.make_baseline import METRIC_VERSION, request_counts
from draftbench.records import Sampling, Trajectory
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

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
        samples = samples_of(metric, [(counts, counts) for counts in arm.requests])
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
        return Baseline(
            schema_version=SCHEMA_VERSION,
            created="",
            candidate="calibration",
            question=question(self.k),
            tested={},
            alpha_definition=ALPHA_EMITTED.name,
            survival=(),
            faults=(),
            cost_ratios=(),
            requests=counts,
            run=uuid.uuid4().hex,
        )


def question(k: int) -> BaselineQuestion:
    """The question of both arms; any will do, as long as it is the same."""
    return BaselineQuestion(
        key_id="",
        metric_version=METRIC_VERSION,
        mode="",
        k=k,
        responses="target",
        samples=1,
        max_new_tokens=None,
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
