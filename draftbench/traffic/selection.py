"""The requests of a source, by id → which of them to measure, and how many rows of the log each
stands for.

A sample is stratified by segment. Each segment gets its share of the sample by the rows it has in
the log (largest remainder; at least one request while the sample has room, never more than it has).
Inside a segment the requests come by the rank of a hash of seed and id, so that neither the order
of the rows nor the other segments decide. The chosen weights keep their proportions and are scaled
to their segment's total, so that every sampled segment weighs what it weighs in the log.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Entry:
    """A distinct request: the number of the row that first asked it, the rows it stands for, and
    its segment."""

    number: int
    weight: float
    segment: str | None


def choose(entries: Mapping[str, Entry], sample: int | None, seed: int) -> dict[str, float]:
    """Choose `sample` requests (all for `None`); return their ids, in the order of `entries`, with
    their weights."""
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
    """Share `sample` requests out among segments of `totals` rows and `sizes` distinct requests
    (fewer than `sizes` in all).

    The quota of a segment is its total times one factor for all, held between 1 and its size. If
    there are more segments than requests, the heaviest get one each.
    """
    order = sorted(totals, key=lambda segment: (-totals[segment], segment is None, segment or ""))
    if sample <= len(order):
        return {segment: int(place < sample) for place, segment in enumerate(order)}

    def quotas(factor: float) -> dict[str | None, float]:
        return {
            segment: min(max(factor * totals[segment], 1.0), sizes[segment]) for segment in order
        }

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


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()
