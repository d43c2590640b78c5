"""`draftbench gate --target …` and `gate --server …`: measures a draft, or a server that drafts, on
the requests of a baseline.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from draftbench.cli.flags import Rows, complete_levels, flag, read, traffic_flag
from draftbench.cli.signals import kept_in
from draftbench.cli.sweep import describe_load
from draftbench.errors import IncomparableError, UsageError

if TYPE_CHECKING:
    from draftbench.gate.baseline import Baseline
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.run import Run
    from draftbench.sweep.preparation import Prepared


MEASURING = "Measuring a new run (with --target or --server)"
in_measuring = partial(flag, panel=MEASURING)


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """Flags for a run that the gate measures itself."""

    target: str | None = in_measuring(
        None,
        "Measure this target now, instead of reading RUN; with --server, the model that it serves.",
        "MODEL",
    )
    draft: str | None = in_measuring(None, "The draft to measure.", "MODEL")
    server: str | None = in_measuring(
        None, "Measure this running server now, with its speculation.", "URL"
    )
    baseline_server: str | None = in_measuring(
        None, "The same server without speculation, to compare texts and times with.", "URL"
    )
    tokenizer: str | None = in_measuring(
        None, "The folder or id of the served model's tokenizer (default: the server's).", "MODEL"
    )
    quant: str | None = in_measuring(
        None,
        "The quantization level of the draft (default: the baseline's).",
        "LEVEL",
        autocompletion=complete_levels,
    )
    traffic: str | None = traffic_flag(None, panel=MEASURING)
    sample: int | None = in_measuring(
        None, "How many requests to read, the baseline's among them (default: all).", min=1
    )
    temperature: float | None = in_measuring(
        None, "Replace the temperature of every request, as the baseline's sweep did.", min=0.0
    )
    threads: int | None = in_measuring(
        None, "The number of CPU threads (default: the baseline's).", min=1
    )
    processes: int | None = in_measuring(
        None, "How many processes time the draft (default: as many as timed the baseline).", min=1
    )
    out: Path | None = in_measuring(
        None, "The run folder to write (default: results/runs/gate-TIME).", "FOLDER"
    )


def measure(baseline: Baseline, new: NewRun, rows: Rows, *, timed: bool) -> tuple[Path, str]:
    """Measure the baseline's requests with the baseline's settings, and times too if `timed`; gives
    the run folder and the candidate's name.

    Raises:
        IncomparableError: the new run could not be compared; before a model loads.
        UsageError: the candidate cannot be measured, or a server lacks the baseline for its times.
    """
    from draftbench.records import DraftingMode
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.folder import MANIFEST, RunFolder
    from draftbench.sweep import SweepOptions, prepare, run
    from draftbench.sweep.options import ServingOptions

    assert new.traffic  # `gate` refuses a call without it
    asked, tested = baseline.question, baseline.tested
    serving = None
    if new.server is not None:
        if timed and new.baseline_server is None:
            raise UsageError(
                "times of a server are compared with those without its speculation",
                hint="give the address of such a server with --baseline-server, or drop that limit",
            )
        serving = ServingOptions(
            server=new.server,
            baseline=new.baseline_server,
            tokenizer=new.tokenizer,
            drafts_with=tested.get("draft"),
            arrivals=asked.arrivals or "closed",
            time_scale=asked.time_scale or 1.0,
        )
    out = new.out or Path("results/runs") / time.strftime("gate-%Y%m%d-%H%M%S")
    if (out / MANIFEST).exists() and RunFolder(out).manifest.sealed and not _left(read(out)):
        raise UsageError(
            f"`{out}` holds a finished run, so nothing new would be measured",
            hint=f"name another --out; to judge that run: draftbench gate --baseline FILE {out}",
        )
    with TerminalWatcher() as watcher, kept_in(out):
        options = SweepOptions(
            target=new.target or "",
            drafts=(new.draft,) if new.draft else (),
            traffic=rows.query(new.traffic, new.sample),
            ks=(asked.k,),
            concurrency=(asked.concurrency or baseline.active_rows,),
            quants=(new.quant or tested.get("draft quant", "none"),),
            target_quant=tested.get("target quant", "none"),
            dtype=tested.get("dtype"),
            mode=DraftingMode(asked.mode),
            responses=asked.responses,
            samples=asked.samples,
            max_new_tokens=asked.max_new_tokens,
            temperature=new.temperature,
            measure="all" if timed or serving else "replay",
            measure_requests=len(baseline.asked),
            controls=False,
            processes=(new.processes or max(1, len(baseline.processes))) if timed else 1,
            threads=new.threads or _threads(baseline, None if serving else watcher),
            serving=serving,
        )
        prepared = _comparable(baseline, prepare(options, "draftbench gate", watcher))
        _check_server(prepared, baseline)
        describe_load(prepared, watcher)
        watcher.note(f"{len(prepared.prompts)} of the baseline's {len(baseline.asked)} requests")
        run(prepared, out, watcher)
    drafting = prepared.serving.drafting if prepared.serving else None
    candidate = (drafting and drafting.candidate) or prepared.candidates[0]
    failed = [f for f in read(out).failures if f.candidate == candidate]
    if failed:
        raise UsageError(f"{candidate} cannot be measured: {failed[0].reason}", hint=failed[0].hint)
    return out, str(candidate)


def _left(run: Run) -> bool:
    """Whether the same sweep would try something again."""
    return bool(run.failures or run.unanswered)


def _check_server(prepared: Prepared, baseline: Baseline) -> None:
    """Raise an IncomparableError if a server drafts at another k than the baseline's, answers
    another number of requests at once, or holds its target in another number type.
    """
    from draftbench.gate.pair_requests import check_target
    from draftbench.gate.pin import stated_target

    serving, slots = prepared.serving, prepared.manifest.question.slots
    k, slots_before = baseline.question.k, baseline.question.slots
    if serving is None:
        return
    if None not in (slots_before, slots) and slots != slots_before:
        raise IncomparableError(
            f"the baseline cannot be compared: its server answered {slots_before} requests at "
            f"once, and this one answers {slots}",
            hint="start the server as for the baseline, or save a new baseline",
        )
    assert serving.drafting is not None  # `prepare` refuses a server that does not draft
    if serving.drafting.k != k:
        raise IncomparableError(
            f"the baseline cannot be compared: k was {k}, the server drafts {serving.drafting.k}",
            hint="start the server with the baseline's k, or save a new baseline",
        )
    if serving.facts is not None:
        check_target(baseline, stated_target(serving.facts.settings))


def _threads(baseline: Baseline, watcher: TerminalWatcher | None) -> int | None:
    """The baseline's number of CPU threads, at most this machine's, so that both runs compute
    alike; None if it is not recorded. The `watcher` is shown the number.
    """
    from draftbench.run_folder.manifest import cores_here

    recorded, here = baseline.threads, cores_here()
    if recorded is None:
        return None
    if watcher and recorded > here:
        watcher.note(f"CPU threads: {here}, all there are; the baseline ran on {recorded}")
    elif watcher:
        watcher.note(f"CPU threads: {recorded}, as in the baseline; --threads sets another number")
    return min(recorded, here)


def _comparable(baseline: Baseline, prepared: Prepared) -> Prepared:
    """The sweep with only those requests that the baseline has.

    Raises:
        IncomparableError: another key hashed the requests, too few of them are the baseline's, or
            they are sampled in another way.
    """
    from draftbench.gate.pair_requests import check_key, check_requests
    from draftbench.gate.pin import sampling_label
    from draftbench.sweep.engine_preparation import arrivals_digest

    asked = {p.request.id: sampling_label(p.request.sampling) for p in prepared.prompts}
    check_key(baseline, prepared.manifest.key_id)
    check_requests(baseline, asked)
    prompts = tuple(p for p in prepared.prompts if p.request.id in baseline.asked)
    traffic = prepared.manifest.traffic
    others = len(prepared.prompts) - len(prompts)
    dropped = traffic.dropped | ({"not in the baseline": others} if others else {})
    traffic = msgspec.structs.replace(traffic, requests=len(prompts), dropped=dropped)
    question = msgspec.structs.replace(
        prepared.manifest.question, arrivals_digest=arrivals_digest(prepared.options, prompts)
    )
    manifest = msgspec.structs.replace(prepared.manifest, traffic=traffic, question=question)
    return replace(prepared, prompts=prompts, manifest=manifest)
