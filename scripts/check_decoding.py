"""How much of what a run decoded its sweep would decode now, and what that changes of the answers.

    python scripts/check_decoding.py results/reference/*

Everything is replayed from the records of run folders: in the order of the sweep each candidate is
decoded at the k's that the model asks for, or, where the run has none of such a k, at the nearest
that it decoded. All runs decoded the best predicted k and its neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from draftbench.planner.recommend import recommend
from draftbench.planner.what_to_measure import lengths_to_decode
from draftbench.records import Decode
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run


def seconds(rows: Iterable[Decode]) -> float:
    """How long decoding took, rows of a batch side by side."""
    return sum((row.decode_seconds + row.prefills) / row.concurrency for row in rows)


def as_now(run: Run) -> Run:
    """The run as if it had decoded what a sweep would decode now."""
    decodes: list[Decode] = []
    for at, candidate in enumerate(run.candidates):
        seen = set(run.candidates[: at + 1])
        blocks = {str(each) for each in seen}
        replays = tuple(each for each in run.replays if each.candidate in seen)
        costs = tuple(point for point in run.costs if point.block in blocks)
        for concurrency in run.manifest.question.concurrency:
            rows = [
                r for r in run.decodes if (r.block, r.concurrency) == (str(candidate), concurrency)
            ]
            known = {row.k for row in rows} - {0}
            before = replace(run, replays=replays, costs=costs, decodes=tuple(decodes))
            asked = (
                [k for k, _ in lengths_to_decode(before, candidate, concurrency)] if known else []
            )
            ks = {min(known, key=lambda k, own=own: (abs(k - own), k)) for own in asked}
            if known:
                print(f"  {candidate}, {concurrency} at once: decoded {sorted(known)}, now {asked}")
            decodes += [row for row in rows if row.k in {0, *ks}]
    return replace(run, decodes=tuple(decodes))


def main() -> None:
    table = [
        "| run | load | decoding | decision | leader | interval |",
        "|---|---|---|---|---|---|",
    ]
    for name in sys.argv[1:]:
        run = read_run(RunFolder(Path(name)))
        print(run.path.name)
        now = as_now(run)
        for before, after in zip(
            recommend(run).by_concurrency, recommend(now).by_concurrency, strict=True
        ):
            concurrency = before.concurrency
            spent, less = (
                seconds([row for row in each.decodes if row.concurrency == concurrency])
                for each in (run, now)
            )
            shares = (f"{spent:.0f} s", f"{less:.0f} s, {less / spent - 1:+.0%}")
            for level, share in zip((before, after), shares, strict=True):
                speed = level.speedup_deciding
                shown = f"{speed.value:.2f}× ({speed.low:.2f}–{speed.high:.2f})" if speed else "–"
                cells = run.path.name, concurrency, share, level.decision, level.leader, shown
                table.append(f"| {' | '.join(map(str, cells))} |")
    print("\n".join(["", *table]))


if __name__ == "__main__":
    main()
