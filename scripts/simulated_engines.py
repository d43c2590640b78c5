"""Requests and a serving engine of known truth → run folders in memory, as a sweep on an engine
measures them: the plain server answers first; in every turn servers that draft answer, each k as a
sweep chooses it by what was answered before, and then the plain one again.

See `coverage.py` for what is true and what is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from simulated_runs import Scenario, World, manifest, replay, rounds_of

from draftbench.planner.what_to_measure import next_start
from draftbench.records import AnyObservation, DraftingMode, Served, Trajectory
from draftbench.run_folder.run import Run, run_of, to_decode

# Seconds until the first token.
FIRST = 1.0


@dataclass(frozen=True)
class Starts(Scenario):
    """A sweep on an engine: every server is started `restarts` times, each start faster or slower
    than the last by `start` (sd), and each of its answers by `answer` besides; with a draft the
    rounds of one request take longer or shorter than those of another by `request` (sd) at every k.
    The machine slows down by `drift` from one start to the next. Where `plain_last` the starts of
    each k follow one another and all starts of the plain server but one come last, as earlier
    versions did. Of `decoded` the largest is how many requests every server answers. With these
    knees the rounds between the smallest and the largest k are 3.8 % (root mean square) off the
    line through both, as those of three drafts on llama.cpp were.
    """

    constant: float = 0.1
    in_decoder: float = 0.0
    knees: tuple[float, float] = (3.0, 20.0)
    ks: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    start: float = 0.0
    answer: float = 0.03
    request: float = 0.0
    restarts: int = 1
    drift: float = 0.0
    plain_last: bool = False


class EngineWorld(World):
    """One trial's truth, and what an engine answers in it."""

    scenario: Starts

    def run(self, requests: int, decoded: Sequence[int], processes: int | None = None) -> Run:
        """Ask so many fresh requests of servers that are started `processes` times."""
        restarts = processes or self.scenario.restarts
        self.starts = 0
        asked = manifest(self.scenario)
        asked = replace(asked, question=replace(asked.question, engine="llama.cpp"))
        drawn, rates = self.drawn(requests)
        written = [replace(each, origin="engine", margins=(), argmax=()) for each in drawn]
        chosen = to_decode(written, max(decoded))
        self.longer = dict.fromkeys((each.request for each in written), 1.0)
        if sd := self.scenario.request:
            # By their mean, so that rounds take as long as is true on average.
            factors = np.array(self.factors(sd, requests)) / np.exp(sd**2 / 2)
            self.longer = dict(zip(self.longer, factors.tolist(), strict=True))
        records: list[AnyObservation] = [*written, *self._answers(chosen, 0)]
        every: list[dict[str, list[bool]]] = []
        started: list[list[int]] = [[] for _ in self.drafts]
        turns, at_once = (1, restarts) if self.scenario.plain_last else (restarts, 1)
        for turn in range(turns):
            back = -1 if turn % 2 else 1
            for at, draft in list(enumerate(self.drafts))[::back]:
                if turn == 0:
                    every.append(self.accepted(written, rates, at))
                    records += [replay(draft, each, every[at][each.request]) for each in written]
                for k in sorted(started[at])[::back]:
                    records += self._answers(chosen, turn, at, k, every[at])
                while True:
                    run = run_of(asked, records)
                    wanted = (next_start(run, draft, rows) for rows in self.scenario.batches)
                    k = next((k for k in wanted if k and k not in started[at]), None)
                    if k is None:
                        break
                    started[at].append(k)
                    for repeat in range(turn, turn + at_once):
                        records += self._answers(chosen, repeat, at, k, every[at])
            records += self._answers(chosen, turn + 1)
        for repeat in range(turns + 1, restarts):
            records += self._answers(chosen, repeat)
        return run_of(asked, records)

    def _answers(
        self,
        responses: Sequence[Trajectory],
        repeat: int,
        draft: int | None = None,
        k: int = 0,
        accepted: dict[str, list[bool]] | None = None,
    ) -> list[Served]:
        """What one start answers, at every load."""
        (start,) = self.factors(self.scenario.start, 1)
        start *= (1 + self.scenario.drift) ** self.starts
        self.starts += 1
        server, found = f"{draft} {k} {repeat}", []
        for rows in self.scenario.batches:
            each = self.target(rows) if draft is None else self.round_seconds(draft, k, rows)
            own = self.factors(self.scenario.answer, len(responses))
            for response, factor in zip(responses, own, strict=True):
                tokens, rounds = response.output_tokens - 1, None
                pieces = [1] * tokens
                if accepted is not None:
                    rounds = tuple(rounds_of(accepted[response.request], k))
                    pieces = [each + 1 for each in rounds]
                    pieces[-1] = tokens - sum(pieces[:-1])
                seconds = each * start * factor * (self.longer[response.request] if k else 1.0)
                found.append(
                    Served(
                        request=response.request,
                        sample=0,
                        candidate=None if draft is None else self.drafts[draft],
                        k=k,
                        mode=DraftingMode.GREEDY,
                        repeat=repeat,
                        server=server,
                        process=server,
                        load="closed",
                        concurrency=rows,
                        sent=0.0,
                        arrivals=tuple(FIRST + seconds * at for at in range(len(pieces) + 1)),
                        chunks=(1, *pieces),
                        prompt_tokens=response.prompt_tokens,
                        cached_tokens=None,
                        output_tokens=response.output_tokens,
                        finish=response.finish,
                        digest="",
                        proposed=rounds and (k,) * len(rounds),
                        accepted=rounds,
                    )
                )
        return found
