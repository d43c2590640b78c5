"""A prepared sweep → observations in a run folder: which candidates, in which order, failures kept.
Prints nothing.

What an interrupted run of the same question measured is not measured again, and of what is
measured whole no weights are loaded; a candidate that failed is tried again, and its failure is
taken back when it goes through.
"""

from __future__ import annotations

from pathlib import Path

from draftbench.decoder.self_check import distribution_fault
from draftbench.errors import AuditError, RunFolderError
from draftbench.records import Candidate, DraftingMode, Failure, ModelFacts
from draftbench.run_folder.folder import RunFolder, RunWriter
from draftbench.run_folder.run import run_of
from draftbench.sweep.isolation import Isolated
from draftbench.sweep.kept import standing_failures, unmeasured
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.worker import Worker


def run(prepared: Prepared, out: Path, watcher: Watcher) -> RunFolder:
    """Measure what is not measured yet; observations are in the folder as soon as they are made.

    Raises:
        RunFolderError: the folder cannot be continued or written, or a model changed since it was
            begun.
        ModelError: the target cannot be loaded or run.
        TrafficError: the responses cannot be measured on.
        AuditError: asked to look, and the decoder does not keep the target's law.
    """
    if prepared.options.audit:
        watcher.stage(f"audit of {prepared.options.mode} drafting on a small vocabulary", 1)
        _audit(prepared.options.mode)
        watcher.advance()
    folder = RunFolder.create(out, prepared.manifest)
    with folder.writer() as writer:
        _refuse_changed_models(prepared, folder)
        standing = run_of(folder.manifest, list(folder.records(Failure))).failures
        writer.append(failed for failed in prepared.failures if failed not in standing)
        left = unmeasured(prepared, folder)
        if not left:
            watcher.note("all of it is measured already: no model is loaded")
            return folder
        work = Isolated if prepared.options.isolate else Worker
        hands = work(prepared, folder, writer, watcher)
        for candidate in left:
            failed = hands.attempt(candidate)
            if failed is not None:
                watcher.note(f"{candidate} failed: {failed.reason}")
                writer.append([failed])
            else:
                _take_back(candidate, folder, writer)
    return folder


def _audit(mode: DraftingMode) -> None:
    fault = distribution_fault(mode)
    if fault is not None:
        raise AuditError(
            f"the decoder changes the law of the output: {fault}",
            hint="no figure of it can be trusted; report it with the versions of torch and numpy",
        )


def _take_back(candidate: Candidate, folder: RunFolder, writer: RunWriter) -> None:
    """Earlier failures of a candidate that now went through do not hold any more."""
    if candidate in standing_failures(folder):
        record = Failure(
            candidate=candidate,
            stage="measure",
            reason="",
            hint="",
            resolved=True,
        )
        writer.append([record])


def _refuse_changed_models(prepared: Prepared, folder: RunFolder) -> None:
    """A model whose files changed since it was measured is another model under the same name."""
    known = {
        facts.candidate and facts.candidate.draft: facts.fingerprint
        for facts in folder.records(ModelFacts)
    }
    for name, source in [(None, prepared.target), *prepared.drafts.items()]:
        if name in known and source.fingerprint() != known[name]:
            who = "the target" if name is None else f"the draft `{name}`"
            raise RunFolderError(
                f"{who} changed since this run measured it",
                hint="bring the old files back, or measure the new ones with another --out",
            )
