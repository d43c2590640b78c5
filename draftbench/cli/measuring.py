"""A sweep as it was asked for → its run folder, and the recommendation that it gives."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.cli import planned
from draftbench.cli.recommend import show_recommendation
from draftbench.cli.signals import kept, kept_in
from draftbench.errors import AuditError

if TYPE_CHECKING:
    from draftbench.records import Observation
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import Run
    from draftbench.sweep import SweepOptions

_LIMIT = "--cell-timeout"


def run_sweep(
    options: SweepOptions,
    out: Path,
    command: str,
    watcher: TerminalWatcher,
    rendering: tuple[str, str],
) -> int:
    """Prepare, run, and show the recommendation that the run gives; at the end what is left."""
    from draftbench.run_folder.run import read_run

    with kept_in(out):
        with watcher:
            folder = _measured(options, out, command, watcher)
        # The models' modules refer to each other: without this they stay beside the answer.
        gc.collect()
        observed = read_run(folder)
        try:
            code = show_recommendation(observed, *rendering)
            if options.audit:
                watcher.note(_audited(observed))
        finally:
            left = _not_whole(observed)
            if left:
                # Where the time was too short the same limit would end it again.
                limit = _LIMIT if any(_LIMIT in reason for reason in left.values()) else None
                watcher.note(f"not measured whole: {', '.join(left)}; {kept(out, limit)}")
    return 1 if observed.failures and code == 0 else code


def tell_next(watcher: TerminalWatcher, *commands: str) -> None:
    """What to look at now, a command a line, so that each can be pasted."""
    watcher.note("\nnext: " + "\n      ".join(commands))


def _not_whole(observed: Run) -> dict[str, str]:
    """The candidates that failed at their work, as the same command tries again, with the reason; a
    pair that cannot work is none, nor what cannot be loaded.
    """

    return {
        str(failure.candidate): failure.reason
        for failure in observed.failures
        if failure.candidate is not None and failure.stage == "measure"
    }


def _measured(
    options: SweepOptions, out: Path, command: str, watcher: TerminalWatcher
) -> RunFolder:
    """The run folder with all that was asked for; models and prompts are let go."""
    from draftbench.sweep import prepare, run

    prepared = prepare(options, command, watcher)
    planned.tell_preparation(prepared, watcher.note)
    watcher.expect(list(map(str, prepared.candidates)), options.ks)
    watcher.kept(_earlier(out))
    return run(prepared, out, watcher)


def _audited(observed: Run) -> str:
    """What the outputs at temperature 0 say of the decoder.

    Raises:
        AuditError: some are not the target's own, where it is no near tie.
    """
    from draftbench.planner.measured import audit

    found = audit(observed)
    if found is None:
        return "audit: no request at temperature 0 was decoded (`--temperature 0` makes all so)"
    said = (
        f"of {found.requests} requests decoded at temperature 0 {found.identical} are the target's "
        f"own output, {found.near_ties} left it at a near tie, {found.faults} elsewhere"
    )
    if found.faults:
        raise AuditError(
            f"speculation changes the output: {said}",
            hint="suspect the decoder or a kernel; float32 shows which",
        )
    return f"audit: {said}"


def _earlier(out: Path) -> list[Observation]:
    """What an interrupted run of this folder kept, for the running figures."""
    from draftbench.errors import RunFolderError
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    try:
        found = read_run(RunFolder(out))
    except RunFolderError:  # nothing there, or something that the sweep itself will refuse
        return []
    return [*found.trajectories, *found.replays, *found.decodes]
