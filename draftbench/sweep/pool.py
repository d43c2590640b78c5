"""Gives the steps of a sweep to its workers, and keeps what they measure.

The target answers the requests group by group, and each candidate is replayed along them group by
group. Groups depend on the requests alone, so any worker can take any group. Only the first worker
times and decodes, once the others have ended. If a worker dies, its task is done again; a task that
ends `MOST_TRIES` workers costs its candidate. A worker that cannot load or run the target gets no
more tasks.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from draftbench.drafts.kinds import parts_of
from draftbench.errors import DraftbenchError, ModelError, RunFolderError, TrafficError
from draftbench.measure.decoding import repeats_of
from draftbench.measure.trajectories import ScoredResponse, refuse_foreign_log
from draftbench.records import Candidate, Failure, ModelFacts, Observation, WorkerFacts
from draftbench.run_folder.manifest import difference_lines, differing_machine
from draftbench.sweep.failures import failure, parts_missing, timed_out
from draftbench.sweep.options import Watcher
from draftbench.sweep.places import Child, Here, Place, WorkerDiedError, for_workers
from draftbench.sweep.prepared import Prepared
from draftbench.sweep.resume import Decoding, Replaying, SweepState, Timing, Writing
from draftbench.sweep.worker import TURNS, Keep, Private, Task

MOST_TRIES = 3
_LOOK_SECONDS = 5.0
# How long no worker of a cluster may be there before it is said that the sweep waits for one.
_PATIENCE_SECONDS = 30.0

Step = Writing | Replaying | Timing | Decoding

# What can end a worker as a whole, by name: an exception with a hint does not pickle.
_FATAL: dict[str, type[DraftbenchError]] = {
    kind.__name__: kind for kind in (ModelError, TrafficError, RunFolderError)
}


@dataclass
class _Job:
    """A step of a candidate or (None) of the target."""

    candidate: Candidate | None
    step: Step
    deaths: int = 0  # workers that it ended


@dataclass
class _PoolWorker:
    """One of the workers: where it runs, and what it is doing."""

    place: Place
    where: Any  # the card, or the node of a cluster; None: any
    facts: WorkerFacts | None = None  # None: it runs in this process, or did not begin yet
    node: str = ""  # the name of its machine
    waits: bool = False  # for a task
    job: _Job | None = None
    candidate: Candidate | None = None  # of its last job
    begun: float | None = None  # its job, once the target is loaded
    deaths: int = 0  # before any was ready


# Jobs that no worker has, by candidate.
Left = dict[Candidate | None, deque[_Job]]


class Pool:
    """The workers of a sweep with the built-in decoder; as a context manager it ends them."""

    def __init__(self, prepared: Prepared, state: SweepState, keep: Keep, watcher: Watcher) -> None:
        self.options, self.state, self.watcher = prepared.options, state, watcher
        self.prepared, self.keep = prepared, keep
        self._elsewhere = for_workers(prepared)
        self._loaded: set[Candidate | None] = set()  # by a worker of this sweep
        self._spent = defaultdict[Candidate, float](float)  # seconds of each candidate
        self._failed: dict[Candidate, Failure] = {}  # while they were replayed
        # The machines, by name, that could not load a candidate or that it ended a worker on.
        self._refused = defaultdict[Candidate | None, set[str]](set)
        self._heard = time.monotonic()  # from any worker
        self._timed = False
        self._workers: list[_PoolWorker] = []
        self._wheres: list[Any] = [*(self.options.cards or [None] * self.options.worker_count)]
        if self.options.cluster:
            self._wheres[0] = self.options.cluster.timing_node

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.place.end()

    def begin_wave(self, candidates: Sequence[Candidate]) -> None:
        """Have the due responses written and, if there are several workers, candidates replayed
        along them, each on as few workers as keep all busy.

        Raises:
            ModelError: the target cannot be loaded or run.
            TrafficError: nothing to measure on, or logged responses that are not the target's.
        """
        drafted: list[ScoredResponse] = []
        # With `--until settled` a wave of which nothing can be drafted is followed by another.
        while not drafted:
            missing = self.state.unwritten()
            self._resize(len(missing))
            # A written response still has to be scored, which can take as long.
            units = 2 * sum(map(len, missing))
            self.watcher.stage("responses of the target, written and scored", units)
            self._share({None: [Writing(group) for group in missing]})
            drafted = list(chain.from_iterable(self.state.drafted()))
            if not drafted and not self.state.next_wave():
                raise TrafficError(
                    "no response is longer than one token, so none has a token to draft",
                    hint="raise the limits, or look at the prompts: the target ends at once",
                )
        if self.options.responses == "log":
            refuse_foreign_log(drafted)
        self._longest = max(drafted, key=lambda response: response.length)
        if too_short := len(self.state.responses) - len(drafted):
            self.watcher.note(
                f"left out, since one token leaves nothing to draft: {too_short} of "
                f"{len(self.state.responses)} responses"
            )
        if self.options.worker_count == 1:
            return
        groups = {c: self.state.unreplayed(c) for c in candidates if not parts_of(c)}
        responses = sum(len(group) for some in groups.values() for group in some)
        self._resize(sum(map(len, groups.values())))
        self.watcher.stage(f"replay by {len(self._workers)} workers", responses)
        left = {c: [Replaying([group]) for group in some] for c, some in groups.items()}
        self._failed = {c: f for c, f in self._share(left).items() if c}

    def attempt(self, candidate: Candidate) -> Failure | None:
        """Measure what is left of one candidate; a failure of it alone is returned, not raised.

        Raises:
            DraftbenchError: the run folder cannot be written.
        """
        if failed := self._failed.pop(candidate, None):
            return failed
        # Nobody else is at work while something is timed.
        self._resize(1)
        if self._timed and self.options.processes > 1:
            self._restart(self._workers[0])
        self._timed = True
        steps = self.state.steps(candidate)
        while True:
            # The next step depends on figures of what was measured.
            try:
                step = next(steps, None)
            except Exception as error:
                return failure(candidate, error)
            if step is None:
                return None
            jobs: list[Step] = [step]
            match step:
                case Replaying() if parts_of(candidate):
                    return failure(candidate, parts_missing(candidate))
                case Replaying(groups):
                    self.watcher.stage("replay", sum(map(len, groups)), candidate)
                    jobs = [Replaying([group]) for group in groups]
                case Timing(grid):
                    # It may take more turns or fewer, until times are known well enough.
                    self.watcher.stage(f"step times{_at(grid.concurrency)}", TURNS, candidate)
                case Decoding(concurrency, lengths, responses, done):
                    units = sum(response.key not in done for response in responses)
                    if concurrency > 1:
                        repeats = repeats_of(len(responses), concurrency)
                        units = (1 + len(lengths)) * len(responses) * repeats
                    ks = ", ".join(length.short for length in lengths)
                    at = f"decoding at k = {ks}{_at(concurrency)}"
                    longer = (1 + len(lengths)) / (1 + self.options.expected_ks)
                    self.watcher.stage(at, units, candidate, longer)
            if failed := self._share({candidate: jobs}).get(candidate):
                return failed

    def end_repeat(self) -> None:
        """Nothing: the next attempt begins the next process."""

    def _resize(self, tasks: int) -> None:
        """Have as many of the requested workers as this many tasks need."""
        most = max(1, tasks)
        if self.options.cluster:
            # Keep live workers on machines like the one that times; the first new one begins there.
            self._workers.sort(key=lambda each: (bool(self._unlike(each)), each.facts is None))
            for worker, where in zip(self._workers, self._wheres, strict=False):
                worker.where = where
        for worker in self._workers[most:]:
            worker.place.end()
        del self._workers[most:]
        for where in self._wheres[len(self._workers) : most]:
            self._workers.append(_PoolWorker(self._begin(where), where))

    def _share(self, steps: Mapping[Any, Sequence[Step]]) -> dict[Candidate | None, Failure]:
        """Have the workers do these steps. Returns what went wrong with a candidate, whose other
        steps are dropped.
        """
        left: Left = {c: deque(_Job(c, step) for step in some) for c, some in steps.items()}
        failed: dict[Candidate | None, Failure] = {}
        self._refused.clear()
        while any(left.values()) or any(worker.job for worker in self._workers):
            self._assign(left)
            self._wait()
            for worker in list(self._workers):
                job = worker.job
                try:
                    wrong = self._listen(worker, left)
                except WorkerDiedError as died:
                    wrong = self._died(worker, died, left)
                except ModelError as error:
                    wrong = None
                    self._drop(worker, error, left)
                if wrong and job:
                    failed[job.candidate] = wrong
                    left[job.candidate].clear()
        return failed

    def _assign(self, left: Left) -> None:
        """Give every waiting worker a job of the candidate that it has loaded, or else of the one
        that the fewest workers are busy with.

        Raises:
            ModelError: times of two machines would be mixed.
        """
        for worker in self._workers:
            busy = Counter(other.candidate for other in self._workers if other.job)
            open_to = [
                candidate
                for candidate, jobs in left.items()
                if jobs
                and not (worker.node in self._refused[candidate] and self._others(candidate))
                and self._may_load(candidate, busy)
            ]
            if not worker.waits or not open_to:
                continue
            candidate = min(open_to, key=lambda c: (c != worker.candidate, busy[c]))
            job = left[candidate].popleft()
            worker.job, worker.candidate, worker.waits = job, candidate, False
            times = isinstance(job.step, (Timing, Decoding))
            if times and (differ := self._unlike(worker)):
                raise ModelError(
                    f"no worker is left where this run times its steps: {worker.node} differs in "
                    f"{'; '.join(differ)}",
                    hint="the same command resumes once a worker can load the target there",
                )
            known = {model: self._loaded_as(model) for model in (None, candidate)}
            task = Task(
                candidate,
                job.step,
                {model: facts for model, facts in known.items() if facts},
                self._longest if candidate else None,
                self._seconds_left(candidate),
                self.state.log(candidate) if candidate else (),
            )
            worker.place.reply(task)

    def _unlike(self, worker: _PoolWorker) -> list[str]:
        """In what a worker's machine differs from the one whose times the run has."""
        here = self.prepared.manifest.environment
        there = worker.facts.environment if worker.facts else here
        return difference_lines(differing_machine(here, there))

    def _may_load(self, candidate: Candidate | None, busy: Counter[Candidate | None]) -> bool:
        """Whether one more worker may load target and candidate. The first one alone finds out to
        how many rows matrix products are padded, and all others use that number.
        """
        if not busy:
            return True
        target, draft = self._loaded_as(None), self._loaded_as(candidate)
        weightless = candidate is not None and candidate.draft not in self.prepared.drafts
        return target is not None and (draft is not None or weightless or not busy[candidate])

    def _loaded_as(self, candidate: Candidate | None) -> ModelFacts | None:
        """The facts of a model that this sweep has loaded, or that something was measured with."""
        known = candidate in self._loaded or self.state.used(candidate)
        return self.state.observations.facts.get(candidate) if known else None

    def _seconds_left(self, candidate: Candidate | None) -> float | None:
        """The seconds of --candidate-timeout that all workers together may still spend on a
        candidate; None: there is no limit.
        """
        if candidate is None or self.options.candidate_timeout is None:
            return None
        now = time.monotonic()
        at_work = (
            now - worker.begun
            for worker in self._workers
            if worker.begun is not None and worker.job and worker.job.candidate == candidate
        )
        spent = self._spent[candidate] + sum(at_work)
        return max(0.0, self.options.candidate_timeout - spent)

    def _wait(self) -> None:
        """Wait until a worker says something, its time is up, or it is time to check on all."""
        jobs = [worker.job for worker in self._workers if worker.job]
        limits = [self._seconds_left(job.candidate) for job in jobs]
        # Several workers on one candidate spend its seconds together.
        until = min((s / len(jobs) for s in limits if s is not None), default=_LOOK_SECONDS)
        at_work = [worker.place for worker in self._workers if not worker.waits]
        self._workers[0].place.wait(at_work, min(until, _LOOK_SECONDS))
        if self.options.cluster and not jobs and time.monotonic() - self._heard > _PATIENCE_SECONDS:
            self.watcher.note(
                "waiting for Ray to begin a worker: `ray status` tells what is free", always=True
            )
            self._heard = math.inf  # once is enough

    def _listen(self, worker: _PoolWorker, left: Left) -> Failure | None:
        """Handle a worker's messages until it waits for a task or says no more.

        Raises:
            ModelError: it cannot load or run the target.
            DraftbenchError: something else ends the sweep.
            WorkerDiedError: it has ended.
        """
        while not worker.waits and (message := worker.place.hear()):
            self._heard = time.monotonic()
            match message:
                case "ready", (facts, node):
                    worker.waits, worker.deaths, worker.facts, worker.node = True, 0, facts, node
                    self._keep([facts] if facts else [])
                case "begin", ():
                    worker.begun = time.monotonic()
                    worker.place.reply(None)
                case "done", (failed,):
                    job = self._end_of_job(worker)
                    worker.waits = True
                    if failed and failed.stage == "load" and job:
                        self._refused[job.candidate].add(worker.node)
                        if self._others(job.candidate):
                            self.watcher.note(
                                f"{worker.node} cannot load {job.candidate}, others try: "
                                f"{failed.reason}",
                                always=True,
                            )
                            left[job.candidate].appendleft(job)
                            return None
                    return failed
                case "fatal", (kind, message, hint):
                    raise _FATAL.get(kind, ModelError)(message, hint=hint)
                case "keep", (records, private):
                    self._keep(records, private)
                    worker.place.reply(None)
                case what, values:
                    getattr(self.watcher, what)(*values)
                    worker.place.reply(None)
        job = worker.job if worker.begun is not None else None
        if job and self._seconds_left(job.candidate) == 0:
            self._restart(worker)
            return failure(job.candidate, timed_out(self.options.candidate_timeout))
        return None

    def _others(self, candidate: Candidate | None) -> bool:
        """Whether there is a worker on a machine where a candidate has not failed."""
        nodes = {each.node for each in self._workers if each.node}
        return bool(nodes - self._refused[candidate])

    def _drop(self, worker: _PoolWorker, error: ModelError, left: Left) -> None:
        """Continue without a worker that cannot begin, or cannot load or run the target.

        Raises:
            ModelError: it was the last.
        """
        if len(self._workers) == 1:
            raise error
        if job := self._end_of_job(worker):
            left[job.candidate].appendleft(job)
        worker.place.end()
        self._workers.remove(worker)
        self._wheres.remove(worker.where)
        where = f"a worker on {worker.node}" if worker.node else "a worker that does not begin"
        self.watcher.note(f"going on without {where}: {error.message}", always=True)

    def _died(self, worker: _PoolWorker, died: WorkerDiedError, left: Left) -> Failure | None:
        """Replace a worker that died, and put its job back.

        Raises:
            ModelError: the target ends every worker, or none begins.
        """
        job = worker.job
        if job is None:
            worker.deaths += 1
            if worker.deaths < MOST_TRIES:
                if self.options.cluster:
                    worker.where = None  # the node may be gone
                self._restart(worker)
            else:
                self._drop(worker, died.error("its process"), left)
            return None
        job.deaths += 1
        self._refused[job.candidate].add(worker.node)
        self._restart(worker)
        if job.deaths < MOST_TRIES:
            if isinstance(job.step, Decoding) and job.candidate:
                concurrency, lengths = job.step.concurrency, job.step.lengths
                done = self.state.decoded(job.candidate, lengths, concurrency)
                job.step = job.step._replace(done=done)
            left[job.candidate].appendleft(job)
            return None
        if job.candidate is None:
            raise died.error("the target's process")
        return failure(job.candidate, died.error("its process"))

    def _end_of_job(self, worker: _PoolWorker) -> _Job | None:
        job = worker.job
        if job and job.candidate and worker.begun is not None:
            self._spent[job.candidate] += time.monotonic() - worker.begun
        worker.job = worker.begun = None
        return job

    def _restart(self, worker: _PoolWorker) -> None:
        """Replace a worker by a new one."""
        self._end_of_job(worker)
        worker.place.end()
        worker.place, worker.waits, worker.candidate = self._begin(worker.where), False, None
        worker.facts, worker.node = None, ""

    def _begin(self, where: Any) -> Place:
        if self.options.cluster:
            from draftbench.sweep.ray_cluster import OnRay

            return OnRay(self._elsewhere, self.options.cluster, where)
        if self.options.elsewhere:
            return Child(self._elsewhere, where)
        return Here(self.prepared, self._keep, self.watcher)

    def _keep(self, records: Sequence[Observation], private: Private = ()) -> None:
        """Write what a worker made, except facts that are the last ones written for their model."""
        self._loaded |= {facts.candidate for facts in records if isinstance(facts, ModelFacts)}
        new = [
            record
            for record in records
            if not isinstance(record, ModelFacts)
            or self.state.observations.facts.get(record.candidate) != record
        ]
        if new:
            self.keep(new, private)


def _at(concurrency: int) -> str:
    return "" if concurrency == 1 else f", concurrency {concurrency}"
