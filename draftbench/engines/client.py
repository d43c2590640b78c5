"""HTTP to one server: requests that are answered by one JSON document or by a stream of events.

A server is not trusted: its answers are limited in size and time, decoded into fixed types, and
redirects are not followed. All I/O runs in one event loop in a separate thread, so that the arrival
time of a piece does not depend on what is done with it.

Connections are not reused: llama-server closes them after a stream, and a request on a connection
that is being closed would fail through no fault of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import httpx2
import msgspec

from draftbench.engines.faults import TOKEN_VARIABLE, AnswerError, Fault, from_json, garbage
from draftbench.engines.secrets import on_one_line
from draftbench.errors import EngineError

MOST_BYTES = 8 << 20  # of an answer that is one document
SECONDS = 60.0  # for it
STREAM_SECONDS, IDLE_SECONDS = 600.0, 120.0  # for a stream of events, and without any byte of it
NO_ENTRY = (401, 403)  # statuses that ask for a token
# Statuses of a server that is busy or failed once, and the seconds after which it is asked again
# for what is not timed.
_PASSING, _PAUSES = (429, 500, 502, 503, 504), (0.3, 1.5)

T = TypeVar("T")


class Http:
    """A connection to one server, with the token of DRAFTBENCH_API_KEY if there is one."""

    def __init__(
        self,
        url: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self.url = _checked(url)
        self._token = os.environ.get(TOKEN_VARIABLE) or None
        if self._token and not (self._token.isascii() and self._token.isprintable()):
            raise EngineError(
                f"{TOKEN_VARIABLE} holds no token that can be sent",
                hint="a token is one line of ASCII characters",
            )
        local = httpx2.URL(self.url).host in ("127.0.0.1", "localhost", "::1")
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            transport=transport,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx2.Timeout(IDLE_SECONDS, connect=10.0),
            trust_env=not local,  # a proxy leads out of this machine
        )
        self.loop = loop_factory()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if not self.loop.is_closed():
            self.run(self._client.aclose())
            self.run(self.loop.shutdown_asyncgens())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def json(self, path: str, body: Any = None, *, type: type[T]) -> T:
        """Send a GET, or a POST where there is a body, and decode the answer; a server that is busy
        or breaks off is asked again.

        Raises:
            AnswerError: there is no answer, or not one of this type.
        """
        for pause in _PAUSES:
            try:
                return self.run(self.fetch(path, body, type=type))
            except AnswerError as error:
                if error.status not in _PASSING and error.fault is not Fault.CUT:
                    raise
            time.sleep(pause)
        return self.run(self.fetch(path, body, type=type))

    async def fetch(self, path: str, body: Any = None, *, type: type[T]) -> T:
        """`json` as a coroutine."""
        return from_json(await self._bytes(path, body), type)

    async def page(self, path: str) -> str:
        """The answer to a GET as text. Raises: AnswerError."""
        return (await self._bytes(path, None)).decode(errors="replace")

    async def _bytes(self, path: str, body: Any) -> bytes:
        raw = bytearray()
        async with self._answered(path, body, SECONDS) as response:
            async for piece in response.aiter_bytes():
                raw += piece
                if len(raw) > MOST_BYTES:
                    raise AnswerError(
                        Fault.TOO_LARGE,
                        f"{self.url}{path} answers with more than {MOST_BYTES >> 10} KiB",
                        hint="see what runs at this address",
                    )
        return bytes(raw)

    @contextlib.asynccontextmanager
    async def events(
        self, path: str, body: Any, most: int
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """The data of each event of a streamed answer, as it arrives; at most `most` bytes."""

        async def data() -> AsyncGenerator[bytes, None]:
            size = 0
            source = httpx2.EventSource(response, max_event_size=MOST_BYTES)
            async for event in source:
                size += len(event.data)
                if size > most:
                    raise AnswerError(
                        Fault.TOO_LARGE,
                        "the answer is far longer than its limit",
                        hint="see what runs at this address",
                    )
                yield event.data.encode(errors="replace")

        async with self._answered(path, body, STREAM_SECONDS) as response:
            yield data()

    @contextlib.asynccontextmanager
    async def _answered(
        self, path: str, body: Any, seconds: float
    ) -> AsyncIterator[httpx2.Response]:
        """A response with status 200; whatever goes wrong until it is read is an AnswerError."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        url, begun = self.url + path, False
        try:
            async with (
                asyncio.timeout(seconds),
                self._client.stream(method, url, content=content, headers=headers) as response,
            ):
                begun = True
                if response.status_code != 200:
                    raise await self._refusal(response)
                yield response
        except (TimeoutError, httpx2.TimeoutException) as error:
            if isinstance(error, httpx2.ConnectTimeout):
                raise self._unreachable("it does not answer") from error
            raise AnswerError(
                Fault.TIMEOUT,
                f"{url} did not answer in time",
                hint="see whether the server still works, or allow it more time",
            ) from error
        except httpx2.SSEError as error:
            raise garbage(f"{url} answers with something other than a stream of events") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            if not begun:
                raise self._unreachable(str(error)) from error
            raise AnswerError(
                Fault.CUT, f"{url} broke off its answer", hint="see the server's log"
            ) from error

    def _unreachable(self, reason: str) -> AnswerError:
        return AnswerError(
            Fault.UNREACHABLE,
            f"cannot reach {self.url}",
            hint="see whether the server runs and listens at this address",
            said=reason or "the connection broke",
        )

    async def _refusal(self, response: httpx2.Response) -> AnswerError:
        status, path = response.status_code, response.request.url.path
        if 300 <= status < 400:
            return AnswerError(
                Fault.REDIRECTED,
                f"{self.url}{path} leads to another address, which is not followed",
                hint="give the address that the server itself has",
            )
        raw = bytearray()
        async for piece in response.aiter_bytes():
            raw += piece
            if len(raw) > 64 << 10:
                break
        # Not every server has every route; what it says of one that it lacks is not worth keeping.
        lacks = status == 404 and response.request.method == "GET"
        token = f"put the server's token into the environment variable {TOKEN_VARIABLE}"
        hint = dict.fromkeys(NO_ENTRY, token) | {
            429: "the server has no room for more requests: lower the concurrency",
            503: "the server is not ready, or has no room for more requests",
        }
        return AnswerError(
            Fault.FAILED if status in (500, 502, 504) else Fault.REFUSED,
            f"{path} answers {status}",
            hint=hint.get(status, "see the server's log"),
            said="" if lacks else raw.decode(errors="replace"),
            status=status,
        )


def _checked(url: str) -> str:
    """The address of a server, without `/v1`.

    Raises:
        EngineError: it is no address, or holds what must not be recorded, as a password.
    """
    try:
        parsed = httpx2.URL(url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise _no_address(url) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _no_address(url)
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise EngineError(
            "the server's address holds a password, a query or a fragment",
            hint=f"give http://HOST:PORT; a token goes into the variable {TOKEN_VARIABLE}",
        )
    return str(parsed).rstrip("/").removesuffix("/v1").rstrip("/")


def _no_address(url: str) -> EngineError:
    return EngineError(
        f"`{on_one_line(url)}` is not the address of a server",
        hint="an address looks like http://127.0.0.1:8000",
    )
