"""`draftbench gate --target …`: measure one draft on the requests of a baseline."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from draftbench.cli.signals import kept_in
from draftbench.cli.sweep import describe_load
from draftbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftbench.gate.baseline import Baseline
    from draftbench.sweep import SweepOptions
    from draftbench.sweep.preparation import Prepared


@dataclass(frozen=True)
class Job:
    """What to measure where there is no run yet; `traffic` is source, sample and seed, `fields`
    where a row holds its segment, prompt and logged answer. `timed` asks for times too.
    """

    target: str
    draft: str
    quant: str | None
    temperature: float | None
    threads: int | None
    traffic: tuple[str, int | None, int]
    fields: tuple[str | None, str | None, str | None]
    timed: bool


def measure(baseline: Baseline, job: Job, out: Path | None) -> tuple[Path, str]:
    """Run one draft as the baseline asks, on the baseline's requests; the run folder and the
    candidate's name. What cannot be compared is refused before a model is loaded.
    """
    from rich.console import Console

    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run
    from draftbench.sweep import prepare, run

    out = out or Path("results/runs") / time.strftime("gate-%Y%m%d-%H%M%S")
    with TerminalWatcher(Console(stderr=True), quiet=False) as watcher, kept_in(out):
        threads = job.threads or _threads(baseline, watcher.note)
        job = dataclasses.replace(job, threads=threads)
        prepared = prepare(_options(baseline, job), "draftbench gate", watcher)
        prepared = _comparable(baseline, prepared)
        describe_load(prepared, watcher.note)
        watcher.note(f"{len(prepared.prompts)} of the baseline's {len(baseline.requests)} requests")
        run(prepared, out, watcher)
    candidate = prepared.candidates[0]
    failed = [f for f in read_run(RunFolder(out)).failures if f.candidate == candidate]
    if failed:
        raise UsageError(f"{candidate} cannot be measured: {failed[0].reason}", hint=failed[0].hint)
    return out, str(candidate)


def _threads(baseline: Baseline, note: Callable[[str], None]) -> int | None:
    """As many as the baseline ran on, so that its passes are these, where the machine has them."""
    from draftbench.run_folder.manifest import cores_here

    recorded, here = baseline.threads, cores_here()
    if recorded is None:
        return None
    if recorded > here:
        note(f"CPU threads: {here}, all there are; the baseline ran on {recorded}")
    else:
        note(f"CPU threads: {recorded}, as in the baseline; --threads sets another number")
    return min(recorded, here)


def _options(baseline: Baseline, job: Job) -> SweepOptions:
    """The baseline's question, put to what may have changed since."""
    from draftbench.records import DraftingMode
    from draftbench.run_folder.key import request_key
    from draftbench.sweep import SweepOptions
    from draftbench.traffic import TrafficQuery

    asked, tested = baseline.question, baseline.tested
    source, sample, seed = job.traffic
    return SweepOptions(
        target=job.target,
        drafts=(job.draft,),
        traffic=TrafficQuery(source, sample, seed, *job.fields, False, request_key()),
        ks=(asked.k,),
        quants=(job.quant or tested.get("draft quant", "none"),),
        target_quant=tested.get("target quant", "none"),
        dtype=tested.get("dtype"),
        mode=DraftingMode(asked.mode),
        responses=asked.responses,
        samples=asked.samples,
        max_new_tokens=asked.max_new_tokens,
        temperature=job.temperature,
        measure="all" if job.timed else "replay",
        measure_requests=len(baseline.requests),
        controls=False,
        threads=job.threads,
    )


def _comparable(baseline: Baseline, prepared: Prepared) -> Prepared:
    """Only the baseline's own requests of the traffic."""
    from draftbench.gate.pair_requests import check_key, check_requests
    from draftbench.gate.pin import sampling_label

    asked = {p.request.id: sampling_label(p.request.sampling) for p in prepared.prompts}
    check_key(baseline, prepared.manifest.key_id)
    check_requests(baseline, asked)
    known = {counts.id for counts in baseline.requests}
    prompts = tuple(p for p in prepared.prompts if p.request.id in known)
    traffic = prepared.manifest.traffic
    others = len(prepared.prompts) - len(prompts)
    dropped = traffic.dropped | ({"not in the baseline": others} if others else {})
    traffic = msgspec.structs.replace(traffic, requests=len(prompts), dropped=dropped)
    manifest = msgspec.structs.replace(prepared.manifest, traffic=traffic)
    return dataclasses.replace(prepared, prompts=prompts, manifest=manifest)
