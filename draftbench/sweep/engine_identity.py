"""Records what a server is, and refuses to continue a run on another one: another engine, version,
model, setting, or way of drafting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from draftbench.engines.engine import ServerFacts
from draftbench.engines.start import Running
from draftbench.errors import RunFolderError
from draftbench.models.drafting import Speculation
from draftbench.models.source import ModelSource
from draftbench.records import (
    DRAFTING_SETTINGS,
    Candidate,
    EngineFacts,
)
from draftbench.run_folder.manifest import portable
from draftbench.sweep.engine_arms import Arm, Serving
from draftbench.sweep.failures import changed_model
from draftbench.sweep.options import SweepOptions


def facts_of(
    described: ServerFacts,
    arm: Arm,
    server: str,
    process: str,
    running: Running | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> EngineFacts:
    """The record of a server; `running` is one that was started, from models with these `files`."""
    cache = described.prefix_cache
    if cache is None and running is not None:
        cache = False  # by the flags that each engine is started with
    return EngineFacts(
        server=server,
        process=process,
        engine=described.engine,
        version=described.version,
        model=described.model and portable(described.model),
        candidate=arm.candidate,
        k=arm.k,
        started=running is not None,
        command=portable(running.command) if running else None,
        settings={**described.settings, **(running.settings if running else {})},
        context_length=described.context_length,
        prefix_cache=cache,
        ready_seconds=running.ready_seconds if running else None,
        files=dict(files),
    )


def refuse_another(recorded: Iterable[EngineFacts], facts: EngineFacts) -> None:
    """Raise a RunFolderError where the run was measured on a different engine, version or model, or
    this arm with different settings, or where settings differ that all starts share. Servers that
    replay a draft are not compared: they serve that draft.
    """
    for before in recorded:
        if any(either.candidate is not None and either.k == 0 for either in (before, facts)):
            continue
        for what in ("engine", "version", "model"):
            _refuse(what, getattr(before, what), getattr(facts, what))
        both = before.settings.keys() & facts.settings.keys()
        if before.started and facts.started:
            for name in sorted(both - DRAFTING_SETTINGS):
                _refuse(name, before.settings[name], facts.settings[name])
            if None not in (before.context_length, facts.context_length):
                _refuse("context length", str(before.context_length), str(facts.context_length))
        if (before.candidate, before.k) != (facts.candidate, facts.k):
            continue
        for name in sorted(both):
            _refuse(name, before.settings[name], facts.settings[name])
        if before.prefix_cache is not None and facts.prefix_cache is not None:
            switch = {True: "on", False: "off"}
            _refuse("prefix cache", switch[before.prefix_cache], switch[facts.prefix_cache])


def refuse_other_threads(recorded: Iterable[EngineFacts], threads: int | None, here: int) -> None:
    """Raise a RunFolderError where servers were started with a different number of threads; None is
    the engine's default. `here` are this process's, which --threads sets together with theirs.
    """
    for before in (facts.settings.get("threads") for facts in recorded if facts.started):
        now = None if threads is None else str(threads)
        if before != now:
            again = f"give --threads {before}" if before == str(here) else "leave --threads out"
            raise RunFolderError(
                f"the servers of this run were started with {before or 'all'} threads each, and "
                f"would now be with {now or 'all'}",
                hint=f"{again}, as when it was begun, or take another --out",
            )


def files_of(target: str, drafter: Speculation | None) -> dict[str, str]:
    """Hashes of the models that a server is started with, if they are on this machine."""
    named = {"target": target, "draft": drafter.model if drafter else None}
    sources = {role: ModelSource(spec) for role, spec in named.items() if spec}
    return {role: source.fingerprint() for role, source in sources.items() if source.local}


def refuse_other_files(
    recorded: Iterable[EngineFacts], serving: Serving, options: SweepOptions
) -> None:
    """Raise a RunFolderError where the files of a model changed since servers of this run were
    started with them.
    """
    begun = {
        (before.candidate.draft if before.candidate else None): before.files for before in recorded
    }
    for draft, files in begun.items():
        now = files_of(options.target, serving.drafters.get(draft) if draft else None)
        for role in files.keys() & now.keys():
            if files[role] != now[role]:
                raise changed_model(None if role == "target" else draft)


def refuse_another_server(recorded: Sequence[EngineFacts], serving: Serving | None) -> None:
    """`refuse_another` for a user's server, which must draft as it did when the run began."""
    if serving is None or serving.facts is None:
        return
    arm = serving.drafting or Arm(None, 0)
    running = [facts for facts in recorded if not facts.started]
    drafted = [facts for facts in running if facts.candidate is not None]
    # Beside a baseline the server that drafts may not have been asked yet.
    for before in drafted or (running if serving.baseline is None else ()):
        _refuse("draft", _drafting(before.candidate, before.k), _drafting(arm.candidate, arm.k))
    refuse_another(recorded, facts_of(serving.facts, arm, "", ""))


def _drafting(candidate: Candidate | None, k: int) -> str:
    return "none" if candidate is None else f"{candidate} at k = {k}"


def _refuse(what: str, before: str | None, now: str | None) -> None:
    if before != now:
        raise RunFolderError(
            f"this run was measured with {what} {before}, and the server has {now}",
            hint="bring the old one back, or take another --out",
        )
