"""The output of `draftbench sweep --dry-run`: what a sweep would measure, its work with the time
that it takes, and its memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftbench.memory import format_size
from draftbench.records import Record, to_json
from draftbench.report.terminal.text import Section, counted, duration, render_sections, shortened
from draftbench.run_folder.manifest import Manifest

# Rows of memory, and columns of the names of drafts.
_MOST_ROWS, _NAMES = 3, 76
_MORE = "--format markdown"


class Work(Record, frozen=True):
    """A kind of work; on an engine all of it, at least or at most."""

    what: str  # what is done
    how_much: str  # to how much
    seconds: float | None  # about how long it takes; None: unknown


class Need(Record, frozen=True):
    """Bytes that measuring a candidate takes: `target_weights`, `draft_weights`, a `second_layout`
    of weights that a CPU holds once more for passes over several tokens, the `cache` of both
    models, and all `together`. None where only the engine knows its drafter.
    """

    candidate: str
    target_weights: int
    draft_weights: int | None
    second_layout: int
    cache: int | None  # of both models, for the longest requests that are held at once
    together: int | None


class DryRun(Record, frozen=True):
    """What a sweep would measure, by arithmetic alone. `manifest` is the head of the run folder
    that it would write. Its time lies between `least_seconds` and `most_seconds`, None where
    unknown.
    """

    manifest: Manifest
    candidates: tuple[str, ...]
    prompt_tokens: int
    work: tuple[Work, ...]
    least_seconds: float | None
    most_seconds: float | None
    assumed: tuple[str, ...]  # what the time is computed from
    memory: tuple[Need, ...]  # one entry per candidate; empty where it is unknown
    counted: str  # what the memory is for


def render(plan: DryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    work = [(each.what, each.how_much, duration(each.seconds)) for each in plan.work]
    sections = [
        Section(_title(plan), ("", ""), list(_asked(plan))),
        Section("Work", ("", "", ""), work, plan.assumed),
    ]
    if plan.memory:
        sections.append(_memory(plan, None if style == "markdown" else _MOST_ROWS))
    return render_sections(sections, style, width, _MORE)


def _title(plan: DryRun) -> str:
    least, most = duration(plan.least_seconds), duration(plan.most_seconds)
    size = max((need.together or 0 for need in plan.memory), default=0)
    # An engine's own buffers, which are unknown, can be most of its memory.
    memory = "" if plan.manifest.question.engine else f" and {format_size(size)} of memory"
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
    load = f"concurrency {', '.join(map(str, question.concurrency))}"
    if question.arrivals != "closed":
        max_concurrency = (
            f"{question.max_concurrency}"
            if question.max_concurrency
            else "as many as the engine takes"
        )
        load = f"arrivals {question.arrivals}, {max_concurrency} answered at once"
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
    if not question.engine:
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


def _memory(plan: DryRun, most: int | None) -> Section:
    """The memory of the `most` candidates that need most of it, or of all."""
    largest = sorted(plan.memory, key=lambda need: -(need.together or 0))
    # Instead of a line "and 1 more" there is room for that one.
    shown = largest if most is None or len(largest) == most + 1 else largest[:most]
    twice = any(need.second_layout for need in largest)
    rows = []
    for need in shown:
        second = (need.second_layout,) if twice else ()
        sizes = (need.target_weights, need.draft_weights, *second, need.cache, need.together)
        texts = ("–" if size is None else format_size(size) for size in sizes)
        rows.append((shortened(need.candidate, 32), *texts))
    notes = [plan.counted]
    if len(largest) > len(shown):
        notes.insert(0, f"and {len(largest) - len(shown)} more that need less: {_MORE}")
    if twice:
        notes.append("Held twice: for passes over several tokens; not with --one-layout.")
    head = ("draft", "target", "draft weights", *["held twice"] * twice, "cache", "total")
    return Section("Memory", head, rows, notes)
