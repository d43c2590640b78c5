"""Measures a prepared sweep into a run folder, one candidate after the other. Prints nothing.

What an interrupted run of the same question measured is not measured again; the weights of a
complete candidate are not even loaded. A candidate that failed is tried again by the next run, and
its failure is cleared once it succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from draftbench.drafts.model.self_check import distribution_fault
from draftbench.errors import AuditError, RunFolderError
from draftbench.records import Candidate, Failure, Observation
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.sweep.engine_ask import EngineWorker
from draftbench.sweep.engine_check import refuse_changes
from draftbench.sweep.failures import changed_model
from draftbench.sweep.options import Watcher, in_turn
from draftbench.sweep.pool import Pool
from draftbench.sweep.prepared import Prepared
from draftbench.sweep.resume import SweepState
from draftbench.sweep.worker import Keep, Private


def measure_sweep(prepared: Prepared, out: Path, watcher: Watcher) -> RunFolder:
    """Measure what is not measured yet; observations are in the folder as soon as they are made.

    Raises:
        RunFolderError: the folder cannot be continued or written, or a model or server changed
            since it was measured.
        ModelError: the target cannot be loaded or run.
        TrafficError: nothing can be measured on these responses.
        AuditError: texts are to stay the same, and the decoder changes the target's distribution.
    """
    if prepared.options.lossless:
        mode = prepared.options.mode
        watcher.stage(f"check of {mode} drafting on a small vocabulary", 1)
        if fault := distribution_fault(mode):
            raise AuditError(
                f"the decoder changes the distribution of the output: {fault}",
                hint="none of its figures can be trusted; please report it with the versions of "
                "torch and numpy",
            )
        watcher.advance()
    folder = RunFolder.create(out, prepared.manifest)
    with folder.writer() as writer, ExitStack() as stack:

        def keep(records: Sequence[Observation], private: Private = ()) -> None:
            """Write what was measured, texts before their records: a kill between the two leaves
            texts without records, which are made again.
            """
            if private:
                writer.append(private)
            writer.append(records)
            state.add(records, [text for text in private if isinstance(text, PrivateText)])
            watcher.recorded(records)

        if prepared.settings:
            folder.keep_settings(prepared.settings)
        state = SweepState.read(prepared, folder)
        watcher.recorded(list(state.observations))
        left = state.left()
        # With `--until settled` what is due grows wave by wave.
        while not left and state.next_wave():
            left = state.left()
        _refuse_changes(prepared, state, left)
        if state.responses and left:
            wanted, candidates = sum(map(len, state.groups)), len(prepared.candidates)
            watcher.note(
                f"resuming: {len(state.trajectories())} of {wanted} responses and "
                f"{candidates - len(left)} of {candidates} candidates are done"
            )
        folder.note_sweep(prepared.manifest, prepared.candidates)
        known = list(state.observations.failures.values())
        keep([failed for failed in prepared.failures if failed not in known])
        if not left and not state.plain_left():
            watcher.note("everything is measured already; no model is loaded")
            folder.note_sweep(state.manifest(), None)
            return folder
        workers: Pool | EngineWorker
        if prepared.servers is not None:
            workers = EngineWorker(prepared, prepared.servers, state, folder, keep, watcher)
        else:
            workers = stack.enter_context(Pool(prepared, state, keep, watcher))
        failed: set[Candidate] = set()
        while True:
            workers.begin_wave([each for each in left if each not in failed])
            _measure(left, workers, state, failed, keep, watcher)
            measured = state.requests
            if not state.next_wave():
                break
            watcher.note(f"not settled after {measured} of {len(prepared.prompts)} requests")
            left = state.left()
        folder.note_sweep(state.manifest(), None)
    return folder


def _measure(
    left: Sequence[Candidate],
    workers: Pool | EngineWorker,
    state: SweepState,
    failed: set[Candidate],
    keep: Keep,
    watcher: Watcher,
) -> None:
    """Measure every candidate once per repeat; adds those that fail to `failed`."""
    options = state.prepared.options
    for repeat in range(options.repeats):
        last = repeat + 1 == options.repeats
        if repeat > 0:
            left = in_turn(state.left(), repeat)
            what = "repeat" if options.serving else "process"
            watcher.note(f"{what} {repeat + 1} of {options.repeats}")
        for candidate in left:
            # Skip a candidate that failed before any server answered: it would fail again.
            if candidate in failed and not state.answered(candidate):
                continue
            failure = workers.attempt(candidate)
            if failure is not None:
                watcher.note(f"{candidate} failed: {failure.reason}")
                keep([failure], ())
                failed.add(candidate)
            # Failures of earlier runs no longer hold.
            elif last and candidate in state.observations.failures and candidate not in failed:
                gone = Failure(
                    candidate=candidate, stage="measure", reason="", hint="", resolved=True
                )
                keep([gone], ())
        workers.end_repeat()


def _refuse_changes(prepared: Prepared, state: SweepState, left: Sequence[Candidate]) -> None:
    """Raise a RunFolderError if a server, the threads, a model's files or the layout of weights are
    not those with which the run was measured so far.
    """
    if prepared.servers is not None:
        threads = prepared.manifest.environment.threads
        refuse_changes(state.observations.engines.values(), prepared.servers, threads)
    latest = state.observations.facts
    prints = {
        candidate and candidate.draft: facts.fingerprint for candidate, facts in latest.items()
    }
    for name, source in [(None, prepared.target), *prepared.drafts.items()]:
        if name in prints and source.fingerprint() != prints[name]:
            raise changed_model(name)
    twice = any(
        latest[candidate].second_layout_bytes
        for candidate in (None, *left)
        if candidate in latest and state.used(candidate)
    )
    if left and prepared.options.one_layout and twice:
        raise RunFolderError(
            "this run has kept weights in two layouts so far, and `--one-layout` asks for one",
            hint="leave `--one-layout` out, or use another --out",
        )
