"""The interface to a server that runs, which `vllm.py`, `llama_cpp.py` and the others implement.

A length means what it means in the built-in decoder: the token that ended a response is counted,
and is the last of its ids. Rounds are recorded as the engine counts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from draftbench.engines.counters import Counters, counters_on
from draftbench.engines.faults import Fault, failure, from_json, other_ids, unless_refused
from draftbench.engines.secrets import on_one_line
from draftbench.errors import EngineError
from draftbench.records import Key, RoundCounts, Sampling, Served

if TYPE_CHECKING:  # httpx2 is loaded where a server is asked
    from draftbench.engines.client import Http

Id = Annotated[int, Meta(ge=0, lt=2**31)]
# What can be measured of a server without token ids.
FROM_OUTSIDE = "a sweep with `--engine openai --server ADDRESS` times it from outside"


@dataclass(frozen=True)
class Ask:
    """One request as it is sent: token ids, or text where the server takes no ids."""

    key: Key
    prompt: Sequence[int] | str
    limit: int  # most output tokens
    sampling: Sampling  # the caller sets the seed
    stop: tuple[str, ...] = ()
    arrival: float | None = None  # open loop: seconds since the drive began
    log_p: bool = False  # whether to ask for the log-probabilities of the answer's own tokens
    constraint: Mapping[str, Any] | None = None  # what the answer is held to (traffic/constraints)


@dataclass(eq=False)
class Answer:
    """An answer, filled by `Server.read` as it comes in; with `error` set, what came until then.
    What is not private is recorded under the same names (`served`).
    """

    ask: Ask
    sent: float = 0.0  # seconds since the drive began
    arrivals: list[float] = field(default_factory=list)  # of each piece, seconds since `sent`
    chunks: list[int] = field(default_factory=list)  # tokens that each piece brought
    tokens: list[int] | None = field(default_factory=list)  # None: the server returns no ids
    text: str = ""
    finish: str = ""  # stop, length, or the server's own word; empty where it gave none
    prompt_tokens: int = 0
    cached_tokens: int | None = None  # of the prompt, which the server had read before
    in_flight: int = 0  # most requests in flight while it was
    counts: RoundCounts | None = None
    log_p: list[float] | None = field(default_factory=list)
    decode_seconds: float | None = None  # after the first token, by the server's own clock
    shared: bool | None = None  # whether the server wrote other answers meanwhile
    error: Fault | None = None
    status: int | None = None  # of HTTP, where that says no
    reason: str = ""  # of the error, in one line that may be printed

    count: int = 0  # tokens so far
    stated: int | None = None  # tokens in all, as the server says at the end
    ended: bool = False  # whether the server said that this is all
    # Where ids are missing in `tokens`: first position, how many there, text of the whole piece.
    gaps: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        return sum(self.chunks)

    @property
    def miscounted(self) -> bool:
        """Whether the server counts others than there are; how the end counts may differ."""
        stated = self.output_tokens if self.stated is None else self.stated
        return abs(stated - self.output_tokens) > 2 + self.output_tokens // 10

    def spread(self) -> None:
        """Share the tokens out evenly over the pieces, where only their number is known."""
        pieces = len(self.chunks)
        ends = [self.count * at // pieces for at in range(pieces + 1)]
        self.chunks = [end - begin for begin, end in pairwise(ends)]

    def served(self, *, concurrency: int | None, **of: Any) -> Served:
        """Its record; `of` says which server answered what. A `concurrency` of None: the request
        was sent at its time of arrival.
        """
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        told |= {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
        request, sample = self.ask.key
        told |= {"request": request, "sample": sample, "output_tokens": self.output_tokens}
        told |= {"load": "closed" if concurrency else "open"}
        told |= {"concurrency": concurrency or max(1, self.in_flight), "stop": None, **of}
        return Served(**{name: told[name] for name in RECORDED})


# What a record holds of an answer, and of the server that gave it.
RECORDED = [name for name in Served.__struct_fields__ if name != "tie"]


@dataclass(frozen=True)
class ServerFacts:
    """How a server describes itself, each field on one short line; None where it does not say."""

    engine: str
    version: str | None = None
    model: str | None = None  # as the server calls it
    context_length: int | None = None  # tokens that it reads
    prefix_cache: bool | None = None  # whether prompts read before cost less
    method: str | None = None  # of speculation; "none" where the server says that it does not
    k: int | None = None  # tokens that it drafts in a round
    settings: Mapping[str, str] = field(default_factory=dict)  # others, in the server's words

    def __post_init__(self) -> None:
        for name in ("version", "model", "method"):
            if (stated := getattr(self, name)) is not None:
                object.__setattr__(self, name, on_one_line(stated))
        settings = {name: on_one_line(stated) for name, stated in self.settings.items()}
        object.__setattr__(self, "settings", settings)


class Server(ABC):
    """A server that answers.

    Every method raises `EngineError` where the server does not answer as it should, or this kind of
    engine cannot do it at all.
    """

    engine: ClassVar[str]
    route: ClassVar[str]  # where requests are sent
    returns_ids: bool = True  # whether token ids come back
    bytes_per_token: ClassVar[int] = 16 << 10  # more is no answer
    # Whether rounds come from the server's counters, read around each request that is alone.
    counts_around: bool = False
    # How many of its target's tokens a text has, where the tokenizer is at hand.
    tokens_in: Callable[[str], int] | None = None
    constraints: ClassVar[frozenset[str]] = frozenset()  # the kinds that it holds answers to
    owner: ClassVar[str] = ""  # of its models, as its own list of them says
    # Its Prometheus names for the fields of `RoundCounts`.
    counter_names: ClassVar[Mapping[str, str]] = {}

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
    def body(self, ask: Ask) -> dict[str, Any]:
        """The body of a request, with every sampling field in full."""

    @abstractmethod
    def read(self, data: bytes, answer: Answer) -> None:
        """Take in one event of the stream.

        Raises:
            AnswerError: the server says that it failed, or what no such server says.
        """

    async def settle(self, answer: Answer) -> None:  # noqa: B027
        """Complete an answer after it has come in, which is not timed."""

    @abstractmethod
    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        """Send prompts, and raise an EngineError where the server read other ids, or where one
        begins with two beginning-of-sequence tokens.
        """

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text, with no token added."""
        raise self._cannot("tell the tokens of a text")

    def apply_template(self, messages: Sequence[Mapping[str, Any]]) -> str | list[int]:
        """A chat as the model reads it, up to its answer: ids, or text with all special tokens."""
        raise self._cannot("apply its chat template")

    def margin(self, ids: Sequence[int]) -> float | None:
        """How far the best next token is above the second, in log-probability."""
        raise self._cannot("tell log-probabilities")

    def rounds_of(self, answer: Answer, around: RoundCounts) -> RoundCounts | None:
        """The rounds of an answer that was alone, from what it states and what the counters
        `around` it say; these may hold another client's requests too.
        """
        return answer.counts

    def counters(self) -> Counters:
        return self.http.run(self.count_now())

    async def count_now(self) -> Counters:
        """`counters` for the event loop; none where the server shows none."""
        with unless_refused():
            return self.counted_on(await self.http.page("/metrics"))
        return Counters()

    def counted_on(self, page: str) -> Counters:
        """The counters on its Prometheus page. Raises: AnswerError, one is no count."""
        return counters_on(page, self.counter_names)

    def _cannot(self, what: str) -> EngineError:
        return EngineError(
            f"a server of kind `{self.engine}` cannot {what}",
            hint="give the model's own tokenizer or weights (`--target`, `--tokenizer`)",
        )


class ServerEvent(msgspec.Struct):
    """An event of a stream, or an answer that is not streamed."""

    error: Any = None


S = TypeVar("S", bound=ServerEvent)


def event_of(data: bytes, kind: type[S], answer: Answer) -> S | None:
    """An event of a stream, decoded; None for the mark that ends it.

    Raises:
        AnswerError: the server says that it failed, or what no such server says.
    """
    if data == b"[DONE]":
        answer.ended = True
        return None
    return _without_error(from_json(data, kind))


def one_token(server: Server, prompt: Sequence[int] | str, kind: type[S], **fields: Any) -> S:
    """A greedy answer of one token, not streamed. Raises: AnswerError."""
    ask = Ask(("", 0), prompt, 1, Sampling(seed=0))
    body = server.body(ask) | fields | {"stream": False}
    body.pop("stream_options", None)
    return _without_error(server.http.json(server.route, body, type=kind))


def _without_error(event: S) -> S:
    if event.error is None:
        return event
    raise failure(
        event.error.get("message", event.error) if isinstance(event.error, dict) else event.error
    )


class Tokens(msgspec.Struct):
    tokens: list[Id]


class TokenServer(Server):
    """A server whose `/tokenize` takes texts and chats, and which returns the ids of the prompt."""

    returns_since: ClassVar[str]  # the first version that does, as shown in a message

    @abstractmethod
    def prompt_ids(self, prompt: Sequence[int] | str) -> list[int] | None:
        """The ids that the server read; None where it does not return them."""

    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        check_beginnings(prompts)
        for prompt in prompts:
            if (read := self.prompt_ids(prompt)) is None:
                hint = f"{self.returns_since}; {FROM_OUTSIDE}"
                raise EngineError(f"{self.url} does not return token ids", hint=hint)
            check_prompt(read, prompt)

    def tokenize(self, text: str) -> list[int]:
        return self._tokens({"prompt": text})

    def apply_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self._tokens({"messages": list(messages), "add_generation_prompt": True})

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        body |= {"model": self.model, "add_special_tokens": False}
        return self.http.json("/tokenize", body, type=Tokens).tokens


def accepted_at_least(histogram: Sequence[int]) -> tuple[int, ...]:
    """How many rounds accepted at least 1, 2, … tokens, from how many accepted 0, 1, 2, …"""
    return tuple(accumulate(reversed(histogram)))[::-1][1:]


def margin_of(log_p: Iterable[float | None]) -> float | None:
    """How far the largest log-probability is above the second; None of fewer than two."""
    values = sorted((value for value in log_p if value is not None), reverse=True)
    return values[0] - values[1] if len(values) > 1 else None


def check_prompt(read: Sequence[int], sent: Sequence[int] | str) -> None:
    """Raise an AnswerError where a server read other ids than were sent."""
    if isinstance(sent, str) or list(read) == list(sent):
        return
    raise other_ids()


def check_beginnings(prompts: Sequence[Sequence[int] | str]) -> None:
    """Raise an EngineError where a prompt has the beginning-of-sequence token twice: all prompts
    begin with the same token, and one of them repeats it.
    """
    ids = [list(prompt[:2]) for prompt in prompts if not isinstance(prompt, str)]
    if len({tuple(two[:1]) for two in ids}) == 1 and any(two == 2 * two[:1] for two in ids):
        raise EngineError(
            "prompts begin with the beginning-of-sequence token twice",
            hint="the chat template writes it and the tokenizer adds it: one of them must not",
        )
