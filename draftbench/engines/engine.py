"""What every serving engine is asked and answers: the interface that `vllm.py`, `llama_cpp.py` and
the others implement.

A length means what it means in the built-in decoder: the token that ended a response is counted,
and is the last of its ids. Rounds are kept as the engine counts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import zip_longest
from typing import Any, ClassVar

from draftbench.records import Sampling


class Fault(StrEnum):
    """What can go wrong with one request."""

    UNREACHABLE = "unreachable"  # no connection, or it broke before the answer began
    REFUSED = "refused"  # an HTTP status that says no
    REDIRECTED = "redirected"  # sent to another address, which is never followed
    TIMEOUT = "timeout"
    CUT = "cut"  # the stream ended before the answer did
    GARBAGE = "garbage"  # not what such a server answers
    TOO_LARGE = "too large"
    OTHER_IDS = "other ids"  # the server read another prompt than the one sent
    FAILED = "failed"  # the server says that it failed


@dataclass(frozen=True)
class Ask:
    """One request as it is sent: token ids, or text where the server takes no ids."""

    key: tuple[str, int]  # request, sample
    prompt: Sequence[int] | str
    limit: int  # most output tokens
    sampling: Sampling  # the caller sets the seed
    stop: tuple[str, ...] = ()
    arrival: float | None = None  # open loop: seconds since the drive began
    log_p: bool = False  # whether to ask for the log-probabilities of the answer's own tokens


@dataclass(frozen=True)
class Answer:
    """What came back; with `error` set, what came until then.

    Rounds one by one in `proposed` and `accepted` where the server tells them, else their sums. An
    engine may count tokens past the end of the response.
    """

    ask: Ask
    sent: float  # seconds since the drive began
    arrivals: tuple[float, ...]  # of each piece, seconds since `sent`
    chunks: tuple[int, ...]  # tokens that each piece brought
    tokens: tuple[int, ...] | None  # None: the server returns no ids
    text: str
    finish: str  # stop, length, or the server's own word; empty where it told none
    prompt_tokens: int
    cached_tokens: int | None  # of the prompt, which the server had read before
    in_flight: int  # most requests in flight while it was
    proposed: tuple[int, ...] | None = None
    accepted: tuple[int, ...] | None = None
    rounds: int | None = None
    drafted: int | None = None
    kept: int | None = None
    by_position: tuple[int, ...] | None = None
    log_p: tuple[float, ...] | None = None
    error: Fault | None = None
    reason: str = ""  # of the error, in one line that may be printed

    @property
    def output_tokens(self) -> int:
        return sum(self.chunks)


@dataclass(frozen=True)
class Limits:
    """How long one request may take and how much it may answer."""

    seconds: float = 600.0  # for the whole answer
    idle_seconds: float = 120.0  # without any byte of it
    bytes_per_token: int = 16 << 10
    depth: int = 40  # of JSON


@dataclass(frozen=True)
class ServerFacts:
    """What a server tells of itself; `None` where it does not."""

    engine: str
    version: str | None = None
    model: str | None = None  # as the server calls it
    context_length: int | None = None  # tokens that it reads
    prefix_cache: bool | None = None  # whether prompts read before cost less
    slots: int | None = None  # requests that it decodes at once
    method: str | None = None  # of speculation; "none" where the server says that it does not
    k: int | None = None  # tokens that it drafts in a round
    settings: Mapping[str, str] = field(default_factory=dict)  # the like, in the server's words


@dataclass(frozen=True)
class Counters:
    """A server's sums since it started, of all requests; `None` where it does not count."""

    rounds: int | None = None  # that had drafts
    drafted: int | None = None
    kept: int | None = None
    by_position: tuple[int, ...] | None = None  # tokens accepted at each draft position
    generated: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompts, which had been read before

    def since(self, before: Counters) -> Counters:
        """What was counted in between; `None` where a counter fell, since the server restarted."""

        def difference(name: str) -> int | None:
            now, then = getattr(self, name), getattr(before, name)
            return None if now is None or then is None or now < then else now - then

        positions = None
        if self.by_position is not None and before.by_position is not None:
            pairs = tuple(zip_longest(self.by_position, before.by_position, fillvalue=0))
            if all(now >= then for now, then in pairs):
                positions = tuple(now - then for now, then in pairs)
        sums = {f.name: difference(f.name) for f in fields(self) if f.name != "by_position"}
        return Counters(**sums, by_position=positions)


class Server(ABC):
    """One server that answers.

    Every method raises `EngineError` where the server does not answer as it should, or this kind of
    engine cannot do it at all.
    """

    engine: ClassVar[str]
    returns_ids: ClassVar[bool] = True  # whether token ids go out and come back
    url: str

    @abstractmethod
    def facts(self) -> ServerFacts: ...

    @abstractmethod
    def echo(self, prompts: Sequence[Sequence[int]]) -> None:
        """Send prompts and check that the server read exactly them.

        Raises:
            EngineError: it read another id, or put a beginning-of-sequence token before another.
        """

    @abstractmethod
    def tokenize(self, text: str) -> list[int]: ...

    @abstractmethod
    def apply_template(self, messages: Sequence[Mapping[str, Any]]) -> str | list[int]: ...

    @abstractmethod
    def best_tokens(self, ids: Sequence[int], start: int) -> list[int]:
        """The model's most probable token at each of the positions `start` … `len(ids) - 1`, given
        the ids before it.
        """

    @abstractmethod
    def margin(self, ids: Sequence[int]) -> float | None:
        """The log-probability of the best next token less that of the second."""

    @abstractmethod
    def flush(self) -> bool:
        """Empty the prefix cache; whether the server can."""

    @abstractmethod
    def counters(self) -> Counters: ...

    @abstractmethod
    def close(self) -> None: ...
