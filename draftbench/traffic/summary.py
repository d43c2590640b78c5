"""What a traffic source contains: what was read from it, in which forms, and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from draftbench.records import LONGER, LongerPrompts, Record, Request

# How many characters of a prompt's end are shown.
SHOWN = 200
# How most tables are written, which is not worth mentioning.
ORDINARY = ("columns separated by commas",)


class BadRows(Record, frozen=True):
    """Rows that cannot be read, for one reason."""

    reason: str  # in the parser's or the template's words
    first: str  # FILE:ROW of the first
    rows: int  # how many
    hint: str  # what helps


class FirstRequest(Record, frozen=True):
    """The first request: its `roles` (none: a plain prompt), and how its text ends."""

    roles: tuple[str, ...]
    end: str | None  # null: not asked for


class RequestFigures(Record, frozen=True):
    """What requests ask for."""

    temperatures: dict[str, int]  # requests by temperature
    limits: tuple[int, int] | None  # least and most output tokens; null: none names a limit
    segments: dict[str, int]  # requests by segment, the largest first; empty: none has one
    timed: int  # requests that say when they were asked
    characters: tuple[int, int]  # of a prompt without its template: the median, and the most
    answers: tuple[int, int] | None  # characters of a logged answer, likewise; null: none is there


class TrafficSummary(Record, frozen=True):
    """What a traffic source contains: `rows` = `requests` + `merged` + those that were left out or
    not drawn.
    """

    source: str
    layout: tuple[str, ...]  # what was guessed: the encoding, what separates columns
    rows: int
    requests: int
    merged: int  # rows that repeat a request
    answered: int  # rows with a logged answer that can be used
    models: dict[str, int]  # rows by the model that was asked, as far as they name one
    model_field: str | None  # where most rows name it
    several: int  # rows that ask for several answers (`n`), each of which counts as a request
    forms: dict[str, int]  # rows by the form in which they are written
    unread: dict[str, int]  # fields that were not read: in how many rows; longest first
    left_out: dict[str, int]  # rows by the reason why they are no request
    bad_rows: tuple[BadRows, ...]  # one entry per reason
    assumed: dict[str, int]  # rows without a temperature by the one that is assumed
    constrained: int  # requests with structured output
    chats: int  # requests that the chat template renders
    figures: RequestFigures  # what the requests ask for
    longer: LongerPrompts  # what the draw missed
    first: FirstRequest | None = None  # what it asks

    @property
    def form(self) -> str:
        """The forms that were recognised."""
        return ", ".join(sorted(self.forms))


def request_figures(requests: Sequence[Request]) -> RequestFigures:
    """What some requests ask for."""
    limits = [each.max_tokens for each in requests if each.max_tokens is not None]
    temperatures = Counter(each.sampling.temperature for each in requests)
    segments = Counter(each.segment for each in requests if each.segment is not None)
    prompts = [*map(prompt_length, requests)]
    answers = [_length(each.response) for each in requests if each.response is not None]
    return RequestFigures(
        temperatures={f"{heat:g}": count for heat, count in sorted(temperatures.items())},
        limits=(min(limits), max(limits)) if limits else None,
        segments=dict(sorted(segments.items(), key=lambda pair: (-pair[1], pair[0]))),
        timed=sum(each.timestamp is not None for each in requests),
        characters=(round(median(prompts)), max(prompts)),
        answers=(round(median(answers)), max(answers)) if answers else None,
    )


def prompt_length(request: Request) -> int:
    """How many characters a prompt has without its template."""
    return len(request.prompt or "") + sum(map(_length, request.messages or ()))


def longer_prompts(rows: Mapping[int, int], drawn: int) -> LongerPrompts:
    """What a draw missed whose longest prompt has so many characters.

    Args:
        rows: of the source, by the characters of their prompts.
    """
    missed = sum(count for length, count in rows.items() if length > LONGER * drawn)
    return LongerPrompts(drawn=drawn, longest=max(rows), share=missed / sum(rows.values()))


def _length(said: str | Mapping[str, Any]) -> int:
    """How many characters an answer or a message has."""
    return len(said if isinstance(said, str) else said.get("content") or "")


def first_request(request: Request, rendered: str | None, *, shown: bool) -> FirstRequest:
    """The first request; of its text only the end, and only if it may be shown.

    Args:
        rendered: its prompt as the model reads it; None without a model.
    """
    roles = tuple(message["role"] for message in request.messages or ())
    last = request.messages[-1]["content"] if request.messages else request.prompt
    text = rendered if rendered is not None else last or ""
    return FirstRequest(roles=roles, end=text[-SHOWN:] if shown else None)
