"""Times decoding with a candidate at some k's, interleaved with the baseline.

The baseline is k = 0, not another code path. One row takes turns by request, several rows by a few
rounds. Each shape runs once before anything is timed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from draftbench.decoder.runner import Response, Task
from draftbench.decoder.speculate import Batch, decode, decode_all
from draftbench.measure.candidate import LoadedCandidate
from draftbench.measure.trajectories import ScoredResponse, task_of
from draftbench.records import NEAR_TIE_MARGIN, Decode, Key

WARM_TOKENS = 12
# One k is decoded for so long before the next one has its turn: a machine's speed changes from one
# second to the next, and in the first round of a small model its weights are not in the cache.
SECONDS_A_TURN = 0.3
# How often each row of a batch is filled, at least.
FILLS = 3


def decode_requests(
    loaded: LoadedCandidate,
    responses: Sequence[ScoredResponse],
    ks: Sequence[int],
    batch: int,
    done: Collection[Key] = (),
) -> Iterator[list[Decode]]:
    """Decode some requests without a draft and at each k.

    Yields what is to be kept together: for one row the runs of one request, without the requests
    that are done; for several rows all runs at one k, which are of use only if every k is there.
    """
    if all(response.key in done for response in responses):
        return
    if batch == 1:
        yield from _request_by_request(loaded, responses, (0, *ks), done)
    else:
        yield from _side_by_side(loaded, responses, (0, *ks), batch)


def repeats_of(requests: int, batch: int) -> int:
    """How often each of so many requests is decoded: rows are only refilled, and a batch is only
    full, while requests are waiting.
    """
    return 1 if batch == 1 else -(-FILLS * batch // requests)


def _request_by_request(
    loaded: LoadedCandidate,
    responses: Sequence[ScoredResponse],
    ks: Sequence[int],
    done: Collection[Key],
) -> Iterator[list[Decode]]:
    """Every k once for each request; the k that comes first changes with every request."""
    bench, warm = loaded.bench, False
    for turn, one in enumerate(responses):
        if one.key in done:
            continue
        task = task_of(one.prompt, one.trajectory.sample, bench.text)
        if not warm:
            _warm(loaded, [task], ks, rows=1)
            warm = True
        at = turn % len(ks)
        rows = []
        for k in (*ks[at:], *ks[:at]):
            bench.between(0)
            output = decode(task, bench.target, loaded.drafter(k), k, bench.clock)
            rows.append(_record(loaded, k, one, output, batch=1, repeat=0))
        yield rows
        bench.between(1)


def _side_by_side(
    loaded: LoadedCandidate,
    responses: Sequence[ScoredResponse],
    ks: Sequence[int],
    rows: int,
) -> Iterator[list[Decode]]:
    """Every k decodes all requests in a batch of its own, each batch for a moment in turn; a unit
    of work is a response at any k.
    """
    bench = loaded.bench
    repeats = range(repeats_of(len(responses), rows))
    runs = [(repeat, one) for repeat in repeats for one in responses]
    tasks = [task_of(one.prompt, one.trajectory.sample, bench.text) for _, one in runs]
    _warm(loaded, tasks[:rows], ks, rows)
    batches = [Batch(tasks, bench.target, loaded.drafter(k), k, bench.clock, rows) for k in ks]
    left, done, every = list(batches), 0, len(ks) * len(runs)
    while left:
        # The one that is furthest from its end, so that all end together.
        batch = min(left, key=lambda batch: batch.done_tokens)
        if not _take_turn(batch):
            left.remove(batch)
        finished = sum(batch.finished for batch in batches)
        # Results that are all there are kept first, even where the time is over.
        if finished < every:
            bench.between(finished - done)
            done = finished
    for k, batch in zip(ks, batches, strict=True):
        yield [
            _record(loaded, k, one, output, rows, repeat)
            for (repeat, one), output in zip(runs, batch.responses, strict=True)
        ]
    bench.between(every - done)


def _take_turn(batch: Batch) -> bool:
    """Rounds of one batch until its turn is over; whether any are left."""
    batch.pause()
    start = batch.clock.mark()
    while batch.advance():
        if batch.clock.seconds(start, batch.mark) > SECONDS_A_TURN:
            return True
    return False


def _warm(loaded: LoadedCandidate, tasks: Sequence[Task], ks: Sequence[int], rows: int) -> None:
    """Run every shape once, untimed."""
    for k in ks:
        short = [replace(task, limit=min(task.limit, WARM_TOKENS + k)) for task in tasks]
        bench = loaded.bench
        decode_all(short, bench.target, loaded.drafter(k), k, bench.clock, rows)


def _record(
    loaded: LoadedCandidate,
    k: int,
    one: ScoredResponse,
    output: Response,
    batch: int,
    repeat: int,
) -> Decode:
    bench, trajectory = loaded.bench, one.trajectory
    difference = tie = None
    if trajectory.sampling.temperature == 0:
        pairs = enumerate(zip_longest(output.tokens, one.tokens))
        difference = next((position for position, (a, b) in pairs if a != b), None)
    if difference is not None:
        margin = trajectory.margins[difference : difference + 1]
        tie = bool(margin) and margin[0] <= NEAR_TIE_MARGIN[bench.dtype]
    return Decode(
        request=trajectory.request,
        sample=trajectory.sample,
        candidate=loaded.candidate if k > 0 else None,
        k=k,
        mode=bench.mode,
        repeat=repeat,
        proposed=tuple(output.proposed),
        accepted=tuple(output.accepted),
        cut=tuple(output.cut),
        # Clocks do not tell more than a tenth of a microsecond, and a run folder is kept for long.
        draft_seconds=tuple(round(seconds, 7) for seconds in output.draft_seconds),
        verify_seconds=tuple(round(seconds, 7) for seconds in output.verify_seconds),
        prefill_seconds=output.prefill_seconds,
        draft_prefill_seconds=output.draft_prefill_seconds,
        decode_seconds=output.decode_seconds,
        output_tokens=len(output.tokens),
        digest=bench.digest(tuple(output.tokens)),
        first_difference=difference,
        tie=tie,
        block=str(loaded.candidate),
        batch=batch,
        process=bench.process,
        active=() if batch == 1 else tuple(output.active),
    )
