"""A prepared sweep → what it would do, take and need, without loading a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from draftbench.cli.flags import TEXT_FORMATS, one_of, width, write_result

if TYPE_CHECKING:
    from draftbench.report.terminal.dry_run import Plan
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.sweep import Prepared, SweepOptions

# What --measure asks for, and at how many k's a candidate is then decoded at most.
DECODED_KS = {"best": 3, "all": 64, "none": 0, "replay": 0}


def dry_run(
    options: SweepOptions, command: str, watcher: TerminalWatcher, rendering: tuple[str, str]
) -> int:
    """Say what the sweep would do; load no weights and leave nothing behind."""
    from draftbench.report.terminal.dry_run import dry_run as counted
    from draftbench.report.terminal.dry_run import render
    from draftbench.sweep import prepare

    output_format, output = rendering
    one_of("--format of a --dry-run", output_format, TEXT_FORMATS)
    with watcher:
        prepared = prepare(options, command, watcher)
        tell_preparation(prepared, watcher.note)
    found = counted(prepared.manifest, _plan(prepared))
    write_result(render(found, output_format, width()), output)
    return 0


def _plan(prepared: Prepared) -> Plan:
    """What a sweep would do, with its models counted from their configurations."""
    from draftbench.measure.teacher import TOKENS_AT_ONCE
    from draftbench.models.check import memory_here, preflight
    from draftbench.report.terminal.dry_run import Plan
    from draftbench.sweep.responses import GROUP

    drafts, dtype = list(prepared.drafts.values()), prepared.build.dtype
    answer = preflight(prepared.target, drafts, memory_here(), dtype=dtype)
    sheets = {name: pair.draft for name, pair in zip(prepared.drafts, answer.pairs, strict=True)}
    options = prepared.options
    longest = max(map(sum, prepared.prompt_tokens))
    cells = min(DECODED_KS[options.measure], len(options.ks))
    return Plan(
        candidates=prepared.candidates,
        prompts=prepared.prompt_tokens,
        target=answer.target,
        sheets=sheets,
        scored_together=min(GROUP * longest, max(TOKENS_AT_ONCE, longest)),
        decoded=min(options.measure_requests, len(prepared.prompts)) if cells else 0,
        cells=cells,
        timed=options.measure != "replay",
    )


def tell_preparation(prepared: Prepared, note: Callable[[str], None]) -> None:
    """Say what the traffic became and which drafts are out before anything is loaded."""
    tell_load(prepared, note)
    facts = prepared.manifest.traffic
    note(f"{facts.requests} requests of {facts.rows} rows ({facts.form}), {facts.merged} merged")
    for reason, count in facts.dropped.items():
        note(f"left out, {reason}: {count}")
    for failure in prepared.failures:
        note(f"refused {failure.candidate}: {failure.reason}")
    for draft, caveats in prepared.caveats.items():
        for caveat in caveats:
            note(f"note on {draft}: {caveat}")


def tell_load(prepared: Prepared, note: Callable[[str], None]) -> None:
    """Say where the machine works for others too, as the caveats of the answer will."""
    from draftbench.planner.caveats import LOAD

    load = prepared.manifest.environment.load
    if load is not None and load > LOAD:
        note(
            f"the machine is busy, with a load of {load:.1f} for each core: times will be noisy, "
            "acceptance not"
        )
