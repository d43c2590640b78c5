"""A sweep as it was asked for → its run folder, and the recommendation that it gives."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.cli import planned
from draftbench.cli.answers import show_recommendation
from draftbench.cli.interruption import kept_in
from draftbench.cli.values import check_output
from draftbench.errors import AuditError

if TYPE_CHECKING:
    from draftbench.records import Observation
    from draftbench.report.progress import TerminalWatcher
    from draftbench.store.folder import RunFolder
    from draftbench.store.observed import Observed
    from draftbench.sweep import SweepOptions


def run_sweep(
    options: SweepOptions,
    out: Path,
    command: str,
    watcher: TerminalWatcher,
    rendering: tuple[str, str],
) -> int:
    """Prepare, run, and show the recommendation that the run gives."""
    from draftbench.store.observed import read_run

    output_format, output = rendering
    check_output(output)
    with watcher, kept_in(out):
        folder = _measured(options, out, command, watcher)
    # The models' modules refer to each other: without this they stay beside the answer's figures.
    gc.collect()
    observed = read_run(folder)
    code = show_recommendation(observed, output_format, output)
    if not watcher.quiet:
        watcher.console.print(f"\nnext: draftbench recommend {out}", markup=False, highlight=False)
    if options.audit:
        watcher.note(_audited(observed))
    return 1 if observed.failures and code == 0 else code


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


def _audited(observed: Observed) -> str:
    """What the outputs at temperature 0 say of the decoder.

    Raises:
        AuditError: some are not the target's own, where it is no near tie.
    """
    from draftbench.plan.measured import audit

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
    from draftbench.store.folder import RunFolder
    from draftbench.store.observed import read_run

    try:
        found = read_run(RunFolder(out))
    except RunFolderError:  # nothing there, or something that the sweep itself will refuse
        return []
    return [*found.trajectories, *found.replays, *found.decodes]
