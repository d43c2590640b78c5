"""A traffic source → the requests to measure.

A source is a file, a built-in suite (`suite:NAME`) or a data set
(`hf:DATASET[/CONFIG][:SPLIT][@REVISION]`). It is read twice: once to count, merge and choose by
hashes alone, once to keep the chosen requests, so that memory grows with the requests chosen and
not with the text of the source. How the target renders a request, and in how many tokens, is not
known here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from draftbench.errors import TrafficError
from draftbench.records import Request
from draftbench.traffic.forms import Fields, read_request
from draftbench.traffic.hub import on_hub, parse_dataset
from draftbench.traffic.problems import BadRowError, NotRepresentableError
from draftbench.traffic.readers import Row, read_rows
from draftbench.traffic.selection import Entry, choose
from draftbench.traffic.suites import Suite, find_suite, suites

__all__ = ["Suite", "Traffic", "TrafficQuery", "load", "suites"]

_BAD_ROWS_NAMED = 5


@dataclass(frozen=True)
class TrafficQuery:
    """What to read.

    `segment_by`, `prompt_field` and `response_field` are dotted paths (`None`: the usual places).
    `sample` requests are chosen by `seed` (all for `None`). `skip_bad` counts bad rows instead of
    stopping. `key` makes the hashes: the same key gives the same ids, and so the same sample.
    """

    source: str
    sample: int | None
    seed: int
    segment_by: str | None
    prompt_field: str | None
    response_field: str | None
    skip_bad: bool
    key: bytes

    @property
    def on_hub(self) -> bool:
        """Whether reading it asks the hub, and fetches what is not cached."""
        return self.source.startswith("hf:") and on_hub(self.source.removeprefix("hf:"))


@dataclass(frozen=True)
class Traffic:
    """The requests to measure, in the order of their first appearance, and the fate of all rows.

    `rows` = distinct requests (before sampling) + `merged` + the sum of `dropped` (reason → rows).
    `bad_rows` names the first few as "file:line: reason". `form` names the forms recognised.
    `digest` is a keyed hash over the ids and weights of all requests of the source, chosen or not,
    in any order. `revision` is the commit of a data set of the hub.
    """

    requests: tuple[Request, ...]
    rows: int
    merged: int
    dropped: Mapping[str, int]
    bad_rows: tuple[str, ...]
    form: str
    digest: str
    revision: str | None = None


@dataclass(frozen=True)
class _Source:
    """Where rows come from: `rows()` starts from the first row again each time."""

    name: str
    rows: Callable[[], Iterator[Row]]
    segment_by: str | None = None
    revision: str | None = None


@dataclass
class _Census:
    """What the first reading counts."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad_rows: list[str] = field(default_factory=list)
    forms: set[str] = field(default_factory=set)
    entries: dict[str, Entry] = field(default_factory=dict)

    def add(self, request: Request, number: int) -> None:
        """Count a request; if logged under several segments, under the first of them by name."""
        entry = self.entries.setdefault(request.id, Entry(number, 0.0, request.segment))
        entry.weight += request.weight
        if request.segment is not None:
            entry.segment = min(entry.segment or request.segment, request.segment)


def load(query: TrafficQuery) -> Traffic:
    """Read a source, merge exact duplicates and choose the sample.

    Raises:
        TrafficError: the source cannot be found or read, holds a bad row (unless `skip_bad`) or no
        request that can be used.
    """
    if query.sample is not None and query.sample < 1:
        raise TrafficError("a sample of no requests", hint="give --sample 1 or more")
    source = _find(query.source)
    fields = Fields(query.prompt_field, query.response_field, query.segment_by or source.segment_by)
    census = _count(source, fields, query)
    weights = choose(census.entries, query.sample, query.seed)
    requests = _collect(source, fields, query.key, census.entries, weights)
    if query.response_field and not any(request.response for request in requests):
        raise TrafficError(
            f"no chosen request has a response under `{query.response_field}`",
            hint="check --response-field",
        )
    good = census.rows - census.dropped.total()
    return Traffic(
        requests=requests,
        rows=census.rows,
        merged=good - len(census.entries),
        dropped=dict(census.dropped),
        bad_rows=tuple(census.bad_rows),
        form=", ".join(sorted(census.forms)),
        digest=_digest(census.entries, query.key),
        revision=source.revision,
    )


def _find(text: str) -> _Source:
    if text.startswith("suite:"):
        suite, path = find_suite(text.removeprefix("suite:"))
        return _Source(path.name, lambda: read_rows(path), suite.segment_by)
    if text.startswith("hf:"):
        dataset = parse_dataset(text.removeprefix("hf:"))
        return _Source(dataset.name, dataset.rows, revision=dataset.commit)
    path = Path(text)
    return _Source(path.name, lambda: read_rows(path))


def _count(source: _Source, fields: Fields, query: TrafficQuery) -> _Census:
    census = _Census()
    for row in source.rows():
        census.rows += 1
        where = f"{source.name}:{row.number}"
        try:
            form, request = read_request(row.data, where, fields, query.key)
        except NotRepresentableError as error:
            census.dropped[f"not representable: {error}"] += 1
        except BadRowError as error:
            if not query.skip_bad:
                raise TrafficError(f"{where}: {error}", hint=error.hint) from None
            census.dropped["bad row"] += 1
            if len(census.bad_rows) < _BAD_ROWS_NAMED:
                census.bad_rows.append(f"{where}: {error}")
        else:
            census.forms.add(form)
            census.add(request, row.number)
    _check(census, source, fields)
    return census


def _check(census: _Census, source: _Source, fields: Fields) -> None:
    if not census.rows:
        raise TrafficError(
            f"`{source.name}` holds no rows", hint="give a source with at least one request"
        )
    if not census.entries:
        counts = ", ".join(f"{reason} ({count})" for reason, count in census.dropped.items())
        first = f"; {census.bad_rows[0]}" if census.bad_rows else ""
        raise TrafficError(
            f"no row of `{source.name}` can be used: {counts}{first}",
            hint="see which fields the requests set, or name the prompt with --prompt-field",
        )
    if fields.segment and all(entry.segment is None for entry in census.entries.values()):
        raise TrafficError(
            f"no row has a segment under `{fields.segment}`", hint="check --segment-by"
        )


def _collect(
    source: _Source,
    fields: Fields,
    key: bytes,
    entries: Mapping[str, Entry],
    weights: Mapping[str, float],
) -> tuple[Request, ...]:
    """Read the chosen requests; rows that were not chosen are not even parsed."""
    chosen = {entries[name].number: name for name in weights}
    changed = TrafficError(f"`{source.name}` changed while it was read", hint="run again")
    requests: list[Request] = []
    for row in source.rows():
        name = chosen.get(row.number)
        if name is None:
            continue
        try:
            _, request = read_request(row.data, f"{source.name}:{row.number}", fields, key)
        except (BadRowError, NotRepresentableError) as error:
            raise changed from error
        if request.id != name:
            raise changed
        segment = entries[name].segment
        requests.append(msgspec.structs.replace(request, weight=weights[name], segment=segment))
        if len(requests) == len(chosen):
            return tuple(requests)
    raise changed


def _digest(entries: Mapping[str, Entry], key: bytes) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for name in sorted(entries):
        digest.update(f"{name} {entries[name].weight!r}\n".encode())
    return digest.hexdigest()
