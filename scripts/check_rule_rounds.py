"""Compares every round that was decoded under a rule to stop by with the one that the replays say.

    python scripts/check_rule_rounds.py results/runs/RUN …

Along a response that decoding wrote as the target had, each round must draft, propose and accept
just what replay says from its start. After a difference in the text nothing is compared.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.drafts.laws import drafted_from
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run


def main() -> None:
    for name in sys.argv[1:]:
        run = read_run(RunFolder(Path(name)))
        same, differ = Counter[str](), Counter[str]()
        for row in run.decodes:
            if row.candidate is None or row.stop is None:
                continue
            rounds = candidate_rounds(run, row.candidate)
            at = rounds.row_of[row.key]
            response = rounds.trajectories[at]
            own, proposed, matched = drafted_from(*rounds.replays[at], row.k).under(row.k, row.stop)
            end = response.output_tokens if row.first_difference is None else row.first_difference
            start = 1
            drafted = row.drafted or row.proposed
            for found in zip(drafted, row.proposed, row.accepted, row.cut, strict=True):
                if start + found[2] + 1 > end and row.first_difference is not None:
                    break
                room = min(row.k, response.limit - start - 1)
                # Lookup's tokens in a stack count as drafted too.
                drafts = own[start - 1] or proposed[start - 1]
                said = np.minimum([drafts, proposed[start - 1]], room)
                inside = min(int(said[1]), response.output_tokens - start)
                accepted = min(int(matched[start - 1]), inside)
                cut = int(said[1]) - inside if accepted == inside else 0
                wanted = (int(said[0]), int(said[1]), accepted, cut)
                which = f"{row.candidate}, {row.stop.kind}"
                (same if found == wanted else differ)[which] += 1
                start += found[2] + 1
        for which in sorted({*same, *differ}):
            print(f"{name} {which}: {same[which]} rounds as replayed, {differ[which]} not")


if __name__ == "__main__":
    main()
