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
from typing import TYPE_CHECKING, Any, ClassVar

from draftbench.errors import EngineError
from draftbench.records import Sampling

if TYPE_CHECKING:
    from draftbench.engines.client import Http


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
    finish: str  # stop, length, or the server's own word; empty where it gave none
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
    """How long one request may take."""

    seconds: float = 600.0  # for the whole answer
    idle_seconds: float = 120.0  # without any byte of it


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
        # llama-server names the positions from the first draft on.
        then = () if before.by_position is None and before.kept == 0 else before.by_position
        if self.by_position is not None and then is not None:
            pairs = tuple(zip_longest(self.by_position, then, fillvalue=0))
            if all(now >= then for now, then in pairs):
                positions = tuple(now - then for now, then in pairs)
        sums = {f.name: difference(f.name) for f in fields(self) if f.name != "by_position"}
        return Counters(**sums, by_position=positions)


@dataclass
class Reading:
    """An answer while it comes in: what `Server.read` fills."""

    ask: Ask
    count: int = 0  # tokens so far
    stated: int | None = None  # tokens in all, as the server says at the end
    tokens: list[int] | None = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    proposed: Sequence[int] | None = None
    accepted: Sequence[int] | None = None
    rounds: int | None = None
    drafted: int | None = None
    kept: int | None = None
    by_position: Sequence[int] | None = None
    log_p: list[float] | None = field(default_factory=list)
    ended: bool = False  # whether the server said that this is all
    # Where ids are missing in `tokens`: first position, how many there, text of the whole piece.
    gaps: list[tuple[int, int, str]] = field(default_factory=list)


class Server(ABC):
    """One server that answers.

    Every method raises `EngineError` where the server does not answer as it should, or this kind of
    engine cannot do it at all.
    """

    engine: ClassVar[str]
    route: ClassVar[str]  # where requests are sent
    tried: ClassVar[bool]  # whether a real server of this kind was driven, or recorded fields only
    returns_ids: bool = True  # whether token ids come back
    bytes_per_token: ClassVar[int] = 16 << 10  # more is no answer
    # Whether every request is kept from reading what the prefix cache holds of others.
    cache_off_by_request: ClassVar[bool] = False
    # Whether positions and rounds come from the server's counters, read around each request.
    counts_around: bool = False

    def __init__(self, http: Http, model: str | None) -> None:
        self.http = http
        self.model = model

    @property
    def url(self) -> str:
        return self.http.url

    def close(self) -> None:
        self.http.close()

    @abstractmethod
    def facts(self) -> ServerFacts: ...

    @abstractmethod
    def question(self, ask: Ask) -> dict[str, Any]:
        """The body of a request, with every sampling field in full."""

    @abstractmethod
    def read(self, data: bytes, reading: Reading) -> None:
        """Take in one event of the stream.

        Raises:
            AnswerError: the server says that it failed, or something that it cannot mean.
        """

    async def settle(self, reading: Reading) -> None:  # noqa: B027
        """Complete an answer that has come in, untimed."""

    @abstractmethod
    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        """Send prompts and check that the server read exactly them.

        Raises:
            EngineError: it read another id, or there are two beginning-of-sequence tokens.
        """

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        """The ids of a text; `add_special` begins and ends it as the tokenizer is set to."""
        raise self._cannot("tell the tokens of a text")

    def apply_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str | list[int]:
        """A chat as the model reads it, up to where it answers: ids, or text that holds every
        special token.
        """
        raise self._cannot("apply its chat template")

    def best_tokens(self, ids: Sequence[int], start: int) -> list[int]:
        """The model's most probable token at each of the positions `start` … `len(ids) - 1`, given
        the ids before it.
        """
        raise self._cannot("score a prompt")

    def margin(self, ids: Sequence[int]) -> float | None:
        """The log-probability of the best next token less that of the second."""
        raise self._cannot("tell log-probabilities")

    def flush(self) -> bool:
        """Empty the prefix cache; whether the server did."""
        return False

    def counters(self) -> Counters:
        return self.http.run(self.count())

    async def count(self) -> Counters:
        """`counters`, awaited in the loop."""
        return Counters()

    def greedy(self, prompt: Sequence[int] | str) -> Ask:
        """A question for one token at temperature 0."""
        return Ask(("", 0), prompt, 1, Sampling(seed=0))

    def _cannot(self, what: str) -> EngineError:
        return EngineError(
            f"a server of kind `{self.engine}` cannot {what}",
            hint="give the model's own tokenizer or weights (`--target`, `--tokenizer`)",
        )
