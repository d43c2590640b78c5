"""Measures what choosing a rule to stop by brings on requests that did not choose it.

    python scripts/check_stop_rules.py results/runs/RUN …
    python scripts/check_stop_rules.py results/runs/RUN --halves 200

For every draft and load of a run whose replays recorded confidences, requests are split into halves
at random. On one half the best fixed k and the best draft length of all, a rule or a k, are chosen
as the planner chooses: a rule that saves less than 1% is not taken. Both are judged on the other
half, by the rounds that the replays say and the passes that the run timed. A choice loses if it is
slower there than the fixed k.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds
from draftbench.acceptance.every_rule import every_rule
from draftbench.drafts.stopping import STOP_RULES, THRESHOLDS
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.decide import HARDLY_MORE_LOSS
from draftbench.planner.passes import Block, between
from draftbench.planner.stop_choice import by_passes
from draftbench.records import SELF, DraftLength, StopRule
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run


def gains(
    rounds: CandidateRounds, block: Block, load: int, halves: int
) -> tuple[list[float], list[float], list[str]]:
    """The gain over the best fixed k of what each half chose, judged on the other half and on its
    own; and what was chosen.
    """
    ks = [k for k in rounds.ks if k <= rounds.most_stopped]
    fixed = [DraftLength(k) for k in ks]
    rules = [
        DraftLength(k, StopRule(kind=kind, threshold=threshold))
        for kind, threshold, k in product(STOP_RULES, THRESHOLDS, ks[1:])
    ]
    names = sorted({t.request for t in rounds.trajectories})
    generator, judged, own, chosen = np.random.default_rng(0), list[float](), list[float](), []
    # Requests are counted once, each in its own group, and summed by half.
    number = {name: at for at, name in enumerate(names)}
    groups = np.array([number[t.request] for t in rounds.trajectories])
    every = every_rule(
        rounds.trajectories, rounds.drafted_of, rounds.weights, groups, [*fixed, *rules]
    )
    for _ in range(halves):
        inside = generator.permutation(len(names)) < len(names) // 2
        for half in (inside, ~inside):
            seconds = [
                by_passes(
                    block,
                    rounds.context,
                    load,
                    every.proposed[:, of].sum(axis=1),
                    every.drafted[:, of].sum(axis=1),
                )
                for of in (half, ~half)
            ]
            at_k = int(np.argmin(seconds[0][: len(fixed)]))
            best = len(fixed) + int(np.argmin(seconds[0][len(fixed) :]))
            if seconds[0][best] > seconds[0][at_k] * (1 - HARDLY_MORE_LOSS):
                best = at_k
            own.append(float(seconds[0][at_k] / seconds[0][best] - 1))
            judged.append(float(seconds[1][at_k] / seconds[1][best] - 1))
            chosen.append(str(every.rules[best]))
    return judged, own, chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--halves", type=int, default=50)
    arguments = parser.parse_args()
    lost = every = 0
    for path in arguments.runs:
        run = read_run(RunFolder(path))
        source = costs_in(run)
        for candidate in run.candidates:
            rounds = candidate_rounds(run, candidate)
            if candidate.draft == SELF or not rounds.knows_confidences:
                continue
            for load in source.concurrencies(candidate):
                block = between(source.blocks[candidate], load)
                judged, own, chosen = gains(rounds, block, load, arguments.halves)
                loses = sum(gain < 0 for gain in judged)
                lost, every = lost + loses, every + len(judged)
                usual = max(set(chosen), key=chosen.count)
                print(
                    f"{path.name} {candidate} at {load}: judged on the other half "
                    f"{np.mean(judged):+.1%} (on its own {np.mean(own):+.1%}); loses in "
                    f"{loses} of {len(judged)}; mostly {usual}"
                )
    print(f"{lost} of {every} choices lose ({lost / max(every, 1):.1%})")


if __name__ == "__main__":
    main()
