"""Simulates sweeps on a serving engine whose true speed-ups are known, as run folders in memory.

As in a real sweep, the server without a draft answers first. In every turn servers with a draft
follow, each k chosen by the answers so far; the one without a draft answers again after every
second draft and at the end.
`check_intervals.py` says what is true and what is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from simulated_runs import DRAFT_PREFILL, PREFILL, Scenario, World, manifest, replay, rounds_of

from draftbench.planner.what_to_measure import next_start
from draftbench.records import AnyObservation, DraftingMode, RoundCounts, Served, Trajectory
from draftbench.run_folder.run import Run, run_of, to_decode
from draftbench.sweep.engine_servers import CANDIDATES_BETWEEN


@dataclass(frozen=True)
class Starts(Scenario):
    """A sweep on an engine. Every server answers as many requests as the largest of `decoded`."""

    constant: float = 0.1
    in_decoder: float = 0.0
    # Between the smallest and the largest k, rounds are then 3.8 % (root mean square) off the line
    # through both, as measured with three drafts on llama.cpp.
    knees: tuple[float, float] = (3.0, 20.0)
    ks: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    start: float = 0.0  # how much starts of a server differ (sd, relative)
    answer: float = 0.03  # how much answers of a start differ (sd, relative)
    request: float = 0.0  # how much requests differ at every k with a draft (sd, relative)
    restarts: int = 1  # of every server
    drift: float = 0.0  # how much slower each start is than the one before


class EngineWorld(World):
    """One trial: its true times, and what an engine answers under them."""

    scenario: Starts

    def run(self, requests: int, decoded: Sequence[int], processes: int | None = None) -> Run:
        """A run over so many newly drawn requests, with every server started `processes` times."""
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
        plain = 0
        for turn in range(restarts):
            back = -1 if turn % 2 else 1
            for done, (at, draft) in enumerate(list(enumerate(self.drafts))[::back]):
                if done and done % CANDIDATES_BETWEEN == 0:
                    plain += 1
                    records += self._answers(chosen, plain)
                if turn == 0:
                    every.append(self.accepted(written, rates, at))
                    records += [replay(draft, each, every[at][each.request]) for each in written]
                for k in sorted(started[at])[::back]:
                    records += self._answers(chosen, turn, at, k, every[at])
                while True:
                    run = run_of(asked, records)
                    wanted = (next_start(run, draft, rows) for rows in self.scenario.concurrency)
                    k = next(
                        (each.k for each in wanted if each and each.k not in started[at]), None
                    )
                    if k is None:
                        break
                    started[at].append(k)
                    records += self._answers(chosen, turn, at, k, every[at])
            plain += 1
            records += self._answers(chosen, plain)
        return run_of(asked, records)

    def _answers(
        self,
        responses: Sequence[Trajectory],
        repeat: int,
        draft: int | None = None,
        k: int = 0,
        accepted: dict[str, list[bool]] | None = None,
    ) -> list[Served]:
        """The answers of one start at every load; of the server without a draft if that is None."""
        (start,) = self.factors(self.scenario.start, 1)
        start *= (1 + self.scenario.drift) ** self.starts
        self.starts += 1
        server, answers = f"{draft} {k} {repeat}", []
        first = PREFILL + (0.0 if draft is None else DRAFT_PREFILL)
        for rows in self.scenario.concurrency:
            one = self.target(rows) if draft is None else self.round_seconds(draft, k, rows)
            factors = self.factors(self.scenario.answer, len(responses))
            for response, factor in zip(responses, factors, strict=True):
                tokens, counts = response.output_tokens - 1, None
                pieces = [1] * tokens
                if accepted is not None:
                    rounds = rounds_of(accepted[response.request], k)
                    counts = RoundCounts(by_round=tuple((k, count) for count in rounds))
                    pieces = [count + 1 for count in rounds]
                    pieces[-1] = tokens - sum(pieces[:-1])
                seconds = one * start * factor * (self.longer[response.request] if k else 1.0)
                answers.append(
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
                        arrivals=tuple(first + seconds * at for at in range(len(pieces) + 1)),
                        chunks=(1, *pieces),
                        prompt_tokens=response.prompt_tokens,
                        cached_tokens=None,
                        output_tokens=response.output_tokens,
                        finish=response.finish,
                        digest="",
                        counts=counts,
                    )
                )
        return answers
