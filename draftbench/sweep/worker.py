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

from draftbench.decoder.runner import clock_for
from draftbench.errors import DraftbenchError, ModelError
from draftbench.measure.candidate import Contender, Setting, costs, decode_cells, repeats_of
from draftbench.measure.candidate import replay as replay_all
from draftbench.measure.cost import grid_for
from draftbench.measure.prompts import TextSide
from draftbench.measure.replay import stepping_disagreement
from draftbench.models.quantize import build_runner
from draftbench.records import LOOKUP, SELF, Candidate, CostPoint, Failure, ModelFacts, Observation
from draftbench.run_folder.folder import PrivateDraft, PrivateText, RunFolder
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.machine import Watch
from draftbench.sweep.failures import failure, known_error
from draftbench.sweep.kept import Kept
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.responses import Responses


class Sink(Protocol):
    """Where observations go; they can be read from the run folder when a call returns."""

    def append(self, records: Iterable[Observation]) -> None:
        """Keep observations."""
        ...

    def append_private(self, texts: Sequence[PrivateText] | Sequence[PrivateDraft]) -> None:
        """Keep some trajectories' tokens, or a draft's along them."""
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
        self.kept = Kept(self.options, folder)
        self.text = TextSide(prepared.target)
        self.deadline: float | None = None
        watcher.note(f"loading the target {prepared.target.name}")
        try:
            self.process = uuid.uuid4().hex[:8]
            self.machine = Watch(self.process)
            self.target, self.facts = build_runner(prepared.target, prepared.build, None)
            self._keep_facts(self.facts)
            self.responses = self._responses()
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
        failed, stage = None, "load"
        limit = self.options.cell_timeout
        self.deadline = None if limit is None else time.monotonic() + limit
        try:
            contender = self._load(candidate)
            stage = "measure"
            self._measure(contender)
        except DraftbenchError as error:
            if not isinstance(error, ModelError):
                raise
            failed = failure(candidate, error, stage)
        # A model's code and its libraries raise what they like; none of it ends the sweep.
        except Exception as error:
            failed = failure(candidate, error, stage)
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
            stop_below=self.options.stop_below,
            lookup=self.options.lookup,
            dtype=self.prepared.manifest.question.dtype,
            clock=clock_for(self.target.device),
            process=self.process,
            digest=self.digest,
            between=self._between,
        )

    def digest(self, tokens: tuple[int, ...]) -> str:
        """The keyed hash of an output."""
        return keyed_hash(self.options.traffic.key, repr(tokens).encode())

    def _responses(self) -> Responses:
        """Every request's response with its score, on disk."""
        responses = Responses(self.prepared, self.folder)
        self.watcher.stage("responses of the target", responses.missing())
        responses.make(self, self._keep_group)
        if responses.too_short:
            self.watcher.note(
                f"{responses.too_short} responses of one token have nothing to draft: left out"
            )
        return responses

    def _measure(self, contender: Contender) -> None:
        candidate = contender.candidate
        self._replay(contender)
        if not self.kept.to_time(candidate):
            return
        for batch in self.options.batches:
            self._time(contender, batch)
            if ks := self.kept.to_decode(candidate, batch):
                self._decode(contender, ks, batch)

    def _replay(self, contender: Contender) -> None:
        """Replay the groups of which any response is missing."""
        candidate = contender.candidate
        done = self.kept.replayed(candidate)
        left = len(self.responses.spans) - len(done)
        self.watcher.stage(f"{candidate}: replay", max(left, 0))
        for group in self.responses.groups():
            if all((t.request, t.sample) in done for _, _, t in group):
                continue
            replays = replay_all(contender, self._setting, group)
            drafted = [text for _, text in replays if text is not None]
            self._keep_group([record for record, _ in replays], drafted)

    def _time(self, contender: Contender, batch: int) -> None:
        """Step times beside the target's, once per batch size."""
        block = str(contender.candidate)
        if self.kept.timed(contender.candidate, batch):
            return
        _, text, _ = self.responses.longest()
        grid = grid_for(
            self.responses.spans,
            text.prompt + text.tokens,
            self.options.ks,
            self.target.context_length,
            batch,
        )
        self.watcher.stage(f"{block}: step times{_of_rows(batch)}", grid.turns)
        self._keep(costs(contender, self._setting, grid))
        self._between(1)

    def _decode(self, contender: Contender, ks: Sequence[int], batch: int) -> None:
        """What was interleaved is made and kept all or none, its baseline among it: only that can
        be compared. Where some is missing, all of it is made again.
        """
        block = str(contender.candidate)
        done = self.kept.decoded(contender.candidate, ks, batch)
        chosen = self.responses.chosen(self.options.measure_requests)
        left = sum((m[2].request, m[2].sample) not in done for m in chosen)
        if batch > 1 and left:
            cells = len(contender.cells(self._setting, ks))
            left = cells * len(chosen) * repeats_of(len(chosen), batch)
        listed = ", ".join(map(str, ks))
        self.watcher.stage(f"{block}: decoding at k = {listed}{_of_rows(batch)}", left)
        for rows in decode_cells(contender, self._setting, chosen, ks, batch, done):
            self._keep(rows)

    def _keep_group(
        self,
        records: Sequence[Observation],
        private: Sequence[PrivateText] | Sequence[PrivateDraft],
    ) -> None:
        """What was made of some responses side by side."""
        self._keep(records, private)
        self._between(len(records))

    def _between(self, done: int) -> None:
        """Between two pieces of work, `done` units further: the time is looked at.

        Raises:
            ModelError: the candidate has had all of it.
        """
        if done > 0:
            self.watcher.advance(done)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise timed_out(self.options.cell_timeout)

    def _keep(
        self,
        records: Sequence[Observation],
        private: Sequence[PrivateText] | Sequence[PrivateDraft] = (),
    ) -> None:
        """Keep what was measured.

        Texts are kept before their records: a kill between both leaves texts without records, and
        those are made again.
        """
        if private:
            self.sink.append_private(private)
        self.sink.append(records)
        self.watcher.kept(records)
        state = self.machine.look()
        if state is not None:
            self.sink.append([state])

    def _load(self, candidate: Candidate) -> Contender:
        if candidate.draft == LOOKUP:
            return Contender(candidate, None)
        if candidate.draft == SELF:
            return Contender(candidate, self.target)
        self.watcher.note(f"loading {candidate}")
        source = self.prepared.drafts[candidate.draft]
        build = replace(self.prepared.build, level=candidate.quant)
        runner, facts = build_runner(source, build, candidate.draft)
        disagreement = stepping_disagreement(runner, self.responses.longest()[1])
        caveats = (*self.prepared.caveats.get(candidate.draft, ()), *facts.caveats)
        self._keep_facts(
            msgspec.structs.replace(facts, replay_disagreement=disagreement, caveats=caveats)
        )
        return Contender(candidate, runner)

    def _keep_facts(self, facts: ModelFacts) -> None:
        """Keep them, once. A model that was timed does not go on in another way."""
        kept = list(self.folder.records(ModelFacts))
        ran = [other.runner for other in kept if other.candidate == facts.candidate]
        timed = any(p.candidate == facts.candidate for p in self.folder.records(CostPoint))
        if timed and ran and facts.runner != ran[-1]:
            who = f"the draft `{facts.candidate.draft}`" if facts.candidate else "the target"
            raise ModelError(
                f"{who} runs as `{facts.runner}` now and was timed as `{ran[-1]}`",
                hint="bring back what it ran with (a compiler, memory), or use another --out",
            )
        if facts not in kept:
            self.sink.append([facts])


def _of_rows(batch: int) -> str:
    return "" if batch == 1 else f", {batch} rows"


def timed_out(limit: float | None) -> ModelError:
    """A candidate that took longer than the user allows."""
    return ModelError(
        f"it took longer than the {limit:g} seconds of --cell-timeout",
        hint="what it measured is kept; the same command with a longer --cell-timeout goes on",
    )
