"""Whether speculation changes the output: answers at temperature 0 compared with those without it.

Requests that are in flight together are batched differently, which changes texts too. So how an
answer differs is judged with one request at a time. At other loads two shares are shown: how many
answers with speculation, and how many without it, differ from the texts written one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeVar

from draftbench.planner.recommendation import Audit, TextsAtLoad
from draftbench.records import Candidate, Decode, Key, Served
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# How an answer compares with the text without speculation: `unknown` if the server does not report
# the margin where they differ, `other` if that is not a near tie.
Match = Literal["same", "near tie", "unknown", "other"]
_FROM_BEST_TO_WORST: tuple[Match, ...] = ("same", "near tie", "unknown", "other")
K = TypeVar("K")
# An engine that returns texts and no token ids.
_TEXT_ONLY = "openai"


def matches_with_draft(
    run: Run, candidate: Candidate | None = None, k: int | None = None
) -> dict[Key, Match]:
    """The worst match of each response's answers with speculation, for one candidate at one k or
    for all.
    """
    drafted = (row for row in one_by_one(run) if row.k > 0)
    rows = (row for row in drafted if k is None or (row.candidate, row.k) == (candidate, k))
    return _worst(_matched(run, rows))


def matches_without_draft(run: Run) -> dict[Key, Match]:
    """The worst match of each response's answers without speculation if a serving engine was asked
    again; empty if it was not.
    """
    return _worst(_matched(run, (r for r in one_by_one(run) if r.k == 0 and r.repeat)))


def one_by_one(run: Run) -> Iterable[Decode | Served]:
    """What the built-in decoder decoded, or a serving engine's complete answers to one request at a
    time.
    """
    if run.manifest.question.engine is None:
        return run.decodes
    return [r for r in run.served if (r.load, r.concurrency) == ("closed", 1) and _is_whole(r)]


def worst_by_request(matches: Mapping[Key, Match]) -> dict[str, Match]:
    """The worst match of each request's responses."""
    return _worst((request, match) for (request, _), match in matches.items())


@remembered
def audit(run: Run) -> Audit | None:
    """How many answers are the same with speculation as without, and how the others differ; None if
    nothing can be compared.
    """
    counts = Counter(matches_with_draft(run).values())
    if not counts:
        return None
    return Audit(
        requests=counts.total(),
        identical=counts["same"],
        near_ties=counts["near tie"],
        faults=counts["other"],
        unknown=counts["unknown"],
    )


def texts_at(run: Run, concurrency: int) -> TextsAtLoad | None:
    """How many texts differ at one load of a serving engine; None if there are no answers with
    speculation to compare. Requests sent at their times of arrival count as load 1.
    """
    opened = run.manifest.question.arrivals != "closed"
    rows = [row for row in run.answers_at(concurrency) if _is_whole(row)]
    wrote_the_text = not opened and concurrency == 1
    drafted = [row for row in rows if row.k > 0]
    plain = [row for row in rows if row.k == 0 and (row.repeat or not wrote_the_text)]
    differ, plain_differ = (
        [match != "same" for _, match in _matched(run, side)] for side in (drafted, plain)
    )
    if not differ:
        return None
    return TextsAtLoad(
        load="open" if opened else "closed",
        answers=len(differ),
        differ=sum(differ),
        plain_answers=len(plain_differ),
        plain_differ=sum(plain_differ),
    )


def _is_whole(row: Served) -> bool:
    return row.error is None and row.output_tokens > 0


def _worst(matches: Iterable[tuple[K, Match]]) -> dict[K, Match]:
    worst: dict[K, Match] = {}
    for key, match in matches:
        worst[key] = max(match, worst.get(key, match), key=_FROM_BEST_TO_WORST.index)
    return worst


def _matched(run: Run, rows: Iterable[Decode | Served]) -> Iterator[tuple[Key, Match]]:
    """The match of each row whose text without speculation is known."""
    if not run.has_baseline:
        return
    # Logged responses need not be the target's.
    written = {
        t.key: t.digest
        for t in run.trajectories
        if t.origin in ("target", "engine") and t.sampling.temperature == 0
    }
    engine = run.manifest.question.engine
    for row in rows:
        key = row.key
        if key not in written:
            continue
        if row.first_difference is not None:
            margin_known = engine is None or row.tie is not None
            yield key, "near tie" if row.tie else "other" if margin_known else "unknown"
        elif engine is None or row.digest == written[key]:
            yield key, "same"
        elif engine == _TEXT_ONLY:
            yield key, "unknown"
