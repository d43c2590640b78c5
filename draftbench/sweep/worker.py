"""One process's work on a run: the target's responses, then one candidate at a time, each step
skipping what the run folder holds.

The responses come once per sampling setting; a candidate is loaded, replayed, timed, decoded beside
the baseline at the k worth measuring, and let go.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import msgspec
import torch

from draftbench.decode.clock import clock_for
from draftbench.errors import DraftbenchError, ModelError, TrafficError
from draftbench.measure.candidate import Contender, Material, Setting, costs, decode_cells
from draftbench.measure.candidate import replay as replay_all
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.replay import stepping_disagreement
from draftbench.measure.trajectories import Given, generate, log_objection, logged, score
from draftbench.models.quantize import build_runner, check_level
from draftbench.plan.recommend import best_cells
from draftbench.records import (
    LOOKUP,
    SELF,
    Candidate,
    Decode,
    Failure,
    ModelFacts,
    Observation,
    Trajectory,
)
from draftbench.store.folder import PrivateDraft, PrivateText, RunFolder
from draftbench.store.key import keyed_hash
from draftbench.store.observed import read_run
from draftbench.sweep.failures import failure, known_error
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared

SHORTEST_MEASURED = 8


class Sink(Protocol):
    """Where observations go; they can be read from the run folder when a call returns."""

    def append(self, records: Iterable[Observation]) -> None:
        """Keep observations."""
        ...

    def append_private(self, text: PrivateText | PrivateDraft) -> None:
        """Keep one trajectory's tokens."""
        ...


class Worker:
    """The loaded target with what it wrote, ready for candidates.

    Raises:
        ModelError: the target cannot be loaded or run.
        TrafficError: nothing to measure on, or logged responses that are not the target's.
    """

    def __init__(self, prepared: Prepared, folder: RunFolder, sink: Sink, watcher: Watcher) -> None:
        self.prepared, self.options = prepared, prepared.options
        self.folder, self.sink, self.watcher = folder, sink, watcher
        self.text = TextSide(prepared.target)
        self.deadline: float | None = None
        watcher.note(f"loading the target {prepared.target.name}")
        try:
            self.target, facts = build_runner(prepared.target, prepared.build, None)
            self._keep_facts(facts)
            self.material = self._responses()
        except DraftbenchError:
            raise
        # Whatever a library raises here ends the sweep, but in words.
        except Exception as error:
            raise known_error(f"the target {prepared.target.name}", error) from error

    def attempt(self, candidate: Candidate) -> Failure | None:
        """Measure one candidate; what is wrong with it alone is returned, not raised.

        Raises:
            DraftbenchError: the run folder cannot be written or read.
        """
        failed = None
        limit = self.options.cell_timeout
        self.deadline = None if limit is None else time.monotonic() + limit
        try:
            self._measure(candidate)
        except DraftbenchError as error:
            if not isinstance(error, ModelError):
                raise
            failed = failure(candidate, error)
        # A model's code and its libraries raise what they like; none of it ends the sweep.
        except Exception as error:
            failed = failure(candidate, error)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return failed

    @cached_property
    def _setting(self) -> Setting:
        return Setting(
            target=self.target,
            text=self.text,
            mode=self.options.mode,
            ks=self.options.ks,
            lookup=self.options.lookup,
            dtype=self.prepared.manifest.question.dtype,
            clock=clock_for(self.target.device),
            process=uuid.uuid4().hex[:8],
            digest=self._digest,
        )

    def _digest(self, tokens: tuple[int, ...]) -> str:
        return keyed_hash(self.options.traffic.key, repr(tokens).encode())

    def _responses(self) -> list[Material]:
        """Every request's response with its score.

        The text is kept before its record: a kill between both leaves a text without a record, and
        the response is made again.
        """
        texts = {(p.request, p.sample): p for p in self.folder.private_texts()}
        scored = {(t.request, t.sample): t for t in read_run(self.folder).trajectories}
        tasks = [(p, s) for p in self.prepared.prompts for s in range(self.options.samples)]
        left = sum((p.request.id, s) not in texts.keys() & scored.keys() for p, s in tasks)
        self.watcher.stage("responses of the target", left)
        material: list[Material] = []
        for prompt, sample in tasks:
            key = (prompt.request.id, sample)
            if key not in texts or key not in scored:
                made = self._respond(prompt, sample)
                if made is None:
                    continue
                texts[key], scored[key] = made
                self.sink.append_private(texts[key])
                self._keep([scored[key]])
            if scored[key].output_tokens > 1:
                material.append((prompt, texts[key], scored[key]))
        objection = log_objection([(t, j) for _, t, j in material if j.origin == "log"])
        if objection:
            raise TrafficError(
                f"the logged responses are not this target's: {objection}",
                hint="let the target answer itself: `--responses target`",
            )
        if not material:
            raise TrafficError(
                "no response is longer than one token, so none has a token to draft",
                hint="raise the limits, or look at the prompts: the target ends at once",
            )
        short = len(tasks) - len(material)
        if short:
            self.watcher.note(f"{short} responses of one token have nothing to draft: left out")
        return material

    def _respond(self, prompt: Prompt, sample: int) -> tuple[PrivateText, Trajectory] | None:
        if self.options.responses == "log":
            found = logged(prompt, self.text)
            if found is None:
                return None
        else:
            clock = clock_for(self.target.device)
            found = generate(prompt, sample, self.target, self.text, clock)
        origin = self.options.responses
        given = Given(sample, found[0], found[1], origin, self._digest(found[0]))
        return score(prompt, given, self.target)

    def _measure(self, candidate: Candidate) -> None:
        contender = self._load(candidate)
        before = read_run(self.folder)
        own = (candidate.draft, candidate.quant)
        seen = {(r.request, r.sample) for r in before.replays if (r.draft, r.quant) == own}
        left = [m for m in self.material if (m[2].request, m[2].sample) not in seen]
        self.watcher.stage(f"{candidate}: replay", len(left))
        for record, drafted in replay_all(contender, self._setting, left):
            if drafted is not None:
                self.sink.append_private(drafted)
            self._keep([record])
        if not check_level(candidate.quant, self.target.device, simulate=True):
            return
        if not any(point.block == str(candidate) for point in before.costs):
            self.watcher.stage(f"{candidate}: step times", 1)
            self._keep(costs(contender, self._setting, self.material))
        ks = self._cells(candidate)
        if ks:
            self._decode(contender, ks, before.decodes)

    def _decode(self, contender: Contender, ks: Sequence[int], before: Sequence[Decode]) -> None:
        """A request's runs are made and kept all or none, its baseline among them: what was not
        interleaved cannot be compared. Where some are missing, all are made again.
        """
        block, cells = str(contender.candidate), {0, *ks}
        done: dict[tuple[str, int], set[int]] = {}
        for row in before:
            if row.block == block:
                done.setdefault((row.request, row.sample), set()).add(row.k)
        left = [m for m in self._chosen() if cells - done.get((m[2].request, m[2].sample), set())]
        listed = ", ".join(map(str, ks))
        self.watcher.stage(f"{block}: decoding at k = {listed}", len(left))
        for rows in decode_cells(contender, self._setting, left, ks):
            self._keep(rows)

    def _keep(self, records: Sequence[Observation]) -> None:
        """Between two pieces of work: what was measured is kept, and the time is looked at."""
        self.sink.append(records)
        self.watcher.advance()
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise timed_out(self.options.cell_timeout)

    def _cells(self, candidate: Candidate) -> list[int]:
        """The k's to decode at."""
        if self.options.measure == "none":
            return []
        if self.options.measure == "all":
            return list(self.options.ks)
        if candidate.draft == SELF and SELF not in self.options.drafts:
            return []
        return best_cells(read_run(self.folder), candidate)

    def _chosen(self) -> list[Material]:
        """The requests that are decoded with a watch: long enough, in an order that no segment or
        length decides.
        """
        long = [m for m in self.material if m[2].output_tokens >= SHORTEST_MEASURED]
        order = sorted(long or self.material, key=lambda m: (m[2].sample, m[2].request))
        return order[: self.options.measure_requests]

    def _load(self, candidate: Candidate) -> Contender:
        if candidate.draft == LOOKUP:
            return Contender(candidate, None)
        if candidate.draft == SELF:
            return Contender(candidate, self.target)
        self.watcher.note(f"loading {candidate}")
        source = self.prepared.drafts[candidate.draft]
        build = replace(self.prepared.build, level=candidate.quant)
        runner, facts = build_runner(source, build, candidate.draft)
        disagreement = stepping_disagreement(runner, self.material[0][1])
        caveats = (*self.prepared.caveats.get(candidate.draft, ()), *facts.caveats)
        self._keep_facts(
            msgspec.structs.replace(facts, replay_disagreement=disagreement, caveats=caveats)
        )
        return Contender(candidate, runner)

    def _keep_facts(self, facts: ModelFacts) -> None:
        if facts not in read_run(self.folder).facts:
            self.sink.append([facts])


def timed_out(limit: float | None) -> ModelError:
    """A candidate that took longer than the user allows."""
    return ModelError(
        f"it took longer than the {limit:g} seconds of --cell-timeout",
        hint="what it measured is kept; the same command with a longer --cell-timeout goes on",
    )
