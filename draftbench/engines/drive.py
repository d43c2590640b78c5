"""Sends requests to a server at a given load and yields every answer when it is complete.

Closed loop: a fixed number of requests is in flight until the last measured one ends; fillers keep
the load up while the last ones end. Open loop: each request is sent at its time of arrival, however
many are in flight. Nothing is retried: an error is an answer too.

Tokens are counted here: by the ids that come back, else by the text where its tokenizer is at hand.
Only without both a server's own count is believed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import cycle
from typing import Any

import msgspec

from draftbench.engines import client
from draftbench.engines.counters import Counters
from draftbench.engines.faults import AnswerError, Fault, garbage
from draftbench.engines.server import Answer, Ask, Server

# After so many seconds without a token a wait is worth a line, and another one a minute.
SILENT_SECONDS, SECONDS_BETWEEN_LINES = 20.0, 60.0
# How a server may say that an answer ended; other words may be a prompt's.
_ENDS = {"", "stop", "length", "abort", "error", "cancelled", "content_filter", "tool_calls"}


def drive(
    server: Server,
    asks: Sequence[Ask],
    *,
    concurrency: int | None = None,
    fillers: Sequence[Ask] = (),
    seconds: float | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Answer]:
    """Send requests and yield their answers, in the order in which they end.

    With `concurrency` that many are in flight; without, each is sent at its `arrival`. Answers to
    fillers are not yielded. Leaving the iteration cancels the requests in flight. `note` takes a
    line on a server that sends nothing.

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
    patience = SILENT_SECONDS
    try:
        while True:
            try:
                answer = answers.get(timeout=patience)
            except queue.Empty:
                if waiting := work.waiting():
                    note(waiting)
                    patience = SECONDS_BETWEEN_LINES
                continue
            if answer is None:
                return
            if isinstance(answer, BaseException):
                raise answer
            patience = SILENT_SECONDS
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

    def waiting(self) -> str:
        """A line on the requests for which no token came for long; empty if there are none."""
        silent = [
            seconds
            for answer in tuple(self._flying)
            if (seconds := self._since(answer) - max(answer.arrivals, default=0)) >= SILENT_SECONDS
        ]
        if not silent:
            return ""
        requests = f"{len(silent)} request{'s' * (len(silent) > 1)} in flight"
        return (
            f"no token for {max(silent):.0f} s ({requests}): each is given up after "
            f"{client.STREAM_SECONDS:.0f} s"
        )

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
        before = await self._count() if alone and self._server.counts_around else None
        answer = await self._answer(ask)
        if answer.counts and (what := answer.counts.impossible_in(answer.output_tokens)):
            answer.counts = None
            answer.reason = answer.reason or f"the server counts {what}"
            answer.error = answer.error or Fault.GARBAGE
        if before is not None:
            around = (await self._count()).since(before)
            if around.written is not None and answer.error is None:
                # Rounds may go past the end of an answer.
                past_end = 2 * (len(around.by_position or ()) + 1)
                answer.shared = around.written > answer.count + past_end
            its_own = msgspec.structs.replace(around, written=None)
            answer.counts = self._server.rounds_of(answer, its_own)
        self._answers.put(answer)

    async def _count(self) -> Counters:
        try:
            return await self._server.count_now()
        except AnswerError:
            return Counters()

    async def _answer(self, ask: Ask) -> Answer:
        answer = Answer(ask, sent=self._clock() - self._begun)
        self._flying.add(answer)
        for other in self._flying:
            other.in_flight = max(other.in_flight, len(self._flying))
        try:
            try:
                await self._receive(answer)
            finally:
                self._flying.remove(answer)
            await self._count_tokens(answer)
        except AnswerError as error:
            answer.error, answer.status, answer.reason = error.fault, error.status, error.message
        answer.finish = answer.finish if answer.finish in _ENDS else "other"
        if not ask.log_p or len(answer.log_p or ()) != answer.count:
            answer.log_p = None
        return answer

    async def _count_tokens(self, answer: Answer) -> None:
        """Complete an answer that came in whole with its number of tokens. Raises: AnswerError."""
        server = self._server
        if not answer.arrivals:  # it ended without a token
            answer.arrivals, answer.chunks = [self._since(answer)], [0]
        if answer.stated not in (None, answer.count):  # it wrote tokens without their ids
            answer.count, answer.tokens = answer.stated, None
        try:
            await server.settle(answer)
        except AnswerError:
            answer.tokens = None
        if answer.tokens is None and server.tokens_in is not None:
            written = await asyncio.to_thread(server.tokens_in, answer.text)
            # The token that ended it counts, and has no text.
            count = written + bool(answer.finish == "stop" and (written or answer.stated))
            limit = answer.ask.limit
            if count > limit + limit // 10 + 2:
                raise garbage(
                    f"its text has {count} tokens by the tokenizer here, and its limit is {limit}"
                )
            answer.count = min(count, limit)  # a text may be split into tokens in several ways
        elif answer.count > answer.ask.limit:
            raise _too_many()
        if answer.output_tokens != answer.count:
            answer.spread()

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
                if answer.count > ask.limit:
                    raise _too_many()
                if answer.ended:
                    break
        if not answer.ended and (server.returns_ids or not answer.finish):
            raise AnswerError(
                Fault.CUT, "the stream ended before the answer", hint="see the server's log"
            )

    def _since(self, answer: Answer) -> float:
        """Seconds since a request was sent."""
        return self._clock() - self._begun - answer.sent


def _too_many() -> AnswerError:
    return garbage("the server wrote more tokens than its limit")
