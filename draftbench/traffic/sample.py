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
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from draftbench.errors import TrafficError, did_you_mean
from draftbench.records import Request
from draftbench.traffic.datasets import parse_dataset
from draftbench.traffic.errors import (
    BadRowError,
    NoTrafficError,
    NotRepresentableError,
    readable_names,
    seen_in,
)
from draftbench.traffic.files import Row, first_look, read_rows
from draftbench.traffic.query import TrafficQuery
from draftbench.traffic.rows import ReadRow, read_request
from draftbench.traffic.suites import find_suite
from draftbench.traffic.summary import (
    BadRows,
    TrafficSummary,
    longer_prompts,
    prompt_length,
    request_figures,
)

_BAD, _STRUCTURED = "bad row", "structured output"
# What to do if no row can be used, by how the most frequent reason begins.
_HINTS = {
    _STRUCTURED: "measure them on an engine that applies it, with --engine or --server",
    "cut by": "set the logger to keep texts whole: what it cut cannot be put back",
    "redacted by": "set the logger to keep texts: what it redacted cannot be put back",
    "the call failed": "give rows of calls that were answered",
}
_REASONS_NAMED = 5
# Most names of unread fields, and of models, that are counted: a log can have new ones in each row.
_FIELDS_COUNTED = 1000
# After this many rows without a single request, the rest is not read.
_HOPELESS = 1000


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


class _Reading:
    """What was read of a source so far."""

    def __init__(self, query: TrafficQuery, name: str) -> None:
        self.query, self.name = query, name
        self.rows = self.several = 0
        self.dropped, self.forms = Counter[str](), Counter[str]()  # rows by reason, by form
        self.answered, self.models, self.places = 0, Counter[str](), Counter[str]()
        self.assumed = Counter[float]()  # rows without a temperature, by the one that is assumed
        self.bad: dict[str, BadRows] = {}
        self.unread, self.sizes = Counter[str](), dict[str, int]()  # rows, size of the first value
        self.columns: dict[str, None] = {}  # of the first row
        self.lengths = Counter[int]()  # rows by the characters of their prompts
        self.entries: dict[str, Entry] = {}  # all distinct requests, in the order of first rows
        # The requests that may be chosen: those of the lowest ranks in each segment.
        self.kept: defaultdict[str | None, list[tuple[int, Request]]] = defaultdict(list)

    def take(self, row: Row) -> None:
        self.rows += 1
        where = f"{self.name}:{row.number}"
        try:
            read = read_request(row.data, where, self.query)
        except NotRepresentableError as error:
            self.dropped[f"not representable: {error}"] += 1
        except NoTrafficError as error:
            self.dropped[str(error)] += 1
        except BadRowError as error:
            self.dropped[_BAD] += 1
            # The same reason in another message or column is still the same reason.
            alike = re.sub(r"\d+", "", str(error))
            if (known := self.bad.get(alike)) is not None:
                self.bad[alike] = msgspec.structs.replace(known, rows=known.rows + 1)
            elif len(self.bad) < _REASONS_NAMED:
                self.bad[alike] = BadRows(reason=str(error), first=where, rows=1, hint=error.hint)
        else:
            self._add(read)

    def _add(self, read: ReadRow) -> None:
        request, query = read.request, self.query
        self.forms[read.form] += 1
        for field in readable_names(read.unread):
            if field in self.sizes or len(self.sizes) < _FIELDS_COUNTED:
                self.unread[field] += 1
                self.sizes.setdefault(field, len(str(read.unread[field] or "")))
        self.columns = self.columns or dict.fromkeys(readable_names(read.columns))
        if request.constraint is not None and not request.constraint.keys() <= query.constraints:
            lacks = "this engine does not apply" if query.constraints else "only an engine applies"
            self.dropped[f"{_STRUCTURED} ({next(iter(request.constraint))}), which {lacks}"] += 1
            return
        self.assumed[request.sampling.temperature] += read.assumed
        self.answered += request.response is not None
        if read.model and (read.model[1] in self.models or len(self.models) < _FIELDS_COUNTED):
            self.places[read.model[0]] += 1
            self.models[read.model[1]] += 1
        self.several += request.weight > 1
        self.lengths[prompt_length(request)] += 1
        if (entry := self.entries.get(request.id)) is None:
            entry = self.entries[request.id] = Entry(0.0, request.segment)
            heap = self.kept[request.segment]
            heapq.heappush(heap, (-rank(query.seed, request.id), request))
            if query.sample is not None and len(heap) > query.sample:
                heapq.heappop(heap)
        entry.weight += request.weight


def load(query: TrafficQuery) -> Traffic:
    """Read a source, merge exact duplicates and choose the sample.

    Raises:
        TrafficError: the source cannot be found or read, or holds a bad row (unless `skip_bad`) or
            no request that can be used.
    """
    if query.sample is not None and query.sample < 1:
        raise TrafficError("--sample must be at least 1", hint="give --sample 1 or more")
    revision, layout, misnamed = None, tuple[str, ...](), None
    kind, _, rest = query.source.partition(":")
    if kind == "suite":
        suite, path = find_suite(rest)
        name, raw_rows = path.name, read_rows(path)
        query = replace(query, segment_by=query.segment_by or suite.segment_by)
    elif kind == "hf":
        dataset = parse_dataset(rest)
        name, raw_rows, revision = dataset.name, dataset.rows(), dataset.commit
    else:
        path = Path(query.source)
        layout, misnamed = first_look(path)
        name, raw_rows = path.name, read_rows(path)

    read = _Reading(query, name)
    for row in raw_rows:
        read.take(row)
        if read.dropped[_BAD] == read.rows == _HOPELESS:
            break

    dropped, entries, bad_rows = read.dropped, read.entries, tuple(read.bad.values())
    if bad_rows and (not query.skip_bad or dropped[_BAD] == read.rows):
        raise _unusable(bad_rows, dropped[_BAD], read.rows, layout, misnamed)
    if not read.rows:
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
                "docs/logs.md has a row of each kind that can; `draftbench traffic` lists others",
            ),
        )
    if query.segment_by and all(entry.segment is None for entry in entries.values()):
        raise _nothing_under("--segment-by", "row has a segment", query.segment_by, read.columns)
    requests = choose(entries, read.kept, query.sample)
    if query.response_field and not any(request.response for request in requests):
        what = "chosen request has a response"
        raise _nothing_under("--response-field", what, query.response_field, read.columns)
    digest = hmac.new(query.key, digestmod=hashlib.sha256)
    for name in sorted(entries):
        digest.update(f"{name} {entries[name].weight!r}\n".encode())
    summary = TrafficSummary(
        source=query.source,
        layout=layout,
        rows=read.rows,
        requests=len(requests),
        merged=read.rows - dropped.total() - len(entries),
        answered=read.answered,
        models=dict(sorted(read.models.items(), key=lambda item: (-item[1], item[0]))),
        model_field=next((place for place, _ in read.places.most_common(1)), None),
        several=read.several,
        forms=dict(read.forms),
        unread=dict(sorted(read.unread.items(), key=lambda item: (-read.sizes[item[0]], item[0]))),
        left_out={reason: dropped[reason] for reason in dropped if reason != _BAD},
        bad_rows=bad_rows,
        assumed={f"{temperature:g}": count for temperature, count in (+read.assumed).items()},
        constrained=sum(request.constraint is not None for request in requests),
        chats=sum(request.messages is not None for request in requests),
        figures=(figures := request_figures(requests)),
        longer=longer_prompts(read.lengths, figures.characters[1]),
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


def choose(
    entries: Mapping[str, Entry],
    kept: Mapping[str | None, Sequence[tuple[int, Request]]],
    sample: int | None,
) -> tuple[Request, ...]:
    """Choose `sample` requests (`None`: all) with their weights, in the order of `entries`.

    Args:
        kept: each segment's requests of the lowest ranks, `sample` or more, behind minus the rank.
    """
    sizes = Counter(entry.segment for entry in entries.values())
    totals: defaultdict[str | None, float] = defaultdict(float)
    for entry in entries.values():
        totals[entry.segment] += entry.weight
    counts: Mapping[str | None, int] = sizes
    if sample is not None and sample < len(entries):
        counts = allocate(totals, sizes, sample)
    chosen = {}
    for segment, ranked in kept.items():
        requests = [request for _, request in heapq.nlargest(counts[segment], ranked)]
        covered = sum(entries[request.id].weight for request in requests)
        for request in requests:
            weight = entries[request.id].weight * totals[segment] / covered
            chosen[request.id] = msgspec.structs.replace(request, weight=weight)
    return tuple(chosen[name] for name in entries if name in chosen)


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


def rank(seed: int, name: str) -> int:
    """The place of a request among all that a seed orders: the lowest are chosen."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest())
