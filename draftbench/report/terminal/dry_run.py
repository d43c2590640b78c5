"""The output of `draftbench sweep --dry-run`: with the built-in decoder the grid with its work,
time and memory; on a serving engine the servers started and what they write, compared with starting
every k of every draft.
"""

from __future__ import annotations

import msgspec

from draftbench.memory import format_size
from draftbench.records import to_json
from draftbench.report.terminal.text import Section, counted, render_sections, shortened

# From the command that starts a server to its first answer, without reading the weights: as vLLM on
# two cores.
SERVER_START_SECONDS = 30.0
# Rows of memory, and columns of the names of drafts.
_MOST_ROWS, _NAMES = 3, 76
_MORE = "--format markdown"


class Pass(msgspec.Struct, frozen=True):
    """A kind of work."""

    what: str  # what is done
    how_much: str  # to how much
    seconds: float  # about how long it takes


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that measuring a candidate takes: `target_weights`, `draft_weights`, a `second_layout`
    of weights that a CPU holds once more for passes over several tokens, the `cache` of both
    models, and all `together`.
    """

    candidate: str
    target_weights: int
    draft_weights: int
    second_layout: int
    cache: int
    together: int


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep would measure. `seconds` are the sum over its passes, by arithmetic alone;
    `cache_tokens` are the positions that the caches hold at once.
    """

    target: str
    target_quant: str
    dtype: str
    device: str
    threads: int
    candidates: tuple[str, ...]
    ks: tuple[int, ...]
    batches: tuple[int, ...]
    mode: str
    requests: int
    prompt_tokens: int
    samples: int
    passes: tuple[Pass, ...]
    seconds: float
    cache_tokens: int
    memory: tuple[Need, ...]


class EngineWork(msgspec.Struct, frozen=True, kw_only=True):
    """Servers started, tokens that they write, and seconds that it takes; None where unknown."""

    starts: int  # of servers
    tokens: int  # that they write
    seconds: float | None  # None: unknown


class EngineNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a server of a candidate takes: `target_weights`, `draft_weights`, `cache`; the
    engine's own buffers come on top. None where only the engine knows its drafter.
    """

    candidate: str
    target_weights: int
    draft_weights: int | None
    cache: int | None  # of both models, for the requests in flight


class EngineDryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep on an engine would measure: the work that is the `least` and the `most`, and
    that of a `grid` of every k of every draft. `loads` are requests in flight.
    """

    engine: str  # which engine
    target: str
    candidates: tuple[str, ...]
    ks: tuple[int, ...]
    loads: tuple[int, ...]
    arrivals: str  # closed, log or poisson:RATE
    slots: int | None  # most requests answered at once, with arrivals; None: unknown
    requests: int
    prompt_tokens: int  # of all requests
    samples: int
    least: EngineWork
    most: EngineWork
    grid: EngineWork
    memory: tuple[EngineNeed, ...]


def render(plan: DryRun | EngineDryRun, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(plan)
    requests = f"{counted(plan.requests, 'request')} with {plan.prompt_tokens} prompt tokens"
    if plan.samples > 1:
        requests += f", {plan.samples} responses each"
    most = None if style == "markdown" else _MOST_ROWS
    if isinstance(plan, DryRun):
        rows, work, memory = _grid(plan, requests), _passes_as_table(plan), _memory(plan, most)
    else:
        rows, work, memory = _loads(plan, requests), _work_as_table(plan), _server_memory(plan)
    sections = [Section(_title(plan), ("", ""), rows), work]
    return render_sections([*sections, *([memory] if memory.rows else [])], style, width, _MORE)


def _title(plan: DryRun | EngineDryRun) -> str:
    if isinstance(plan, DryRun):
        size = max((need.together for need in plan.memory), default=0)
        return (
            f"This sweep would take about {_about(plan.seconds)} and {format_size(size)} of memory"
        )
    if plan.most.seconds is None:
        return "This sweep would measure"
    ends = dict.fromkeys(_about(work.seconds) for work in (plan.least, plan.most))
    return f"This sweep would take about {' to '.join(ends)}"


def _grid(plan: DryRun, requests: str) -> list[tuple[str, str]]:
    # As many names as fit.
    drafts = shortened(", ".join(plan.candidates), _NAMES)
    for most in range(1, len(plan.candidates) + 1):
        rest = len(plan.candidates) - most
        names = ", ".join(plan.candidates[:most]) + (f" and {rest} more" if rest else "")
        drafts = names if len(names) <= _NAMES else drafts
    ks = ", ".join(map(str, plan.ks))
    if len(plan.ks) > 2 and plan.ks == tuple(range(plan.ks[0], plan.ks[-1] + 1)):
        ks = f"{plan.ks[0]}–{plan.ks[-1]}"
    batches = ", ".join(map(str, plan.batches))
    return [
        ("target", f"{shortened(plan.target, 40)}, quantization {plan.target_quant}, {plan.dtype}"),
        ("drafts", drafts),
        ("grid", f"k = {ks}; concurrency {batches}; {plan.mode} drafting"),
        ("traffic", requests),
        ("device", f"{plan.device}; {counted(plan.threads, 'CPU thread')}"),
    ]


def _loads(plan: EngineDryRun, requests: str) -> list[tuple[str, str]]:
    loads = f"{', '.join(map(str, plan.loads))} in flight"
    if plan.arrivals != "closed":
        slots = (
            "as many at once as the engine takes" if plan.slots is None else f"{plan.slots} at once"
        )
        loads = f"arrivals: {plan.arrivals}; a server answers {slots}"
    return [
        ("engine", plan.engine),
        ("target", shortened(plan.target, 40)),
        ("drafts", shortened(", ".join(plan.candidates), _NAMES)),
        ("k", ", ".join(map(str, plan.ks))),
        ("load", loads),
        ("traffic", requests),
    ]


def _passes_as_table(plan: DryRun) -> Section:
    rows = [(each.what, each.how_much, _about(each.seconds)) for each in plan.passes]
    notes = [
        "Estimated without running anything, for a typical idle machine, as if every response "
        "reached its limit and no draft saved time."
    ]
    return Section("Work", ("", "", ""), rows, notes)


def _work_as_table(plan: EngineDryRun) -> Section:
    work = {"at least": plan.least, "at most": plan.most, "every k of every draft": plan.grid}
    rows = [
        (name, str(each.starts), str(each.tokens), _about(each.seconds))
        for name, each in work.items()
    ]
    notes = ["Responses reach their limit; replay of the drafts is not counted."]
    if plan.most.starts > plan.grid.starts:
        notes.append(
            "The server without a draft is started once more than for a grid, to see how the "
            "machine changed meanwhile."
        )
    if plan.most.seconds is not None:
        notes.append(
            f"Estimated without running anything: a start takes {SERVER_START_SECONDS:.0f} s, "
            "weights are read as fast as on a typical machine, and no draft saves time."
        )
    if plan.arrivals != "closed" and plan.least.seconds is not None:
        if plan.most.seconds is None:
            notes.append("How fast the servers are is unknown: the time is that of the arrivals.")
        else:
            notes.append("Each server is asked for as long as the requests take to arrive.")
    return Section("Work", ("", "servers started", "tokens written", "time"), rows, notes)


def _memory(plan: DryRun, most: int | None) -> Section:
    """The memory of the `most` candidates that need most of it, or of all."""
    largest = sorted(plan.memory, key=lambda need: -need.together)
    twice = any(need.second_layout for need in largest)
    rows = []
    # Instead of a line "and 1 more" there is room for that one.
    shown = largest if most is None or len(largest) == most + 1 else largest[:most]
    for need in shown:
        second = (need.second_layout,) if twice else ()
        sizes = (need.target_weights, need.draft_weights, *second, need.cache, need.together)
        rows.append((shortened(need.candidate, 32), *map(format_size, sizes)))
    notes = [
        f"Cache: for the {plan.cache_tokens} tokens that are held at once at most; activations "
        "are not counted."
    ]
    if len(largest) > len(rows):
        notes.insert(0, f"and {len(largest) - len(rows)} more that need less: {_MORE}")
    if twice:
        notes.append("Held twice: for passes over several tokens; not with --one-layout.")
    second_layout = ("held twice",) if twice else ()
    head = ("draft", "target", "draft weights", *second_layout, "cache", "total")
    return Section("Memory", head, rows, notes)


def _server_memory(plan: EngineDryRun) -> Section:
    rows = [
        (
            need.candidate,
            *(
                "–" if size is None else format_size(size)
                for size in (need.target_weights, need.draft_weights, need.cache)
            ),
        )
        for need in plan.memory
    ]
    note = "The cache is for the load's longest requests; the engine's buffers come on top."
    return Section("Memory", ("draft", "target", "draft weights", "cache"), rows, [note])


def _about(seconds: float | None) -> str:
    """Seconds in two digits, since the assumptions behind them are no finer."""
    if seconds is None:
        return "–"
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.0f} s"
