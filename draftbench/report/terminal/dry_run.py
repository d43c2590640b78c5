"""The output of `draftbench sweep --dry-run`: what a sweep would measure, its time and memory."""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.memory import format_size
from draftbench.records import Record, to_json
from draftbench.report.terminal.text import (
    SCREEN_COLUMNS,
    Section,
    counted,
    duration,
    render_sections,
    shortened,
)
from draftbench.run_folder.manifest import Manifest

_NAMES = 76  # columns of the names of drafts


class DryRun(Record, frozen=True):
    """What a sweep would measure, by arithmetic alone. `manifest` is the head of the run folder
    that it would write. Its time lies between `least_seconds` and `most_seconds`, None where
    unknown.
    """

    manifest: Manifest
    candidates: tuple[str, ...]
    prompt_tokens: int
    least_starts: int | None  # of servers of an engine
    most_starts: int | None  # if every k of every draft is started
    least_seconds: float | None
    most_seconds: float | None
    memory: int | None  # bytes, of the candidate that needs most; None: unknown
    assumed: tuple[str, ...]  # what time and memory are computed from


def render(plan: DryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    section = Section(_title(plan), ("", ""), list(_asked(plan)), plan.assumed)
    return render_sections([section], style, min(width, SCREEN_COLUMNS))


def _title(plan: DryRun) -> str:
    least, most = duration(plan.least_seconds), duration(plan.most_seconds)
    # An engine's own buffers, which are unknown, can be most of its memory.
    known = plan.memory is not None and not plan.manifest.question.engine
    memory = f" and {format_size(plan.memory or 0)} of memory" if known else ""
    if plan.most_seconds is None:
        return "This sweep would measure"
    if plan.least_seconds is None:
        return f"This sweep would take up to about {most}{memory}"
    return f"This sweep would take about {' to '.join(dict.fromkeys((least, most)))}{memory}"


def _asked(plan: DryRun) -> Iterator[tuple[str, str]]:
    """What is measured, on what and where."""
    question, traffic = plan.manifest.question, plan.manifest.traffic
    target = shortened(question.target, 40)
    ks = ", ".join(map(str, question.ks))
    if len(question.ks) > 2 and question.ks == tuple(range(question.ks[0], question.ks[-1] + 1)):
        ks = f"{question.ks[0]}–{question.ks[-1]}"
    load = f"concurrency {', '.join(map(str, question.batches))}"
    if question.arrivals != "closed":
        slots = f"{question.slots}" if question.slots else "as many as the engine takes"
        load = f"arrivals {question.arrivals}, {slots} answered at once"
    requests = f"{counted(traffic.requests, 'request')} with {plan.prompt_tokens} prompt tokens"
    if question.samples > 1:
        requests += f", {question.samples} responses each"
    if question.engine:
        yield "engine", question.engine
        yield "target", target
    else:
        yield "target", f"{target}, quantization {question.target_quant}, {question.dtype}"
    yield "drafts", _names(plan.candidates)
    yield "grid", f"k = {ks}; {load}; {question.mode} drafting"
    yield "traffic", requests
    if question.engine:
        starts = dict.fromkeys((plan.least_starts, plan.most_starts))
        yield "servers", f"{' to '.join(map(str, starts))} started"
        if plan.memory is not None:
            yield "memory", f"{format_size(plan.memory)} or more"
    else:
        threads = counted(plan.manifest.environment.threads, "CPU thread")
        yield "device", f"{question.device}; {threads}"


def _names(candidates: tuple[str, ...]) -> str:
    """As many as fit, one at least."""
    for most in range(len(candidates), 0, -1):
        rest = len(candidates) - most
        names = ", ".join(candidates[:most]) + (f" and {rest} more" if rest else "")
        if len(names) <= _NAMES:
            return names
    return shortened(", ".join(candidates), _NAMES)
