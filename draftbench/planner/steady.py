"""A decoding run of a batch → its steady rounds; and what rounds take beyond their passes.

Steady are the rounds in which every row of the batch was active: S at batch b is the throughput of
b rows, and a batch that runs out of requests has fewer. A round's seconds are those of all its rows
together, and stay so here: a row's share of them, 1/b, is the same on both sides of a speed-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from draftbench.records import Decode

# Runs at one k of one batch size → seconds that their rounds' passes should take together.
Passes = Callable[[Sequence[Decode]], float]


def has_steady(row: Decode) -> bool:
    """Whether every row of the batch was active in some round."""
    return row.batch == 1 or row.batch in row.active


def steady(row: Decode) -> Decode | None:
    """The run with its steady rounds alone, as if it were a shorter response; None without any.

    A run of a batch of one is all steady.
    """
    if not has_steady(row):
        return None
    if row.batch == 1:
        return row
    kept = [at for at, active in enumerate(row.active) if active == row.batch]
    emitted = _emitted(row)

    def at_kept(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(values[at] for at in kept)

    drafting, verifying = at_kept(row.draft_seconds), at_kept(row.verify_seconds)
    return msgspec.structs.replace(
        row,
        proposed=at_kept(row.proposed),
        accepted=at_kept(row.accepted),
        cut=at_kept(row.cut),
        draft_seconds=drafting,
        verify_seconds=verifying,
        active=at_kept(row.active),
        decode_seconds=sum(drafting) + sum(verifying),
        output_tokens=1 + sum(emitted[at] for at in kept),
    )


def overhead(rows: Sequence[Decode], k: int, passes: Passes) -> float | None:
    """Seconds of a round beyond its passes, for cell `k`, from the other cells of its block at the
    same batch size.

    The baseline (k = 0) has only its own runs to learn from; where nothing but the baseline ran, it
    stands for every cell. None where nothing ran.

    Args:
        rows: with their steady rounds alone.
        passes: what the draft steps and target passes should have taken by the timed points; what
            the runs took longer is overhead, wherever in the round it was spent.
    """
    baseline = [row for row in rows if row.k == 0]
    others = [row for row in rows if row.k not in (0, k)]
    used = baseline if k == 0 else others or baseline
    rounds = sum(len(row.verify_seconds) for row in used)
    cells = [[row for row in used if row.k == other] for other in sorted({r.k for r in used})]
    spent = sum(sum(row.decode_seconds for row in cell) - passes(cell) for cell in cells)
    return spent / rounds if rounds else None


def _emitted(row: Decode) -> list[int]:
    """Tokens that each round emitted: those it accepted and one of the target's, which the last
    round lacks where the response ended inside its proposal.
    """
    emitted = [accepted + 1 for accepted in row.accepted]
    emitted[-1] = row.output_tokens - 1 - sum(emitted[:-1])
    return emitted
