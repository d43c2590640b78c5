"""Sends requests to a server at a stated load and yields every answer as it ends.

Closed loop: exactly so many requests are in flight, until the last one that is measured has ended;
fillers keep the load up while the last ones end. Open loop: each request goes out at its time of
arrival, however many are in flight. Nothing is sent twice: what went wrong is an answer too.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any

from draftbench.engines.client import AnswerError, Fault, garbage
from draftbench.engines.counters import Counters
from draftbench.engines.engine import Answer, Ask, Reading, Server
from draftbench.records import impossible_rounds

# What an answer takes over from its reading as it is.
_TOLD = {field.name for field in fields(Reading)} & {field.name for field in fields(Answer)}
_TOLD -= {"text"}


def drive(
    server: Server,
    asks: Sequence[Ask],
    *,
    concurrency: int | None = None,
    fillers: Sequence[Ask] = (),
    seconds: float | None = None,
) -> Iterator[Answer]:
    """Send requests and yield their answers, in the order in which they end.

    With `concurrency` that many are in flight; without, each goes out at its `arrival`. Answers to
    fillers are not yielded. Leaving the iteration ends what is in flight.

    Raises:
        TimeoutError: it took longer than `seconds`; what was in flight then has ended.
    """
    if concurrency is None and any(ask.arrival is None for ask in asks):
        raise ValueError("an open loop needs a time of arrival for every request")
    answers: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()
    work = _Drive(server, answers)

    async def to_the_end() -> None:
        try:
            async with asyncio.timeout(seconds):
                await (work.closed(asks, concurrency, fillers) if concurrency else work.open(asks))
            answers.put(None)
        except Exception as error:
            answers.put(error)
        finally:
            stopped.set()

    future = asyncio.run_coroutine_threadsafe(to_the_end(), server.http.loop)
    try:
        while (answer := answers.get()) is not None:
            if isinstance(answer, BaseException):
                raise answer
            yield answer
    finally:
        future.cancel()
        stopped.wait(5.0)  # until its connections are closed


class _Drive:
    """One drive of a server, in the event loop."""

    def __init__(self, server: Server, answers: queue.SimpleQueue[Any]) -> None:
        self._server, self._answers = server, answers
        self._clock = server.http.loop.time
        self._begun = self._clock()
        self._most: dict[int, int] = {}  # of each request in flight: most in flight meanwhile

    async def closed(self, asks: Sequence[Ask], concurrency: int, fillers: Sequence[Ask]) -> None:
        waiting, left, all_ended = iter(asks), len(asks), asyncio.Event()
        padding = itertools.cycle(fillers)

        async def row() -> None:
            nonlocal left
            for ask in waiting:
                await self._measure(ask, alone=concurrency == 1)
                left -= 1
            if not left:
                all_ended.set()
                return
            for ask in padding:
                if (await self._answer(ask)).error is not None:
                    return  # asking again at once would only meet it again

        if asks:
            async with asyncio.TaskGroup() as rows:
                count = concurrency if fillers else min(concurrency, len(asks))
                tasks = [rows.create_task(row()) for _ in range(count)]
                await all_ended.wait()
                for task in tasks:
                    task.cancel()

    async def open(self, asks: Sequence[Ask]) -> None:
        async with asyncio.TaskGroup() as flying:
            for ask in sorted(asks, key=lambda ask: ask.arrival or 0.0):
                await asyncio.sleep((ask.arrival or 0.0) - (self._clock() - self._begun))
                flying.create_task(self._measure(ask, alone=False))

    async def _measure(self, ask: Ask, *, alone: bool) -> None:
        if alone and self._server.counts_around:
            before = await self._count()
            answer = _with_sound_rounds(await self._answer(ask))
            answer = _with_counts(answer, (await self._count()).since(before))
        else:
            answer = _with_sound_rounds(await self._answer(ask))
        self._answers.put(answer)

    async def _count(self) -> Counters:
        try:
            return await self._server.count()
        except AnswerError:
            return Counters()

    async def _answer(self, ask: Ask) -> Answer:
        server, reading = self._server, Reading(ask)
        arrivals: list[float] = []
        chunks: list[int] = []
        fault, reason = None, ""
        sent = self._clock() - self._begun
        flight = id(reading)
        self._most[flight] = 0
        for other in self._most:
            self._most[other] = max(self._most[other], len(self._most))
        try:
            most = (1 << 20) + server.bytes_per_token * ask.limit + 16 * len(ask.prompt)
            body = server.question(ask)
            async with (
                server.http.events(server.route, body, most) as events,
                aclosing(events),
            ):
                async for data in events:
                    now, before, pieces = self._clock(), reading.count, len(reading.text)
                    server.read(data, reading)
                    new = reading.count - before
                    if new or (not server.returns_ids and any(reading.text[pieces:])):
                        arrivals.append(now - self._begun - sent)
                        chunks.append(new)
                    if max(reading.count, reading.stated or 0) > ask.limit:
                        raise garbage("the server wrote more tokens than were asked for")
                    if reading.ended:
                        break
            if not reading.ended and (server.returns_ids or not reading.finish):
                raise AnswerError(
                    Fault.CUT, "the stream ended before the answer", hint="see the server's log"
                )
        except AnswerError as error:
            fault, reason = error.fault, error.message
        in_flight = self._most.pop(flight)
        if fault is None:
            if not arrivals:  # nothing but an end
                arrivals, chunks = [self._clock() - self._begun - sent], [0]
            if reading.stated not in (None, reading.count):  # it wrote tokens without their ids
                reading.count, reading.tokens = reading.stated, None
                chunks = _spread(reading.count, len(chunks))
            try:
                await server.settle(reading)
            except AnswerError:
                reading.tokens = None
        if not ask.log_p or len(reading.log_p or ()) != reading.count:
            reading.log_p = None
        return Answer(
            **{name: _frozen(getattr(reading, name)) for name in _TOLD},
            text="".join(reading.text),
            sent=sent,
            arrivals=tuple(arrivals),
            chunks=tuple(chunks),
            in_flight=in_flight,
            error=fault,
            reason=reason,
        )


def _with_sound_rounds(answer: Answer) -> Answer:
    """The answer; garbage without rounds where it cannot have those that the server counts."""
    what = impossible_rounds(answer, answer.output_tokens)
    if what is None:
        return answer
    return replace(
        answer,
        proposed=None,
        accepted=None,
        rounds=None,
        drafted=None,
        kept=None,
        by_position=None,
        error=answer.error or Fault.GARBAGE,
        reason=answer.reason or f"the server counts {what}",
    )


def _with_counts(answer: Answer, counted: Counters) -> Answer:
    """Rounds and positions from the server's counters, where they agree with what it states of this
    request: another client's requests would be in them too.
    """
    drafted, kept = answer.drafted or 0, answer.kept or 0
    if counted.by_position is None or (counted.drafted, counted.kept) != (drafted, kept):
        return answer
    if sum(counted.by_position) != kept:
        return answer
    whole = replace(
        answer, rounds=counted.rounds, drafted=drafted, kept=kept, by_position=counted.by_position
    )
    return answer if impossible_rounds(whole, whole.output_tokens) else whole


def _spread(tokens: int, pieces: int) -> list[int]:
    """As many tokens in every piece as possible, where the server tells their sum alone."""
    ends = [tokens * (i + 1) // pieces for i in range(pieces)]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
