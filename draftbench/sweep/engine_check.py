"""Whether a server is what it should be: the engine, version, model and settings that the run was
begun with, and drafting as it was asked to, by its own description and by the counts of its
answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from draftbench.drafts.kinds import DRAFT_KINDS, draft_name, looks_up, methods_called
from draftbench.drafts.laws import AnyReplay, drafted_from, has_confidences
from draftbench.drafts.speculation import Speculation
from draftbench.engines.drive import drive
from draftbench.engines.every import DRAFTING_SETTINGS, ENGINES
from draftbench.engines.faults import AnswerError, Fault
from draftbench.engines.server import Answer, Ask, Server, ServerFacts
from draftbench.engines.start import Running
from draftbench.errors import EngineError, RunFolderError
from draftbench.flags import LARGEST_K
from draftbench.hub import short_name
from draftbench.measure.prompts import Prompt
from draftbench.models.source import ModelSource
from draftbench.records import (
    Candidate,
    DraftLength,
    EngineFacts,
    Key,
    RoundCounts,
    Sampling,
    Served,
    Trajectory,
)
from draftbench.run_folder.manifest import portable
from draftbench.sweep.engine_servers import ServerConfig, Servers
from draftbench.sweep.failures import changed_model
from draftbench.sweep.options import Watcher

_PROBES, _PROBED_TOKENS = 5, 48
_METRICS = "; ".join(each.metrics_flag for each in ENGINES.values() if each.metrics_flag)
# In shorter answers a server may have had no room to draft.
_ROOM = 4


def engine_facts(
    described: ServerFacts,
    config: ServerConfig,
    server: str,
    process: str,
    running: Running | None,
    files: Mapping[str, str],
) -> EngineFacts:
    """The record of a server; `running` if the sweep started it, from models with these `files`."""
    cache = described.prefix_cache
    if cache is None and running is not None:
        cache = False  # by the flags that each engine is started with
    return EngineFacts(
        server=server,
        process=process,
        engine=described.engine,
        version=described.version,
        model=described.model and portable(described.model),
        candidate=config.candidate,
        k=config.k,
        stop=config.stop,
        started=running is not None,
        command=portable(running.command) if running else None,
        settings={**described.settings, **(running.settings if running else {})},
        context_length=described.context_length,
        prefix_cache=cache,
        ready_seconds=running.ready_seconds if running else None,
        files=dict(files),
    )


def files_of(target: str, speculation: Speculation | None) -> dict[str, str]:
    """Hashes of the models that a server is started with, if they are on this machine."""
    specs = {"target": target, "draft": speculation.model if speculation else None}
    sources = {role: ModelSource(spec) for role, spec in specs.items() if spec}
    return {role: source.fingerprint() for role, source in sources.items() if source.local}


def refuse_changes(recorded: Collection[EngineFacts], servers: Servers, threads_here: int) -> None:
    """Raise a RunFolderError if the user's server, the models' files or the servers' threads are
    not those that the run was measured with; `threads_here` are this process's threads, which
    --threads sets together with the servers'.
    """
    if servers.facts is not None:
        config = servers.drafting or ServerConfig(None, 0)
        running = [facts for facts in recorded if not facts.started]
        drafted = [facts for facts in running if facts.candidate is not None]
        # Beside a baseline the server that drafts may not have been asked yet.
        for before in drafted or (running if servers.baseline is None else ()):
            _refuse("draft", _drafting(before), _drafting(config))
        refuse_another(recorded, engine_facts(servers.facts, config, "", "", None, {}))
    threads = None if servers.threads is None else str(servers.threads)
    for begun in (facts.settings.get("threads") for facts in recorded if facts.started):
        if begun != threads:
            same = begun == str(threads_here)
            again = f"give --threads {begun}" if same else "leave --threads out"
            raise RunFolderError(
                f"the servers of this run were started with {begun or 'all'} threads each, and "
                f"would now be with {threads or 'all'}",
                hint=f"{again}, as when it was begun, or take another --out",
            )
    refuse_other_files(recorded, servers)


def _drafting(of: EngineFacts | ServerConfig) -> str:
    return "none" if of.candidate is None else f"{of.candidate} at k = {of.k}"


def refuse_other_files(recorded: Iterable[EngineFacts], servers: Servers) -> None:
    """Raise a RunFolderError if a model's files changed since servers of this run were started with
    them.
    """
    begun = {
        (before.candidate.draft if before.candidate else None): before.files for before in recorded
    }
    for draft, files in begun.items():
        now = files_of(servers.options.target, servers.speculations.get(draft) if draft else None)
        for role in files.keys() & now.keys():
            if files[role] != now[role]:
                raise changed_model(None if role == "target" else draft)


def _drafts(facts: EngineFacts) -> tuple[object, ...]:
    return facts.candidate, facts.k, facts.stop


def refuse_another(recorded: Iterable[EngineFacts], facts: EngineFacts) -> None:
    """Raise a RunFolderError if the run was measured on another engine, version or model, if this
    server had other settings, or if settings differ that all started servers share.
    """
    for before in recorded:
        for what in ("engine", "version", "model"):
            _refuse(what, getattr(before, what), getattr(facts, what))
        both = before.settings.keys() & facts.settings.keys()
        same = _drafts(before) == _drafts(facts)
        if before.started and facts.started:
            for name in sorted(both - DRAFTING_SETTINGS):
                _refuse(name, before.settings[name], facts.settings[name])
            if None not in (before.context_length, facts.context_length):
                _refuse("context length", str(before.context_length), str(facts.context_length))
        for name in sorted(both) if same else ():
            _refuse(name, before.settings[name], facts.settings[name])
        if same and None not in (before.prefix_cache, facts.prefix_cache):
            was, now = ("on" if each.prefix_cache else "off" for each in (before, facts))
            _refuse("prefix cache", was, now)


def _refuse(what: str, before: str | None, now: str | None) -> None:
    if before != now:
        raise RunFolderError(
            f"this run was measured with {what} {before}, and the server has {now}",
            hint="bring the old one back, or take another --out",
        )


def find_drafting(
    servers: Servers,
    server: Server,
    candidates: dict[Candidate, None],
    prompts: Sequence[Prompt],
    watcher: Watcher,
) -> tuple[Servers, dict[Candidate, None], dict[str, str]]:
    """Find out how the user's server drafts: from its description, from what the user said by --k,
    or else from its answers to the first requests. Returns the engine with its `drafting`, the
    candidates with the server's draft, and what `--drafts` would call this by its name in the run,
    if the server's description does not leave that open.

    Raises:
        EngineError: it drafts, but its k remains unknown, is not the one that the user gave, or is
            beyond what is measured; or it does not draft, though there is a baseline.
    """
    facts, asked = servers.facts, servers.options
    assert facts is not None
    given_k = asked.ks[0] if len(asked.ks) == 1 else None
    # What it states, the most tokens that its answers show in a round, and whether it drafts. The
    # answers go beyond the requests' limits, near which some servers draft less.
    stated, most = facts.k or 0, 0
    drafts = stated > 0 or facts.method not in (None, "none")
    failed, probes = list[Answer](), prompts[:_PROBES]
    for prompt in probes:
        room = servers.target.context_length - len(prompt.tokens)
        probe = Ask(("", 0), prompt.tokens, min(room, _PROBED_TOKENS), Sampling())
        (answer,) = drive(server, [probe], concurrency=1, note=watcher.note)
        if answer.error is not None:
            failed.append(answer)
            if len(failed) < len(probes) and answer.error is not Fault.TIMEOUT:
                watcher.note(f"a first request failed, the next is sent: {answer.reason}")
                continue
            raise AnswerError(
                answer.error,
                f"a first request to {server.url} failed ({answer.error}): {answer.reason}",
                hint="send it a request by hand, and look at its log",
            )
        most = max(most, drafted_at_once(answer.counts))
        told = bool(answer.counts and answer.counts.drafted)
        drafts = drafts or most > 0 or told or bool(server.counters().total.drafted)
        if drafts:
            stated = stated or len(server.counters().total.by_position or ())
        if stated or (facts.method == "none" and not drafts):
            break
    if not drafts and servers.baseline is None:
        return servers, candidates, {}
    method, drafted = facts.method or "draft", server.counters().total.drafted
    if drafts:
        k, how = stated or max(most, given_k or 0), f"({method})"
        if not (stated or most) and drafted == 0:
            hint = "its log says why; most often the draft's vocabulary is not the target's"
            if looks_up(method):
                hint = "prompt lookup found nothing to repeat in the first requests: take others"
            raise EngineError(
                f"the server is set to draft ({method}) and drafts nothing", hint=hint
            )
        if not k:
            raise EngineError(
                "the server drafts, but does not say how many tokens per round",
                hint=f"say so with --k N, or switch its metrics on ({_METRICS})",
            )
        if not stated and k == given_k:
            how += ", by --k: it does not say how many"
        elif not stated:
            how += "; it does not say how many, this is the most it was seen to draft"
    elif facts.method is not None or drafted is not None:
        raise EngineError(
            f"the server at {server.url} does not draft",
            hint="--server is the one with speculation, --baseline-server the one without",
        )
    elif given_k is None:
        raise EngineError(
            f"the server at {server.url} does not say whether it drafts",
            hint="say how many tokens a round with --k N: then its speed is measured, but not its "
            "acceptance",
        )
    else:
        k, how = given_k, f"({method}), by --k: it does not say"
    if given_k not in (None, k) and not asked.drafts:
        raise EngineError(
            f"the server at {server.url} drafts {k} tokens a round, and --k says {given_k}",
            hint=f"leave --k out, or start the server with k = {given_k}: a running one drafts as "
            "it was started",
        )
    if k > LARGEST_K:
        raise EngineError(
            f"the server at {server.url} drafts {k} tokens a round",
            hint=f"start it with at most {LARGEST_K}, which is as many as are measured",
        )
    watcher.note(f"the server drafts {k} tokens a round {how}")
    model, spec = facts.settings.get("speculative_model"), None
    meant = methods_called(method)
    # A server that remembers responses does not say so, and is rarely kept from it.
    if len(meant) == 1 or meant == ("suffix", "suffix-alone"):
        spec = DRAFT_KINDS[meant[0]].written
        if not spec or spec.endswith(":"):
            spec = spec + model if model else None
    stacked = looks_up(method) and "," in method
    named = [
        name
        for name, each in servers.speculations.items()
        if (each.method in meant if meant else each.kind.is_model) and each.stacked == stacked
    ]
    name = draft_name(spec) if spec else short_name(model or method)
    if spec is None and model is None and len(named) == 1:
        name = named[0]
    candidate = next((c for c in candidates if c.draft == name), Candidate(draft=name))
    servers = replace(servers, drafting=ServerConfig(candidate, k))
    return servers, {**candidates, candidate: None}, {candidate.draft: spec} if spec else {}


def check_drafting(
    described: ServerFacts, config: ServerConfig, speculation: Speculation | None
) -> None:
    """Raise an EngineError if a server says that it drafts differently from how it was started."""
    drafts = described.method not in (None, "none") or bool(described.k)
    if config.candidate is None:
        if drafts:
            drafting = described.method or f"{described.k} tokens a round"
            raise other_drafting(config, f"it says that it drafts ({drafting})")
        return
    if described.method == "none" or (described.method is None and described.k == 0):
        raise other_drafting(config, "it says that it does not draft")
    if described.k and described.k != config.k:
        raise other_drafting(config, f"it says that it drafts {described.k} tokens a round")
    if speculation is None or speculation.method == "raw":
        return
    for method in (described.method or "").split(","):
        meant = methods_called(method)
        if looks_up(method) and speculation.stacked:
            continue
        if meant and speculation.method not in meant:
            raise other_drafting(config, f"it says that it drafts by {method}")
    model = described.settings.get("speculative_model")
    if model and speculation.model and short_name(model) != short_name(speculation.model):
        raise other_drafting(config, f"it says that it drafts with {short_name(model)}")


def other_drafting(config: ServerConfig, what: str) -> EngineError:
    """The error for a server that drafts differently from what was asked."""
    return EngineError(
        f"the server was meant to run as `{config}`, but {what}",
        hint="check the speculation flags in its command and --engine-args; these answers are "
        "stored but not counted",
    )


def contradiction(answer: Answer, k: int) -> str | None:
    """Why an answer cannot come from a server that drafts k tokens; None if it can."""
    most = drafted_at_once(answer.counts)
    if not k:
        return "it drafted" if most or (answer.counts and answer.counts.drafted) else None
    return f"it drafted {most} tokens in a round" if most > k else None


def drafted_at_once(counts: RoundCounts | None) -> int:
    """The most tokens that any round is known to have proposed, or 0."""
    counts = counts or RoundCounts()
    accepted = [at for at, count in enumerate(counts.by_position or (), start=1) if count]
    sums = max(counts.drafted or 0, counts.accepted or 0)
    mean = math.ceil(sums / counts.rounds) if counts.rounds else 0
    return max([mean, *(proposed for proposed, _ in counts.by_round or ()), *accepted])


def drafted_nothing(
    answers: Iterable[Served], counted: int | None, proposes: Callable[[Key], bool | None]
) -> bool:
    """Whether a server that should draft proposed nothing in answers long enough to draft in; if
    these do not say, judged by the tokens that it `counted` since its start. It is not a fault
    where replay `proposes` nothing either, as far as that is known. False if unknown.
    """
    roomy = [row for row in answers if row.output_tokens >= _ROOM]
    sums = [row.counts.drafted for row in roomy if row.counts]
    known = [drafted for drafted in sums if drafted is not None]
    if not roomy or (any(known) if known else counted != 0):
        return False
    replayed = [some for row in roomy if (some := proposes(row.key)) is not None]
    return not replayed or any(replayed)


def proposes(trajectory: Trajectory, replay: AnyReplay, length: DraftLength) -> bool | None:
    """Whether a round of this length from any start proposes something, which prompt lookup may not
    find and a rule may stop; None if unknown.
    """
    if length.stop is not None and not has_confidences(replay):
        return None
    _, proposed, _ = drafted_from(trajectory, replay, length.k).under(*length)
    return bool(proposed.any())
