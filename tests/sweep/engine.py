"""Servers that answer in this process, for sweeps on an engine: no HTTP, no weights, no time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from draftbench.engines.faults import Fault
from draftbench.engines.server import Answer, ServerFacts
from draftbench.errors import EngineError
from draftbench.records import RoundCounts


def drafted(proposed, accepted, rounds):
    """The counts of so many equal rounds."""
    return RoundCounts(
        rounds=rounds,
        drafted=proposed * rounds,
        accepted=accepted * rounds,
        by_round=((proposed, accepted),) * rounds,
    )


def writes(prompt, limit):
    """What every server here writes: counting up from the prompt's last token."""
    return tuple((prompt[-1] + 1 + n) % 400 + 5 for n in range(limit))


def unreachable(ask):
    return Answer(ask, error=Fault.UNREACHABLE, reason="connection refused", log_p=None)


@dataclass
class FakeServer:
    """Answers at one token each hundredth second. Drafting, it accepts one of `k` tokens a round.

    `odd` is the position at which its text leaves the others', where its two best tokens are `gap`
    apart; `lives` how many answers it gives
    before it is gone, `says` what it says of itself whatever is true.
    `change(server, answer, n)` is what becomes of the answer to the n-th request of the sample, or
    (n = 0) outside of it.
    """

    k: int = 0
    method: str | None = None
    version: str = "1.0"
    model: str = "served"
    odd: int | None = None
    gap: float = 0.0005
    lives: int = 10**6
    returns_ids: bool = True
    cached: int = 0
    dtype: str = "float32"
    prefix_cache: bool | None = False
    engine: str = "vllm"
    url: str = "http://fake"
    settings: dict = field(default_factory=dict)
    says: dict = field(default_factory=dict)
    counted: RoundCounts = field(default_factory=RoundCounts)
    change: Callable | None = None
    asked: list = field(default_factory=list)
    echoed: list = field(default_factory=list)
    questions: list = field(default_factory=list)

    def facts(self):
        method = self.method or ("draft-model" if self.k else "none")
        facts = {
            "engine": self.engine,
            "version": self.version,
            "model": self.model,
            "context_length": 512,
            "prefix_cache": self.prefix_cache,
            "method": method,
            "k": self.k or None,
            "settings": {"dtype": self.dtype} | self.settings,
        }
        return ServerFacts(**facts | self.says)

    def answer(self, ask):
        answer = self._answer(ask)
        measured = sum(bool(each.key[0]) for each in self.asked) if ask.key[0] else 0
        return self.change(self, answer, measured) if self.change else answer

    def _answer(self, ask):
        self.asked.append(ask)
        if self.lives <= 0:
            return unreachable(ask)
        self.lives -= 1
        tokens = writes(ask.prompt, ask.limit) if self.returns_ids else ()
        if self.odd is not None and tokens:
            tokens = (*tokens[: self.odd], 3, *tokens[self.odd + 1 :])
        length = ask.limit
        rounds = (length - 1) // 2 if self.k else None
        return Answer(
            ask=ask,
            arrivals=[0.01 * (n + 1) for n in range(length)],
            chunks=[1] * length,
            tokens=[*tokens] if self.returns_ids else None,
            text="" if self.returns_ids else "x" * length,
            finish="length",
            prompt_tokens=len(ask.prompt),
            cached_tokens=self.cached,
            in_flight=1,
            counts=None if rounds is None else drafted(self.k, 1, rounds),
            log_p=[-0.5] * length if ask.log_p else None,
        )

    def echo(self, prompts):
        self.echoed += prompts

    def tokenize(self, text):
        raise EngineError("no such route", hint="none")

    def apply_template(self, messages):
        raise EngineError("no such route", hint="none")

    def margin(self, ids):
        self.questions.append(list(ids))
        return self.gap

    def counters(self):
        return SimpleNamespace(total=self.counted)

    def close(self):
        pass


def rows_of(run, k, repeat=0, load="closed", concurrency=1):
    return [
        row
        for row in run.served
        if (row.k, row.repeat, row.load, row.concurrency) == (k, repeat, load, concurrency)
    ]


def fake_drive(server, asks, *, concurrency, fillers=(), seconds=None, note=None):
    begun = time.monotonic()
    for ask in asks:
        answer = server.answer(ask)
        if seconds is not None and time.monotonic() - begun > seconds:
            raise TimeoutError
        yield answer


class FakeEngine:
    """Starts a `FakeServer`, made by `make`, for each `ServerStart`; `settings` are those of its
    environment.
    """

    def __init__(self, make=lambda start, number: None, settings=None):
        self.make, self.starts, self.servers = make, [], []
        self.settings = settings or {}

    @contextmanager
    def started(self, start, log_folder):
        self.starts.append(start)
        k = start.speculation.k if start.speculation else 0
        server = self.make(start, len(self.starts)) or FakeServer()
        server.k = k
        if start.speculation is not None:
            server.method = server.method or start.speculation.method
        self.servers.append(server)
        yield SimpleNamespace(
            url=f"http://{len(self.servers) - 1}",
            command="fake --port 1",
            whole_command="fake --port 1 --api-key secret",
            settings=self.settings
            | ({} if start.threads is None else {"threads": str(start.threads)}),
            ready_seconds=2.0,
        )

    def connect(self, url, engine=None):
        return self.servers[int(url.removeprefix("http://"))]

    @property
    def ks(self):
        """k of each start, 0 without speculation."""
        return [start.speculation.k if start.speculation else 0 for start in self.starts]
