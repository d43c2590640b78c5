"""Reads a traffic source once: counts its rows, merges duplicates and chooses the sample.

A source is a file, a built-in suite (`suite:NAME`) or a data set
(`hf:DATASET[/CONFIG][:SPLIT][@REVISION]`).

The sample is stratified by segment. Each segment gets requests in proportion to its rows in the log
(by largest remainder; at least one while the sample has room, never more than it has). Within a
segment the requests with the lowest hash of seed and id are chosen, so that neither the order of
rows nor other segments matter. The weights of the chosen requests are scaled so that every sampled
segment has the same weight as in the log.

While a source is read, only the requests with the lowest hashes of each segment are kept, so that
memory does not grow with its text. A request that is logged under several segments belongs to that
of its first row.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from draftbench.errors import TrafficError, did_you_mean
from draftbench.flags import in_traffic
from draftbench.records import Request
from draftbench.traffic.datasets import parse_dataset
from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    readable_names,
    seen_in,
)
from draftbench.traffic.files import first_look, read_rows
from draftbench.traffic.rows import Fields, read_request
from draftbench.traffic.suites import find_suite
from draftbench.traffic.summary import BadRows, TrafficSummary, request_figures

_BAD, _STRUCTURED = "bad row", "structured output"
# What to do if no row can be used, by how the most frequent reason begins.
_HINTS = {
    _STRUCTURED: "measure them on an engine that applies it, with --engine or --server",
    "cut by": "set the logger to keep texts whole: what it cut cannot be put back",
    "redacted by": "set the logger to keep texts: what it redacted cannot be put back",
    "the call failed": "give rows of calls that were answered",
}
_REASONS_NAMED = 5
# Most names of unread fields that are counted: a log can have a new one in each row.
_FIELDS_COUNTED = 1000
# After this many rows without a single request, the rest is not read.
_HOPELESS = 1000


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
        return self.source.startswith("hf:")


@dataclass(frozen=True)
class Traffic:
    """The requests to measure, in the order of their first rows, and what was read of the source:
    its rows are these requests, those that were not drawn, `merged`, `left_out` and `bad`.
    """

    requests: tuple[Request, ...]
    summary: TrafficSummary
    bad: int  # rows that cannot be read
    digest: str  # keyed hash of ids and weights of all requests, chosen or not, in any order
    revision: str | None = None  # commit of a data set of the hub


@dataclass(slots=True)
class Entry:
    """A distinct request."""

    weight: float  # the rows that it stands for
    segment: str | None


def load(query: TrafficQuery) -> Traffic:
    """Read a source, merge exact duplicates and choose the sample.

    Raises:
        TrafficError: the source cannot be found or read, or holds a bad row (unless `skip_bad`) or
            no request that can be used.
    """
    if query.sample is not None and query.sample < 1:
        raise TrafficError("--sample must be at least 1", hint="give --sample 1 or more")
    segment_by, revision, layout, misnamed = query.segment_by, None, tuple[str, ...](), None
    kind, _, rest = query.source.partition(":")
    if kind == "suite":
        suite, path = find_suite(rest)
        name, raw_rows, segment_by = path.name, read_rows(path), segment_by or suite.segment_by
    elif kind == "hf":
        dataset = parse_dataset(rest)
        name, raw_rows, revision = dataset.name, dataset.rows(), dataset.commit
    else:
        path = Path(query.source)
        layout, misnamed = first_look(path)
        name, raw_rows = path.name, read_rows(path)
    fields = Fields(query.prompt_field, query.response_field, segment_by, query.as_chat)

    rows = several = 0
    dropped, forms, assumed = Counter[str](), Counter[str](), Counter[float]()
    bad: dict[str, BadRows] = {}
    unread, sizes = Counter[str](), dict[str, int]()  # fields: their rows, their first values
    columns: dict[str, None] = {}  # of the first row
    entries: dict[str, Entry] = {}  # all distinct requests, in the order of their first rows
    # The requests that may be chosen: those of the lowest ranks in each segment.
    kept: defaultdict[str | None, list[tuple[int, Request]]] = defaultdict(list)
    for row in raw_rows:
        rows += 1
        where = f"{name}:{row.number}"
        try:
            read = read_request(row.data, where, fields, query.key)
        except NotRepresentableError as error:
            dropped[f"not representable: {error}"] += 1
            continue
        except NoTrafficError as error:
            dropped[str(error)] += 1
            continue
        except BadRowError as error:
            dropped[_BAD] += 1
            # The same reason in another message or column is still the same reason.
            alike = re.sub(r"\d+", "", str(error))
            if (known := bad.get(alike)) is not None:
                bad[alike] = msgspec.structs.replace(known, rows=known.rows + 1)
            elif len(bad) < _REASONS_NAMED:
                bad[alike] = BadRows(reason=str(error), first=where, rows=1, hint=error.hint)
            if dropped[_BAD] == rows == _HOPELESS:
                break
            continue
        request = read.request
        forms[read.form] += 1
        for field in readable_names(read.unread):
            if field in sizes or len(sizes) < _FIELDS_COUNTED:
                unread[field] += 1
                sizes.setdefault(field, len(str(read.unread[field] or "")))
        columns = columns or dict.fromkeys(readable_names(read.columns))
        if request.constraint is not None and not request.constraint.keys() <= query.constraints:
            lacks = "this engine does not apply" if query.constraints else "only an engine applies"
            dropped[f"{_STRUCTURED} ({next(iter(request.constraint))}), which {lacks}"] += 1
            continue
        assumed[request.sampling.temperature] += read.assumed
        several += request.weight > 1
        if (entry := entries.get(request.id)) is None:
            entry = entries[request.id] = Entry(0.0, request.segment)
            heap = kept[request.segment]
            heapq.heappush(heap, (-_rank(query.seed, request.id), request))
            if query.sample is not None and len(heap) > query.sample:
                heapq.heappop(heap)
        entry.weight += request.weight

    bad_rows = tuple(bad.values())
    if bad_rows and (not query.skip_bad or dropped[_BAD] == rows):
        raise _unusable(bad_rows, dropped[_BAD], rows, layout, misnamed)
    if not rows:
        raise TrafficError(
            f"`{name}` holds no rows", hint=misnamed or "give a source with at least one request"
        )
    if not entries:
        counts = ", ".join(f"{reason} ({count})" for reason, count in dropped.items())
        often = max(dropped, key=lambda reason: dropped[reason])
        first = "".join(f"; {each.first}: {each.reason}" for each in bad_rows[:1])
        raise TrafficError(
            f"no row of `{name}` can be used: {counts}{first}",
            hint=next(
                (hint for begin, hint in _HINTS.items() if often.startswith(begin)),
                "docs/logs.md has a row of each kind that can; `draftbench suites` lists others",
            ),
        )
    if segment_by and all(entry.segment is None for entry in entries.values()):
        raise _nothing_under("--segment-by", "row has a segment", segment_by, columns)
    weights = choose(entries, query.sample, query.seed)
    texts = {request.id: request for heap in kept.values() for _, request in heap}
    requests = tuple(
        msgspec.structs.replace(texts[name], weight=weight) for name, weight in weights.items()
    )
    if query.response_field and not any(request.response for request in requests):
        what = "chosen request has a response"
        raise _nothing_under("--response-field", what, query.response_field, columns)
    digest = hmac.new(query.key, digestmod=hashlib.sha256)
    for name in sorted(entries):
        digest.update(f"{name} {entries[name].weight!r}\n".encode())
    summary = TrafficSummary(
        source=query.source,
        layout=layout,
        rows=rows,
        requests=len(requests),
        merged=rows - dropped.total() - len(entries),
        several=several,
        forms=dict(forms),
        unread={field: unread[field] for field in sorted(unread, key=lambda f: (-sizes[f], f))},
        left_out={reason: dropped[reason] for reason in dropped if reason != _BAD},
        bad_rows=bad_rows,
        assumed={f"{temperature:g}": count for temperature, count in (+assumed).items()},
        constrained=sum(request.constraint is not None for request in requests),
        chats=sum(request.messages is not None for request in requests),
        figures=request_figures(requests),
    )
    return Traffic(requests, summary, dropped[_BAD], digest.hexdigest(), revision)


def _unusable(
    bad: Sequence[BadRows], rows: int, read: int, layout: Sequence[str], misnamed: str | None
) -> TrafficError:
    """The error for rows that cannot be read, so many of those that were read: the first row for
    each reason.
    """
    named = "; ".join(
        f"{each.first}: {each.reason}" + f" ({each.rows} such rows)" * (each.rows > 1)
        for each in bad
    )
    counted = f"{rows} of {read} rows cannot be read: " if rows > 1 else ""
    guessed = f"; read as {', '.join(layout)}" if layout and rows == read else ""
    hint = bad[0].hint
    if hint == BadRowError.hint and misnamed:
        hint = misnamed
    elif bad[0].reason == "not UTF-8":
        hint = "save the file as UTF-8, or skip and count such rows with --skip-bad"
    elif hint == BadRowError.hint and rows == read:
        hint = "docs/logs.md has a row of each kind that can be read"
        if rows == 1:
            hint = "fix it: it is the only row"
    elif hint == BadRowError.hint and rows > 1:
        hint = "fix them, or skip and count them with --skip-bad"
    return TrafficError(f"{counted}{named}{guessed}", hint=hint)


def _nothing_under(flag: str, what: str, path: str, columns: Collection[str]) -> TrafficError:
    return TrafficError(
        f"no {what} under `{path}`; {seen_in(columns)}",
        hint=did_you_mean(path, columns, f"name a field that the rows have, or leave {flag} out"),
    )


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
