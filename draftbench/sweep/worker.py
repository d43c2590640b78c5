"""Measures with the built-in decoder, one step of one candidate at a time, and holds the loaded
target and the candidate at work. A worker does not decide what is measured.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from draftbench.decoder.runner import clock_for
from draftbench.drafts.built_in import load, load_from_text
from draftbench.drafts.kinds import kind_of
from draftbench.drafts.loading import Loading
from draftbench.drafts.model.draft import ModelDraft
from draftbench.drafts.suffix.memory import Remembered
from draftbench.errors import DraftbenchError, ModelError
from draftbench.measure.candidate import LoadedCandidate, MeasurementContext
from draftbench.measure.decoding import decode_requests
from draftbench.measure.prompts import TargetText
from draftbench.measure.step_costs import LEAST_TURNS, time_steps
from draftbench.measure.trajectories import ScoredResponse, generate, logged, score
from draftbench.models.quantize import build_runner
from draftbench.records import SAMPLES_PER_VISIT, SELF, Candidate, Failure, ModelFacts, Observation
from draftbench.run_folder.folder import PrivateStart, PrivateText
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.machine import Watch
from draftbench.sweep.failures import failure, known_error, timed_out
from draftbench.sweep.options import Watcher
from draftbench.sweep.prepared import Prepared
from draftbench.sweep.resume import Decoding, Replaying, Timing, Writing

Private = Sequence[PrivateText] | Sequence[PrivateStart]
# How often all passes are timed, as far as known in advance.
TURNS = 2 * LEAST_TURNS
# Writes observations, and the private part of them, to the run folder.
Keep = Callable[[Sequence[Observation], Private], None]


@dataclass(frozen=True)
class Task:
    """A step of a candidate or (None) of the target, with what a worker needs to know for it."""

    candidate: Candidate | None
    step: Writing | Replaying | Timing | Decoding
    # How target and candidate were loaded earlier in this run, if they were.
    loaded_as: Mapping[Candidate | None, ModelFacts]
    longest: ScoredResponse | None = None  # on which the passes of a draft are tried
    seconds: float | None = None  # that are left of the candidate's
    log: Sequence[Remembered] = ()  # the responses, if the candidate remembers them


class Worker:
    """A target, loaded for the first task, and the last candidate that a task named."""

    def __init__(self, prepared: Prepared, keep: Keep, watcher: Watcher) -> None:
        self.prepared, self.options = prepared, prepared.options
        self.keep, self.watcher = keep, watcher
        self.process = uuid.uuid4().hex[:8]
        self.deadline: float | None = None
        self._machine: Watch | None = None
        self._measurement: MeasurementContext | None = None
        self._loaded: LoadedCandidate | None = None
        self._remembered = 0  # responses that it remembers

    def prepare(self, task: Task) -> None:
        """Load the target, unless it is loaded.

        Raises:
            ModelError: it cannot be loaded or run.
        """
        if self._measurement is not None:
            return
        self.watcher.note("loading the target")
        known = task.loaded_as.get(None)
        try:
            target, facts = build_runner(self.prepared.target, self.prepared.build, None)
            self._keep_facts(facts, known)
            self._measurement = MeasurementContext(
                target=target,
                text=TargetText(self.prepared.target),
                mode=self.options.mode,
                ks=self.options.ks,
                stops=self.options.stops,
                lookup=self.options.lookup,
                dtype=self.prepared.manifest.question.dtype,
                clock=clock_for(target.device),
                process=self.process,
                digest=lambda tokens: keyed_hash(self.options.traffic.key, repr(tokens).encode()),
                between=self._between,
            )
        # Whatever a library raises here ends the sweep, with a message.
        except Exception as error:
            raise known_error(f"the target {self.prepared.target.name}", error) from error

    @property
    def measurement(self) -> MeasurementContext:
        """What all candidates share; available once a task is prepared."""
        assert self._measurement is not None
        return self._measurement

    def take(self, task: Task) -> Failure | None:
        """Do a prepared task; a failure of its candidate alone is returned, not raised.

        Raises:
            DraftbenchError: the target fails, or the run folder cannot be written.
        """
        self.deadline = None if task.seconds is None else time.monotonic() + task.seconds
        # With several workers, watch the machine's load only while timing.
        if self.options.worker_count > 1 and not isinstance(task.step, (Timing, Decoding)):
            self._machine = None
        elif self._machine is None:
            self._machine = Watch(self.process)
        if task.candidate is None:
            self._write_responses(task)
            return None
        stage = "load"
        try:
            grown = len(task.log) != self._remembered
            if self._loaded is None or self._loaded.candidate != task.candidate or grown:
                self.forget()
                self._loaded = self._load(task.candidate, task)
                self._remembered = len(task.log)
            stage = "measure"
            self._measure(self._loaded, task.step)
        # A model's code and its libraries may raise anything; the sweep continues.
        except Exception as error:
            if isinstance(error, DraftbenchError) and not isinstance(error, ModelError):
                raise
            failed = failure(task.candidate, error, stage)
        else:
            return None
        self.forget()  # once the error no longer holds the weights
        return failed

    def forget(self) -> None:
        """Free the candidate, or its weights would be in memory beside the next one's."""
        self._loaded = None
        gc.collect()
        self.measurement.target.forget_caches()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _write_responses(self, task: Task) -> None:
        """Write a group's responses, or take them from the log, and score them."""
        assert isinstance(task.step, Writing)
        measurement, group, origin = self.measurement, task.step.group, self.options.responses
        try:
            if origin == "log":
                outputs = [logged(prompt) for prompt, _ in group]
                self._between(len(outputs))
            else:
                outputs = generate(
                    group, measurement.target, measurement.text, measurement.clock, self._between
                )
            made = score(group, outputs, measurement.target, origin, measurement.digest)
        except Exception as error:
            raise known_error(f"the target {self.prepared.target.name}", error) from error
        self._keep([r.trajectory for r in made], [r.private() for r in made])
        self._between(len(made))

    def _load(self, candidate: Candidate, task: Task) -> LoadedCandidate:
        """Load the candidate, and keep its facts if it has weights of its own."""
        measurement = self.measurement
        if (kind := kind_of(candidate.draft)).from_text:
            device, lookup = measurement.target.device, measurement.lookup
            from_text = load_from_text(kind.method, device, lookup, log=task.log)
            return LoadedCandidate(candidate, from_text, measurement)
        if candidate.draft == SELF:
            own = ModelDraft(measurement.target, measurement.target, measurement.mode)
            return LoadedCandidate(candidate, own, measurement)
        self.watcher.note(f"loading {candidate}")
        known = task.loaded_as.get(candidate)
        assert task.longest is not None
        loading = Loading(
            candidate,
            source=self.prepared.drafts[candidate.draft],
            build=replace(self.prepared.build, level=candidate.quant),
            target=self.prepared.target,
            runner=measurement.target,
            mode=measurement.mode,
            longest=task.longest,
        )
        draft, facts = load(loading, measurement.lookup)
        caveats = self.prepared.caveats.get(candidate.draft, ())
        facts = msgspec.structs.replace(facts, caveats=(*caveats, *facts.caveats))
        self._keep_facts(facts, known)
        return LoadedCandidate(candidate, draft, measurement)

    def _measure(
        self, loaded: LoadedCandidate, step: Writing | Replaying | Timing | Decoding
    ) -> None:
        """Replay, time or decode."""
        match step:
            case Replaying(groups):
                for group in groups:
                    made = loaded.replay(group)
                    self._keep(made)
                    self._between(len(made))
            case Timing(grid, enough):
                points = time_steps(loaded, grid, enough)
                self._keep(points)
                samples = max((len(point.seconds) for point in points), default=0)
                self._between(max(1, 1 + TURNS - samples // SAMPLES_PER_VISIT))
            case Decoding(concurrency, lengths, responses, done):
                for decodes in decode_requests(loaded, responses, lengths, concurrency, done):
                    self._keep(decodes)

    def _between(self, done: int) -> None:
        """Report `done` finished units between two pieces of work, and check the time.

        Raises:
            ModelError: the candidate's time is up.
        """
        self.watcher.advance(done)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise timed_out(self.options.candidate_timeout)

    def _keep(self, records: Sequence[Observation], private: Private = ()) -> None:
        """Keep what was measured, and what else ran on the machine during that time."""
        state = self._machine.look() if self._machine else None
        self.keep(records if state is None else [*records, state], private)

    def _keep_facts(self, facts: ModelFacts, known: ModelFacts | None) -> None:
        """Keep a model's facts once.

        Raises:
            ModelError: it was measured with other files before, or with other kernels, which
                differ in speed and rounding.
        """
        who = f"the draft `{facts.candidate.draft}`" if facts.candidate else "the target"
        if known and known.fingerprint != facts.fingerprint:
            raise ModelError(
                f"the files of {who} are not those that it was measured with",
                hint="every worker must see the same files",
            )
        if known and known.runner != facts.runner:
            raise ModelError(
                f"{who} runs as `{facts.runner}` now and was measured as `{known.runner}`",
                hint="give it the memory and the options that it had, or use another --out",
            )
        if facts != known:
            self._keep([facts])
