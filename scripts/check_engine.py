"""Checks, in a run measured on a serving engine, that replay gives the rounds that the engine
counted, request by request.

    python scripts/check_engine.py RUN [float32]

`float32` if engine and replay both computed in it: the run keeps no values of the engine's flags.
Without it two of a draft's logits tie as in bfloat16. llama-server keeps keys and values in float16
whatever the type of its weights, so there they tie as in float16.

If the server reports its rounds one by one (vLLM), each must equal replay's; if it reports sums
(llama.cpp), the rounds, proposed and accepted tokens must be ones that replay can give. Counted
apart are positions where the draft's two best tokens nearly tie, or where it is nearly as sure as a
rule to stop by demands (`near ties`), tokens that an engine accepted beyond the end of a response,
and answers that differ from the response, which are compared up to the difference. Above
temperature 0, answers that differ from those without the draft are compared in expectation, with an
interval. Exits with 1 on any other difference.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from draftbench.acceptance.definitions import TOKENS_PER_ROUND, ratio, tokens_per_round
from draftbench.acceptance.intervals import FEW_REQUESTS, estimate, paired_difference
from draftbench.acceptance.rounds import expected_rounds
from draftbench.audit.explained import Compared, ReplayedResponse, recorded, tie_margin
from draftbench.drafts.laws import law_of
from draftbench.errors import DraftbenchError
from draftbench.records import Candidate, DraftLength, Served
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run
from draftbench.run_folder.served import rounds_of


@dataclass
class Tally:
    """Counts over the answers of one configuration."""

    requests: int = 0
    rounds: int = 0
    equal: int = 0
    left: int = 0  # answers that differ from the response
    past: int = 0  # tokens accepted past the end
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    uncounted: int = 0  # answers without counts

    def add(self, one: Compared) -> None:
        self.rounds += one.rounds
        self.past += one.past
        self.equal += one.rounds if one.outcome == "equal" else 0
        if one.outcome != "equal":
            (self.ties if one.outcome == "near tie" else self.wrong).append(one.words)


def expectations(run: Run, candidate: Candidate, length: DraftLength, greedy: bool) -> str | None:
    """Tokens per round predicted from the answers without a draft, and counted by the server with
    one, at temperature 0 or above it, with a paired interval of the difference.
    """
    replays = {r.key: r for r in run.replays if r.candidate == candidate}
    rows = {s.key: s for s in _answers(run, candidate, length) if s.counts is not None}
    pairs = [
        (t, replays[key], rows[key])
        for t in run.trajectories
        if (key := t.key) in replays and key in rows
        if (t.sampling.temperature == 0) == greedy and t.output_tokens > 1
    ]
    if not pairs:
        return None
    trajectories = [t for t, _, _ in pairs]
    laws = [law_of(t, r, length) for t, r, _ in pairs]
    predicted = expected_rounds(laws, length.k)
    tokens = np.array([float(row.output_tokens - 1) for _, _, row in pairs])
    passes = np.array([float(len(rounds_of(row))) for _, _, row in pairs])
    mine = tokens_per_round(trajectories, predicted)
    theirs = ratio(TOKENS_PER_ROUND, trajectories, tokens, passes)
    gap = estimate(paired_difference(theirs, mine))
    shown = "too few for an interval"
    if gap is not None:
        few = len(pairs) < FEW_REQUESTS and not greedy
        outside = " of few draws" if few else "" if gap.low <= 0 <= gap.high else "  !"
        shown = f"difference {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}){outside}"
    return (
        f"{len(pairs)} requests {'at' if greedy else 'above'} temperature 0: tokens a round "
        f"{mine.value:.3f} predicted, {theirs.value:.3f} by the engine, {shown}"
    )


def _answers(run: Run, candidate: Candidate, length: DraftLength) -> Sequence[Served]:
    asked = (s for s in run.served if (s.candidate, s.k, s.stop) == (candidate, *length))
    return [s for s in asked if s.error is None and s.concurrency == 1]


def check(run: Run, dtype: str) -> int:
    """Print the comparison; gives the number of unexplained differences."""
    engine, margin = run.manifest.question.engine, tie_margin(run, dtype)
    version = next((f.version for f in run.engines if f.version), "of unknown version")
    print(f"{engine} {version}; near ties: two best tokens of the draft within {margin} in logits")
    wrong = 0
    for candidate in run.candidates:
        replays = {r.key: r for r in run.replays if r.candidate == candidate}
        answers = [answer for answer in recorded(run, candidate) if answer.key in replays]
        for length in dict.fromkeys(answer.length for answer in answers):
            tally = Tally()
            for answer in answers:
                if answer.length != length:
                    continue
                response = ReplayedResponse.of(run, replays[answer.key], length, margin)
                tally.requests += 1
                tally.left += answer.first_difference is not None
                tally.uncounted += answer.sums is None and length.stop is None
                for one in response.compared(answer):
                    tally.add(one)
            wrong += len(tally.wrong)
            print(f"\n{candidate}, {length}: {tally.requests} answers")
            print(
                f"  {tally.equal} of {tally.rounds} rounds equal, {len(tally.ties)} near ties, "
                f"{len(tally.wrong)} unexplained; {tally.past} tokens accepted past the end; "
                f"{tally.left} answers differ from the response; {tally.uncounted} have no counts"
            )
            for kind, found in (("near tie", tally.ties), ("differs", tally.wrong)):
                for line in found:
                    print(f"  {kind}: {line}")
            for greedy in (True, False):
                if line := expectations(run, candidate, length, greedy):
                    print(f"  {line}")
    return wrong


def main() -> int:
    try:
        run = read_run(RunFolder(Path(sys.argv[1])))
    except DraftbenchError as error:
        print(f"error: {error.message} ({error.hint})", file=sys.stderr)
        return 2
    if not run.served or not run.replays:
        print("no answers of an engine, or no replay, in this run", file=sys.stderr)
        return 2
    wrong = check(run, *sys.argv[2:] or ["bfloat16"])
    print(f"\n{wrong} differences without an explanation")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["float32"]):
        sys.exit(__doc__)
    sys.exit(main())
