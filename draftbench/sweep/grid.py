"""A prepared sweep → observations in a run folder, one candidate after the other: load, check,
replay, time, decode. Prints nothing.

What an interrupted run of the same question measured is not measured again, and of what is measured
whole no weights are loaded. A candidate that failed is recorded and tried again by the next run;
its failure is taken back when it goes through.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from draftbench.decoder.runner import clock_for
from draftbench.decoder.self_check import distribution_fault
from draftbench.errors import AuditError, DraftbenchError, ModelError, RunFolderError, TrafficError
from draftbench.measure.candidate import Bench, LoadedCandidate
from draftbench.measure.decoding import decode_requests, repeats_of
from draftbench.measure.prompts import TextSide
from draftbench.measure.replay import replay, stepping_disagreement
from draftbench.measure.step_costs import grid_for, time_steps
from draftbench.measure.trajectories import (
    Asked,
    Given,
    LogCheck,
    ScoredResponse,
    generate,
    logged,
    score,
)
from draftbench.models.quantize import build_runner
from draftbench.records import (
    LOOKUP,
    SELF,
    Candidate,
    DraftingMode,
    Failure,
    ModelFacts,
    Observation,
)
from draftbench.run_folder.folder import PrivateDraft, PrivateText, RunFolder
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.machine import Watch
from draftbench.sweep.failures import failure, known_error, timed_out
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.resume import Measured


def run(prepared: Prepared, out: Path, watcher: Watcher) -> RunFolder:
    """Measure what is not measured yet; observations are in the folder as soon as they are made.

    Raises:
        RunFolderError: the folder cannot be continued or written, or a model changed since it was
            begun.
        ModelError: the target cannot be loaded or run.
        TrafficError: the responses cannot be measured on.
        AuditError: the check was asked for, and the decoder changes the target's distribution.
    """
    from draftbench.sweep.isolation import Isolated

    if prepared.options.audit:
        _audit(prepared.options.mode, watcher)
    folder = RunFolder.create(out, prepared.manifest)
    with folder.writer() as writer:
        measured = Measured.read(prepared, folder)
        watcher.kept(measured.kept())
        _refuse_changed_models(prepared, measured)
        known = list(measured.failures.values())
        writer.append(failed for failed in prepared.failures if failed not in known)
        left = measured.left()
        if not left:
            watcher.note("all of it is measured already: no model is loaded")
            return folder
        worker: Worker | Isolated
        if prepared.options.isolate:
            worker = Isolated(prepared, folder, writer, watcher)
        else:
            worker = Worker(prepared, measured, writer, watcher)
        for candidate in left:
            failed = worker.attempt(candidate)
            if failed is not None:
                watcher.note(f"{candidate} failed: {failed.reason}")
                writer.append([failed])
            elif candidate in measured.failures:
                writer.append([_taken_back(candidate)])
    return folder


def _audit(mode: DraftingMode, watcher: Watcher) -> None:
    watcher.stage(f"audit of {mode} drafting on a small vocabulary", 1)
    fault = distribution_fault(mode)
    if fault is not None:
        raise AuditError(
            f"the decoder changes the law of the output: {fault}",
            hint="no figure of it can be trusted; report it with the versions of torch and numpy",
        )
    watcher.advance()


def _taken_back(candidate: Candidate) -> Failure:
    """Earlier failures of a candidate that now went through do not hold any more."""
    return Failure(candidate=candidate, stage="measure", reason="", hint="", resolved=True)


def _refuse_changed_models(prepared: Prepared, measured: Measured) -> None:
    """A model whose files changed since it was measured is another model under the same name."""
    known = {
        candidate and candidate.draft: loaded[-1].fingerprint
        for candidate, loaded in measured.facts.items()
    }
    for name, source in [(None, prepared.target), *prepared.drafts.items()]:
        if name in known and source.fingerprint() != known[name]:
            who = "the target" if name is None else f"the draft `{name}`"
            raise RunFolderError(
                f"{who} changed since this run measured it",
                hint="bring the old files back, or measure the new ones with another --out",
            )


class Sink(Protocol):
    """Where observations go."""

    def append(self, records: Iterable[Observation]) -> None:
        """Keep observations."""
        ...

    def append_private(self, texts: Sequence[PrivateText] | Sequence[PrivateDraft]) -> None:
        """Keep some trajectories' tokens, or a draft's along them."""
        ...


class Worker:
    """The loaded target with its responses, ready for candidates.

    Raises:
        ModelError: the target cannot be loaded or run.
        TrafficError: nothing to measure on, or logged responses that are not the target's.
    """

    def __init__(
        self, prepared: Prepared, measured: Measured, sink: Sink, watcher: Watcher
    ) -> None:
        self.prepared, self.options = prepared, prepared.options
        self.measured, self.sink, self.watcher = measured, sink, watcher
        self.deadline: float | None = None
        watcher.note(f"loading the target {prepared.target.name}")
        try:
            process = uuid.uuid4().hex[:8]
            self.machine = Watch(process)
            target, facts = build_runner(prepared.target, prepared.build, None)
            self._keep_facts(facts)
            self.bench = Bench(
                target=target,
                text=TextSide(prepared.target),
                mode=self.options.mode,
                ks=self.options.ks,
                lookup=self.options.lookup,
                dtype=prepared.manifest.question.dtype,
                clock=clock_for(target.device),
                process=process,
                digest=lambda tokens: keyed_hash(self.options.traffic.key, repr(tokens).encode()),
                between=self._between,
            )
            self._answer_requests()
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
            loaded = self._load(candidate)
            stage = "measure"
            self._measure(loaded)
        except DraftbenchError as error:
            if not isinstance(error, ModelError):
                raise
            failed = failure(candidate, error, stage)
        # A model's code and its libraries raise what they like; none of it ends the sweep.
        except Exception as error:
            failed = failure(candidate, error, stage)
        self.measured.forget(candidate)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return failed

    def _answer_requests(self) -> None:
        """Write and score the responses that are missing, group by group.

        Raises:
            TrafficError: nothing can be drafted, or logged responses are not the target's.
        """
        missing = self.measured.unanswered()
        self.watcher.stage("responses of the target", sum(map(len, missing)))
        for group in missing:
            made = self._answered(group)
            self._keep([r.trajectory for r in made], [r.private() for r in made])
            self.measured.responses.update({response.key: response for response in made})
            self._between(len(made))
        self.groups = self.measured.drafted()
        drafted = [response for group in self.groups for response in group]
        if self.options.responses == "log":
            _refuse_foreign_log(drafted)
        if not drafted:
            raise TrafficError(
                "no response is longer than one token, so none has a token to draft",
                hint="raise the limits, or look at the prompts: the target ends at once",
            )
        too_short = len(self.prepared.prompts) * self.options.samples - len(drafted)
        if too_short:
            self.watcher.note(f"{too_short} responses of one token have nothing to draft: left out")
        self.spans = [(len(r.prompt.tokens), len(r.tokens)) for r in drafted]
        self.longest = max(drafted, key=lambda r: len(r.prompt.tokens) + len(r.tokens))

    def _answered(self, group: Sequence[Asked]) -> list[ScoredResponse]:
        """A group's responses, written by the target or taken from the log, with their scores."""
        bench = self.bench
        if self.options.responses == "log":
            answers = [logged(prompt) for prompt, _ in group]
        else:
            answers = generate(group, bench.target, bench.text, bench.clock)
        given = [
            Given(prompt, sample, tokens, finish, self.options.responses, bench.digest(tokens))
            for (prompt, sample), (tokens, finish) in zip(group, answers, strict=True)
        ]
        return score(given, bench.target)

    def _load(self, candidate: Candidate) -> LoadedCandidate:
        """The candidate's model, after a check that one pass over a text chooses the same tokens as
        stepping through it.
        """
        if candidate.draft in (LOOKUP, SELF):
            return LoadedCandidate(
                candidate, self.bench.target if candidate.draft == SELF else None
            )
        self.watcher.note(f"loading {candidate}")
        build = replace(self.prepared.build, level=candidate.quant)
        runner, facts = build_runner(self.prepared.drafts[candidate.draft], build, candidate.draft)
        disagreement = stepping_disagreement(runner, self.longest)
        caveats = (*self.prepared.caveats.get(candidate.draft, ()), *facts.caveats)
        self._keep_facts(
            msgspec.structs.replace(facts, replay_disagreement=disagreement, caveats=caveats)
        )
        return LoadedCandidate(candidate, runner)

    def _measure(self, loaded: LoadedCandidate) -> None:
        self._replay(loaded)
        if not self.measured.to_time(loaded.candidate):
            return
        for batch in self.options.batches:
            if not self.measured.timed(loaded.candidate, batch):
                self._time(loaded, batch)
            ks = self.measured.to_decode(loaded.candidate, batch)
            if ks:
                self._decode(loaded, ks, batch)

    def _replay(self, loaded: LoadedCandidate) -> None:
        """Replay the groups of which any response is missing."""
        done = self.measured.replays.get(loaded.candidate, {}).keys()
        self.watcher.stage(f"{loaded.candidate}: replay", max(len(self.spans) - len(done), 0))
        for group in self.groups:
            if all(response.key in done for response in group):
                continue
            made = replay(loaded, self.bench, group)
            self._keep([record for record, _ in made], [text for _, text in made if text])
            self._between(len(made))

    def _time(self, loaded: LoadedCandidate, batch: int) -> None:
        """Step times beside the target's, once per batch size."""
        target = self.bench.target
        text = [*self.longest.prompt.tokens, *self.longest.tokens]
        grid = grid_for(self.spans, text, self.options.ks, target.context_length, batch)
        self.watcher.stage(f"{loaded.candidate}: step times{_of_rows(batch)}", grid.turns)
        self._keep(time_steps(loaded, self.bench, grid))
        self._between(1)

    def _decode(self, loaded: LoadedCandidate, ks: Sequence[int], batch: int) -> None:
        """What was interleaved is made and kept all or none, its baseline among it: only that can
        be compared. Where some is missing, all of it is made again.
        """
        done = self.measured.decoded(loaded.candidate, ks, batch)
        chosen = self.measured.chosen()
        left = sum(response.key not in done for response in chosen)
        if batch > 1 and left:
            left = (1 + len(ks)) * len(chosen) * repeats_of(len(chosen), batch)
        listed = ", ".join(map(str, ks))
        self.watcher.stage(f"{loaded.candidate}: decoding at k = {listed}{_of_rows(batch)}", left)
        for rows in decode_requests(loaded, self.bench, chosen, ks, batch, done):
            self._keep(rows)

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
        self.measured.add(records)
        self.watcher.kept(records)
        state = self.machine.look()
        if state is not None:
            self.sink.append([state])

    def _keep_facts(self, facts: ModelFacts) -> None:
        """Keep them, once. A model must not be timed with two kernels."""
        kept = self.measured.facts.get(facts.candidate, [])
        timed = facts.candidate in self.measured.timed_models
        if timed and kept and facts.runner != kept[-1].runner:
            candidate = facts.candidate
            who = f"the draft `{candidate.draft}`" if candidate else "the target"
            raise ModelError(
                f"{who} runs as `{facts.runner}` now and was timed as `{kept[-1].runner}`",
                hint="bring back what it ran with (a compiler, memory), or use another --out",
            )
        if facts not in kept:
            self.sink.append([facts])
            self.measured.add([facts])


def _of_rows(batch: int) -> str:
    return "" if batch == 1 else f", {batch} rows"


def _refuse_foreign_log(responses: Iterable[ScoredResponse]) -> None:
    check = LogCheck()
    for response in responses:
        check.add(response)
    objection = check.objection()
    if objection is not None:
        raise TrafficError(
            f"the logged responses are not this target's: {objection}",
            hint="let the target answer itself: `--responses target`",
        )
