"""Reads a traffic source once: counts its rows, merges duplicates and chooses the sample.

A source is a file, a built-in suite (`suite:NAME`) or a data set
(`hf:DATASET[/CONFIG][:SPLIT][@REVISION]`).

The sample is stratified by segment. Each segment gets requests in proportion to its rows in the log
(by largest remainder; at least one while the sample has room, never more than it has). Within a
segment the requests with the lowest hash of seed and id are chosen, so that neither the order of
rows nor other segments matter. The weights of the chosen requests are scaled so that every sampled
segment has the same weight as in the log.

While a source is read, only the requests with the lowest hashes are kept, so that memory does not
grow with its text.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from draftbench.errors import TrafficError, did_you_mean
from draftbench.flags import in_traffic
from draftbench.records import Request
from draftbench.traffic.datasets import on_hub, parse_dataset
from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    readable_names,
    seen_in,
)
from draftbench.traffic.files import Row, layout_of, misnamed, read_rows
from draftbench.traffic.rows import Fields, read_request
from draftbench.traffic.suites import find_suite
from draftbench.traffic.summary import BadRows, TrafficSummary, Unread, request_figures

_BAD, _STRUCTURED = "bad row", "structured output"
# What to do if no row can be used, by how the most frequent reason begins.
_HINTS = {
    _STRUCTURED: "measure them on an engine that applies it, with --engine or --server",
    "cut by": "set the logger to keep texts whole: what it cut cannot be put back",
    "redacted by": "set the logger to keep texts: what it redacted cannot be put back",
    "the call failed": "give rows of calls that were answered",
}
_NAME_A_FIELD = "name a field that the rows have, or leave {} out"
_IN_UTF_8 = "save the file as UTF-8, or skip and count such rows with --skip-bad"
_REASONS_NAMED = 5
# After this many rows without a single request, the rest is not read.
_HOPELESS = 1000
# While a source with many segments is read, this many times the sample is kept.
_SHORTLISTED = 20


@dataclass(frozen=True)
class TrafficQuery:
    """Which traffic to read, and how. Fields are dotted paths; None: the usual places."""

    source: str
    key: bytes  # of the keyed hashes: the same key gives the same ids, and so the same sample
    sample: int | None = None  # how many requests are chosen; None: all
    seed: int = 0  # of the sample
    segment_by: str | None = in_traffic(None, "The field of a row that names its segment.", "FIELD")
    prompt_field: str | None = in_traffic(
        None, "The field of a row that holds the prompt.", "FIELD"
    )
    response_field: str | None = in_traffic(
        None, "The field of a row that holds the logged answer.", "FIELD"
    )
    as_chat: bool = in_traffic(
        False, "Treat a plain prompt as a user's message, as vLLM's custom data sets do."
    )
    skip_bad: bool = in_traffic(
        False, "Skip and count rows that cannot be read, instead of stopping at the first."
    )
    # The kinds of structured output that can be decoded; rows with others are left out.
    constraints: frozenset[str] = frozenset()

    @property
    def on_hub(self) -> bool:
        """Whether the source is a data set on the hub, which is downloaded unless it is cached."""
        return self.source.startswith("hf:") and on_hub(self.source.removeprefix("hf:"))


@dataclass(frozen=True)
class Traffic:
    """The requests to measure, in the order of their first rows, and what happened to all rows:
    `rows` = distinct requests before sampling + `merged` + the sum of `dropped`.
    """

    requests: tuple[Request, ...]
    rows: int
    merged: int  # rows that repeat a request
    dropped: Mapping[str, int]  # rows that were left out, by reason
    bad_rows: tuple[BadRows, ...]  # those counted as bad in `dropped`, by reason
    forms: Mapping[str, int]  # rows by the form that was recognised
    unread: Mapping[str, int]  # rows by the field that was not read, the longest first
    layout: tuple[str, ...]  # what was guessed of the file: its encoding, its separator
    digest: str  # keyed hash of ids and weights of all requests, chosen or not, in any order
    revision: str | None = None  # commit of a data set of the hub
    # How many rows name no temperature, by the one that is assumed for them.
    assumed: Mapping[float, int] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """The forms that were recognised."""
        return ", ".join(sorted(self.forms))

    def summary(self, source: str) -> TrafficSummary:
        """What was read, and what was not, from the source with this name."""
        return TrafficSummary(
            source=source,
            layout=self.layout,
            rows=self.rows,
            requests=len(self.requests),
            merged=self.merged,
            forms=dict(self.forms),
            unread=dict(self.unread),
            left_out={reason: self.dropped[reason] for reason in self.dropped if reason != _BAD},
            bad_rows=self.bad_rows,
            assumed={f"{temperature:g}": rows for temperature, rows in self.assumed.items()},
            constrained=sum(request.constraint is not None for request in self.requests),
            figures=request_figures(self.requests),
        )


@dataclass(slots=True)
class Entry:
    """A distinct request."""

    weight: float  # the rows that it stands for
    segment: str | None


@dataclass(frozen=True)
class _Source:
    name: str
    rows: Callable[[], Iterator[Row]]
    segment_by: str | None = None
    revision: str | None = None
    layout: tuple[str, ...] = ()
    misnamed: str | None = None  # what helps with a file of another kind than its name says


@dataclass
class _Census:
    """The counts of one reading, and all distinct requests in the order of their first rows."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad: dict[str, BadRows] = field(default_factory=dict)
    forms: Counter[str] = field(default_factory=Counter)
    unread: Unread = field(default_factory=Unread)
    columns: dict[str, None] = field(default_factory=dict)  # of the first row
    assumed: Counter[float] = field(default_factory=Counter)
    entries: dict[str, Entry] = field(default_factory=dict)


class _Shortlist:
    """The requests that may still be chosen while a source is read: in each segment those with the
    lowest ranks, as many as the sample has; at most `_SHORTLISTED` times the sample in all.
    """

    def __init__(self, sample: int | None, seed: int) -> None:
        self.sample, self.seed = sample, seed
        self.segments: defaultdict[str | None, list[tuple[int, Request]]] = defaultdict(list)
        self.count = 0

    def offer(self, request: Request) -> None:
        """Add a distinct request; if there are too many, drop the highest rank in its segment."""
        heap = self.segments[request.segment]
        heapq.heappush(heap, (-_rank(self.seed, request.id), request))
        self.count += 1
        if self.sample is None:
            return
        most = _SHORTLISTED * self.sample
        share = most // len(self.segments)
        while len(heap) > self.sample or (self.count > most and len(heap) > share):
            heapq.heappop(heap)
            self.count -= 1


def load(query: TrafficQuery) -> Traffic:
    """Read a source, merge exact duplicates and choose the sample.

    Raises:
        TrafficError: the source cannot be found or read, or holds a bad row (unless `skip_bad`) or
            no request that can be used.
    """
    if query.sample is not None and query.sample < 1:
        raise TrafficError("--sample must be at least 1", hint="give --sample 1 or more")
    source = _find(query.source)
    segment_by = query.segment_by or source.segment_by
    fields = Fields(query.prompt_field, query.response_field, segment_by, query.as_chat)
    shortlist = _Shortlist(query.sample, query.seed)
    census = _read(source, fields, query, shortlist.offer)
    entries = census.entries
    if not census.rows:
        raise TrafficError(
            f"`{source.name}` holds no rows", hint="give a source with at least one request"
        )
    if not entries:
        counts = ", ".join(f"{reason} ({count})" for reason, count in census.dropped.items())
        often = max(census.dropped, key=lambda reason: census.dropped[reason])
        first = [f"; {bad.first}: {bad.reason}" for bad in census.bad.values()][:1]
        raise TrafficError(
            f"no row of `{source.name}` can be used: {counts}{''.join(first)}",
            hint=next(
                (hint for begin, hint in _HINTS.items() if often.startswith(begin)),
                "docs/logs.md has a row of each kind that can; `draftbench suites` lists others",
            ),
        )
    if fields.segment and all(entry.segment is None for entry in entries.values()):
        raise TrafficError(
            f"no row has a segment under `{fields.segment}`; {seen_in(census.columns)}",
            hint=did_you_mean(
                str(fields.segment), census.columns, _NAME_A_FIELD.format("--segment-by")
            ),
        )
    weights = choose(entries, query.sample, query.seed)
    texts = {request.id: request for heap in shortlist.segments.values() for _, request in heap}
    # With duplicates under several segments, or very many segments, a dropped request may be
    # chosen. Only then is the source read again.
    if missing := weights.keys() - texts.keys():

        def keep(request: Request) -> None:
            if request.id in missing:
                texts[request.id] = request

        _read(source, fields, query, keep)
        if missing - texts.keys():
            raise TrafficError(f"`{source.name}` changed while it was read", hint="run again")
    requests = tuple(
        msgspec.structs.replace(texts[name], weight=weight, segment=entries[name].segment)
        for name, weight in weights.items()
    )
    if query.response_field and not any(request.response for request in requests):
        raise TrafficError(
            f"no chosen request has a response under `{query.response_field}`; "
            f"{seen_in(census.columns)}",
            hint=did_you_mean(
                query.response_field, census.columns, _NAME_A_FIELD.format("--response-field")
            ),
        )
    digest = hmac.new(query.key, digestmod=hashlib.sha256)
    for name in sorted(entries):
        digest.update(f"{name} {entries[name].weight!r}\n".encode())
    return Traffic(
        requests=requests,
        rows=census.rows,
        merged=census.rows - census.dropped.total() - len(entries),
        dropped=dict(census.dropped),
        bad_rows=tuple(census.bad.values()),
        forms=dict(census.forms),
        unread=census.unread.longest_first(),
        layout=source.layout,
        digest=digest.hexdigest(),
        revision=source.revision,
        assumed=+census.assumed,
    )


def _find(text: str) -> _Source:
    kind, _, name = text.partition(":")
    if kind == "suite":
        suite, path = find_suite(name)
        return _Source(path.name, lambda: read_rows(path), suite.segment_by)
    if kind == "hf":
        dataset = parse_dataset(name)
        return _Source(dataset.name, dataset.rows, revision=dataset.commit)
    path = Path(text)
    return _Source(
        path.name, lambda: read_rows(path), layout=layout_of(path), misnamed=misnamed(path)
    )


def _read(
    source: _Source, fields: Fields, query: TrafficQuery, offer: Callable[[Request], object]
) -> _Census:
    """Count a source's rows, and `offer` every distinct request when its first row is read."""
    census = _Census()
    for row in source.rows():
        census.rows += 1
        where = f"{source.name}:{row.number}"
        try:
            read = read_request(row.data, where, fields, query.key)
        except NotRepresentableError as error:
            census.dropped[f"not representable: {error}"] += 1
            continue
        except NoTrafficError as error:
            census.dropped[str(error)] += 1
            continue
        except BadRowError as error:
            census.dropped[_BAD] += 1
            # The same reason in another message or column is still the same reason.
            alike = re.sub(r"\d+", "", str(error))
            if (bad := census.bad.get(alike)) is not None:
                census.bad[alike] = msgspec.structs.replace(bad, rows=bad.rows + 1)
            elif len(census.bad) < _REASONS_NAMED:
                census.bad[alike] = BadRows(reason=str(error), first=where, rows=1, hint=error.hint)
            if census.dropped[_BAD] == census.rows == _HOPELESS:
                break
            continue
        request = read.request
        census.forms[read.form] += 1
        census.unread.count(read.unread)
        census.columns = census.columns or dict.fromkeys(readable_names(read.columns))
        if request.constraint is not None and not request.constraint.keys() <= query.constraints:
            kind = next(iter(request.constraint))
            lacks = "which this engine does not apply"
            if not query.constraints:
                lacks = "which only an engine applies"
            census.dropped[f"{_STRUCTURED} ({kind}), {lacks}"] += 1
            continue
        census.assumed[request.sampling.temperature] += read.assumed
        if (entry := census.entries.get(request.id)) is None:
            entry = census.entries[request.id] = Entry(0.0, request.segment)
            offer(request)
        entry.weight += request.weight
        if request.segment is not None:  # of several segments the first by name
            entry.segment = min(entry.segment or request.segment, request.segment)
    if census.bad and (not query.skip_bad or census.dropped[_BAD] == census.rows):
        raise _unusable(census, source)
    return census


def _unusable(census: _Census, source: _Source) -> TrafficError:
    """The error for rows that cannot be read: the first row for each reason."""
    bad = list(census.bad.values())
    rows, read = census.dropped[_BAD], census.rows
    named = "; ".join(
        f"{each.first}: {each.reason}" + f" ({each.rows} such rows)" * (each.rows > 1)
        for each in bad
    )
    counted = f"{rows} of {read} rows cannot be read: " if rows > 1 else ""
    guessed = f"; read as {', '.join(source.layout)}" if source.layout and rows == read else ""
    hint = bad[0].hint
    if hint == BadRowError.hint and source.misnamed:
        hint = source.misnamed
    elif bad[0].reason == "not UTF-8":
        hint = _IN_UTF_8
    elif hint == BadRowError.hint and rows == read:
        hint = "docs/logs.md has a row of each kind that can be read"
        if rows == 1:
            hint = "fix it: it is the only row"
    elif hint == BadRowError.hint and rows > 1:
        hint = "fix them, or skip and count them with --skip-bad"
    return TrafficError(f"{counted}{named}{guessed}", hint=hint)


def choose(entries: Mapping[str, Entry], sample: int | None, seed: int) -> dict[str, float]:
    """Choose `sample` requests (`None`: all) as id → weight, in the order of `entries`."""
    if sample is None or sample >= len(entries):
        return {name: entry.weight for name, entry in entries.items()}
    segments: defaultdict[str | None, list[str]] = defaultdict(list)
    totals: defaultdict[str | None, float] = defaultdict(float)
    for name, entry in entries.items():
        segments[entry.segment].append(name)
        totals[entry.segment] += entry.weight
    counts = allocate(totals, {segment: len(names) for segment, names in segments.items()}, sample)
    weights = {}
    for segment, names in segments.items():
        chosen = heapq.nsmallest(counts[segment], names, key=lambda name: _rank(seed, name))
        covered = sum(entries[name].weight for name in chosen)
        weights.update({name: entries[name].weight * totals[segment] / covered for name in chosen})
    return {name: weights[name] for name in entries if name in weights}


def allocate(
    totals: Mapping[str | None, float], sizes: Mapping[str | None, int], sample: int
) -> dict[str | None, int]:
    """Divide `sample` requests, fewer than there are, among segments of `totals` rows and `sizes`
    distinct requests.

    A segment's quota is its total times one factor for all, but at least 1 and at most its size. If
    there are more segments than requests, the largest get one each.
    """
    order = sorted(totals, key=lambda segment: (-totals[segment], segment is None, segment or ""))
    if sample <= len(order):
        return {segment: int(place < sample) for place, segment in enumerate(order)}

    def quotas(factor: float) -> dict[str | None, float]:
        return {name: min(max(factor * totals[name], 1.0), sizes[name]) for name in order}

    low, high = 0.0, max(sizes[segment] / totals[segment] for segment in order)
    for _ in range(100):
        middle = (low + high) / 2
        if math.fsum(quotas(middle).values()) <= sample:
            low = middle
        else:
            high = middle
    shares = quotas(low)
    counts = {segment: math.floor(share + 1e-9) for segment, share in shares.items()}
    by_remainder = sorted(order, key=lambda segment: counts[segment] - shares[segment])
    for segment in by_remainder[: sample - sum(counts.values())]:
        counts[segment] += 1
    return counts


def _rank(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest())
