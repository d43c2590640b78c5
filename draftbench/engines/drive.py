"""Sends requests to a server at a given load and yields every answer when it is complete.

Closed loop: a fixed number of requests is in flight until the last measured one ends; fillers keep
the load up while the last ones end. Open loop: each request is sent at its time of arrival, however
many are in flight. Nothing is retried: an error is an answer too.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import cycle, pairwise
from typing import Any

from draftbench.engines.client import AnswerError, Fault, garbage
from draftbench.engines.counters import since
from draftbench.engines.engine import Answer, Ask, Server
from draftbench.records import RoundCounts


def drive(
    server: Server,
    asks: Sequence[Ask],
    *,
    concurrency: int | None = None,
    fillers: Sequence[Ask] = (),
    seconds: float | None = None,
) -> Iterator[Answer]:
    """Send requests and yield their answers, in the order in which they end.

    With `concurrency` that many are in flight; without, each is sent at its `arrival`. Answers to
    fillers are not yielded. Leaving the iteration cancels the requests in flight.

    Raises:
        TimeoutError: it took longer than `seconds`; the requests in flight were cancelled.
    """
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
    """The requests of one `drive`, in the event loop."""

    def __init__(self, server: Server, answers: queue.SimpleQueue[Any]) -> None:
        self._server, self._answers = server, answers
        self._clock = server.http.loop.time
        self._begun = self._clock()
        self._flying: set[Answer] = set()  # answers of the requests in flight

    async def closed(self, asks: Sequence[Ask], concurrency: int, fillers: Sequence[Ask]) -> None:
        waiting, left, all_ended = iter(asks), len(asks), asyncio.Event()
        padding = cycle(fillers)

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
                    return  # the next would only fail too

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
        around = alone and self._server.counts_around
        before = await self._count() if around else None
        answer = await self._answer(ask)
        if answer.counts and (what := answer.counts.impossible_in(answer.output_tokens)):
            answer.counts = None
            answer.reason = answer.reason or f"the server counts {what}"
            answer.error = answer.error or Fault.GARBAGE
        if before is not None:
            answer.counts = self._server.rounds_of(answer, since(before, await self._count()))
        self._answers.put(answer)

    async def _count(self) -> RoundCounts:
        try:
            return await self._server.count_now()
        except AnswerError:
            return RoundCounts()

    async def _answer(self, ask: Ask) -> Answer:
        server, answer = self._server, Answer(ask, sent=self._clock() - self._begun)
        self._flying.add(answer)
        for other in self._flying:
            other.in_flight = max(other.in_flight, len(self._flying))
        try:
            await self._receive(answer)
        except AnswerError as error:
            answer.error, answer.status, answer.reason = error.fault, error.status, error.message
        self._flying.remove(answer)
        if answer.error is None:
            if not answer.arrivals:  # it ended without a token
                answer.arrivals, answer.chunks = [self._since(answer)], [0]
            if answer.stated not in (None, answer.count):  # it wrote tokens without their ids
                answer.count, answer.tokens = answer.stated, None
                pieces = len(answer.chunks)  # evenly, as the server gives only their sum
                ends = [answer.count * at // pieces for at in range(pieces + 1)]
                answer.chunks = [end - begin for begin, end in pairwise(ends)]
            try:
                await server.settle(answer)
            except AnswerError:
                answer.tokens = None
        if not ask.log_p or len(answer.log_p or ()) != answer.count:
            answer.log_p = None
        return answer

    async def _receive(self, answer: Answer) -> None:
        """Send the request and read the stream of its answer. Raises: AnswerError."""
        server, ask = self._server, answer.ask
        most = (1 << 20) + server.bytes_per_token * ask.limit + 16 * len(ask.prompt)
        async with (
            server.http.events(server.route, server.body(ask), most) as events,
            aclosing(events),
        ):
            async for data in events:
                arrival, count, length = self._since(answer), answer.count, len(answer.text)
                server.read(data, answer)
                new = answer.count - count
                if new or (not server.returns_ids and len(answer.text) > length):
                    answer.arrivals.append(arrival)
                    answer.chunks.append(new)
                if max(answer.count, answer.stated or 0) > ask.limit:
                    raise garbage("the server wrote more tokens than its limit")
                if answer.ended:
                    break
        if not answer.ended and (server.returns_ids or not answer.finish):
            raise AnswerError(
                Fault.CUT, "the stream ended before the answer", hint="see the server's log"
            )

    def _since(self, answer: Answer) -> float:
        """Seconds since a request was sent."""
        return self._clock() - self._begun - answer.sent
