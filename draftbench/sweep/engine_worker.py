"""Measures on a serving engine: the server without a draft writes the responses, each draft is
replayed over them, and servers that draft answer the same requests. In each turn every server is
started once, and at its end the one without a draft once more.

A request's way: `_visit` starts or connects servers (`_open`), `_ask` sends what each has still to
answer at a load, and `_take` records every answer as it arrives. If a server does not start, dies
or hangs, only its remaining answers are lost; the next one is started.
"""

from __future__ import annotations

import contextlib
import gc
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import torch

from draftbench.engines.client import Fault
from draftbench.engines.commands import ServerStart
from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.engine import Answer, Ask, Server
from draftbench.engines.start import MODEL_RUNNER, Running, started
from draftbench.errors import DraftbenchError, EngineError, ModelError, RunFolderError, TrafficError
from draftbench.measure.replay import (
    VLLM,
    VLLM_CPU,
    lookup_index,
    replay_lookup,
    replay_model,
    stepping_disagreement,
)
from draftbench.measure.trajectories import PromptSample, ScoredResponse, looping
from draftbench.models.check import engine_sheet
from draftbench.models.compatibility import context_length_of
from draftbench.models.quantize import build_runner
from draftbench.records import (
    LOOKUP,
    NEAR_TIE_MARGIN,
    Candidate,
    DraftingMode,
    EngineFacts,
    Failure,
    Key,
    ModelFacts,
    Observation,
    Replay,
    Sampling,
    Served,
    Trajectory,
)
from draftbench.run_folder.folder import PRIVATE, PrivateStart, RunFolder
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.machine import Watch
from draftbench.run_folder.served import (
    MOST_CACHED,
    OTHER_DRAFTING,
    WRONG_IDS,
    cached_share,
    not_answered,
)
from draftbench.sweep.engine_arms import (
    ALONE,
    CANDIDATES_BETWEEN,
    Arm,
    Load,
    Serving,
    arrival_times,
    interleaved,
    left_out,
    loads_of,
    plain_starts,
    sampling_of,
)
from draftbench.sweep.engine_check import (
    check_drafting,
    contradiction,
    drafted_nothing,
    facts_of,
    files_of,
    other_drafting,
    refuse_another,
    refuse_other_files,
)
from draftbench.sweep.failures import failure, timed_out
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.resume import Measured, Replaying
from draftbench.sweep.worker import Keep, Private

ECHOED = 5
WARM_UP_TOKENS = 16
# So many answers in a row that never came end a visit: the server is gone or hangs.
MOST_LOST = 3
# Fields of an answer that are recorded unchanged.
_ANSWERED = set(Served.__struct_fields__) & {field.name for field in fields(Answer)} - {"error"}
# Records to keep together.
Batches = Generator[Sequence[Observation], None, None]


class Visit(NamedTuple):
    """A server that is ready, and its record."""

    server: Server
    facts: EngineFacts


class EngineWorker:
    """Visits one server after the other; the first visit gives the responses.

    Raises:
        EngineError: the server that writes the responses cannot be asked.
        TrafficError: it answered nothing.
    """

    def __init__(
        self,
        prepared: Prepared,
        measured: Measured,
        folder: RunFolder,
        keep: Keep,
        watcher: Watcher,
    ) -> None:
        assert prepared.serving is not None
        self.prepared, self.options, self.serving = prepared, prepared.options, prepared.serving
        self.measured, self.folder, self.keep, self.watcher = measured, folder, keep, watcher
        self.turn = 0
        self.deadline: float | None = None
        self.machine = Watch(uuid.uuid4().hex[:8])
        try:
            self._visit([self.serving.writer])
        except (EngineError, ModelError) as error:
            self._keep([failure(None, error, "serve")])
            raise
        if not measured.responses:
            raise TrafficError(
                "the server answered no request",
                hint="its errors are kept as `served` records; look at its log",
            )

    def attempt(self, candidate: Candidate) -> Failure | None:
        """Replay a candidate, in the first turn, and ask the servers that draft with it. A failure
        of this candidate alone is returned, not raised.

        Raises:
            DraftbenchError: the run folder cannot be written.
        """
        failed = self._begin(candidate) if self.turn == 0 else []
        for arms in self.measured.visits(candidate, self.turn):
            try:
                self._visit(arms)
            except (EngineError, ModelError) as error:
                failed.append(self._failure(arms, error))
        order = list(self.serving.levels)[:: -1 if self.turn % 2 else 1]
        if candidate in order[CANDIDATES_BETWEEN - 1 : -1 : CANDIDATES_BETWEEN]:
            done = order.index(candidate) // CANDIDATES_BETWEEN + 1
            self._visit_plain(plain_starts(self.serving, self.options, self.turn)[:done])
        return failed[0] if failed else None

    def end_turn(self) -> None:
        """Ask the server without a draft once more, and which differences are near ties."""
        self.turn += 1
        self._visit_plain(plain_starts(self.serving, self.options, self.turn - 1))

    def _visit_plain(self, starts: Sequence[Arm]) -> None:
        for arm in starts:
            try:
                self._visit([arm])
            except (EngineError, ModelError) as error:
                self._keep([self._failure([arm], error)])
                return
        if None in self.measured.failures and not self.measured.plain_left():
            gone = Failure(candidate=None, stage="serve", reason="", hint="", resolved=True)
            self._keep([gone])

    def _begin(self, candidate: Candidate) -> list[Failure]:
        """Replay a candidate; returns why it could not be, or why no server is started with it."""
        failed: list[Failure] = []
        try:
            self._replay(candidate)
        # Whatever a model's code and its libraries raise, the sweep continues.
        except Exception as error:
            if isinstance(error, RunFolderError):
                raise
            if isinstance(error, EngineError):
                self.watcher.note(f"{candidate}: {error.message}")
            failed.append(failure(candidate, error))
        finally:
            gc.collect()
        if refused := left_out(self.serving, self.options, candidate):
            failed.append(refused)
        return failed

    def _failure(self, arms: Sequence[Arm], error: DraftbenchError) -> Failure:
        """The record of a failed visit; the server's own words are only shown."""
        self.watcher.note(f"{arms[-1]}: {error.message}")
        return failure(arms[-1].candidate, error, "serve")

    def _visit(self, arms: Sequence[Arm]) -> None:
        """Send servers their remaining requests; several servers take turns."""
        if not any(self.measured.unserved(arm) for arm in arms):
            return
        process = uuid.uuid4().hex[:8]
        with ExitStack() as stack:
            self.deadline = None
            opened = {arm: self._open(stack, arm, process) for arm in arms}
            wrong = {arm: Counter[str]() for arm in arms}
            asked = Counter[Arm]()
            loads = chain(*(loads_of(self.serving, self.options, arm) for arm in arms))
            for load in dict.fromkeys(loads):
                left = {arm: self.measured.unserved(arm).get(load, []) for arm in arms}
                what = f"{arms[-1].drafting}, {load}"
                self.watcher.stage(what, sum(map(len, left.values())), arms[-1].candidate)
                for arm, some in interleaved(left, load):
                    asked[arm] += len(some)
                    wrong[arm] += self._ask(arm, load, some, opened[arm])
                for arm in arms:
                    self._say_what_was_cached(arm, load)
                    self._check_that_it_drafted(arm, load, opened[arm])
            plain = next((visit.server for arm, visit in opened.items() if arm.k == 0), None)
            if plain is not None:
                self._judge(plain)
        for arm in filter(wrong.get, arms):
            self.watcher.note(f"{arm}: {not_answered(wrong[arm].elements(), asked[arm])}")

    def _open(self, stack: ExitStack, arm: Arm, process: str) -> Visit:
        """A server, ready and warmed up.

        Raises:
            EngineError: it does not start, reads different prompts, or drafts differently.
            RunFolderError: this run was measured on a different server.
        """
        serving = self.serving
        if serving.server is None:
            visit = self._start(stack, serving.start(arm, self.options), arm, process)
        else:
            plain = serving.baseline if arm.candidate is None else None
            server = plain or serving.server
            visit = Visit(server, self._facts(server, arm, process))
        server = visit.server
        if self.deadline is None and self.options.candidate_timeout is not None:
            self.deadline = time.monotonic() + self.options.candidate_timeout
        if server.returns_ids:
            server.echo([prompt.tokens for prompt in self.prepared.prompts[:ECHOED]])
        self._warm_up(server, arm)
        if visit.facts.prefix_cache:
            server.flush()
        return visit

    def _start(self, stack: ExitStack, start: ServerStart, arm: Arm, process: str) -> Visit:
        """Start a server, and record how it was started."""
        refuse_other_files(self.measured.engines, self.serving, self.options)
        self.watcher.note(f"starting {start.engine}: {arm}")
        drafter = self.serving.drafters[arm.candidate.draft] if arm.candidate else None
        files = files_of(self.options.target, drafter)
        name = uuid.uuid4().hex[:8]
        logs = self.folder.path / PRIVATE / "servers" / name
        logs.mkdir(parents=True)
        running = stack.enter_context(started(start, logs))
        if running.may_survive:
            self.watcher.note(
                "without --engine-stop-command the server may survive a killed draftbench"
            )
        self.keep([], [PrivateStart(server=name, command=running.whole_command)])
        server = connect(running.url, start.engine)
        stack.callback(server.close)
        return Visit(server, self._facts(server, arm, process, start, running, name, files))

    def _facts(
        self,
        server: Server,
        arm: Arm,
        process: str,
        start: ServerStart | None = None,
        running: Running | None = None,
        name: str = "",
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> EngineFacts:
        """Record how a server describes itself.

        Raises:
            RunFolderError: this run was measured on a different server.
            EngineError: it drafts differently than its arm should.
        """
        described = server.facts()
        facts = facts_of(described, arm, name or uuid.uuid4().hex[:8], process, running, files)
        refuse_another(self.measured.engines, facts)
        check_drafting(described, arm, start.speculation if start else None)
        self._keep([facts])
        return facts

    def _warm_up(self, server: Server, arm: Arm) -> None:
        """Send requests that are not recorded, as many in flight as there will be.

        Raises:
            EngineError: the server drafts differently than its arm should.
            ModelError: its time is up.
        """
        most, prompts = self.options.max_concurrency, self.serving.warm_up
        asks = [
            Ask(("", n), prompts[n % len(prompts)], WARM_UP_TOKENS, Sampling())
            for n in range(2 * most)
        ]
        for answer in self._driven(server, asks, most):
            if what := contradiction(answer, arm.k):
                raise other_drafting(arm, what)

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
            yield from drive(server, asks, concurrency=concurrency, fillers=fillers, seconds=left)
        except TimeoutError as error:
            raise timed_out(self.options.candidate_timeout) from error

    def _ask(
        self, arm: Arm, load: Load, asked: Sequence[PromptSample], visit: Visit
    ) -> Counter[str]:
        """Send requests and record every answer as it arrives; returns how many failed, by kind.

        Raises:
            EngineError: the server is gone or hangs.
            ModelError: its time is up.
        """
        server, wrong = visit.server, Counter[str]()
        arrivals = arrival_times(asked, self.options) if load.concurrency is None else {}
        log_p = self.options.mode is not DraftingMode.GREEDY and arm == self.serving.writer
        decode = None if server.returns_ids else self.prepared.target.tokenizer.decode
        asks = {}
        for one in asked:
            prompt, sampling = one.prompt, sampling_of(one)
            asks[one.key] = Ask(
                key=one.key,
                prompt=decode(list(prompt.tokens)) if decode else prompt.tokens,
                limit=prompt.limit,
                sampling=sampling,
                stop=prompt.request.stop,
                arrival=arrivals.get(one.key),
                log_p=log_p and sampling.temperature > 0,
                constraint=prompt.request.constraint,
            )
        fillers = list(asks.values()) if (load.concurrency or 1) > 1 else []
        by_key = {one.key: one for one in asked}
        lost = 0
        for answer in self._driven(server, list(asks.values()), load.concurrency, fillers):
            error = self._take(answer, arm, load, by_key[answer.ask.key], visit.facts)
            self.watcher.advance()
            if error == OTHER_DRAFTING:
                self._take_back(arm, visit)
                raise other_drafting(arm, contradiction(answer, arm.k) or "")
            wrong.update([error] if error else [])
            lost = lost + 1 if answer.error in (Fault.UNREACHABLE, Fault.TIMEOUT) else 0
            if lost >= MOST_LOST:
                raise EngineError(
                    f"the server does not answer any more ({answer.error}: {answer.reason})",
                    hint="what it answered is kept; the same command asks for the rest",
                    kept=f"the server does not answer any more ({answer.error})",
                )
        return wrong

    def _check_that_it_drafted(self, arm: Arm, load: Load, visit: Visit) -> None:
        """Raise an EngineError where a server that should draft proposed nothing."""
        if arm.candidate is None:
            return
        answers = self.measured.answers.get((arm, load), {}).values()
        rows = [row for row in answers if row.server == visit.facts.server]
        along = self.measured.replays.get(arm.candidate, {})
        if drafted_nothing(rows, along, visit.server.counters().drafted):
            self._take_back(arm, visit)
            raise other_drafting(arm, "it drafted nothing")

    def _take_back(self, arm: Arm, visit: Visit) -> None:
        """Mark the answers of a server that drafts differently as no measurements."""
        self._keep(
            [
                msgspec.structs.replace(row, error=OTHER_DRAFTING)
                for (who, _), answers in self.measured.answers.items()
                if who == arm
                for row in answers.values()
                if row.server == visit.facts.server
            ]
        )

    def _say_what_was_cached(self, arm: Arm, load: Load) -> None:
        """Note that prompts were in the server's cache, since it read them faster than usual."""
        cached = cached_share(self.measured.answers.get((arm, load), {}).values())
        if cached > MOST_CACHED:
            self.watcher.note(
                f"{arm}, {load}: the server had {cached:.0%} of the prompts in its cache, so the "
                "time to the first token is too short"
            )

    def _take(
        self, answer: Answer, arm: Arm, load: Load, asked: PromptSample, facts: EngineFacts
    ) -> str | None:
        """Keep an answer; the writer's are the responses. Gives what was wrong with it."""
        key = answer.ask.key
        error = answer.error.value if answer.error else None
        if answer.status is not None:
            error = f"HTTP {answer.status}"
        if error is None and answer.output_tokens == 0:
            error = "empty"
        if error is None and contradiction(answer, arm.k):
            error = OTHER_DRAFTING
        reason = answer.reason
        if error is None and max(answer.tokens or (0,)) >= self.serving.ids:
            error, reason = WRONG_IDS, "the server wrote token ids that its model does not have"
        response = self.measured.responses.get(key)
        output = answer.text if answer.tokens is None else tuple(answer.tokens)
        digest = keyed_hash(self.options.traffic.key, repr(output).encode())
        writes = response is None and arm == self.serving.writer and load == ALONE
        if writes and error is None:
            response = response_of(answer, asked, digest)
        mode = self.serving.mode(arm, self.options)
        served = served_of(answer, arm, load, mode, facts, response, error, digest)
        if error is not None:
            self.watcher.note(f"{arm}, {key[0]}: {error}: {reason}")
        if writes and response is not None:
            self._keep([response.trajectory, served], [response.private()])
            self.measured.responses[key] = response
        else:
            self._keep([served])
        return error

    def _replay(self, candidate: Candidate) -> None:
        """Replay a candidate over the responses, by one pass here or by the engine."""
        step = next(self.measured.steps(candidate), None)
        if not isinstance(step, Replaying):
            return
        self.watcher.stage("replay", sum(map(len, step.groups)), candidate)
        batches = (
            self._replays_by_engine(candidate, step.groups)
            if candidate.draft != LOOKUP and self.serving.options.replay == "engine"
            else replays_here(self.prepared, self.measured, candidate, step.groups)
        )
        with closing(batches):
            for records in batches:
                self._keep(records)
                self.watcher.advance(sum(not isinstance(record, ModelFacts) for record in records))

    def _replays_by_engine(
        self, candidate: Candidate, groups: Sequence[Sequence[ScoredResponse]]
    ) -> Batches:
        """One replay after the other by the engine, which serves the draft alone and returns its
        best token at every position.

        Raises:
            EngineError: it does not start, or cannot score.
        """
        source = self.prepared.drafts[candidate.draft]
        context = context_length_of(source) or self.serving.target.context_length
        start = replace(
            self.serving.start(Arm(None, 0), self.options),
            target=source.spec,
            context_length=context,
            concurrency=1,
        )
        with ExitStack() as stack:
            server = self._start(stack, start, Arm(candidate, 0), uuid.uuid4().hex[:8]).server
            for response in chain(*groups):
                ids = [*response.prompt.tokens, *response.tokens][:context]
                first = len(response.prompt.tokens) + 1
                best = server.best_tokens(ids, first) if first < len(ids) else []
                yield [replay_of(response, candidate, best, context)]

    def _judge(self, plain: Server) -> None:
        """Record of each answer that differs from its response whether that is a near tie."""
        left = [
            row
            for (_, load), answers in self.measured.answers.items()
            if load == ALONE
            for row in answers.values()
            if row.first_difference is not None and row.tie is None
        ]
        if not left:
            return
        exact = NEAR_TIE_MARGIN.get(self._type(), NEAR_TIE_MARGIN["bfloat16"])
        if judged := near_ties(left, self.measured.responses, plain, exact):
            self._keep(judged)

    def _type(self) -> str:
        """The type that the servers compute in, as they or else the user say. Empty: unknown."""
        for facts in reversed(self.measured.engines):
            if stated := facts.settings.get("dtype", ""):
                return stated.removeprefix("torch.")
        if self.serving.engine == "llama.cpp":
            return ""  # it rounds activations to 8 bits, whatever the type
        if self.serving.server is not None and not self.serving.dtype:
            self.watcher.note(
                "the server does not say in which number type it computes: its near ties are "
                "judged as those of bfloat16, unless a sweep's --dtype names the type"
            )
        return self.serving.dtype

    def _keep(self, records: Sequence[Observation], private: Private = ()) -> None:
        """Record what was measured, and what else the machine did meanwhile, which is unknown with
        a running server.
        """
        state = self.machine.look() if self.serving.server is None else None
        self.keep(records if state is None else [*records, state], private)
        self.measured.add(records)


def response_of(answer: Answer, asked: PromptSample, digest: str) -> ScoredResponse:
    """The target's response; if the server returns no ids, without tokens.

    Raises:
        EngineError: the log-probabilities that were asked for are missing.
    """
    prompt, sample = asked
    tokens = answer.tokens or ()
    if answer.ask.log_p and answer.log_p is None:
        raise EngineError(
            "the server gives no log-probabilities of its own tokens",
            hint="--mode greedy needs none; vLLM: --logprobs-mode processed_logprobs",
        )
    trajectory = Trajectory(
        request=prompt.request.id,
        sample=sample,
        segment=prompt.request.segment,
        weight=prompt.request.weight,
        sampling=answer.ask.sampling,
        prompt_tokens=len(prompt.tokens),
        output_tokens=answer.output_tokens,
        limit=prompt.limit,
        finish=answer.finish,
        origin="engine",
        margins=(),
        argmax=(),
        digest=digest,
        looping=looping(tokens),
    )
    log_p = array("d", [round(value, 5) for value in answer.log_p or ()])
    return ScoredResponse(prompt, array("i", tokens), trajectory, log_p)


def served_of(
    answer: Answer,
    arm: Arm,
    load: Load,
    mode: DraftingMode,
    facts: EngineFacts,
    response: ScoredResponse | None,
    error: str | None,
    digest: str,
) -> Served:
    """The record of an answer; at temperature 0 it is compared with the `response`."""
    request, sample = answer.ask.key
    values = ((name, getattr(answer, name)) for name in _ANSWERED)
    answered: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values}
    first = None
    if response is not None and answer.tokens and answer.ask.sampling.temperature == 0:
        first = first_difference(response.tokens, answer.tokens)
    return Served(
        **answered,
        request=request,
        sample=sample,
        candidate=arm.candidate,
        k=arm.k,
        mode=mode,
        repeat=arm.repeat,
        server=facts.server,
        process=facts.process,
        load=load.kind,
        concurrency=load.concurrency or max(1, answer.in_flight),
        output_tokens=answer.output_tokens,
        digest=digest,
        first_difference=first,
        error=error,
    )


def replay_of(
    response: ScoredResponse, candidate: Candidate, best: Sequence[int], context: int
) -> Replay:
    """A greedy draft's replay from its `best` tokens at positions 1, 2, …"""
    request, sample = response.key
    tokens = response.tokens[1:]
    accept = [float(one == other) for one, other in zip(best, tokens, strict=False)]
    return Replay(
        request=request,
        sample=sample,
        candidate=candidate,
        mode=DraftingMode.GREEDY,
        draftable=max(0, context - len(response.prompt.tokens)),
        accept=tuple(accept + [0.0] * (len(tokens) - len(accept))),
        confidence=(),
        margin=(),
        rank=(),
    )


def first_difference(response: Sequence[int], answer: Sequence[int]) -> int | None:
    """The first position at which two texts differ, which may be the end of the shorter one."""
    for at, (one, other) in enumerate(zip(response, answer, strict=False)):
        if one != other:
            return at
    return None if len(response) == len(answer) else min(len(response), len(answer))


def near_ties(
    rows: Sequence[Served],
    responses: Mapping[Key, ScoredResponse],
    plain: Server,
    exact: float,
) -> list[Served]:
    """Each of these answers, which differ from their responses, with whether the difference is a
    near tie: the plain server's two best tokens there are no further apart than `exact`, or than
    where its second answer differs from its first. Answers are left out where the server gives no
    log-probabilities.
    """
    margins: dict[tuple[Key, int], float] = {}
    for row in rows:
        at, response = row.first_difference or 0, responses[row.key]
        if (row.key, at) in margins:
            continue
        with contextlib.suppress(EngineError):
            margin = plain.margin([*response.prompt.tokens, *response.tokens[:at]])
            if margin is not None:
                margins[row.key, at] = margin
    known = [
        (row, margins[where])
        for row in rows
        if (where := (row.key, row.first_difference or 0)) in margins
    ]
    threshold = max([exact, *(margin for row, margin in known if row.candidate is None)])
    return [msgspec.structs.replace(row, tie=margin <= threshold) for row, margin in known]


def replays_here(
    prepared: Prepared,
    measured: Measured,
    candidate: Candidate,
    groups: Sequence[Sequence[ScoredResponse]],
) -> Batches:
    """The facts of a draft model, unless they are recorded already, then the replays of one group
    of responses after the other.
    """
    serving, options = prepared.serving, prepared.options
    assert serving is not None
    if candidate.draft == LOOKUP:
        rule, window = _lookup_rule(serving, measured.engines), max(options.ks)
        for group in groups:
            yield [
                replay_lookup(r, candidate, lookup_index(rule, *options.lookup), window)
                for r in group
            ]
        return
    source = prepared.drafts[candidate.draft]
    least = measured.least_rows(candidate)
    build = replace(prepared.build, level=candidate.quant, least_rows=least)
    runner, facts = build_runner(source, build, candidate.draft)
    longest = max(chain(*groups), key=lambda response: response.length)
    held = engine_sheet(source, serving.dtype)
    facts = msgspec.structs.replace(
        facts,
        weight_bytes=held.bytes_at(candidate.quant),
        kv_bytes_per_token=held.kv_bytes_per_token,
        replay_disagreement=stepping_disagreement(runner, longest, NEAR_TIE_MARGIN[facts.dtype]),
        caveats=(*prepared.caveats.get(candidate.draft, ()), *facts.caveats),
    )
    if facts not in measured.facts.get(candidate, []):
        yield [facts]
    for group in groups:
        yield replay_model(runner, serving.target, group, candidate, options.mode)


def _lookup_rule(serving: Serving, engines: Sequence[EngineFacts]) -> str:
    """The engine whose rule of prompt lookup holds: vLLM has another one on a CPU, and in its older
    model runner.
    """
    runners = [facts.settings.get(MODEL_RUNNER) for facts in engines if facts.started]
    older = "0" in runners or not torch.cuda.is_available()
    return VLLM_CPU if serving.engine == VLLM and runners and older else serving.engine
