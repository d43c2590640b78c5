"""Servers in virtual time: what takes seconds passes at once, and every time is exact.

    server = virtual_server([schedule, …])   # one a request, in the order in which they are sent
    list(drive(server, asks, concurrency=4))

A schedule is when each piece of the answer comes, in seconds after the one before, and how many
tokens it brings.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx2

from draftbench.engines.client import Http
from draftbench.engines.vllm import VllmServer

Schedule = Sequence[tuple[float, int]]


class _Selector(selectors.DefaultSelector):
    """Waits for another thread, and lets the loop's time pass otherwise."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing that happens."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def virtual_server(schedules: Iterable[Schedule]) -> VllmServer:
    """A vLLM that answers by schedules (the last one for all further requests). `seen` holds
    what it saw.
    """
    given = list(schedules)
    coming = itertools.chain(given, itertools.repeat(given[-1]))
    seen: dict[str, Any] = {"now": 0, "in_flight": [], "sent": []}

    async def body(schedule: Schedule) -> AsyncIterator[bytes]:
        seen["now"] += 1
        seen["in_flight"].append(seen["now"])
        answering, token = True, 0
        try:
            for i, (seconds, count) in enumerate(schedule):
                await asyncio.sleep(seconds)
                finish = "length" if i == len(schedule) - 1 else None
                ids = [*range(token, token + count)]
                token += count
                yield _event(
                    {"choices": [{"text": "x", "token_ids": ids, "finish_reason": finish}]}
                )
            yield _event({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": token}})
            answering = False
            seen["now"] -= 1
            yield b"data: [DONE]\n\n"
        finally:
            seen["now"] -= answering

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen["sent"].append((http.loop.time() - 1000.0, json.loads(request.content)["prompt"]))
        headers = {"Content-Type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=body(next(coming)))

    http = Http(
        "http://virtual",
        transport=httpx2.MockTransport(answer),
        loop_factory=VirtualLoop,
    )
    server = VllmServer(http, "m")
    server.seen = seen  # type: ignore[attr-defined]
    return server


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
