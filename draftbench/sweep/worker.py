"""Measures with the built-in decoder: writes the target's responses once, then loads, checks,
replays, times and decodes each candidate.

Workers of another kind offer the same `attempt`: it hands observations to `keep` as soon as they
are made, and returns what was wrong with this candidate alone.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import msgspec
import torch

from draftbench.decoder.mtp import Head
from draftbench.decoder.runner import clock_for
from draftbench.errors import DraftbenchError, ModelError, TrafficError
from draftbench.measure.candidate import LoadedCandidate, MeasurementContext
from draftbench.measure.decoding import decode_requests, repeats_of
from draftbench.measure.prompts import TextSide
from draftbench.measure.replay import replay, stepping_disagreement
from draftbench.measure.step_costs import LEAST_TURNS, grid_for, time_steps
from draftbench.measure.trajectories import generate, logged, refuse_foreign_log, score
from draftbench.models.drafting import parsed
from draftbench.models.eagle import build_head
from draftbench.models.mtp import build_mtp
from draftbench.models.quantize import build_runner
from draftbench.models.translation import keeps_ids, translated
from draftbench.records import (
    LOOKUP,
    NEAR_TIE_MARGIN,
    SAMPLES_PER_VISIT,
    SELF,
    Candidate,
    Failure,
    ModelFacts,
    Observation,
)
from draftbench.run_folder.folder import PrivateStart, PrivateText
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.machine import Watch
from draftbench.sweep.failures import failure, known_error, parts_missing, timed_out
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.resume import Decoding, Replaying, SweepState, Timing

Private = Sequence[PrivateText] | Sequence[PrivateStart]
# Writes observations, and the private part of them, to the run folder.
Keep = Callable[[Sequence[Observation], Private], None]


class Worker:
    """The loaded target with its responses, ready for candidates.

    Raises:
        ModelError: the target cannot be loaded or run.
        TrafficError: nothing to measure on, or logged responses that are not the target's.
    """

    def __init__(self, prepared: Prepared, state: SweepState, keep: Keep, watcher: Watcher) -> None:
        self.prepared, self.options = prepared, prepared.options
        self.state, self.keep, self.watcher = state, keep, watcher
        self.deadline: float | None = None
        watcher.note(f"loading the target {prepared.target.name}")
        try:
            process = uuid.uuid4().hex[:8]
            self.machine = Watch(process)
            build = replace(prepared.build, least_rows=state.least_rows(None))
            target, facts = build_runner(prepared.target, build, None)
            self._keep_facts(facts)
            self.measurement = MeasurementContext(
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
        # Whatever a library raises here ends the sweep, with a message.
        except Exception as error:
            raise known_error(f"the target {prepared.target.name}", error) from error

    def attempt(self, candidate: Candidate) -> Failure | None:
        """Measure one candidate; what is wrong with it alone is returned, not raised.

        Raises:
            DraftbenchError: the run folder cannot be written.
        """
        limit = self.options.candidate_timeout
        self.deadline = None if limit is None else time.monotonic() + limit
        loaded, stage = None, "load"
        try:
            loaded = self._load(candidate)
            stage = "measure"
            self._measure(loaded)
        # Whatever a model's code and its libraries raise, the sweep continues.
        except Exception as error:
            if isinstance(error, DraftbenchError) and not isinstance(error, ModelError):
                raise
            return failure(candidate, error, stage)
        finally:
            loaded = None  # or its weights would be in memory beside the next one's
            gc.collect()
            self.measurement.target.forget_caches()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return None

    def _answer_requests(self) -> None:
        """Write the responses that are missing, or take them from the log, and score them, group by
        group.
        """
        measurement, origin, missing = (
            self.measurement,
            self.options.responses,
            self.state.unanswered(),
        )
        # A response that is written still has to be scored, which can take as long.
        units = 2 * sum(map(len, missing))
        self.watcher.stage("responses of the target, written and scored", units)
        for group in missing:
            if origin == "log":
                outputs = [logged(prompt) for prompt, _ in group]
                self._between(len(outputs))
            else:
                outputs = generate(
                    group, measurement.target, measurement.text, measurement.clock, self._between
                )
            made = score(group, outputs, measurement.target, origin, measurement.digest)
            self._keep([r.trajectory for r in made], [r.private() for r in made])
            self.state.responses.update({response.key: response for response in made})
            self._between(len(made))
        self.drafted = list(chain.from_iterable(self.state.drafted()))
        if origin == "log":
            refuse_foreign_log(self.drafted)
        if not self.drafted:
            raise TrafficError(
                "no response is longer than one token, so none has a token to draft",
                hint="raise the limits, or look at the prompts: the target ends at once",
            )
        too_short = len(self.state.responses) - len(self.drafted)
        if too_short:
            self.watcher.note(
                f"left out, since one token leaves nothing to draft: {too_short} of "
                f"{len(self.state.responses)} responses"
            )

    def _load(self, candidate: Candidate) -> LoadedCandidate:
        """The candidate's model, after a check that one pass over a text chooses the same tokens as
        stepping through it.
        """
        if candidate.draft == LOOKUP:
            return LoadedCandidate(candidate, None, self.measurement)
        if candidate.draft == SELF:
            return LoadedCandidate(candidate, self.measurement.target, self.measurement)
        self.watcher.note(f"loading {candidate}")
        least = self.state.least_rows(candidate)
        build = replace(self.prepared.build, level=candidate.quant, least_rows=least)
        target, source = self.prepared.target, self.prepared.drafts[candidate.draft]
        method, loaded = parsed(candidate.draft)[0], self.measurement.target
        if method in ("eagle3", "mtp"):
            head: Head
            if method == "mtp":
                head, facts = build_mtp(source, build, candidate.draft, loaded)
            else:
                layers = target.config.get_text_config().num_hidden_layers
                head, facts = build_head(source, build, candidate.draft, loaded, layers)
            self._keep_draft(candidate, facts)
            return LoadedCandidate(candidate, head, self.measurement)
        runner, facts = build_runner(source, build, candidate.draft)
        runner = translated(runner, target, source)
        longest = max(self.drafted, key=lambda response: response.length)
        facts = msgspec.structs.replace(
            facts,
            translated=not keeps_ids(target, source),
            replay_disagreement=stepping_disagreement(
                runner, longest, NEAR_TIE_MARGIN[self.measurement.dtype]
            ),
        )
        self._keep_draft(candidate, facts)
        return LoadedCandidate(candidate, runner, self.measurement)

    def _keep_draft(self, candidate: Candidate, facts: ModelFacts) -> None:
        """Keep a draft's facts, with what was found before it was loaded."""
        known = self.prepared.caveats.get(candidate.draft, ())
        self._keep_facts(msgspec.structs.replace(facts, caveats=(*known, *facts.caveats)))

    def _measure(self, loaded: LoadedCandidate) -> None:
        """What is left of the candidate: its replays, then for each concurrency the times of its
        steps and, where that is worth it, decoding.
        """
        measurement, candidate = self.measurement, loaded.candidate
        for step in self.state.steps(candidate):
            match step:
                case Replaying() if candidate.beneath:
                    raise parts_missing(candidate)
                case Replaying(groups):
                    self.watcher.stage("replay", sum(map(len, groups)), candidate)
                    for group in groups:
                        made = replay(loaded, group)
                        self._keep(made)
                        self._between(len(made))
                case Timing(concurrency):
                    room = measurement.target.context_length
                    grid = grid_for(self.drafted, self.options.ks, room, concurrency)
                    turns = 2 * LEAST_TURNS  # or more, or fewer: until that is enough
                    self.watcher.stage(f"step times{_of_rows(concurrency)}", turns, candidate)
                    enough = self.state.timed_enough(candidate, concurrency)
                    points = time_steps(loaded, grid, enough)
                    self._keep(points)
                    samples = max((len(point.seconds) for point in points), default=0)
                    self._between(max(1, 1 + turns - samples // SAMPLES_PER_VISIT))
                case Decoding(concurrency, ks, responses, done):
                    units = sum(response.key not in done for response in responses)
                    if concurrency > 1:
                        units = (
                            (1 + len(ks)) * len(responses) * repeats_of(len(responses), concurrency)
                        )
                    at = f"decoding at k = {', '.join(map(str, ks))}{_of_rows(concurrency)}"
                    longer = (1 + len(ks)) / (1 + self.options.expected_ks)
                    self.watcher.stage(at, units, candidate, longer)
                    for decodes in decode_requests(loaded, responses, ks, concurrency, done):
                        self._keep(decodes)

    def _between(self, done: int) -> None:
        """Report `done` finished units between two pieces of work, and look at the time.

        Raises:
            ModelError: the candidate's time is up.
        """
        self.watcher.advance(done)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise timed_out(self.options.candidate_timeout)

    def _keep(self, records: Sequence[Observation], private: Private = ()) -> None:
        """Keep what was measured, and what else ran on the machine meanwhile."""
        state = self.machine.look()
        self.keep(records if state is None else [*records, state], private)
        self.state.add(records)

    def _keep_facts(self, facts: ModelFacts) -> None:
        """Keep a model's facts once.

        Raises:
            ModelError: it was measured with other kernels before, which differ in speed and
                rounding.
        """
        candidate, recorded = facts.candidate, self.state.facts.get(facts.candidate, [])
        before = recorded[-1].runner if recorded and self.state.used(candidate) else None
        if before not in (None, facts.runner):
            who = f"the draft `{candidate.draft}`" if candidate else "the target"
            raise ModelError(
                f"{who} runs as `{facts.runner}` now and was measured as `{before}`",
                hint="give it the memory and the options that it had, or use another --out",
            )
        if facts not in recorded:
            self._keep([facts])


def _of_rows(concurrency: int) -> str:
    return "" if concurrency == 1 else f", {concurrency} rows"
