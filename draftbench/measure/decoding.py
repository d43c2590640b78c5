"""Times decoding with a candidate at some draft lengths, interleaved with the baseline.

The baseline is the same code with k = 0. With one row the lengths take turns by request, with
several rows every `SECONDS_A_TURN`. Each shape runs once before anything is timed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from draftbench.decoder.runner import DecodeTask, Response
from draftbench.decoder.speculate import Batch, decode, decode_all
from draftbench.measure.candidate import LoadedCandidate
from draftbench.measure.trajectories import ScoredResponse, task_of
from draftbench.records import NEAR_TIE_MARGIN, Decode, DraftLength, Key

# Tokens, besides k, that each shape decodes before it is timed.
WARM_TOKENS = 12
# Seconds for which a batch is decoded before the next has its turn: short, since the speed of a
# machine changes within seconds, but more than a round, since in the first round of a turn the
# weights of a small model are not in the processor's cache yet.
SECONDS_A_TURN = 0.3
# The least number of responses that each row of a batch decodes.
FILLS = 3


def decode_requests(
    loaded: LoadedCandidate,
    responses: Sequence[ScoredResponse],
    lengths: Sequence[DraftLength],
    concurrency: int,
    done: Collection[Key] = (),
) -> Iterator[list[Decode]]:
    """Decode some requests without a draft and at each draft length.

    Yields the runs that must be kept together, since they are only useful if every length is there:
    with one row the runs of one request, for each request that is not done; with several rows all
    runs.
    """
    lengths = (DraftLength(0), *lengths)
    if concurrency == 1:
        yield from _one_by_one(loaded, responses, lengths, done)
    elif any(response.key not in done for response in responses):
        yield from _side_by_side(loaded, responses, lengths, concurrency)


def _one_by_one(
    loaded: LoadedCandidate,
    responses: Sequence[ScoredResponse],
    lengths: Sequence[DraftLength],
    done: Collection[Key],
) -> Iterator[list[Decode]]:
    measurement, warm = loaded.measurement, False
    for turn, response in enumerate(responses):
        if response.key in done:
            continue
        task = task_of(response.prompt, response.trajectory.sample, measurement.text)
        if not warm:
            _warm(loaded, [task], lengths, rows=1)
            warm = True
        at, rows = turn % len(lengths), []
        # Another length comes first with every request.
        for length in (*lengths[at:], *lengths[:at]):
            measurement.between(0)
            target, drafter, clock = measurement.target, loaded.draft.drafter(), measurement.clock
            output = decode(task, target, drafter, length.k, clock, length.stop)
            rows.append(_record(loaded, length, response, output, concurrency=1, repeat=0))
        yield rows
        measurement.between(1)


def _side_by_side(
    loaded: LoadedCandidate,
    responses: Sequence[ScoredResponse],
    lengths: Sequence[DraftLength],
    concurrency: int,
) -> Iterator[list[Decode]]:
    measurement, clock = loaded.measurement, loaded.measurement.clock
    repeats = range(repeats_of(len(responses), concurrency))
    runs = [(repeat, response) for repeat in repeats for response in responses]
    tasks = [task_of(r.prompt, r.trajectory.sample, measurement.text) for _, r in runs]
    _warm(loaded, tasks[:concurrency], lengths, concurrency)
    batches = [
        Batch(tasks, measurement.target, loaded.draft.drafter(), k, clock, concurrency, stop)
        for k, stop in lengths
    ]
    # A unit of work is one response at one length.
    left, told, every = list(batches), 0, len(lengths) * len(runs)
    while left:
        # The one with the most left to do, so that all end together.
        batch = min(left, key=lambda batch: batch.done_tokens)
        batch.pause()
        start = clock.mark()
        while more := batch.advance():
            if clock.seconds(start, batch.mark) > SECONDS_A_TURN:
                break
        if not more:
            left.remove(batch)
        finished = sum(batch.finished for batch in batches)
        # Once all are finished they are kept first, even if the time is over.
        if finished < every:
            measurement.between(finished - told)
            told = finished
    yield [
        _record(loaded, length, response, output, concurrency, repeat)
        for length, batch in zip(lengths, batches, strict=True)
        for (repeat, response), output in zip(runs, batch.responses, strict=True)
    ]
    measurement.between(every - told)


def repeats_of(requests: int, concurrency: int) -> int:
    """How often each request is decoded: several times in a batch that would otherwise run out of
    requests to fill its rows.
    """
    return 1 if concurrency == 1 else -(-FILLS * concurrency // requests)


def _warm(
    loaded: LoadedCandidate, tasks: Sequence[DecodeTask], lengths: Sequence[DraftLength], rows: int
) -> None:
    """Run every shape once, untimed."""
    measurement = loaded.measurement
    for k, stop in lengths:
        short = [replace(task, limit=min(task.limit, WARM_TOKENS + k)) for task in tasks]
        drafter = loaded.draft.drafter()
        decode_all(short, measurement.target, drafter, k, measurement.clock, rows, stop)


def _record(
    loaded: LoadedCandidate,
    length: DraftLength,
    response: ScoredResponse,
    output: Response,
    concurrency: int,
    repeat: int,
) -> Decode:
    measurement, trajectory = loaded.measurement, response.trajectory
    difference, tie = response.first_difference(output.tokens), None
    if difference is not None:
        margin = trajectory.margins[difference : difference + 1]
        tie = bool(margin) and margin[0] <= NEAR_TIE_MARGIN[measurement.dtype]
    return Decode(
        request=trajectory.request,
        sample=trajectory.sample,
        candidate=loaded.candidate if length.k > 0 else None,
        k=length.k,
        mode=measurement.mode,
        repeat=repeat,
        proposed=tuple(output.proposed),
        accepted=tuple(output.accepted),
        cut=tuple(output.cut),
        # More digits than a tenth of a microsecond would only make the run folder larger.
        draft_seconds=tuple(round(seconds, 7) for seconds in output.draft_seconds),
        verify_seconds=tuple(round(seconds, 7) for seconds in output.verify_seconds),
        prefill_seconds=output.prefill_seconds,
        draft_prefill_seconds=output.draft_prefill_seconds,
        decode_seconds=output.decode_seconds,
        output_tokens=len(output.tokens),
        digest=measurement.digest(tuple(output.tokens)),
        first_difference=difference,
        tie=tie,
        block=str(loaded.candidate),
        concurrency=concurrency,
        process=measurement.process,
        active=() if concurrency == 1 else tuple(output.active),
        stop=length.stop,
        drafted=() if output.drafted == output.proposed else tuple(output.drafted),
    )
