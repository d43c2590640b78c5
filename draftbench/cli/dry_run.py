"""What a prepared sweep would do, counted before any weight is loaded or any server started."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from itertools import accumulate

from draftbench.drafts.kinds import parts_of
from draftbench.measure.teacher import TOKENS_AT_ONCE
from draftbench.measure.trajectories import GROUP
from draftbench.memory import format_size
from draftbench.models.check_result import ModelSheet
from draftbench.records import Record
from draftbench.report.text import Section, counted, duration, shortened
from draftbench.run_folder.manifest import Manifest
from draftbench.sweep.engine_servers import Servers
from draftbench.sweep.estimates import (
    START_SECONDS,
    DeviceSpeed,
    Model,
    Stage,
    arriving_seconds,
    engine_model,
    memory_of,
    memory_on_engine,
    sessions_of,
    sheets_of,
    speed_of,
    stages_of_decoder,
    stages_on_engine,
    start_seconds,
    wave_sizes,
)
from draftbench.sweep.prepared import Prepared

_NAMES = 76  # columns of the names of drafts


def dry_run_of(prepared: Prepared) -> DryRun:
    """The time and memory of a sweep; models are counted from their configurations.

    Raises:
        ModelError: a model of the built-in decoder cannot be counted.
    """
    target, drafts = sheets_of(prepared)
    speed = speed_of(prepared.manifest.question.device, prepared.build.dtype)
    if prepared.servers is not None:
        return of_engine(prepared, prepared.servers, target, drafts, speed)
    assert target is not None
    return of_decoder(prepared, target, drafts, speed)


def of_decoder(
    prepared: Prepared, target: ModelSheet, drafts: Mapping[str, ModelSheet], speed: DeviceSpeed
) -> DryRun:
    """A dry run with the built-in decoder; `drafts` are by name."""
    options, stages = prepared.options, list(stages_of_decoder(prepared, target, drafts, speed))
    # The most positions that caches hold at once, for the longest requests. A candidate's
    # configurations are decoded in turn, so all their caches are open together. Before that, timing
    # steps takes caches at two contexts, and the target scores responses side by side.
    longest, rows = max(map(sum, prepared.prompt_tokens)), max(options.concurrency)
    caches = 1 + options.most_ks if options.most_ks else 2 * (options.measure != "replay")
    rows = rows * caches if rows > 1 else 0
    tokens = max(longest * max(rows, 1), min(GROUP * longest, max(TOKENS_AT_ONCE, longest)))
    level = options.target_quant
    later_waves = [at for at, stage in enumerate(stages) if stage.what == "responses"][1:]
    first_wave = stages[: later_waves[0]] if later_waves else stages
    sizes = wave_sizes(prepared)
    on_cards = options.cards or (options.cluster and prepared.manifest.question.device != "cpu")
    cards = options.worker_count if on_cards else 0
    shared = _seconds(stage for stage in stages if stage.candidate is None)
    alone = _seconds(stages) - shared
    groups = -(-len(prepared.prompt_tokens) * options.samples // GROUP)
    replayed = sum(not parts_of(candidate) for candidate in prepared.candidates)
    # Each GPU, and each node of a cluster, has its own memory.
    held = 1 if options.cards or options.cluster else options.worker_count
    return DryRun(
        manifest=prepared.manifest,
        candidates=tuple(map(str, prepared.candidates)),
        prompt_tokens=sum(tokens for tokens, _ in prepared.prompt_tokens),
        least_starts=None,
        most_starts=None,
        least_seconds=START_SECONDS + _seconds(first_wave),
        most_seconds=START_SECONDS + _seconds(stages),
        memory=held
        * max(
            memory_of(candidate, target, drafts, tokens, level) for candidate in prepared.candidates
        ),
        workers=options.worker_count,
        cards=cards,
        card_seconds=alone + cards * shared if cards else None,
        tasks=groups * (1 + replayed),
        looks=tuple(accumulate(sizes))[:-1],
        assumed=(
            "Assumed: the machine stays as busy as it is now, every response reaches its limit, "
            "each candidate is decoded at one k, and no draft gives a speed-up.",
            f"Memory: weights, and caches for up to {tokens} tokens; not activations, nor the "
            "second copy of the weights that a CPU with room to spare makes.",
        ),
    )


def of_engine(
    prepared: Prepared,
    servers: Servers,
    target: ModelSheet | None,
    drafts: Mapping[str, ModelSheet],
    speed: DeviceSpeed,
) -> DryRun:
    """A dry run on a serving engine; `target` is None if it cannot be counted here."""
    started = [c for c in prepared.candidates if c in servers.levels and servers.given is None]
    if servers.given is not None:
        target = None  # it runs elsewhere
    served, span = engine_model(target, speed), arriving_seconds(prepared)
    few, many = (
        list(stages_on_engine(prepared, servers, served or Model(), every_k=every_k))
        for every_k in (False, True)
    )
    starts = [
        0 if servers.given else sum(map(len, sessions_of(prepared, servers, every_k=every_k)))
        for every_k in (False, True)
    ]
    # No server is done before the last request has arrived.
    least = _seconds(few) if served or span else None
    most = _seconds(many) if served else None
    assumed = ["Assumed: every response reaches its limit; replaying the drafts comes on top."]
    if most is not None:
        assumed.append(
            f"Nothing was started for this: a start is taken to last {start_seconds(servers):.0f} "
            "s, weights and prompts to be read as fast as this machine can, and no draft to give a "
            "speed-up. A slower engine takes longer."
        )
    if span:
        assumed.append(
            "The servers' speed is unknown: this is the time that the arrivals take."
            if most is None
            else "Each server is sent requests for as long as they take to arrive."
        )
    memory = None
    if target and started:
        memory = max(memory_on_engine(prepared, servers, c, target, drafts) for c in started)
        assumed.append(
            "Memory: weights, and a cache for the longest requests; the engine's own buffers "
            "come on top."
        )
    return DryRun(
        manifest=prepared.manifest,
        candidates=tuple(map(str, prepared.candidates)),
        prompt_tokens=sum(tokens for tokens, _ in prepared.prompt_tokens),
        least_starts=starts[0],
        most_starts=starts[1],
        least_seconds=least,
        most_seconds=most,
        memory=memory,
        assumed=tuple(assumed),
    )


def _seconds(stages: Iterable[Stage]) -> float:
    return sum(stage.start + stage.seconds for stage in stages)


class DryRun(Record, frozen=True):
    """What a sweep would measure, by arithmetic alone. `manifest` is the head of the run folder
    that it would write. Its time lies between `least_seconds` and `most_seconds`, None if unknown.
    """

    manifest: Manifest
    candidates: tuple[str, ...]
    prompt_tokens: int
    least_starts: int | None  # of an engine's servers
    most_starts: int | None  # if every k of every draft is started
    least_seconds: float | None
    most_seconds: float | None
    memory: int | None  # bytes, of the candidate that needs the most; None: unknown
    assumed: tuple[str, ...]  # what time and memory are based on
    workers: int = 1  # that share the work
    cards: int = 0  # GPUs of the workers, one each
    card_seconds: float | None = None  # of all of these; while one times, the others are free
    tasks: int | None = None  # groups of requests to answer and replay; None: on an engine
    looks: tuple[int, ...] = ()  # requests after which the sweep ends if its answer is settled


def sections(plan: DryRun) -> list[Section]:
    """What a sweep would take, and what it would measure, on what and where."""
    question, traffic = plan.manifest.question, plan.manifest.traffic
    target = shortened(question.target, 40)
    ks = ", ".join(map(str, question.ks))
    if len(question.ks) > 2 and question.ks == tuple(range(question.ks[0], question.ks[-1] + 1)):
        ks = f"{question.ks[0]}–{question.ks[-1]}"
    stops = ", or fewer where the draft is unsure" * ("confidence" in question.stop)
    load = f"concurrency {', '.join(map(str, question.concurrency))}"
    if question.arrivals != "closed":
        most = question.max_concurrency or "as many as the engine takes"
        load = f"arrivals {question.arrivals}, {most} answered at once"
    requests = f"{counted(traffic.requests, 'request')} with "
    requests += counted(plan.prompt_tokens, "prompt token")
    if question.samples > 1:
        requests += f", {question.samples} responses each"
    drafts = ", ".join(shortened(name, _NAMES // 2) for name in plan.candidates)
    rows = {
        "target": f"{target}, quantization {question.target_quant}, {question.dtype}",
        "drafts": textwrap.shorten(drafts, _NAMES, placeholder=" …", break_on_hyphens=False),
        "grid": f"k = {ks}{stops}; {load}; {question.mode} drafting",
        "traffic": requests,
    }
    memory = ""
    if question.engine:
        starts = dict.fromkeys((plan.least_starts, plan.most_starts))
        rows = {"engine": question.engine, **rows, "target": target}
        two = ", two side by side" if question.servers == "started side by side" else ""
        rows["servers"] = f"{' to '.join(map(str, starts))} started{two}"
        # An engine's own buffers, which are unknown, can be most of its memory.
        if plan.memory is not None:
            rows["memory"] = f"{format_size(plan.memory)} or more"
    else:
        threads = counted(plan.manifest.environment.threads, "CPU thread")
        rows["device"] = f"{question.device}; {threads}"
        memory = f" and {format_size(plan.memory or 0)} of memory"
    if plan.workers > 1:
        tasks = f"{plan.tasks} tasks of at most {GROUP} requests"
        rows["workers"] = f"{plan.workers}, which share {tasks}; one of them times and decodes"
    if plan.card_seconds is not None:
        hours = f"{plan.card_seconds / 3600:.2g} hours of a card in all"
        rows["cards"] = f"{plan.cards}, for {hours}"
    if plan.looks:
        first = ", ".join(map(str, plan.looks[:3])) + (" …" if len(plan.looks) > 3 else "")
        rows["ends"] = f"where the answer is settled, looked at after {first} requests"
    title = "This sweep would measure"
    if plan.most_seconds is not None:
        times = dict.fromkeys((duration(plan.least_seconds), duration(plan.most_seconds)))
        title = f"This sweep would take about {' to '.join(times)}{memory}"
    elif plan.least_seconds is not None:
        title = f"This sweep would take {duration(plan.least_seconds)} or more"
    return [Section(title, ("", ""), list(rows.items()), plan.assumed)]
