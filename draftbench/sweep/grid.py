"""A prepared sweep → observations in a run folder: which passes, in which order; failures kept.
Prints nothing.

The target is loaded once and produces its responses; then one candidate after the other is loaded,
replayed, timed, decoded beside the baseline at the k worth measuring, and unloaded. What an
interrupted run of the same question measured is not measured again.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from draftbench.decode.clock import clock_for
from draftbench.decode.runner import Runner
from draftbench.errors import DraftbenchError, ModelError, TrafficError
from draftbench.measure.candidate import Contender, Material, Setting, costs, decode_cells
from draftbench.measure.candidate import replay as replay_all
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.replay import stepping_disagreement
from draftbench.measure.trajectories import Given, generate, log_objection, logged, score
from draftbench.models.quantize import build_runner, check_level
from draftbench.plan.recommend import best_cells
from draftbench.records import Candidate, Failure, Observation, Trajectory
from draftbench.store.folder import PrivateText, RunFolder, RunWriter
from draftbench.store.key import keyed_hash
from draftbench.store.observed import Observed, read_run
from draftbench.sweep.options import LOOKUP, SELF, Watcher
from draftbench.sweep.preparation import Prepared

SHORTEST_MEASURED = 8


def run(prepared: Prepared, out: Path, watcher: Watcher) -> RunFolder:
    """Measure what is not measured yet; observations are in the folder as soon as they are made."""
    folder = RunFolder.create(out, prepared.manifest)
    writer = folder.writer()
    try:
        _Sweep(prepared, folder, writer, watcher).measure()
    finally:
        writer.close()
    return folder


class _Sweep:
    """One process's work on a run folder."""

    def __init__(
        self, prepared: Prepared, folder: RunFolder, writer: RunWriter, watcher: Watcher
    ) -> None:
        self.prepared, self.options = prepared, prepared.options
        self.folder, self.writer, self.watcher = folder, writer, watcher
        self.process = uuid.uuid4().hex[:8]
        self.text = TextSide(prepared.target)
        self.key = prepared.options.traffic.key

    def measure(self) -> None:
        """The target's responses, then every candidate."""
        before = read_run(self.folder)
        known = {(f.draft, f.quant, f.stage) for f in before.failures}
        self.writer.append(
            f for f in self.prepared.failures if (f.draft, f.quant, f.stage) not in known
        )
        self.watcher.note(f"loading the target {self.prepared.target.name}")
        target, facts = build_runner(self.prepared.target, self.prepared.build, None)
        self.writer.append([facts])
        material = self._responses(target, before)
        setting = self._setting(target)
        for candidate in self.prepared.candidates:
            try:
                self._candidate(candidate, setting, material)
            except (DraftbenchError, RuntimeError, MemoryError, OSError) as error:
                if isinstance(error, DraftbenchError) and not isinstance(error, ModelError):
                    raise
                self._failed(candidate, error)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _setting(self, target: Runner) -> Setting:
        question = self.prepared.manifest.question
        return Setting(
            target=target,
            text=self.text,
            mode=self.options.mode,
            ks=self.options.ks,
            lookup=self.options.lookup,
            dtype=question.dtype,
            clock=clock_for(target.device),
            process=self.process,
            digest=self._digest,
        )

    def _digest(self, tokens: tuple[int, ...]) -> str:
        return keyed_hash(self.key, repr(tokens).encode())

    def _failed(self, candidate: Candidate, error: BaseException) -> None:
        """Keep the reason; an error of a library is cut to its first line and holds no traffic."""
        if isinstance(error, DraftbenchError):
            reason, hint = error.message, error.hint
        else:
            first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            reason, hint = first, "repeat the command to try this candidate again"
            if isinstance(error, MemoryError) or "out of memory" in first.lower():
                reason, hint = f"out of memory: {first}", "a smaller draft or quantization may fit"
        failure = Failure(
            draft=candidate.draft, quant=candidate.quant, stage="measure", reason=reason, hint=hint
        )
        self.writer.append([failure])
        self.watcher.note(f"{candidate} failed: {reason}")

    def _responses(self, target: Runner, before: Observed) -> list[Material]:
        """Every request's response with its score, produced once per sampling setting."""
        texts = {(p.request, p.sample): p for p in self.folder.private_texts()}
        scored = {(t.request, t.sample): t for t in before.trajectories}
        tasks = [(p, s) for p in self.prepared.prompts for s in range(self.options.samples)]
        self.watcher.stage("responses of the target", len(tasks))
        material: list[Material] = []
        for prompt, sample in tasks:
            key = (prompt.request.id, sample)
            if key not in texts or key not in scored:
                made = self._respond(target, prompt, sample)
                if made is None:
                    continue
                texts[key], scored[key] = made
                self.writer.append_private(texts[key])
                self.writer.append([scored[key]])
            if scored[key].output_tokens > 1:
                material.append((prompt, texts[key], scored[key]))
            self.watcher.advance()
        objection = log_objection([(t, j) for _, t, j in material if j.origin == "log"])
        if objection:
            raise TrafficError(
                f"the logged responses are not this target's: {objection}",
                hint="let the target answer itself: `--responses target`",
            )
        if not material:
            raise TrafficError("no response is longer than one token", hint="raise the limits")
        return material

    def _respond(
        self, target: Runner, prompt: Prompt, sample: int
    ) -> tuple[PrivateText, Trajectory] | None:
        if self.options.responses == "log":
            found = logged(prompt, self.text)
            if found is None:
                return None
        else:
            found = generate(prompt, sample, target, self.text, clock_for(target.device))
        origin = self.options.responses
        given = Given(sample, found[0], found[1], origin, self._digest(found[0]))
        return score(prompt, given, target)

    def _candidate(
        self, candidate: Candidate, setting: Setting, material: Sequence[Material]
    ) -> None:
        """Load, replay, time, decode; each step skips what the folder holds."""
        contender = self._load(candidate, setting, material)
        before = read_run(self.folder)
        own = (candidate.draft, candidate.quant)
        seen = {(r.request, r.sample) for r in before.replays if (r.draft, r.quant) == own}
        left = [m for m in material if (m[2].request, m[2].sample) not in seen]
        self.watcher.stage(f"{candidate}: replay", len(left))
        for record in replay_all(contender, setting, left):
            self._keep(record)
        real = check_level(candidate.quant, setting.target.device, simulate=True)
        if not real:
            return
        if not any(point.block == str(candidate) for point in before.costs):
            self.watcher.stage(f"{candidate}: step times", 1)
            self.writer.append(costs(contender, setting, material))
            self.watcher.advance()
        ks = self._cells(candidate)
        if not ks:
            return
        chosen = self._measured(material)
        done = {(d.request, d.sample, d.k) for d in before.decodes if d.block == str(candidate)}
        planned = {(m[2].request, m[2].sample, k) for m in chosen for k in (0, *ks)}
        self.watcher.stage(f"{candidate}: decoding at k = {_listed(ks)}", len(planned - done))
        for decode in decode_cells(contender, setting, chosen, ks, done):
            self._keep(decode)

    def _keep(self, record: Observation) -> None:
        self.writer.append([record])
        self.watcher.advance()

    def _cells(self, candidate: Candidate) -> list[int]:
        """The k's to decode at."""
        if self.options.measure == "none":
            return []
        if self.options.measure == "all":
            return list(self.options.ks)
        if candidate.draft == SELF and SELF not in self.options.drafts:
            return []
        return best_cells(read_run(self.folder), candidate)

    def _measured(self, material: Sequence[Material]) -> list[Material]:
        """The requests that are decoded with a watch: long enough, in an order that no segment or
        length decides.
        """
        long = [m for m in material if m[2].output_tokens >= SHORTEST_MEASURED] or list(material)
        order = sorted(long, key=lambda m: (m[2].sample, m[2].request))
        return order[: self.options.measure_requests]

    def _load(
        self, candidate: Candidate, setting: Setting, material: Sequence[Material]
    ) -> Contender:
        if candidate.draft == LOOKUP:
            return Contender(candidate, None)
        if candidate.draft == SELF:
            return Contender(candidate, setting.target)
        self.watcher.note(f"loading {candidate}")
        source = self.prepared.drafts[candidate.draft]
        build = replace(self.prepared.build, level=candidate.quant)
        runner, facts = build_runner(source, build, candidate.draft)
        disagreement = stepping_disagreement(runner, material[0][1])
        caveats = (*self.prepared.caveats.get(candidate.draft, ()), *facts.caveats)
        self.writer.append(
            [msgspec.structs.replace(facts, replay_disagreement=disagreement, caveats=caveats)]
        )
        return Contender(candidate, runner)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
