"""Measures on a serving engine: the server without a draft writes the responses, each draft is
replayed over them, and servers that draft answer the same requests. In each repeat every server
that drafts is started once, and the one without a draft after every second candidate and at the
end, or beside each, when the two take turns.

The path of a request: a session starts or connects servers (`_open`), `_ask` sends what each still
has to answer at a load, and `_take` records every answer as it arrives. If a server does not start,
dies or hangs, only its remaining answers are lost, and the next one is started.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, count, islice
from typing import NamedTuple

import msgspec
import torch

from draftbench.decoder.runner import Runner
from draftbench.drafts.built_in import SERVED, load, load_from_text
from draftbench.drafts.kinds import kind_of, parts_of, remembers
from draftbench.drafts.loading import Loading
from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.every import ENGINES
from draftbench.engines.faults import Fault
from draftbench.engines.server import Answer, Ask, Server
from draftbench.engines.start import started
from draftbench.errors import DraftbenchError, EngineError, ModelError, RunFolderError, TrafficError
from draftbench.measure.candidate import LoadedDraft
from draftbench.measure.replay import ServedTarget
from draftbench.measure.trajectories import PromptSample, ScoredResponse, looping
from draftbench.models.quantize import build_runner
from draftbench.models.source import ModelSource
from draftbench.records import (
    BUILT_IN_LOOKUP,
    NEAR_TIE_MARGIN,
    Candidate,
    DraftingMode,
    EngineFacts,
    Failure,
    Key,
    ModelFacts,
    Observation,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.folder import PRIVATE, PrivateStart, RunFolder
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.machine import Watch
from draftbench.run_folder.served import OTHER_DRAFTING, WRONG_IDS, not_answered
from draftbench.sweep.engine_check import (
    check_drafting,
    contradiction,
    drafted_nothing,
    engine_facts,
    files_of,
    other_drafting,
    proposes,
    refuse_another,
    refuse_other_files,
)
from draftbench.sweep.engine_servers import ALONE, Load, ServerConfig, Servers, arrival_times
from draftbench.sweep.failures import failure, parts_missing, timed_out
from draftbench.sweep.options import Watcher, in_turn
from draftbench.sweep.prepared import Prepared
from draftbench.sweep.resume import Replaying, SweepState
from draftbench.sweep.worker import Keep, Private

ECHOED = 5
WARM_UP_TOKENS = 16
# After this many requests in a row without an answer a session ends: the server is gone or hangs.
MOST_LOST = 3
_LOG_P = "; ".join(f"{e.name}: {e.log_p_flag}" for e in ENGINES.values() if e.log_p_flag)
# Servers under load take turns after this many requests for each in flight.
_TURN = 4


class Session(NamedTuple):
    """A server that is ready to be asked, and its record."""

    config: ServerConfig
    server: Server
    facts: EngineFacts


class EngineWorker:
    """Measures on servers, one session after the other; the first session's answers are the
    responses.
    """

    def __init__(
        self,
        prepared: Prepared,
        servers: Servers,
        state: SweepState,
        folder: RunFolder,
        keep: Keep,
        watcher: Watcher,
    ) -> None:
        self.prepared, self.options, self.servers = prepared, prepared.options, servers
        self.state, self.folder, self.keep, self.watcher = state, folder, keep, watcher
        self.repeat = 0
        self.deadline: float | None = None
        self.lost = Counter[str]()  # requests in a row that a server did not answer, by its id
        self.machine = Watch(uuid.uuid4().hex[:8])
        self.miscounts: set[str] = set()  # servers that count other tokens than their texts have

    def begin_wave(self, candidates: Sequence[Candidate]) -> None:
        """Ask the server that writes the responses; candidates are replayed when attempted.

        Raises:
            EngineError: it cannot be asked.
            TrafficError: it answered nothing.
        """
        try:
            self._hold_session([self.servers.writer])
        except (EngineError, ModelError) as error:
            self._keep([failure(None, error, "serve")])
            raise
        if not self.state.responses:
            raise TrafficError(
                "the server answered no request",
                hint="its errors are kept as `served` records; look at its log",
            )

    def attempt(self, candidate: Candidate) -> Failure | None:
        """Replay a candidate (in the first repeat), and ask the servers that draft with it. A
        failure of this candidate alone is returned, not raised.

        Raises:
            DraftbenchError: the run folder cannot be written.
        """
        failed: list[Failure] = []
        if self.repeat == 0:
            try:
                self._replay(candidate)
            # A model's code and its libraries may raise anything; the sweep continues.
            except Exception as error:
                if isinstance(error, RunFolderError):
                    raise
                if isinstance(error, EngineError):
                    self.watcher.note(f"{candidate}: {error.message}")
                failed.append(failure(candidate, error))
            finally:
                gc.collect()
            servers, fewest = self.servers, self.servers.minimum_k(candidate)
            drafts = self.options.measure not in ("none", "replay") and candidate in servers.levels
            if servers.given is None and drafts and not self.prepared.ks(candidate):
                reason = f"replayed only: {ENGINES[servers.engine].too_short(fewest)}"
                hint = f"ask for it with --k {fewest} or more"
                failed += [Failure(candidate=candidate, stage="start", reason=reason, hint=hint)]
        for configs in self.state.sessions(candidate, self.repeat):
            try:
                self._hold_session(configs)
            except (EngineError, ModelError) as error:
                failed.append(self._failure(configs, error))
        if candidate in self.servers.levels:
            self._ask_plain(self.servers.plain_until(candidate, self.repeat))
        return failed[0] if failed else None

    def end_repeat(self) -> None:
        """Ask the server without a draft once more."""
        self._ask_plain(self.servers.plain_starts(self.repeat))
        self.repeat += 1

    def _ask_plain(self, starts: Sequence[ServerConfig]) -> None:
        for config in starts:
            try:
                self._hold_session([config])
            except (EngineError, ModelError) as error:
                self._keep([self._failure([config], error)])
                return
        if None in self.state.observations.failures and not self.state.plain_left():
            gone = Failure(candidate=None, stage="serve", reason="", hint="", resolved=True)
            self._keep([gone])

    def _failure(self, configs: Sequence[ServerConfig], error: DraftbenchError) -> Failure:
        """The record of a failed session."""
        self.watcher.note(f"{configs[-1]}: {error.message}")
        return failure(configs[-1].candidate, error, "serve")

    def _hold_session(self, configs: Sequence[ServerConfig]) -> None:
        """Send servers their remaining requests; several servers take turns. One that remembers
        what it answered is started again for each load, or it would know every answer.
        """
        loads = list(dict.fromkeys(chain.from_iterable(map(self.servers.loads, configs))))
        drafts = (config.candidate for config in configs if config.candidate)
        anew = self.servers.given is None and any(map(remembers, drafts))
        for some in [[each] for each in loads] if anew else [loads]:
            if any(self.state.unserved(config).keys() & set(some) for config in configs):
                self._hold(configs, some)

    def _hold(self, configs: Sequence[ServerConfig], loads: Sequence[Load]) -> None:
        process = uuid.uuid4().hex[:8]
        with ExitStack() as stack:
            self.deadline = None
            if self.servers.given is None:
                beside = ", beside one without a draft" if len(configs) > 1 else ""
                self.watcher.note(f"starting {self.servers.engine}: {configs[-1]}{beside}")
            sessions = [self._open(stack, config, process) for config in configs]
            wrong = {config: Counter[str]() for config in configs}
            sent = Counter[ServerConfig]()
            for load in loads:
                left = self.state.unserved_by(configs, load)
                what = f"{configs[-1].drafting}, {load}"
                self.watcher.stage(what, sum(map(len, left)), configs[-1].candidate)
                for session, samples in _in_turns(sessions, left, load):
                    sent[session.config] += len(samples)
                    wrong[session.config] += self._ask(session, load, samples)
                for session in sessions:
                    config, facts = session.config, session.facts
                    answers = self.state.observations.answers((*config, load.concurrency))
                    its_own = [row for row in answers if row.server == facts.server]
                    counted, replayed = (
                        session.server.counters().total.drafted,
                        self._replayed(config),
                    )
                    if config.candidate and drafted_nothing(its_own, counted, replayed):
                        # One answer that says so is enough: none of this server's counts.
                        self._keep([msgspec.structs.replace(its_own[-1], error=OTHER_DRAFTING)])
                        raise other_drafting(config, "it drafted nothing")
            plain = next((s.server for s in sessions if s.config.k == 0), None)
            if plain is not None:
                self._judge(plain)
        for config in filter(wrong.get, configs):
            self.watcher.note(f"{config}: {not_answered(wrong[config].elements(), sent[config])}")

    def _replayed(self, config: ServerConfig) -> Callable[[Key], bool | None]:
        """What says of a response whether its replay proposes anything as this server drafts; None
        if that is unknown.
        """
        along = {} if config.candidate is None else self.state.along(config.candidate)
        known = self.state.observations.trajectories
        return lambda key: proposes(known[key], along[key], config.length) if key in along else None

    def _open(self, stack: ExitStack, config: ServerConfig, process: str) -> Session:
        """A server, ready and warmed up.

        Raises:
            EngineError: it does not start, reads different prompts, or drafts differently from what
                was asked.
            RunFolderError: this run was measured on a different server.
            ModelError: its time is up.
        """
        servers, name = self.servers, uuid.uuid4().hex[:8]
        running, files, speculation = None, dict[str, str](), None
        if servers.given is None:
            # The version that earlier servers named says which flags the engine knows.
            versions = (
                facts.version for facts in self.state.observations.engines.values() if facts.started
            )
            start = replace(servers.start(config), version=next(versions, None))
            speculation = start.speculation
            refuse_other_files(self.state.observations.engines.values(), servers)
            files = files_of(start.target, speculation)
            logs = self.folder.path / PRIVATE / "servers" / name
            logs.mkdir(parents=True)
            running = stack.enter_context(started(start, logs))
            self.keep([], [PrivateStart(server=name, command=running.whole_command)])
            server = connect(running.url, start.engine)
            stack.callback(server.close)
        else:
            plain = servers.baseline if config.candidate is None else None
            server = plain or servers.given
        if servers.serving.tokenizer or self.options.target:
            server.tokens_in = self.prepared.target.tokens_in
        described = server.facts()
        facts = engine_facts(described, config, name, process, running, files)
        refuse_another(self.state.observations.engines.values(), facts)
        check_drafting(described, config, speculation)
        self._keep([facts])
        if self.deadline is None and self.options.candidate_timeout is not None:
            self.deadline = time.monotonic() + self.options.candidate_timeout
        if server.returns_ids:
            server.echo([prompt.tokens for prompt in self.prepared.prompts[:ECHOED]])
        # Warm up with unrecorded requests, as many in flight as there will be.
        most, prompts = self.options.max_concurrency, servers.warm_up
        asks = [
            Ask(("", n), prompts[n % len(prompts)], WARM_UP_TOKENS, Sampling())
            for n in range(2 * most)
        ]
        for answer in self._driven(server, asks, most):
            if what := contradiction(answer, config.k):
                raise other_drafting(config, what)
        return Session(config, server, facts)

    def _driven(
        self,
        server: Server,
        asks: Sequence[Ask],
        concurrency: int | None,
        fillers: Sequence[Ask] = (),
    ) -> Iterator[Answer]:
        """Answers as they arrive. Raises: ModelError, the server's time is up."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        try:
            yield from drive(
                server,
                asks,
                concurrency=concurrency,
                fillers=fillers,
                seconds=left,
                note=self.watcher.note,
            )
        except TimeoutError as error:
            raise timed_out(self.options.candidate_timeout) from error

    def _ask(self, session: Session, load: Load, samples: Sequence[PromptSample]) -> Counter[str]:
        """Send requests and record every answer as it arrives; returns how many failed, by kind.

        Raises:
            EngineError: the server is gone or hangs.
            ModelError: its time is up.
        """
        config, server, wrong = session.config, session.server, Counter[str]()
        arrivals: dict[Key, float] = {}
        if load.concurrency is None:
            arrivals = arrival_times(samples, self.servers.serving, self.options.traffic.seed)
        log_p = self.options.mode is not DraftingMode.GREEDY and config == self.servers.writer
        decode = None if server.returns_ids else self.prepared.target.tokenizer.decode
        asks = []
        for each in samples:
            prompt, sampling = each.prompt, each.prompt.request.sampling
            if sampling.temperature > 0:  # a seed of its own for each response
                name = f"{prompt.request.id}/{sampling.seed}/{each.sample}"
                seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
                sampling = msgspec.structs.replace(sampling, seed=seed)
            asks.append(
                Ask(
                    key=each.key,
                    prompt=decode(list(prompt.tokens)) if decode else prompt.tokens,
                    limit=prompt.limit,
                    sampling=sampling,
                    stop=prompt.request.stop,
                    arrival=arrivals.get(each.key),
                    log_p=log_p and sampling.temperature > 0,
                    constraint=prompt.request.constraint,
                )
            )
        by_key = {each.key: each for each in samples}
        fillers, of_server = asks if (load.concurrency or 1) > 1 else [], session.facts.server
        for answer in self._driven(server, asks, load.concurrency, fillers):
            error = self._take(session, load, by_key[answer.ask.key], answer)
            self.watcher.advance()
            if error == OTHER_DRAFTING:
                raise other_drafting(config, contradiction(answer, config.k) or "")
            wrong.update([error] if error else [])
            gone = answer.error in (Fault.UNREACHABLE, Fault.TIMEOUT)
            self.lost[of_server] = self.lost[of_server] + 1 if gone else 0
            if self.lost[of_server] >= MOST_LOST:
                raise EngineError(
                    f"the server stopped answering ({answer.error}: {answer.reason})",
                    hint="what it answered is kept; the same command asks for the rest",
                    safe_message=f"the server stopped answering ({answer.error})",
                )
        return wrong

    def _take(
        self, session: Session, load: Load, sample: PromptSample, answer: Answer
    ) -> str | None:
        """Record an answer; the writer's are the responses. Returns what was wrong with it."""
        config, error, reason = session.config, None, answer.reason
        if answer.error is not None:
            error = answer.error.value if answer.status is None else f"HTTP {answer.status}"
        elif answer.output_tokens == 0:
            error = "empty"
        elif contradiction(answer, config.k):
            error = OTHER_DRAFTING
        elif max(answer.tokens or (0,)) >= self.servers.ids:
            error, reason = WRONG_IDS, "the server wrote token ids that its model does not have"
        response = self.state.responses.get(sample.key)
        output = answer.text if answer.tokens is None else tuple(answer.tokens)
        digest = keyed_hash(self.options.traffic.key, repr(output).encode())
        writes = response is None and config == self.servers.writer and load == ALONE
        if writes and error is None:
            response = response_of(answer, sample, digest)
        first_difference = None
        if response is not None and answer.tokens:
            first_difference = response.first_difference(answer.tokens)
        served = answer.served(
            candidate=config.candidate,
            k=config.k,
            repeat=config.repeat,
            stop=config.stop,
            mode=self.servers.mode(config),
            server=session.facts.server,
            process=session.facts.process,
            concurrency=load.concurrency,
            digest=digest,
            first_difference=first_difference,
            error=error,
        )
        if error is not None:
            self.watcher.note(f"{config}, {sample.key[0]}: {error}: {reason}")
        elif answer.miscounted and session.server.url not in self.miscounts:
            self.miscounts.add(session.server.url)
            self.watcher.note(
                f"{config}: the server counts {answer.stated} tokens in an answer whose text has "
                f"{answer.output_tokens}; tokens are counted here"
            )
        written = response if writes else None
        self._keep(
            [written.trajectory, served] if written else [served],
            [written.private()] if written else [],
        )
        return error

    def _replay(self, candidate: Candidate) -> None:
        """Replay a candidate over the responses that it still lacks."""
        step = next(self.state.steps(candidate), None)
        if not isinstance(step, Replaying):
            return
        if parts_of(candidate):
            raise parts_missing(candidate)
        self.watcher.stage("replay", sum(map(len, step.groups)), candidate)
        known = self.state.observations.facts.get(candidate)
        longest = max(chain(*step.groups), key=lambda each: each.length)
        draft, facts = self._loaded(candidate, longest, known)
        if facts is not None and facts != known:
            self._keep([facts])
        for group in step.groups:
            window, stops = max(self.options.ks), self.options.stops
            self._keep(draft.replay(candidate, group, window, stops=stops))
            self.watcher.advance(len(group))

    def _loaded(
        self, candidate: Candidate, longest: ScoredResponse, known: ModelFacts | None
    ) -> tuple[LoadedDraft, ModelFacts | None]:
        """What replays a candidate here as the engine runs it, and its facts if it has weights;
        `known` are those of an earlier start.
        """
        prepared, servers, options = self.prepared, self.servers, self.options
        kind, target = kind_of(candidate.draft), prepared.target
        if kind.from_text:
            rule = BUILT_IN_LOOKUP
            if (engine := ENGINES.get(servers.engine)) is not None:
                starts = self.state.observations.engines.values()
                settings = [start.settings for start in starts if start.started]
                rule = engine.lookup_in(settings, on_cpu=not torch.cuda.is_available())
            log = self.state.log(candidate)
            return load_from_text(kind.method, "cpu", options.lookup, rule, log), None
        runner: Runner | ServedTarget = servers.target
        if kind.reads_states:  # the target passes over its own answers
            target = ModelSource(options.target, options.trust)
            runner, _ = build_runner(target, prepared.build, None)
        loading = Loading(
            candidate,
            source=prepared.drafts[candidate.draft],
            build=replace(prepared.build, level=candidate.quant),
            target=target,
            runner=runner,
            mode=options.mode,
            longest=longest,
            engine=servers.engine,
        )
        draft, facts = load(loading, options.lookup)
        caveats = (*prepared.caveats.get(candidate.draft, ()), *facts.caveats)
        if kind.reads_states:
            caveats += (
                f"replayed over states of the target that were computed here in {facts.dtype} "
                f"({servers.engine} computes in {self._dtype() or 'the type of its files'})",
            )
        facts = SERVED[kind.method].held(facts, loading, servers.dtype)
        return draft, msgspec.structs.replace(facts, caveats=caveats)

    def _judge(self, plain: Server) -> None:
        """Record whether each answer that differs from its response does so at a near tie: there,
        the plain server's two best tokens are no further apart than its number type explains, or
        than where its second answer differs from its first. Unknown without log-probabilities.
        """
        left = [
            (row, (row.key, row.first_difference))
            for row in self.state.observations.served
            if (row.load, row.concurrency, row.error) == ("closed", 1, None)
            if row.first_difference is not None and row.tie is None
        ]
        margins: dict[tuple[Key, int], float] = {}
        for key, at in dict.fromkeys(where for _, where in left):
            response = self.state.responses[key]
            with contextlib.suppress(EngineError):
                margin = plain.margin([*response.prompt.tokens, *response.tokens[:at]])
                if margin is not None:
                    margins[key, at] = margin
        known = [(row, margins[where]) for row, where in left if where in margins]
        if known:
            exact = NEAR_TIE_MARGIN.get(self._dtype(), NEAR_TIE_MARGIN["bfloat16"])
            most = max([exact, *(margin for row, margin in known if row.candidate is None)])
            self._keep([msgspec.structs.replace(row, tie=m <= most) for row, m in known])

    def _dtype(self) -> str:
        """The type that servers compute in, as they or else the user say; empty: unknown."""
        for facts in reversed(self.state.observations.engines.values()):
            if stated := facts.settings.get("dtype", ""):
                return stated.removeprefix("torch.")
        engine = ENGINES.get(self.servers.engine)
        if engine is not None and engine.rounds_activations:
            return ""
        if self.servers.given is not None and not self.servers.dtype:
            self.watcher.note(
                "the server does not say in which number type it computes: its near ties are "
                "judged as those of bfloat16, unless a sweep's --dtype names the type"
            )
        return self.servers.dtype

    def _keep(self, records: Sequence[Observation], private: Private = ()) -> None:
        """Record what was measured, and what else the machine did meanwhile, which is unknown with
        a running server.
        """
        others = self.machine.look() if self.servers.given is None else None
        self.keep(records if others is None else [*records, others], private)


def _in_turns(
    sessions: Sequence[Session], left: Sequence[Sequence[PromptSample]], load: Load
) -> Iterator[tuple[Session, Sequence[PromptSample]]]:
    """Which server is asked which requests next. A single server is asked all of them; several take
    turns with the same requests, one by one or as many as keep the load full, and who begins
    changes from turn to turn.
    """
    if len(sessions) == 1 or load.concurrency is None:
        yield from (
            (session, samples) for session, samples in zip(sessions, left, strict=True) if samples
        )
        return
    size = 1 if load == ALONE else _TURN * load.concurrency
    rest = [(each, iter(samples)) for each, samples in zip(sessions, left, strict=True)]
    for turn in count():
        parts = [(each, part) for each, it in rest if (part := list(islice(it, size)))]
        if not parts:
            return
        yield from in_turn(parts, turn)


def response_of(answer: Answer, sample: PromptSample, digest: str) -> ScoredResponse:
    """The target's response; if the server returns no ids, without tokens.

    Raises:
        EngineError: the log-probabilities that were asked for are missing.
    """
    prompt, request = sample.prompt, sample.prompt.request
    tokens = answer.tokens or ()
    if answer.ask.log_p and answer.log_p is None:
        raise EngineError(
            "the server gives no log-probabilities of its own tokens",
            hint=f"--mode greedy needs none; {_LOG_P}",
        )
    trajectory = Trajectory(
        request=request.id,
        sample=sample.sample,
        segment=request.segment,
        weight=request.weight,
        sampling=answer.ask.sampling,
        prompt_tokens=len(prompt.tokens),
        output_tokens=answer.output_tokens,
        limit=prompt.limit,
        finish="length" if answer.finish == "length" else "stop",  # servers have more words
        origin="engine",
        margins=(),
        argmax=(),
        digest=digest,
        looping=looping(tokens),
    )
    log_p = array("d", [round(value, 5) for value in answer.log_p or ()])
    return ScoredResponse(prompt, array("i", tokens), trajectory, log_p)
